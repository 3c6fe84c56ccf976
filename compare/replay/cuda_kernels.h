/* Products as ggml's CUDA backend computes them (fd_numerics_class.cuda_kernels): it chooses a kernel by the weight's type and by how many
 * rows a call has, and the kernels round differently. What they do follows from these alone, so that a replay repeats it, where a product's
 * input was not recorded as well. Limits differ from one GPU to the next: where rows were recorded that are not the kernel's, the others of
 * that type are tried. Sources: ggml_cuda_mul_mat and what it asks (ggml-cuda.cu, mmvq.cu, mmvf.cu, mmf.cu of llama.cpp); an H100's values.
 *
 *                      1 row              up to 8            up to 16           more
 *   quantised          int8 blocks of 32, scales in binary16                    others' scales (cuda_blocks.h)
 *   binary16, V        pairs of binary16  binary16 factors                      cuBLAS' tiles of binary16 (half_sums.h)
 *   K                  as it is           binary16 factors
 *   bfloat16           as it is           bfloat16 factors
 *   K, V of binary32   as they are        TF32, cut off                         TF32, rounded
 *   binary32           as it is, or any of these, as recorded values say (factors.h)
 *
 * binary16 and bfloat16 of which llama.cpp asks for sums in binary32: one row as it is, more than sixteen TF32, rounded. */
#ifndef FD_COMPARE_REPLAY_CUDA_KERNELS_H
#define FD_COMPARE_REPLAY_CUDA_KERNELS_H

#include "compare/replay/internal.h"

/* Products with weights, scores and the weighted sum of V, of a class with cuda_kernels and a cache of no blocks. */
bool fd_cuda_computes(const fd_replay *replay, const fd_node *node);

/* The node, samples among its rows or not, into args.out. */
fd_code fd_cuda_run(fd_replay *replay, fd_op_args args, fd_error *err);

/* After that, into replay->y: recorded rows of scores, or of a product with a weight that is not binary32, which are another kernel's. */
fd_code fd_cuda_try_others(fd_replay *replay, const fd_node *node, const fd_op_args *args, fd_error *err);

/* Sums of binary16 that were repeated from recorded factors are as exact as others. Behind unrecorded ones the last bit of a factor may move
 * a partial sum to the next number of 11 bits: then *own is `class_` with room for that, and is returned. */
const fd_numerics_class *fd_cuda_class_of_bounds(const fd_replay *replay, const fd_node *node, fd_numerics_class *own);

/* What its int8 blocks may be off though their inputs are known: added to *e [n_pos, width], which begins as what these are off by, where
 * there is nothing yet, and then is owned by the caller. */
fd_code fd_cuda_input_error(const fd_replay *replay, const fd_node *node, const fd_weight *weight, double **e,
                            fd_error *err);

/* Sums of binary16 that came near to the middle between two are taken as they were recorded, or bounds have room for both; and where a minimum meets the
 * activations as they were, a weight of nearly 0 is a large code and a large minimum, and so is what an activation on the other side of
 * a step does to it: then a row's bounds are at least their root mean square. e: as above; NULL: nothing was added. */
void fd_cuda_widen_bounds(const fd_replay *replay, const fd_node *node, const fd_weight *weight, const double *e);

#endif
