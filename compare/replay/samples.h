/* Samples of rounding: a tensor that was not recorded is computed again with each of its elements moved by its bound, one
 * way or the other. Which way, and what the samples say of the tensors after it. */
#ifndef FD_COMPARE_REPLAY_SAMPLES_H
#define FD_COMPARE_REPLAY_SAMPLES_H

#include <stdint.h>

#include "model/graph.h"

/* Moves each of rows[0 … n) by its bound; what is not finite, or has no bound, stays. `node` and `first`, the index of
 * rows[0], say which way. */
void fd_samples_move(float *rows, const double *tau, int64_t n, int32_t node, int64_t first, int sample);

void fd_samples_move_f64(double *rows, const double *tau, int64_t n, int32_t node, int64_t first, int sample);

/* Moves each of row[0 … n) by as much as the last bits of other sums would; `draw` says which way. */
void fd_samples_move_last_bits(double *row, int64_t n, int32_t node, int32_t pos, int32_t draw);

/* Adds to squares[0 … n) how far a sample is from `rows`, squared; of what is not finite, nothing. */
void fd_samples_add_squares(const double *sample, const double *rows, int64_t n, double *squares);
void fd_samples_add_squares_f32(const float *sample, const float *rows, int64_t n, double *squares);

/* Adds to tau[0 … n) what the sums of squares of n_sample samples say: the element's own spread and, in quadrature, the
 * root mean square of its slice's, for an element's own may be small by chance. */
void fd_samples_add_spread(const double *squares, int64_t n, int64_t slice, int n_sample, double *tau);

/* Elements of a slice: a head's or, where there are no heads or they run over positions, a row's. */
static inline int64_t fd_samples_slice(const fd_node *node, int64_t stride) {
    return node->n_dim == 2 && !node->over_kv ? node->shape[1] : stride;
}

#endif
