#include "kernels/norm.h"

#include "kernels/activation.h"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/norm.cuh"

/* Rows that fit the shared memory every kernel may have. */
enum { STAGED_COLUMNS = 12288 };

/* A block norms a row; its first warp sums. STAGED: the whole block brings the row to shared memory first, with zeros up
 * to a whole group of 64. With an addend (STAGED alone) the row is x + addend, and is left in `sum`. */
template <bool STAGED>
__global__ void __launch_bounds__(256)
    rms_norm(const float *x, const float *addend, int64_t n, const float *weight, float eps, float *sum, float *out) {
    __shared__ float factor;
    float *staged = fd_shared_floats();
    fd_allow_next();
    fd_wait_previous();
    const float *row = x + blockIdx.x * n;
    if (STAGED) {
#pragma unroll 4
        for (int k = (int)threadIdx.x; k < (n + 63) / 64 * 64; k += 256) {
            float value = k < n ? __ldcg(row + k) : 0.0f;
            if (addend && k < n) {
                value = value + __ldcg(addend + blockIdx.x * n + k);
                sum[blockIdx.x * n + k] = value;
            }
            staged[k] = value;
        }
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        const float r = fd_inverse_rms((int)n, eps, [&](int group) {
            const int64_t k = (int64_t)group * 64 + 2 * threadIdx.x;
            if (STAGED) return *(const float2 *)(staged + k);
            return make_float2(k < n ? row[k] : 0.0f, k + 1 < n ? row[k + 1] : 0.0f);
        });
        if (threadIdx.x == 0) factor = r;
    }
    __syncthreads();
    const float r = factor;
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x)
        out[blockIdx.x * n + k] = ((STAGED ? staged[k] : row[k]) * r) * weight[k];
}

static fd_code launch(const fd_queue *queue, const float *x, const float *addend, int32_t n_tok, int64_t n,
                      const float *weight, float eps, float *sum, float *out, fd_error *err) {
    const dim3 grid((unsigned)n_tok);
    if (n_tok < 1 || n < 1 || n > 1 << 30)
        return fd_fail(err, FD_ERR_INPUT, "kernel rms_norm: %d rows of %lld", n_tok, (long long)n);
    if (n > STAGED_COLUMNS)
        return fd_launch(queue, "rms_norm", rms_norm<false>, grid, 256, 0, err, x, addend, n, weight, eps, sum, out);
    return fd_launch(queue, "rms_norm", rms_norm<true>, grid, 256, sizeof(float) * (size_t)((n + 63) / 64 * 64), err, x,
                     addend, n, weight, eps, sum, out);
}

fd_code fd_launch_rms_norm(const fd_queue *queue, const float *x, int32_t n_tok, int64_t n, const float *weight,
                           float eps, float *out, fd_error *err) {
    const float *none = nullptr;
    float *no_sum = nullptr;
    return launch(queue, x, none, n_tok, n, weight, eps, no_sum, out, err);
}

fd_code fd_launch_add_rms_norm(const fd_queue *queue, const float *a, const float *b, int32_t n_tok, int64_t n,
                               const float *weight, float eps, float *sum, float *out, fd_error *err) {
    if (n <= STAGED_COLUMNS) return launch(queue, a, b, n_tok, n, weight, eps, sum, out, err);
    FD_TRY(fd_launch_add(queue, a, b, n_tok * n, sum, err));
    return fd_launch_rms_norm(queue, sum, n_tok, n, weight, eps, out, err);
}
