#include "kernels/activation.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "numerics/contract.h"

struct silu_mul_of {
    static __device__ __forceinline__ float value(float gate, float up) { return fd_silu32(gate) * up; }
};
struct add_of {
    static __device__ __forceinline__ float value(float a, float b) { return a + b; }
};

template <class Op>
__global__ void __launch_bounds__(256) elementwise(const float *a, const float *b, int64_t n, float *out) {
    fd_allow_next();
    fd_wait_previous();
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) out[i] = Op::value(a[i], b[i]);
}

template <class Op>
static fd_code launch(const fd_queue *queue, const char *name, const float *a, const float *b, int64_t n, float *out,
                      fd_error *err) {
    if (n < 1) return fd_fail(err, FD_ERR_INPUT, "kernel %s: %lld elements", name, (long long)n);
    unsigned most = (unsigned)queue->n_sm * 8, wanted = fd_blocks(n, 256) < most ? fd_blocks(n, 256) : most;
    return fd_launch(queue, name, elementwise<Op>, dim3(wanted), 256, 0, err, a, b, n, out);
}

fd_code fd_launch_silu_mul(const fd_queue *queue, const float *gate, const float *up, int64_t n, float *out,
                           fd_error *err) {
    return launch<silu_mul_of>(queue, "silu_mul", gate, up, n, out, err);
}

fd_code fd_launch_add(const fd_queue *queue, const float *a, const float *b, int64_t n, float *out, fd_error *err) {
    return launch<add_of>(queue, "add", a, b, n, out, err);
}
