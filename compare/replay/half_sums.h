/* Sums of binary16 in pairs, as ggml's CUDA kernel of single rows beside binary16 weights makes them (mul_mat_vec_f): what follows from the
 * row and the weights alone, so that a replay can repeat it. */
#ifndef FD_COMPARE_REPLAY_HALF_SUMS_H
#define FD_COMPARE_REPLAY_HALF_SUMS_H

#include "model/graph.h"

/* y [n_row] of x [n_col]. The kernel's threads, 32 to 256 of them and no more than shorten their loops, take two columns each at a time: the
 * factors are rounded to binary16, each product is added to the column's sum in one fused step, which rounds to binary16, and what the
 * threads have is added in binary32, here in binary64. Weights are binary16, their rows of an even number of columns. */
void fd_half_sums(const fd_weight *weight, const double *x, double *y);

#endif
