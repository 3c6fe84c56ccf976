/* Where the first NaN or Inf comes from: which number at that op left the range of a type, and by how much. Replay gives
 * the true sizes of what the op read, computed on the way and gave. A cause is named only if it foretells which rows came
 * out finite and which did not: 71,234 in a row that is finite overflowed nothing. */
#ifndef FD_COMPARE_DIAGNOSE_OVERFLOW_H
#define FD_COMPARE_DIAGNOSE_OVERFLOW_H

#include "compare/diagnose/diagnose.h"

typedef enum fd_overflow_kind {
    FD_OVERFLOW_NONE,        /* everything is finite */
    FD_OVERFLOW_UNKNOWN,     /* nothing comes near a limit in these rows and in no other */
    FD_OVERFLOW_INPUT,       /* an element of `input` */
    FD_OVERFLOW_BLOCK_SUM,   /* a sum of 32 elements of `input`, as a block of int8 beside quantised weights keeps it */
    FD_OVERFLOW_UNSCALED,    /* a score before it is scaled */
    FD_OVERFLOW_SQUARE,      /* an element's square, in a norm */
    FD_OVERFLOW_SQUARES,     /* their sum */
    FD_OVERFLOW_EXPONENTIAL, /* e to the largest element of `input` */
    FD_OVERFLOW_RESULT,      /* an element that comes out */
    FD_OVERFLOW_PARTIAL_SUM, /* a sum on the way to an element that comes out */
    FD_OVERFLOW_NORM_OF_ZERO, /* 1 / sqrt(mean + eps), where there is no eps and the mean rounds to 0 */
    FD_OVERFLOW_MASKED,       /* -Inf: a mask, and no overflow */
    FD_OVERFLOW_NO_KEY,       /* a row of softmax is NaN whose scores are finite: as if all its keys were masked */
} fd_overflow_kind;
const char *fd_overflow_kind_name(fd_overflow_kind kind); /* "input", "block sum", … */

typedef struct fd_overflow {
    fd_overflow_kind kind;
    char node[64];    /* where: the node with the NaN, or an unrecorded one before it */
    char input[64];   /* "": not of an input */
    const char *type; /* "binary16"; NULL: no range was left */
    double limit;     /* the type's largest number */
    double reaches;   /* the largest at `pos`; UNKNOWN: of inputs, and `gives` of what should come out */
    double gives;
    int32_t pos;
    int32_t n_row, n_row_not_finite; /* rows that were looked at, and those of them with NaN or Inf */
} fd_overflow;

/* `how->finding`: an attribution's not_finite. */
fd_code fd_find_overflow(const fd_diagnose_options *how, fd_overflow *out, fd_error *err);

/* The same of a request about the node that is not finite. `pos` is its position. */
fd_code fd_overflow_of(const fd_explain_request *request, int32_t pos, fd_overflow *out, fd_error *err);

enum { FD_OVERFLOW_TEXT_SIZE = 384 };
/* "its input blk.3.ffn_act reaches 71234, binary16 ends at 65504 …"; "" for NONE. Returns `to`. */
const char *fd_overflow_text(const fd_overflow *overflow, char to[FD_OVERFLOW_TEXT_SIZE]);

#endif
