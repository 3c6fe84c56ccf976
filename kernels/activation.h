/* SILU_MUL and ADD, element by element. */
#ifndef FD_KERNELS_ACTIVATION_H
#define FD_KERNELS_ACTIVATION_H

#include "kernels/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[i] = silu(gate[i]) · up[i]; n elements, device; `out` may be an input. */
fd_code fd_launch_silu_mul(const fd_queue *queue, const float *gate, const float *up, int64_t n, float *out,
                           fd_error *err);

/* out[i] = a[i] + b[i]. */
fd_code fd_launch_add(const fd_queue *queue, const float *a, const float *b, int64_t n, float *out, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
