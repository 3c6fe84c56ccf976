/* What a comparison found: one struct of data for traces and for lockstep runs. A comparison fills it part by part,
 * then fd_verdict_decide alone turns it into a status; the words are made in report/.
 *
 * A "tensor" in the counts is one node's output in one step (all positions of that step). Order: step by step, in a
 * step the tokens, then the nodes in the reference's order of execution, in a node the positions. */
#ifndef FD_COMPARE_VERDICT_H
#define FD_COMPARE_VERDICT_H

#include <stdbool.h>

#include "compare/diagnose/overflow.h"
#include "compare/diff/tensor_diff.h"
#include "compare/dump/misrecorded.h"
#include "compare/explain/explanation.h"
#include "compare/infer/class_evidence.h"
#include "compare/measure/measures.h"
#include "compare/remark.h"
#include "dumpers/store/trace.h"

typedef enum fd_verdict_status {
    FD_IDENTICAL,
    FD_DIVERGED,
    FD_INCOMPLETE,
    FD_NOISE,      /* bits differ, and replay found nothing beyond what rounding explains */
    FD_CHECK_DUMP, /* as noise, but for tensors that were not recorded as the engine used them */
} fd_verdict_status;
const char *fd_verdict_status_name(fd_verdict_status status); /* "identical", …, "noise", "check-dump" */
const char *fd_step_kind_name(fd_step_kind kind);             /* "prefill", "decode", "verify" */

typedef enum fd_equality { FD_EQUALITY_UNKNOWN, FD_EQUAL, FD_UNEQUAL } fd_equality;
const char *fd_equality_name(fd_equality equality); /* "not recorded", "bit-identical", "differs" */

typedef enum fd_divergence_kind {
    FD_NO_DIVERGENCE,
    FD_DIVERGED_TOKENS, /* the runs were fed different tokens */
    FD_DIVERGED_SHAPE,
    FD_DIVERGED_VALUES,
    FD_DIVERGED_WEIGHTS, /* nothing but the weights: the ops are right by them, or were not judged */
} fd_divergence_kind;

typedef struct fd_verdict_side {
    char label[512];   /* path or spec */
    char producer[64]; /* "mine 0.3"; "" for a run made now, or when the trace does not say */
    char backend[16], numerics[32], device[128], fault[128], model_name[128], model_hash[48], arch[32];
    int32_t contract, n_pos;
    bool complete;
} fd_verdict_side;

typedef struct fd_divergence {
    fd_divergence_kind kind;
    char node[64];            /* "tokens" for FD_DIVERGED_TOKENS */
    char op[24];              /* "" unknown */
    char attributes[128];     /* "interleaved pairs, base 10000, 32 dims"; "" unknown or none */
    int32_t layer, step, pos; /* layer -1: outside the layers */
    fd_step_kind step_kind;
    int32_t ref_token, cand_token; /* FD_DIVERGED_TOKENS */
    char ref_shape[64], cand_shape[64];
    int32_t n_dim;
    int64_t dims[4];     /* of the reference's tensor at `pos`, the length over positions resolved */
    bool over_kv;        /* the last dimension runs over key positions */
    bool has_values;     /* both sides hold the elements; otherwise `diff` is empty and only the fingerprints differ */
    fd_tensor_diff diff; /* of the whole tensor at `pos` */
    int32_t n_input;
    struct {
        char name[64];
        fd_equality equality;
    } inputs[FD_MAX_INPUTS];  /* nodes only */
    fd_equality inputs_equal; /* FD_EQUAL: introduced at this node; unknown when one was not recorded on both sides */
} fd_divergence;

typedef enum fd_missing_why {
    FD_ONLY_IN_REFERENCE,
    FD_ONLY_IN_CANDIDATE,
    FD_NOT_RECORDED, /* both know the node, but not what it takes to compare it at these positions */
} fd_missing_why;

typedef struct fd_missing {
    char name[64];
    fd_missing_why why;
    int32_t n_pos; /* positions that could not be looked at */
    bool allowed;  /* --allow-missing: stated, but no reason for "incomplete" */
} fd_missing;

/* Where along the run the divergence's node is beyond, over all positions of the side that departs. */
typedef enum fd_extent_only { FD_ONLY_UNKNOWN, FD_ONLY_IN_DECODE, FD_ONLY_IN_PREFILL } fd_extent_only;
typedef struct fd_verdict_extent {
    int32_t n_judged, n_beyond;    /* positions */
    int32_t first, last;           /* positions beyond; -1: none */
    int32_t first_step, last_step; /* theirs, as that side numbers its own steps */
    fd_extent_only only;           /* the other kind of steps was judged past position 0, and is right */
} fd_verdict_extent;

/* What replay (attribute/attribution.h) adds: the divergence is then the first node that introduced an error, its
 * `diff` has the worst element as `first`, and tensors are counted by finding. */
