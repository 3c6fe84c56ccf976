/* Solving for a number that an engine has instead of the right one: on few rows, where the residual is least; then the
 * simplest number that does as well, for numbers in programs are simple. */
#ifndef FD_COMPARE_EXPLAIN_SOLVE_H
#define FD_COMPARE_EXPLAIN_SOLVE_H

#include "compare/explain/trial.h"

/* h->value is the unknown, > 0; `right`: what it should be (0: none). *found: tried on all rows as well. */
fd_code fd_solve(fd_trial *trial, fd_hypothesis h, double right, bool *found, fd_error *err);

/* What values are cut off at: a limit that is between the hundredth and a hundred, and beyond which there is nothing. */
fd_code fd_solve_limit(fd_trial *trial, fd_hypothesis h, fd_error *err);

/* The same of a factor, which is right at 1, of which the values are a smooth function: a few steps of Newton's method, so that it may
 * be asked for often. */
fd_code fd_solve_near(fd_trial *t, fd_hypothesis h, fd_error *err);

/* A factor, the right one being 1: the usual ones, values [n], then any. */
fd_code fd_try_or_solve(fd_trial *t, fd_hypothesis h, const double *values, int n, fd_error *err);

/* A hypothesis whose value is one that was solved for. */
bool fd_solve_has_number(const fd_hypothesis *h);

#endif
