#include "kernels/norm.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/norm.cuh"

/* A block norms a row; its first warp sums. */
__global__ void __launch_bounds__(256) rms_norm(const float *x, int64_t n, const float *weight, float eps, float *out) {
    __shared__ float factor;
    fd_allow_next();
    fd_wait_previous();
    const float *row = x + blockIdx.x * n;
    if (threadIdx.x < 32) {
        const float r = fd_inverse_rms((int)n, eps, [&](int group) {
            const int64_t k = (int64_t)group * 64 + 2 * threadIdx.x;
            return make_float2(k < n ? row[k] : 0.0f, k + 1 < n ? row[k + 1] : 0.0f);
        });
        if (threadIdx.x == 0) factor = r;
    }
    __syncthreads();
    const float r = factor;
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x) out[blockIdx.x * n + k] = (row[k] * r) * weight[k];
}

fd_code fd_launch_rms_norm(const fd_queue *queue, const float *x, int32_t n_tok, int64_t n, const float *weight,
                           float eps, float *out, fd_error *err) {
    if (n_tok < 1 || n < 1 || n > 1 << 30)
        return fd_fail(err, FD_ERR_INPUT, "kernel rms_norm: %d rows of %lld", n_tok, (long long)n);
    return fd_launch(queue, "rms_norm", rms_norm, dim3((unsigned)n_tok), 256, 0, err, x, n, weight, eps, out);
}
