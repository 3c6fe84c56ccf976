/* A residual along the direction of a bug. A bound says how far rounding may take one element; over thousands of elements
 * rounding has no direction, and a bug has: with d = (op with the bug) − (op as it should be) and r = candidate − (op as it
 * should be), both in bounds of the op,
 *
 *     slope = Σ r·d / Σ d²      1 with the bug, 0 without
 *
 * Its standard error is taken from what the slope leaves, by rows (a row's roundings have a common part, where a norm or a
 * softmax rounds one number for all) and by elements; the larger holds. A slope that is 1 within a twentieth and two
 * standard errors, and ten standard errors from 0, comes about by chance less than once in 10^15 of normal errors; for sixteen rows, with fifteen
 * degrees of freedom, once in 10^7; of four to seven rows more standard errors are asked for, so that it is once in 10^5. A sound engine has it only if it computes what the bug computes. */
#ifndef FD_COMPARE_EXPLAIN_PROJECTION_H
#define FD_COMPARE_EXPLAIN_PROJECTION_H

#include "compare/explain/trial_rows.h"

/* Sums over rows, of one bug at one node, or at several. */
typedef struct fd_projection {
    double rd, dd, rr;          /* Σ r·d, Σ d², Σ r² */
    double rd_rd, rd_dd, dd_dd; /* Σ of products of a row's own sums */
    double rr_d2, r_d3, d4;     /* Σ r²d², r·d³, d⁴ of elements */
    int32_t n_row;              /* rows that the bug changes */
    double largest;             /* |d|, at: */
    int32_t pos;
    int64_t element;
    double candidate, sound, tau;
} fd_projection;

typedef struct fd_slope {
    double value, error;
    bool shown; /* the bug's */
} fd_slope;

void fd_projection_add(fd_projection *to, const fd_projection *from);

/* Adds one row of the op as it should be (rows->plain, with bounds) and of the op with the bug: of elements that the bug changes
 * by more than `least` of them. */
void fd_projection_add_row(const fd_trial_rows *rows, const fd_variant *bug, int32_t row, double least,
                           fd_projection *to);

/* How far from 1 a slope may be: a bound's formula, a bug's own roundings. And where sums are in 16 bits, which lose small summands beside
 * large ones: that has a direction, up to a tenth of what a bug has that makes large ones larger. */
#define FD_SLOPE_ASIDE         0.05
#define FD_SLOPE_ASIDE_IN_SUMS 0.15

/* `shown`: standard errors from 0. `aside`: and two standard errors. With fewer than four rows, or when anything is not finite: not
 * shown. */
fd_slope fd_projection_slope_beyond(const fd_projection *p, double shown, double aside);
fd_slope fd_projection_slope(const fd_projection *p); /* ten, a twentieth */

/* Rows go from one explanation (`from`, with bounds) to another: the candidate is at 0 where the first is true, at 1 where the other is. *apart:
 * it is at 0, and far from 1; of eight rows and more, whose scatter says something. *same: the two are apart by next to nothing of `size`, the
 * Σ d² of what they explain. */
void fd_projection_tell_apart(const fd_trial_rows *from, const fd_variant *other, double size, bool *apart, bool *same);

/* Within `aside` and one standard error of 1, as a bug has to be that is shown in one node alone: many are tried at many nodes,
 * and another bug may go in nearly the same direction. */
bool fd_slope_is_near(const fd_slope *slope, double aside);

/* Of the squares that the op as it should be leaves in those rows, what the bug takes away: 1 all, 0 or less none. */
double fd_projection_gain(const fd_projection *p);

#endif