typedef struct fd_verdict_replay {
    bool done;
    char numerics[16], source[16];      /* the candidate's class; "given", "recorded", "inferred" */
    fd_class_evidence evidence;         /* inferred: what speaks for another class */
    bool of_reference;                  /* the candidate is clean: what follows is about the reference */
    char finding[16];                   /* at the divergence: "INTRODUCED", "BOTH"; "" none */
    double z, candidate, replayed, tau; /* of the worst element */
    bool shares_known;
    double introduced, propagated; /* adding up to 1 */
    int64_t n_element, n_beyond;   /* at the divergence's position */
    int32_t n_slice_beyond;        /* heads with elements beyond */
    fd_verdict_extent extent;
    double left; /* found by what is left of n_odd rows, within the bounds: of the size of that row; n_odd 0: by them */
    double left_usually; /* by a sound engine of the class; 0: a millionth */
    int32_t n_odd;
    int64_t n_nan_new;
    char span_first[64]; /* the divergence lies in span_first … node, because `missing` were not recorded; "" */
    char missing[256];
    char tensors[160];   /* globs for --tensors: what to record so that the next verdict narrows the span */
    char not_finite[64]; /* the first node that made a NaN or Inf of finite inputs, anywhere; "" none */
    int32_t not_finite_pos;
    fd_overflow overflow; /* why it did */
    char next[64];        /* the first other node that introduced an error; "" none */
    int64_t n_tensor, n_noise, n_inherited, n_amplifier, n_introduced, n_before;
    double noisiest_z; /* largest of those within; -1: none */
    char noisiest[64];
} fd_verdict_replay;

/* Whose rows a weight has that differs. */
typedef enum fd_weight_match {
    FD_MATCH_NONE,
    FD_MATCH_OTHER,     /* all those of another weight */
    FD_MATCH_SHIFTED,   /* its own, all at one distance */
    FD_MATCH_REORDERED, /* its own in another order */
} fd_weight_match;

/* What the hashes of weights say (weights/weights.h), before any op is looked at. */
typedef struct fd_verdict_weights {
    bool compared;      /* at least one weight was */
    bool against_model; /* with the model's; else with the other trace's */
    bool of_reference;  /* the candidate's weights are the model's: what differs is the reference's */
    int32_t n_same, n_differ;
    int32_t n_unknown; /* not recorded, or with another number of rows in a hash */
    /* the first that differs, in order of execution: */
    char name[128], node[64]; /* node: the first that reads it; "" not known */
    char dtype[8];            /* as held; "" not recorded */
    char expected_dtype[8];
    int64_t n_row, n_col, expected_n_row, expected_n_col;
    int32_t rows_per_hash;
    int64_t first_row, n_row_differ;         /* at most: a hash covers rows_per_hash of them */
    int64_t n_zero_row, n_trailing_zero_row; /* -1: not recorded */
    int64_t expected_zero_row, expected_trailing_zero_row;
    fd_weight_match match;
    int64_t n_match, match_late; /* rows; by how many they are late, negative: early */
    char match_name[128];        /* FD_MATCH_OTHER */
    char others[256];            /* names of more that differ */
    /* with the model: the fault whose bytes have every one of these hashes */
    bool named;
    char fault[64], summary[192];
    char same_as[192];   /* faults with the same bytes in every one of these weights; "" */
    int32_t n_explained; /* of n_differ, by it */
    bool by_values;      /* no hashes were recorded: what ops gave tells which weights they had, of n_explained */
    bool replayed;       /* the ops were judged with the weights as this run had them */
    int32_t n_unjudged;  /* nodes that read an unknown weight: not judged */
} fd_verdict_weights;

/* The best token of each position: is another argmax a matter of rounding? */
typedef struct fd_verdict_flip {
    int32_t n_pos;        /* positions of which both sides have the logits */
    int32_t n_flip;       /* of those, with another best token */
    int32_t n_flip_noise; /* of those, with margins within both sides' τ */
    int32_t pos;          /* the first flip: */
    int32_t ref_token, cand_token;
    double ref_margin, cand_margin; /* by how much each side prefers its own; ≥ 0 */
    double tau;                     /* of the two logits, both sides together */
    bool fed;                       /* the runs went on with different tokens there: */
    int32_t fed_pos;                /* the position they were fed at */
    bool choice_known;              /* both sides' logits, or their best, are recorded there */
    bool chosen;                    /* each side was fed its own best token */
} fd_verdict_flip;

/* Where a verdict sees the first divergence. */
typedef struct fd_baseline {
    bool diverged;
    bool in_weights; /* at a weight that `node` reads first */
    char weight[128];
    char node[128]; /* "" for tokens */
    int32_t step;
    char name[64]; /* of the fault; "" not named */
} fd_baseline;

