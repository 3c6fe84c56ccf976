/* Products of int8 blocks as ggml's CUDA kernels make them where that is not a product of weights and rounded activations: beside weights
 * of a scale and a minimum, w = s·q + m, the minimum meets the sum of the activations themselves, and some factors are binary16. It
 * follows from the row and the weights, so that a replay repeats it, to 1·10⁻⁷ of what an H100 gives.
 * Sources: quantize.cu, vecdotq.cuh (mmvq, few rows a call) and mmq-load-tiles.cuh, mmq-vec-dot.cuh (mmq, many) of llama.cpp. */
#ifndef FD_COMPARE_REPLAY_CUDA_BLOCKS_H
#define FD_COMPARE_REPLAY_CUDA_BLOCKS_H

#include "model/graph.h"

/* How many activations share a scale, where the kernel of few rows, or of many, has such products beside weights of this type; 0: it has
 * none. */
int fd_cuda_blocks_of(uint32_t dtype, bool many);

/* y [n_pos][n_row] of x [n_pos][n_col], without a bias. `weight` of a type for which fd_cuda_blocks_of is not 0. FD_ERR_MEMORY. */
fd_code fd_cuda_blocks_multiply(const fd_weight *weight, bool many, const double *x, int64_t n_pos, double *y,
                                fd_error *err);

#endif
