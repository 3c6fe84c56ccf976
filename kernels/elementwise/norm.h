/* RMS_NORM: y = (x·r)·w, r = 1 / sqrt(Σx² / n + eps), the sum by 64 partial sums. L2_NORM: y = x·r, r = 1 / sqrt(Σx² +
 * eps). */
#ifndef FD_KERNELS_ELEMENTWISE_NORM_H
#define FD_KERNELS_ELEMENTWISE_NORM_H

#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_rms_norm {
    const float *x;      /* device, [n_tok, n] */
    const float *weight; /* device, [n_weight_row, n]: row r of x takes row r % n_weight_row */
    float eps;
    int32_t n_tok;
    int64_t n;
    int32_t n_weight_row; /* 0 counts as 1 */
} fd_rms_norm;

/* out [n_tok, n]: the norm of x. `out` may be `in->x`. */
fd_code fd_launch_rms_norm(const fd_launch_context *ctx, const fd_rms_norm *in, float *out, fd_error *err);

/* out [n_tok, n] = x·r of L2_NORM; weight is not read. */
fd_code fd_launch_l2_norm(const fd_launch_context *ctx, const fd_rms_norm *in, float *out, fd_error *err);

/* sum = x + addend, out = the norm of sum; all [n_tok, n], no two the same. */
fd_code fd_launch_add_rms_norm(const fd_launch_context *ctx, const fd_rms_norm *in, const float *addend, float *sum,
                               float *out, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
