#include "kernels/elementwise/heads.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"

/* out[i] = value(i); the values of one launch take turns in a grid of a few blocks a multiprocessor. */
template <class Value> __global__ void __launch_bounds__(256) each_element(Value value, int64_t n, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) out[i] = value(i);
}

template <class Value>
static fd_code launch(const fd_launch_context *ctx, const char *name, Value value, int64_t n, float *out,
                      fd_error *err) {
    if (n < 1) return fd_fail(err, FD_ERR_INPUT, "kernel %s: %lld elements", name, (long long)n);
    const int64_t most = (int64_t)ctx->n_sm * 8, wanted = (n + 255) / 256;
    return fd_launch(ctx, name, each_element<Value>, dim3((unsigned)(wanted < most ? wanted : most)), 256, 0, err,
                     value, n, out);
}

struct slice_of {
    fd_slice s;
    __device__ __forceinline__ float operator()(int64_t i) const { return s.x[i / s.n * s.n_in + s.first + i % s.n]; }
};

fd_code fd_launch_slice(const fd_launch_context *ctx, const fd_slice *in, fd_error *err) {
    if (in->n < 1 || in->first < 0 || in->first > in->n_in - in->n)
        return fd_fail(err, FD_ERR_INPUT, "kernel slice: %lld elements from %lld on of %lld", (long long)in->n,
                       (long long)in->first, (long long)in->n_in);
    return launch(ctx, "slice", slice_of{*in}, in->n_head * in->n, in->out, err);
}

struct concat_of {
    fd_concat c;
    __device__ __forceinline__ float operator()(int64_t item) const {
        const int64_t n = c.n_a + c.n_b, head = item / n, i = item % n;
        if (i < c.n_a) return c.a[head * c.n_a + i];
        return c.b[(c.n_head_b == 1 ? head / c.n_head : head) * c.n_b + i - c.n_a];
    }
};

fd_code fd_launch_concat(const fd_launch_context *ctx, const fd_concat *in, fd_error *err) {
    if (in->n_head_b != 1 && in->n_head_b != in->n_head)
        return fd_fail(err, FD_ERR_INPUT, "kernel concat: %lld heads and %lld", (long long)in->n_head,
                       (long long)in->n_head_b);
    return launch(ctx, "concat", concat_of{*in}, in->n_tok * in->n_head * (in->n_a + in->n_b), in->out, err);
}

struct mul_of {
    const float *a, *b;
    int64_t each;
    __device__ __forceinline__ float operator()(int64_t i) const { return a[i] * b[i / each]; }
};

fd_code fd_launch_mul(const fd_launch_context *ctx, const float *a, const float *b, int64_t n, int64_t each, float *out,
                      fd_error *err) {
    if (each < 1) return fd_fail(err, FD_ERR_INPUT, "kernel mul: %lld elements of each", (long long)each);
    return launch(ctx, "mul", mul_of{a, b, each}, n, out, err);
}
