/* Ops element by element: SILU_MUL, GELU_MUL, SWIGLU_CLAMP, ADD, SCALE, SOFTCAP, GELU, RELU_SQUARED, SIGMOID, CLAMP,
 * SILU, SOFTPLUS, EXP. All pointers are device memory; an output may be an input. */
#ifndef FD_KERNELS_ELEMENTWISE_ACTIVATION_H
#define FD_KERNELS_ELEMENTWISE_ACTIVATION_H

#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fd_gate_kind {
    FD_GATE_SILU,         /* silu(g)·u */
    FD_GATE_GELU,         /* gelu(g)·u */
    FD_GATE_SWIGLU_CLAMP, /* (g·σ(slope·g))·(u + 1), g at most `limit`, u within ± limit */
} fd_gate_kind;

typedef struct fd_gate {
    fd_gate_kind kind;
    const float *gate, *up; /* [n] each */
    int64_t n;
    float slope, limit; /* of FD_GATE_SWIGLU_CLAMP */
} fd_gate;

/* out[i] = activation(gate[i]) · up[i]. */
fd_code fd_launch_gate(const fd_launch_context *ctx, const fd_gate *in, float *out, fd_error *err);

/* out[i] = a[i] + b[i]. */
fd_code fd_launch_add(const fd_launch_context *ctx, const float *a, const float *b, int64_t n, float *out,
                      fd_error *err);

/* out[i] = x[i] · factor. */
fd_code fd_launch_scale(const fd_launch_context *ctx, const float *x, float factor, int64_t n, float *out,
                        fd_error *err);

typedef enum fd_activation_kind {
    FD_ACTIVATION_GELU,
    FD_ACTIVATION_RELU_SQUARED, /* max(x, 0)² */
    FD_ACTIVATION_SIGMOID,
    FD_ACTIVATION_SILU,
    FD_ACTIVATION_SOFTPLUS,
    FD_ACTIVATION_EXP,
    FD_ACTIVATION_CLAMP, /* x within ± limit */
} fd_activation_kind;

/* out[i] = activation(x[i]); `limit` of FD_ACTIVATION_CLAMP. */
fd_code fd_launch_activation(const fd_launch_context *ctx, fd_activation_kind kind, const float *x, float limit,
                             int64_t n, float *out, fd_error *err);

/* out[i] = cap·tanh(x[i] / cap). */
fd_code fd_launch_softcap(const fd_launch_context *ctx, const float *x, float cap, int64_t n, float *out,
                          fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
