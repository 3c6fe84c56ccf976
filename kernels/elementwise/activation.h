/* Ops element by element: SILU_MUL, GELU_MUL, SWIGLU_CLAMP, ADD, SCALE, SOFTCAP. */
#ifndef FD_KERNELS_ELEMENTWISE_ACTIVATION_H
#define FD_KERNELS_ELEMENTWISE_ACTIVATION_H

#include "kernels/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[i] = silu(gate[i]) · up[i]; n elements, device; `out` may be an input. */
fd_code fd_launch_silu_mul(const fd_queue *queue, const float *gate, const float *up, int64_t n, float *out,
                           fd_error *err);

/* out[i] = a[i] + b[i]. */
fd_code fd_launch_add(const fd_queue *queue, const float *a, const float *b, int64_t n, float *out, fd_error *err);

/* out[i] = gelu(gate[i]) · up[i]. */
fd_code fd_launch_gelu_mul(const fd_queue *queue, const float *gate, const float *up, int64_t n, float *out,
                           fd_error *err);

/* out[i] = (g·σ(slope·g))·(u + 1), g at most `limit`, u within ± limit. */
fd_code fd_launch_swiglu_clamp(const fd_queue *queue, const float *gate, const float *up, float slope, float limit,
                               int64_t n, float *out, fd_error *err);

/* out[i] = x[i] · factor. */
fd_code fd_launch_scale(const fd_queue *queue, const float *x, float factor, int64_t n, float *out, fd_error *err);

/* out[i] = cap·tanh(x[i] / cap). */
fd_code fd_launch_softcap(const fd_queue *queue, const float *x, float cap, int64_t n, float *out, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
