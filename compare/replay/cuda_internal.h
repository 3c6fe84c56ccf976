/* Between the files cuda_*.c: a row's kernel, and what it makes of the row. */
#ifndef FD_COMPARE_REPLAY_CUDA_INTERNAL_H
#define FD_COMPARE_REPLAY_CUDA_INTERNAL_H

#include "compare/replay/cuda_kernels.h"

typedef struct fd_cuda_kernel {
    /* ROUNDED: sums in binary32 of factors that became `type` */
    enum { FD_CUDA_ROUNDED, FD_CUDA_PAIRS, FD_CUDA_TILES, FD_CUDA_BLOCKS } how;
    fd_dot_type type;
    bool many; /* of quantised weights: that of many rows */
} fd_cuda_kernel;

/* Of the range's row `r`; `weight` as the file has it, NULL: attention. */
fd_cuda_kernel fd_cuda_kernel_of_row(const fd_replay *replay, const fd_node *node, const fd_weight *weight, int64_t r);
fd_cuda_kernel fd_cuda_kernel_of_blocks(uint32_t dtype, bool many);

/* Row `r` of a product with a weight, of inputs x as they are, not ROUNDED. part, room: half_sums.h. Experts that were not chosen, and
 * inputs that are not finite, leave y as it is. */
fd_code fd_cuda_multiply_row(const fd_replay *replay, const fd_op_args *args, fd_cuda_kernel k, int64_t part, int64_t r,
                             const double *x, double *y, double *room, fd_error *err);

#endif
