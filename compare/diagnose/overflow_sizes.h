/* Between overflow.c and overflow_sizes.c: the sizes of what an op reads, computes on the way and gives, row by row. */
#ifndef FD_COMPARE_DIAGNOSE_OVERFLOW_SIZES_H
#define FD_COMPARE_DIAGNOSE_OVERFLOW_SIZES_H

#include "compare/diagnose/overflow.h"
#include "compare/evaluate/variant.h"

/* One node of the span, with what it reads and what should come out. */
typedef struct fd_overflow_look {
    const fd_explain_request *request;
    const fd_node *node;
    const float *in[FD_MAX_INPUTS]; /* NULL: not known, or no input. Caches from position 0 */
    const float *right;
    fd_variant made[FD_MAX_INPUTS + 1]; /* owned: of inputs that were not recorded, and `right` */
} fd_overflow_look;

enum { FD_NO_SLOT = FD_MAX_INPUTS };

/* The largest of a kind in one row. */
typedef double (*fd_overflow_size_fn)(const fd_overflow_look *look, int32_t row, int slot);

/* What the elements of a row look like that overflows so, beside the row's size. */
typedef enum fd_overflow_marks {
    FD_MARKS_ANY,
    FD_MARKS_WHOLE_ROW, /* of a product none is finite: all read that input */
    FD_MARKS_NAN,       /* Inf / Inf */
    FD_MARKS_OWN,       /* those that are too large, and no other */
} fd_overflow_marks;

typedef struct fd_overflow_cause {
    fd_overflow_kind kind;
    bool (*applies)(const fd_overflow_look *look);
    fd_overflow_size_fn size;
    int slot;     /* of the input that it is a size of; FD_NO_SLOT: of none */
    double slack; /* so near a limit the row may be finite or not */
    fd_overflow_marks marks;
} fd_overflow_cause;

/* In the order in which an op comes to them. */
extern const fd_overflow_cause fd_overflow_causes[];
extern const int32_t fd_n_overflow_cause;

/* 1 / mean square of a norm. */
extern const fd_overflow_cause fd_overflow_norm_of_zero;

double fd_overflow_of_input(const fd_overflow_look *look, int32_t row, int slot);
double fd_overflow_of_result(const fd_overflow_look *look, int32_t row, int slot);

#endif
