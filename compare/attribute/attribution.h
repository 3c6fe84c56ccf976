/* Error attribution: is a node's error introduced by its own op, or inherited from its inputs? Every node of the
 * candidate's trace is set against its replay and against the reference's trace:
 *
 *     L = c − ŷ   introduced: what this op did wrong on its own inputs
 *     P = ŷ − r   inherited: what its inputs already carried             c − r = L + P, exactly
 *
 * A node is judged wherever the candidate's trace holds its elements; the reference is needed for P alone. */
#ifndef FD_COMPARE_ATTRIBUTE_ATTRIBUTION_H
#define FD_COMPARE_ATTRIBUTE_ATTRIBUTION_H

#include "compare/replay/replay.h"

/* In rising order of what they mean. */
typedef enum fd_finding {
    FD_FOUND_NOTHING,    /* not judged: the elements were not recorded */
    FD_FOUND_NOISE,      /* L and P within τ */
    FD_FOUND_INHERITED,  /* L within, P beyond */
    FD_FOUND_AMPLIFIER,  /* inherited, and the relative error grew 10 times more than it usually does in this op */
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
    double left;                   /* found by what is left of its rows (residuals.h), within the bound: of this row */
    double usual;                  /* what the class leaves of it as a rule; 0: a millionth */
    int32_t n_odd;                 /* then: rows of which so much is left; 0: found by the bound */
} fd_node_finding;

typedef struct fd_attribution {
    const fd_numerics_class *numerics;
    bool found;                 /* something was introduced: */
    fd_node_finding first;      /* the first, by step, node and position */
    bool first_stays;           /* but for what the engine may be meant to do */
    fd_node_finding next;       /* the first at a later node of the same or a later step; finding 0: none */
    fd_node_finding not_finite; /* the first that made a NaN or Inf of finite inputs; finding 0: none */
    fd_node_finding noisiest;   /* largest z of those within */
    int32_t n_pos;
    double n_output; /* elements judged, as in fd_bound_args */
    /* tensors: a node in a step, by its worst position */
    int64_t n_tensor, n_by_finding[FD_FOUND_BOTH + 1];
    int64_t n_before;            /* judged before the first introduced one */
    double *z;                   /* [n_node] largest of each node, -1: not judged; owned */
    uint8_t *finding;            /* [n_node] worst of each node; owned */
    fd_node_finding *introduced; /* [n_node] the first of each node that introduced something; owned */
    fd_node_finding *suspect;    /* [n_node] as fd_residuals_judge has it, or fd_suspect_large_errors; owned */
    int32_t *n_moved; /* [n_node] rows reached through unrecorded tensors, with more left than binary32 leaves; owned */
    bool *uses_room;  /* [n_node] most of its rows have more left than binary32 leaves, whatever steps may; owned */
    int64_t n_inconclusive;       /* rows of spans whose τ exceeds half of the tensor: not judged */
    fd_node_finding inconclusive; /* the first of them */
    char missing[256]; /* "blk.0.attn_q, …": what to record so that the first finding narrows; "" nothing */
} fd_attribution;

/* One row of one node, set against its replay. Rows are laid out as fd_replayed. Borrowed. */
typedef struct fd_attribution_row {
    const fd_node *node;
    int32_t pos, step;
    int32_t n_kv;       /* width of a slice of attention weights */
    int32_t span_first; /* as in fd_replayed */
    int64_t stride;
    const double *candidate, *replayed, *tau; /* [stride] */
    const double *reference;                  /* [stride] the other run's row; NULL: not recorded */
    double steps, sums;                       /* fd_steps_leave of the node, at that position */
} fd_attribution_row;

typedef struct fd_attribution_options {
    const fd_graph *graph;
    const fd_trace *ref; /* NULL: P is not known */
    const fd_trace *cand;
    int32_t n_pos; /* judge positions [0, n_pos): those whose tokens agree */
    fd_op_fn op;
    const fd_products *device; /* as in fd_replay_options */
    fd_product_memo *memo;     /* likewise */
    const fd_numerics_class *numerics;
    const bool *unjudged;  /* [n_node] nodes that are replayed but not judged: their weights are unknown; NULL: none */
    const bool *wanted;    /* [n_node] nodes that are judged; NULL: all */
    const bool *ignored;   /* [n_node] taken for not recorded, as fd_replay_options has it; NULL: none */
    bool records_rounded;  /* likewise */
    const bool *unrounded; /* [n_node] likewise, with values_alone; NULL: none */
    const char *kv_type;   /* likewise; NULL: what the trace says */
    int32_t shown_at;      /* 1 + the node whose bug showed the class, a suspect whatever has room for it; 0: none */
    int32_t n_ref_pos;     /* positions from here on have no reference: other tokens were fed; 0: all have one */
    void (*on_row)(void *user, const fd_attribution_row *row); /* shown every judged row; may be NULL */
    void (*progress)(void *user, int64_t done, int64_t total); /* after each node, in rows of nodes; may be NULL */
    void *user;
    bool rows_alone;              /* on_row is all that is asked for: nothing is found */
    bool values_alone;            /* nor are bounds: each row's tau is 0. A fifth of the work or less */
    int32_t draw;                 /* as in fd_replay_options, with values_alone */
    const struct fd_draws *draws; /* what other engines of the class leave (draws.h); NULL: not known */
    bool sample; /* judge the first 8 and last 8 positions of the first, middle and last layer (to infer a class); the
                    first 16 where replaying what lies between would take more work than they do */
} fd_attribution_options;

/* *out is freed with fd_attribution_free, also after a failure. */
fd_code fd_attribute_errors(const fd_attribution_options *options, fd_attribution *out, fd_error *err);

/* Suspects (of nodes with this suffix; NULL: all) become findings: something else says that they are. */
void fd_attribution_promote(const fd_graph *graph, fd_attribution *attribution, const char *suffix);
void fd_attribution_free(fd_attribution *attribution); /* frees what it owns, not the struct */

#endif
