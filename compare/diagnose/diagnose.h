/* From a finding to the bug's name: fd_explain, asked with what the trace recorded around that finding.
 *
 * Asked about are the rows of the step that has the finding (and of the single-position steps after it), so that an
 * explanation must hold in all of them; of long steps the first 64 positions, of large matrices fewer. τ is the
 * bound of every element in the candidate's class, none for an exact class. Explanations are computed in binary32,
 * so a candidate more precise than that is asked with the bounds of f32. */
#ifndef FD_COMPARE_DIAGNOSE_DIAGNOSE_H
#define FD_COMPARE_DIAGNOSE_DIAGNOSE_H

#include "compare/attribute/attribution.h"
#include "compare/explain/explain.h"

typedef struct fd_diagnose_options {
    const fd_graph *graph; /* without faults */
    const fd_trace *trace; /* the one with the finding */
    const fd_node_finding *finding;
    int32_t
        shows_at; /* later in its step: the first position at which what is left is about as large as anywhere; 0: there */
    int32_t n_pos; /* positions that were judged */
    fd_op_fn op;
    fd_product_memo *memo; /* as in fd_replay_options */
    const fd_numerics_class *numerics;
    double n_output;     /* as in fd_bound_args */
    const char *kv_type; /* of K and V, "q8_0"; NULL: as the trace says */
    const bool *ignored; /* [n_node] taken for not recorded; NULL: none */
    double most_spent;   /* multiplications; 0: as many as a person waits for */
    bool as_it_is;       /* of fd_diagnose_fits: the finding's node is the one that the hypothesis was found at */
    bool right_too;      /* of fd_diagnose_fits: where the op as it should be gives the values as well, that is a yes */
    int32_t whole_from;  /* with whole_run: but before this position all is right */
    bool whole_run;      /* what earlier steps left in an unrecorded cache is as the hypothesis has it */
    int32_t rows_alone; /* of fd_diagnose_fits: in so many rows from the finding's on; 0: in all that are asked about */
    bool row_before;    /* of fd_diagnose_fits: the row before them is computed as well, as it should be */
    bool table_alone;   /* the table of faults, without guesses beside it */
    const fd_hypothesis *likely;  /* tried before all others; NULL: none */
    const fd_hypothesis *without; /* [n_without] refuted by other steps, not to be tried again */
    int32_t n_without;
} fd_diagnose_options;

/* About the first finding of an attribution, as it was asked for. Both are borrowed. */
fd_diagnose_options fd_diagnose_question(const fd_attribution_options *how, const fd_attribution *of);

/* Through unrecorded nodes, too: then each explanation is tried in the whole span and at each node of it. */
fd_code fd_diagnose(const fd_diagnose_options *options, fd_explanation *out, fd_error *err);

/* Is this, at its place in the finding's layer, what the finding shows? False where it cannot be asked. */
fd_code fd_diagnose_fits(const fd_diagnose_options *options, const fd_hypothesis *h, bool *fits, fd_error *err);

/* Shows `look` the request about the finding's node, without few rows; nothing where the rows were not recorded. */
typedef fd_code (*fd_diagnose_look_fn)(void *user, const fd_diagnose_options *options,
                                       const fd_explain_request *request, fd_error *err);
fd_code fd_diagnose_look(const fd_diagnose_options *options, fd_diagnose_look_fn look, void *user, fd_error *err);

#endif
