/* LAYER_NORM: y = (c·r)·w + b, c = x − Σx / n, r = 1 / sqrt(Σc² / n + eps), both sums by 64 partial sums. */
#ifndef FD_KERNELS_ELEMENTWISE_LAYER_NORM_H
#define FD_KERNELS_ELEMENTWISE_LAYER_NORM_H

#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_layer_norm {
    const float *x;      /* device, [n_row, n] */
    const float *weight; /* device, [n_weight_row, n]: row r of x takes row r % n_weight_row; NULL: none */
    const float *bias;   /* likewise */
    int32_t n_weight_row, n_bias_row;
    float eps;
    int32_t n_row;
    int64_t n;
} fd_layer_norm;

/* out [n_row, n], not x. */
fd_code fd_launch_layer_norm(const fd_launch_context *ctx, const fd_layer_norm *in, float *out, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
