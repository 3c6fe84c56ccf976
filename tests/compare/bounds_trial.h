/* An op on inputs of its own, computed in binary64 and by an engine that rounds as a class of candidates does. */
#ifndef FD_TESTS_COMPARE_BOUNDS_TRIAL_H
#define FD_TESTS_COMPARE_BOUNDS_TRIAL_H

#include "compare/bounds/bounds.h"
#include "tests/ops/op_case.h"

/* A case with binary64 inputs, as replay has them; in classes of 16-bit tensors the inputs have that form. */
typedef struct trial {
    op_case *c;
    fd_op_args args;
    double *in[FD_MAX_INPUTS], *tables, *y, *rows, *candidate, *tau;
    int64_t n, width; /* elements, and of a head or a row */
} trial;

/* `kind`: which of the op's cases, any number. */
trial open_trial(fd_op op, const fd_numerics_class *class_, int kind);
void close_trial(trial *t);

/* Of the candidate's elements under that class's bound; NaN counts as the largest. */
double largest_z(trial *t, const fd_numerics_class *class_);

#endif
