/* What the fast engine does between matrix products: results in binary16 for the next product, and in binary32 for
 * other readers. Sums have an order of their own, the same for every launch. A value beyond 65504 becomes an infinity,
 * which no later op hides. All pointers are device memory. */
#ifndef FD_KERNELS_ELEMENTWISE_ROWS_F16_H
#define FD_KERNELS_ELEMENTWISE_ROWS_F16_H

#include <stdint.h>

#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/norm.h"
#include "kernels/formats/pack.h"
#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a kernel stores its result: either pointer may be NULL, not both. */
typedef struct fd_f16_out {
    uint16_t *half; /* binary16 */
    float *real;
} fd_f16_out;

/* RMS_NORM; x, weight and out's pointers at multiples of 16 bytes. */
fd_code fd_launch_rms_norm_f16(const fd_launch_context *ctx, const fd_rms_norm *in, fd_f16_out out, fd_error *err);

/* activation(gate) · up, near the contract's; all pointers at multiples of 16 bytes. */
fd_code fd_launch_gate_f16(const fd_launch_context *ctx, const fd_gate *in, fd_f16_out out, fd_error *err);

fd_code fd_launch_to_f16(const fd_launch_context *ctx, const float *x, int64_t n, uint16_t *out, fd_error *err);
fd_code fd_launch_from_f16(const fd_launch_context *ctx, const uint16_t *x, int64_t n, float *out, fd_error *err);

/* out [n_tok, n_row] = bias [n_row] in every row. */
fd_code fd_launch_repeat_bias(const fd_launch_context *ctx, const float *bias, int32_t n_tok, int64_t n_row, float *out,
                              fd_error *err);

/* Elements from one row of a dequantised matrix to the next. */
int64_t fd_f16_row_stride(const fd_device_matrix *matrix);
/* The matrix in binary16: out [n_row, fd_f16_row_stride]. */
fd_code fd_launch_dequantise_f16(const fd_launch_context *ctx, const fd_device_matrix *matrix, uint16_t *out,
                                 fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
