/* What evaluate.c is made of: a request's workbench, one hypothesis on it, and what an op is given. */
#ifndef FD_COMPARE_EVALUATE_WORKBENCH_H
#define FD_COMPARE_EVALUATE_WORKBENCH_H

#include "compare/bounds/dot_inputs.h"
#include "compare/evaluate/evaluate.h"

/* Of rounding through unrecorded ops (replay/perturb.c has the reasons). Two: each hypothesis that comes near pays for
 * them. */
enum { FD_N_SAMPLE = 2 };

typedef struct fd_work {
    bool edit_known, edited;
    enum { TOUCHED_UNKNOWN, TOUCHED, UNTOUCHED } touched;
    fd_faulty_node node;        /* as the hypothesis has it */
    fd_variant v;               /* unrecorded nodes */
    float *sample[FD_N_SAMPLE]; /* laid out as v.memory; owned */
} fd_work;

/* One hypothesis. */
typedef struct fd_evaluation {
    fd_workbench *bench;
    fd_hypothesis h;
    bool bounds;
    fd_work *works;     /* [n_node] owned */
    int32_t begin, end; /* all that was touched of them */
} fd_evaluation;

struct fd_workbench {
    const fd_explain_request *request;
    fd_evaluation plain;
    fd_work *spare; /* [n_node] of an evaluation that is closed, as new; NULL: none; owned */
    float **wide;   /* [n_weight] weights in binary32, made when first used: hundreds of hypotheses read them; owned */
    int64_t wide_left; /* elements that may still be made so */
    bool *feeds_cache; /* [n_node] an unrecorded cache is computed from it, through unrecorded nodes; owned */
};

typedef struct fd_op_inputs {
    const float *x[FD_MAX_INPUTS];
    const float *unrounded[FD_MAX_INPUTS]; /* x before the class rounds it: what bounds are made of */
    const float *sample[FD_N_SAMPLE][FD_MAX_INPUTS];
    float *changed[2 * (1 + FD_N_SAMPLE) * FD_MAX_INPUTS]; /* copies that the hypothesis or the class changed; owned */
    int n_changed;
    bool any_sample;
    float *tables;   /* rope: cos, then sin; rows of positions in another order; owned */
    fd_weight moved; /* these */
    int32_t *tokens; /* other ones; owned */
    fd_variant hidden;
} fd_op_inputs;

/* workbench.c */
fd_code fd_evaluation_open(fd_workbench *bench, const fd_hypothesis *h, bool bounds, fd_evaluation *ev, fd_error *err);
void fd_evaluation_close(fd_evaluation *ev);
const float *fd_bench_recorded(const fd_explain_request *request, int32_t node); /* NULL: not recorded */
bool fd_bench_can_compute(const fd_explain_request *request, const fd_node *node);
fd_code fd_bench_edit(fd_evaluation *ev, int32_t node, fd_error *err); /* fills works[node].node */
/* Is the node another one under the hypothesis, by itself or through unrecorded inputs? */
fd_code fd_bench_touches(fd_evaluation *ev, int32_t node, bool *yes, fd_error *err);

/* inputs.c. *tried false: something that the node reads is not known. Freed with fd_inputs_free in any case. */
fd_code fd_inputs_gather(fd_evaluation *ev, const fd_op_args *args, fd_op_inputs *in, bool *tried, fd_error *err);
fd_code fd_inputs_make_tables(const fd_evaluation *ev, fd_op_args *args, fd_op_inputs *in, fd_error *err);
fd_code fd_inputs_move_positions(const fd_evaluation *ev, fd_op_args *args, fd_op_inputs *in, fd_error *err);
fd_code fd_inputs_change_tokens(const fd_evaluation *ev, fd_op_args *args, fd_op_inputs *in, fd_error *err);
void fd_inputs_free(fd_op_inputs *in);

/* Are rows of earlier steps as they should be? */
bool fd_bench_keeps_context(const fd_evaluation *ev);

/* Does the hypothesis change how a cache is written, in the step in question alone? Its rows are then written over what
 * earlier steps left there. */
bool fd_bench_writes_late(const fd_evaluation *ev, const fd_node *node);

/* how.c: ops that the hypothesis runs in another way. */
bool fd_bench_runs_otherwise(const fd_evaluation *ev, const fd_node *node);
void fd_bench_run_otherwise(const fd_evaluation *ev, const fd_op_args *args);
/* experts.c: where the node is one of experts and the hypothesis concerns it. */
bool fd_bench_changes_experts(const fd_evaluation *ev, const fd_node *node);
void fd_bench_run_experts(const fd_evaluation *ev, const fd_op_args *args);
/* heads.c: where each head has a number of its own. */
bool fd_bench_changes_head_numbers(const fd_hypothesis *h);
void fd_bench_run_head_numbers(const fd_evaluation *ev, const fd_op_args *args);
/* tau: bounds of the op as it is. Those of what it rounds on the way are added: a value near the middle between two goes either way. */
fd_code fd_bench_bound_otherwise(const fd_evaluation *ev, const fd_op_args *args, double *tau, fd_error *err);

/* run.c: the op on `x`, into `to`; a binary16 cache of a class whose roundings are repeated; bounds and rows as the
 * hypothesis leaves them; samples of the node, kept ones rounded by the node itself, too. */
void fd_bench_run(const fd_evaluation *ev, fd_op_args *args, const float *const *x, float *to);
/* products.c: MATMUL with the graph's weight `own`, or what args has in its place: that, rounded as the class rounds it. What the memo
 * knows is not computed again. */
void fd_bench_multiply(const fd_explain_request *request, const fd_op_args *args, const fd_weight *own);
/* A hypothesis' weights in place of the graph's: they are gone with it, and another's may come to lie where they were, so no memo
 * knows them. */
bool fd_bench_has_own_weights(const fd_op_args *args);
void fd_bench_round_cache(const fd_explain_request *request, const fd_op_args *args, float *rows);
fd_code fd_bench_change_output(const fd_evaluation *ev, const fd_op_args *args, float *rows, double *tau,
                               fd_error *err);
fd_code fd_bench_sample(const fd_evaluation *ev, fd_op_args *args, const fd_op_inputs *in, bool keep, int64_t size,
                        fd_variant *v, float *sample[FD_N_SAMPLE], fd_error *err);

/* evaluate.c: one node; and an unrecorded one that another reads, *found NULL: it cannot be computed. */
fd_code fd_bench_compute(fd_evaluation *ev, int32_t node, bool keep_samples, fd_variant *out,
                         float *sample[FD_N_SAMPLE], fd_error *err);
fd_code fd_bench_unrecorded(fd_evaluation *ev, int32_t node, fd_work **found, fd_error *err);

#endif
