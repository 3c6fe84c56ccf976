/* RMS_NORM: y = (x·r)·w, r = 1 / sqrt(Σx² / n + eps), the sum by 64 partial sums. */
#ifndef FD_KERNELS_ELEMENTWISE_NORM_H
#define FD_KERNELS_ELEMENTWISE_NORM_H

#include "kernels/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x, out [n_tok, n]; weight [n]; all device. `out` may be `x`. */
fd_code fd_launch_rms_norm(const fd_queue *queue, const float *x, int32_t n_tok, int64_t n, const float *weight,
                           float eps, float *out, fd_error *err);

/* sum = a + b, out = its norm; all [n_tok, n], none of them another. */
fd_code fd_launch_add_rms_norm(const fd_queue *queue, const float *a, const float *b, int32_t n_tok, int64_t n,
                               const float *weight, float eps, float *sum, float *out, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
