/* Sums of binary16 as ggml's CUDA backend makes them beside binary16 weights and V: what follows from the row and the weights alone, so
 * that a replay can repeat it. Factors are binary16 numbers in binary32; the sums are exact but for the roundings that are named.
 *
 * FD_HALF_LANES sums are made at once, because one is a chain of additions that wait for each other: w is [n, FD_HALF_LANES], element i of
 * each of as many rows, and every one of them is multiplied by x [n]. */
#ifndef FD_COMPARE_REPLAY_HALF_SUMS_H
#define FD_COMPARE_REPLAY_HALF_SUMS_H

#include "model/graph.h"

enum { FD_HALF_LANES = 16 };

/* In pairs, as its kernel of single rows (mul_mat_vec_f): its threads, 32 to 256 of them and no more than shorten their loops over
 * n_padded elements, take two columns each at a time; each product is added to the column's sum in one fused step, which rounds to
 * binary16, and what the threads have is added in binary32, here in binary64. */
void fd_half_pairs(const float *w, const float *x, int64_t n, int64_t n_padded, double y[FD_HALF_LANES]);

/* In tiles, as cuBLAS (compute type 16F): tensor cores add sixteen products to a sum, which rounds to binary16. Where columns are split, each
 * `part` of them has a sum, which are added in order in binary16; part 0: they are not. An H100's, bit for bit, but for one element in four
 * thousand, whose sum came so near to the middle between two numbers that what tensor cores cut off decides: room becomes what that may be. */
void fd_half_tiles(const float *w, const float *x, int64_t n, int64_t part, double y[FD_HALF_LANES],
                   double room[FD_HALF_LANES]);

typedef enum fd_half_order { FD_HALF_PAIRS, FD_HALF_TILES } fd_half_order;

/* y [n_row] of x [n_col], which is rounded to binary16, and a weight of binary16; room [n_row] as above, NULL: not asked.
 * FD_ERR_MEMORY. */
fd_code fd_half_multiply(const fd_weight *weight, fd_half_order order, int64_t part, const double *x, double *y,
                         double *room, fd_error *err);

#endif
