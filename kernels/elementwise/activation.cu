#include "kernels/elementwise/activation.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "numerics/contract.h"
#include "numerics/softplus.h"

struct silu_mul_of {
    __device__ __forceinline__ float operator()(float gate, float up) const { return fd_silu32(gate) * up; }
};
struct gelu_mul_of {
    __device__ __forceinline__ float operator()(float gate, float up) const { return fd_gelu32(gate) * up; }
};
struct swiglu_clamp_of {
    float slope, limit;
    __device__ __forceinline__ float operator()(float gate, float up) const {
        const float g = fd_at_most32(gate, limit), u = fd_at_least32(fd_at_most32(up, limit), -limit);
        return fd_swish32(g, slope) * (u + 1.0f);
    }
};
struct add_of {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct scale_of {
    float factor;
    __device__ __forceinline__ float operator()(float x, float) const { return x * factor; }
};
struct softcap_of {
    float cap;
    __device__ __forceinline__ float operator()(float x, float) const { return fd_softcap32(x, cap); }
};

struct gelu_of {
    __device__ __forceinline__ float operator()(float x, float) const { return fd_gelu32(x); }
};
struct relu_squared_of {
    __device__ __forceinline__ float operator()(float x, float) const { return x < 0.0f ? 0.0f : x * x; }
};
struct sigmoid_of {
    __device__ __forceinline__ float operator()(float x, float) const { return fd_sigmoid32(x); }
};
struct silu_of {
    __device__ __forceinline__ float operator()(float x, float) const { return fd_silu32(x); }
};
struct softplus_of {
    __device__ __forceinline__ float operator()(float x, float) const { return fd_softplus32(x); }
};
struct exp_of {
    __device__ __forceinline__ float operator()(float x, float) const { return fd_exp32(x); }
};
struct clamp_of {
    float limit;
    __device__ __forceinline__ float operator()(float x, float) const {
        return fd_at_least32(fd_at_most32(x, limit), -limit);
    }
};

/* An op of one operand gets it twice. */
template <class Op>
__global__ void __launch_bounds__(256) elementwise(Op op, const float *a, const float *b, int64_t n, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) out[i] = op(a[i], b[i]);
}

/* Four elements at a time, several loads in flight, from the end on: what was written last is still in L2. */
enum { QUADS = 4 };
template <class Op>
__global__ void __launch_bounds__(256)
    elementwise_quads(Op op, const float4 *a, const float4 *b, int64_t n, float4 *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * (256 * QUADS) + threadIdx.x;
    float4 x[QUADS], y[QUADS];
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        if (first + i * 256 < n) x[i] = __ldcg(a + first + i * 256), y[i] = __ldcg(b + first + i * 256);
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        if (first + i * 256 < n)
            out[first + i * 256] =
                make_float4(op(x[i].x, y[i].x), op(x[i].y, y[i].y), op(x[i].z, y[i].z), op(x[i].w, y[i].w));
}

static bool in_quads(const float *a, const float *b, int64_t n, const float *out) {
    return n % 4 == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)out) % 16 == 0;
}

struct operands {
    const float *a, *b;
    int64_t n;
    float *out;
};

template <class Op>
static fd_code launch(const fd_launch_context *ctx, const char *name, Op op, const operands &on, fd_error *err) {
    const auto [a, b, n, out] = on;
    if (n < 1) return fd_fail(err, FD_ERR_INPUT, "kernel %s: %lld elements", name, (long long)n);
    if (n >= (int64_t)ctx->n_sm * 4096 && in_quads(a, b, n, out))
        return fd_launch(ctx, name, elementwise_quads<Op>, dim3(fd_blocks(n / 4, 256 * QUADS)), 256, 0, err, op,
                         (const float4 *)a, (const float4 *)b, n / 4, (float4 *)out);
    unsigned most = (unsigned)ctx->n_sm * 8, wanted = fd_blocks(n, 256) < most ? fd_blocks(n, 256) : most;
    return fd_launch(ctx, name, elementwise<Op>, dim3(wanted), 256, 0, err, op, a, b, n, out);
}

fd_code fd_launch_gate(const fd_launch_context *ctx, const fd_gate *in, float *out, fd_error *err) {
    switch (in->kind) {
    case FD_GATE_SILU: return launch(ctx, "silu_mul", silu_mul_of(), {in->gate, in->up, in->n, out}, err);
    case FD_GATE_GELU: return launch(ctx, "gelu_mul", gelu_mul_of(), {in->gate, in->up, in->n, out}, err);
    case FD_GATE_SWIGLU_CLAMP: break;
    }
    return launch(ctx, "swiglu_clamp", swiglu_clamp_of{in->slope, in->limit}, {in->gate, in->up, in->n, out}, err);
}

fd_code fd_launch_add(const fd_launch_context *ctx, const float *a, const float *b, int64_t n, float *out,
                      fd_error *err) {
    return launch(ctx, "add", add_of(), {a, b, n, out}, err);
}

fd_code fd_launch_scale(const fd_launch_context *ctx, const float *x, float factor, int64_t n, float *out,
                        fd_error *err) {
    return launch(ctx, "scale", scale_of{factor}, {x, x, n, out}, err);
}

fd_code fd_launch_softcap(const fd_launch_context *ctx, const float *x, float cap, int64_t n, float *out,
                          fd_error *err) {
    return launch(ctx, "softcap", softcap_of{cap}, {x, x, n, out}, err);
}

fd_code fd_launch_activation(const fd_launch_context *ctx, fd_activation_kind kind, const float *x, float limit,
                             int64_t n, float *out, fd_error *err) {
    switch (kind) {
    case FD_ACTIVATION_GELU: return launch(ctx, "gelu", gelu_of(), {x, x, n, out}, err);
    case FD_ACTIVATION_RELU_SQUARED: return launch(ctx, "relu_squared", relu_squared_of(), {x, x, n, out}, err);
    case FD_ACTIVATION_SIGMOID: return launch(ctx, "sigmoid", sigmoid_of(), {x, x, n, out}, err);
    case FD_ACTIVATION_SILU: return launch(ctx, "silu", silu_of(), {x, x, n, out}, err);
    case FD_ACTIVATION_SOFTPLUS: return launch(ctx, "softplus", softplus_of(), {x, x, n, out}, err);
    case FD_ACTIVATION_EXP: return launch(ctx, "exp", exp_of(), {x, x, n, out}, err);
    case FD_ACTIVATION_CLAMP: break;
    }
    return launch(ctx, "clamp", clamp_of{limit}, {x, x, n, out}, err);
}