/* Where the first divergence is, compared with an earlier verdict (report/baseline.h). */
typedef enum fd_moved {
    FD_MOVED_UNASKED, /* or neither diverged */
    FD_MOVED_LATER,
    FD_MOVED_EARLIER,
    FD_MOVED_NOT,
    FD_MOVED_GONE, /* it diverged before */
    FD_MOVED_NEW,  /* it did not */
} fd_moved;

/* What replay found at every node, for a picture of it. z as in fd_verdict_replay; negative: not judged. */
typedef struct fd_verdict_cell {
    char name[64], op[24];
    int32_t layer;
    int32_t input[FD_MAX_INPUTS]; /* cells that it reads; -1: none */
    char finding[16];             /* "NOISE", "INTRODUCED", …; "not judged" */
    float z;                      /* the largest */
    int32_t n_head;               /* heads of the node's tensor; 0: it has none */
} fd_verdict_cell;

typedef struct fd_verdict_map {
    int32_t n_node, n_pos, most_heads;
    fd_verdict_cell *cells; /* [n_node] in order of execution; owned */
    float *by_pos;          /* [n_node, n_pos] owned */
    float *by_head;         /* [n_node, most_heads] over all positions; owned */
} fd_verdict_map;

/* Which bug it is, and where else it shows. */
typedef struct fd_verdict_diagnosis {
    bool done; /* replay found a node that introduced an error, and explanations were tried */
    fd_explanation explanation;
    fd_causes causes;
} fd_verdict_diagnosis;

/* Tensors looked at, by their bits. */
typedef struct fd_verdict_counts {
    int64_t n_pos, n_step;    /* positions and steps that both sides have */
    int64_t n_compared;       /* tensors looked at */
    int64_t n_by_fingerprint; /* of those, by fingerprint alone */
    int64_t n_before;         /* identical tensors before the divergence; all of them when there is none */
    int64_t n_after_identical, n_after_differ;
    bool after_known; /* false: the runs were stopped at the divergence */
    uint32_t grid;    /* coarsest type anything was compared in */
} fd_verdict_counts;

typedef struct fd_verdict {
    fd_verdict_status status;
    fd_verdict_side ref, cand;
    fd_divergence divergence;
    fd_verdict_counts counts;
    fd_missing *missing; /* owned */
    int32_t n_missing;
    fd_remarks reasons, notes;
    fd_verdict_weights weights;
    fd_verdict_flip flip;
    fd_verdict_replay replay;
    fd_misrecorded dump; /* of the candidate; what is in it was taken for not recorded */
    fd_verdict_diagnosis diagnosis;
    fd_moved moved;
    fd_baseline baseline;     /* the earlier verdict's, when moved says so */
    fd_verdict_map map;       /* n_node 0: nothing was replayed */
    fd_measures measures;     /* likewise */
    char saved_as[64];        /* what the dump calls the tensor that diverges; "" as the model does, or no dump */
    fd_divergence first_bits; /* where replay introduced nothing: the first that differ */
    char next[1024];          /* a command worth running next (report/next.h); "" none */
} fd_verdict;

void fd_verdict_free(fd_verdict *verdict); /* frees what it owns, not the struct */

/* The one place that decides. Weights that differ are a divergence, at the weight itself where no op departs. With a
 * divergence: diverged. Else, where tensors were recorded wrongly: check the dump. Else with a reason, or a missing
 * tensor that was not allowed, or nothing compared: incomplete (and that is listed as a reason). Else, when ops were
 * replayed: noise; else identical. May be called
 * again when more is known. */
void fd_verdict_decide(fd_verdict *verdict);

/* 0 identical and noise, 1 diverged, 3 incomplete and check the dump. */
int fd_verdict_exit_status(const fd_verdict *verdict);

/* Appends; what exceeds FD_MAX_REMARKS is counted, not kept. */
void fd_verdict_reason(fd_verdict *verdict, fd_remark reason);
/* One that is known after the verdict: what had no divergence is incomplete then. */
void fd_verdict_late_reason(fd_verdict *verdict, fd_remark reason);
void fd_verdict_note(fd_verdict *verdict, fd_remark note);

/* A note when the sides follow different numerics: rounding alone can then make them differ. */
void fd_verdict_note_numerics(fd_verdict *verdict);

/* Counts n_pos positions of `name` as not looked at. FD_ERR_MEMORY alone. */
fd_code fd_verdict_missing(fd_verdict *verdict, const char *name, fd_missing_why why, int32_t n_pos, bool allowed,
                           fd_error *err);

/* What a trace says about itself. */
void fd_verdict_side_of_trace(const fd_trace *trace, fd_verdict_side *out);

/* True when one of the n globs matches the name. */
bool fd_name_matches(const char *const *globs, int32_t n, const char *name);

#endif
