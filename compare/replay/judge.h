/* Introduced or inherited: every node of the candidate's trace against its replay and against the reference's trace.
 *
 *     L = c − ŷ   introduced: what this op did wrong on its own inputs
 *     P = ŷ − r   inherited: what its inputs had brought along           c − r = L + P, exactly
 *
 * A node is judged wherever the candidate's trace holds its elements; the reference is needed for P alone. */
#ifndef FD_COMPARE_REPLAY_JUDGE_H
#define FD_COMPARE_REPLAY_JUDGE_H

#include "compare/replay/replay.h"

typedef enum fd_finding {                     /* in rising order of what they mean */
                          FD_FOUND_NOTHING,   /* not judged: the elements were not recorded */
                          FD_FOUND_NOISE,     /* L and P within τ */
                          FD_FOUND_INHERITED, /* L within, P beyond */
                          FD_FOUND_AMPLIFIER, /* inherited, and the relative error grew 10 times more than this op usually makes it grow */
                          FD_FOUND_INTRODUCED, /* L beyond, P within (or unknown) */
                          FD_FOUND_BOTH,       /* L and P beyond, and P at least a twentieth of L */
} fd_finding;
const char *fd_finding_name(fd_finding finding); /* "INTRODUCED" */

/* One node at one position. */
typedef struct fd_node_finding {
    fd_finding finding;
    int32_t node, step, pos;
    double z;                                   /* largest |L|/τ; +Inf where a NaN or Inf is new or lost */
    int64_t worst;                              /* its element, without padding */
    double candidate, replayed, tau, reference; /* there; reference NaN when not recorded */
    int64_t n_element, n_beyond;                /* elements beyond τ */
    int32_t n_slice_beyond;                     /* heads with such elements; 1 for tensors without heads */
    int64_t n_nan_new;                          /* NaN or Inf where the replay is finite */
    bool has_reference;
    double introduced, propagated; /* shares of √Σ, adding up to 1; 0 and 0 when both are none or not known */
    int32_t span_first;            /* first unrecorded node that was replayed on the way; `node` itself: none */
} fd_node_finding;

/* How the candidate's class came about. */
typedef enum fd_class_source { FD_CLASS_GIVEN, FD_CLASS_RECORDED, FD_CLASS_INFERRED } fd_class_source;
const char *fd_class_source_name(fd_class_source source);

typedef struct fd_judgement {
    const fd_numerics_class *numerics;
    bool found;            /* something was introduced: */
    fd_node_finding first; /* the first, by step, node and position */
    fd_node_finding
        next; /* the first at a later node of the same or a later step; next.finding says whether there is one */
    fd_node_finding noisiest; /* largest z of those within */
    int32_t n_pos;
    double n_output;       /* elements judged, as in fd_bound_args */
    /* tensors: a node in a step, by its worst position */
    int64_t n_tensor, n_by_finding[FD_FOUND_BOTH + 1];
    int64_t n_before;  /* judged before the first introduced one */
    double *z;         /* [n_node] largest of each node, -1: not judged; owned */
    uint8_t *finding;  /* [n_node] worst of each node; owned */
    fd_node_finding *introduced; /* [n_node] the first of each node that introduced something; owned */
    int64_t n_blind;       /* rows of spans whose τ exceeds half of the tensor: not judged */
    fd_node_finding blind; /* the first */
    char missing[256]; /* "blk.0.attn_q, …": what to record so that the first finding narrows; "" nothing */
} fd_judgement;

typedef struct fd_judge_options {
    const fd_graph *graph;
    const fd_trace *ref; /* NULL: P is not known */
    const fd_trace *cand;
    int32_t n_pos; /* judge positions [0, n_pos): those whose tokens agree */
    fd_op_fn op;
    const fd_numerics_class *numerics;
    const bool *unjudged; /* [n_node] nodes that are replayed but not judged, their weights being unknown; NULL: none */
    int32_t n_ref_pos;    /* positions from here on have no reference: other tokens were fed; 0: all have one */
    /* Shown every judged row: candidate, τ and reference (NULL: not recorded), laid out as fd_replayed. NULL: nobody asks */
    void (*see)(void *user, const fd_node *node, int32_t pos, int64_t stride, const double *candidate,
                const double *replayed, const double *tau, const double *reference);
    void *see_user;
    bool sample; /* judge the first 8 and last 8 positions of the first, middle and last layer (to infer a class); the first
                    16 where what lies between could not be had without matrix products */
} fd_judge_options;

/* *out is freed with fd_judgement_free, also after a failure. */
fd_code fd_judge_replay(const fd_judge_options *options, fd_judgement *out, fd_error *err);
void fd_judgement_free(fd_judgement *judgement); /* frees what it owns, not the struct */

/* What the trace says its numerics are; NULL when it does not say, or nothing this build knows. */
const fd_numerics_class *fd_class_of_trace(const fd_trace *trace);

/* What the trace shows about where its engine rounds. */
typedef struct fd_inferred_class {
    const fd_numerics_class *numerics;
    bool decided;        /* false: a bug could look the same. Its bounds have room for what was seen, and that is all */
    int32_t n_judged;    /* tensors of the sample */
    int32_t n_stricter;  /* of those, beyond the bounds of f32 */
    int32_t first;       /* the first of these nodes; -1: none */
    char evidence[256];  /* in a sentence; "" where f32 explains everything */
} fd_inferred_class;

/* Of the classes that the trace does not refute (evidence.h), the strictest that leaves hardly more of the sampled nodes beyond their
 * bounds than the one that leaves fewest: one more in 50. A gross bug is beyond in every class and so decides nothing. Of a
 * trace in 16 bits, the strictest that fits and rounds its results to as few. `numerics` of the options is ignored. */
fd_code fd_infer_class(const fd_judge_options *options, fd_inferred_class *out, fd_error *err);

#endif
