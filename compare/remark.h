/* Remarks of a verdict: reasons why it is not "identical" or "noise", and notes. */
#ifndef FD_COMPARE_REMARK_H
#define FD_COMPARE_REMARK_H

#include <stdbool.h>
#include <stdint.h>

/* Something worth saying that no other part of the verdict says; `side` and `n` as listed. Its words: report/remarks.h. */
typedef enum fd_remark_kind {
    /* reasons: why a verdict of "identical" or "noise" is impossible */
    FD_REASON_NOT_SEEN,  /* n: tensors that could not be looked at */
    FD_REASON_UNMATCHED, /* n: the candidate's names that its map does not know; text: the first */
    FD_REASON_NOTHING_COMPARED,
    FD_REASON_RUN_STOPPED,      /* side: its trace is incomplete; n: positions */
    FD_REASON_POSITIONS_DIFFER, /* n: reference's, candidate's */
    FD_REASON_TOKENS_UNRECORDED,
    FD_REASON_TRACE_TOKENS_UNRECORDED, /* lockstep: the one trace has none */
    FD_REASON_TRACE_SHORT,             /* lockstep; n: tokens to run, positions of the trace */
    FD_REASON_OTHER_ARCH,
    FD_REASON_OTHER_MODEL,
    FD_REASON_PROMPTS_DIFFER,    /* n: position, tokens of both sides; flag: both texts are recorded */
    FD_REASON_TENSORS_SHOWN,     /* lockstep; n: tensors shown, nodes, steps */
    FD_REASON_SPAN_INCONCLUSIVE, /* node, of a span from `other` on; text: globs to record */
    FD_REASON_CHOICE_UNRECORDED, /* n: position where the tokens part */
    FD_REASON_ONE_POSITION,
    FD_REASON_PRINTED,         /* node; n: digits, tensors printed, of so many; flag: decimals */
    FD_REASON_NARROW,          /* node; other: type that holds all its values; n: tensors like it */
    FD_REASON_MIXED_CLASS,     /* node; text: what its kind is rounded to */
    FD_REASON_CLASS_UNDECIDED, /* replay.evidence */
    FD_REASON_RESIDUAL,        /* node, odd rows n of `n` judged; other: what is left; text: globs to record */
    FD_REASON_ONE_STEP,        /* node, position n; text: globs to record */
    FD_REASON_LARGE_ERRORS,    /* the same; n[1]: what is left as a rule, in millionths of a millionth */
    FD_REASON_WHOLE_ERROR, /* n: rows; text: which, "": all; node, other: NMSE of the logits, the candidate's and that of an emulated engine of the class */
    FD_REASON_LOCAL_ERROR, /* node; n: rows, from which position on; text, other: as those, of that node's own inputs */
    FD_REMARK_RANKS_DISAGREE, /* node; n: step, position, more findings; text: which rank. A note where it diverged anyway */
    /* notes: without weight */
    FD_NOTE_MODEL_UNRECORDED,
    FD_NOTE_CONTRACTS_DIFFER,
    FD_NOTE_NUMERICS_DIFFER,
    FD_NOTE_TOKENIZERS_DIFFER, /* n: position */
    FD_NOTE_BOS_MISSING,       /* side; n: token */
    FD_NOTE_BOS_TWICE,         /* side; n: token */
    FD_NOTE_BOS_TWICE_IN_BOTH, /* n: token */
    FD_NOTE_SPECIAL_SPLIT,     /* side; n: token, position, pieces; text: the token's */
    FD_NOTE_TRACE_LONGER,      /* lockstep; n: positions of the trace, those run */
    FD_NOTE_HIGHEST_OF_TIE,    /* side; n: token fed, best token */
    FD_NOTE_FIRST_BITS,        /* node; n: step, position */
    FD_NOTE_NO_ELEMENTS,       /* text: path of the candidate's trace */
    FD_NOTE_REFERENCE_DEPARTS,
    FD_NOTE_TENSORS_OF_16_BITS, /* node: the class given; other: the one that the values show */
    FD_NOTE_READS_UNROUNDED,    /* node */
    FD_NOTE_FAR_OFF,            /* n: rows that are, of so many; text: globs to record */
    FD_NOTE_NAME_ENDS,          /* node; n: step, position */
    FD_NOTE_BASELINE_NOT_SEEN,
    FD_NOTE_RERUN_AGREES,
    FD_NOTE_RERUN_TOO_LARGE, /* n: MiB that traces of both runs would take, at most */
} fd_remark_kind;

typedef struct fd_remark {
    fd_remark_kind kind;
    int32_t side; /* 0 reference, 1 candidate */
    int64_t n[3];
    bool flag;
    char node[64], other[64], text[160];
} fd_remark;

enum { FD_MAX_REMARKS = 8 };

typedef struct fd_remarks {
    fd_remark items[FD_MAX_REMARKS];
    int32_t n; /* may exceed FD_MAX_REMARKS: only the first ones are kept */
} fd_remarks;

#endif
