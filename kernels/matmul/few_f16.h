/* MATMUL of few tokens with weights in binary16, in fast numerics: on tensor cores, as precise as binary32.
 *
 * A row of activations is scaled by a power of two so that its largest magnitude is below 2^15, and each element is two
 * halves, which together are off by at most 2^-22 of it or 2^-40 of the largest. Products are summed in binary32, in an
 * order of the kernel's own that does not depend on the number of tokens. */
#ifndef FD_KERNELS_MATMUL_FEW_F16_H
#define FD_KERNELS_MATMUL_FEW_F16_H

#include "kernels/matmul/matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FD_FEW_F16 = 64 /* tokens, at most */ };

/* Device memory for the halves of n_tok rows. */
size_t fd_few_f16_bytes(int64_t n_col, int32_t n_tok);

/* As fd_launch_matmul, of 1 to FD_FEW_F16 rows; `halves`: fd_few_f16_bytes, 256-byte aligned. `rows`: of weights, of a
 * thread block, a multiple of 16; 0 chooses. */
fd_code fd_launch_few_f16(const fd_launch_context *ctx, const fd_matmul *in, void *halves, int32_t rows, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
