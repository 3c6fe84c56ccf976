#include "kernels/elementwise/layer_norm.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/tree.cuh"
#include "numerics/contract.h"

/* A block a row; its first warp sums. Lane l has partials 2l and 2l + 1. Past the row's end it adds +0, which leaves a
 * partial sum as it is: none is ever -0. */
__global__ void __launch_bounds__(256) layer_norm(const fd_layer_norm in, float *out) {
    __shared__ float found[2]; /* mean, r */
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t n = in.n, row = blockIdx.x;
    const float *x = in.x + row * n;
    if (threadIdx.x < 32) {
        float sum[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};
        for (int64_t k = 2 * threadIdx.x; k < n; k += 64) {
            sum[0] = sum[0] + x[k];
            sum[1] = sum[1] + (k + 1 < n ? x[k + 1] : 0.0f);
        }
        const float mean = fd_tree_lanes<32>(fd_tree(sum)) / (float)n;
        for (int64_t k = 2 * threadIdx.x; k < n; k += 64) {
            const float c0 = x[k] - mean, c1 = k + 1 < n ? x[k + 1] - mean : 0.0f;
            squares[0] = fmaf(c0, c0, squares[0]);
            squares[1] = fmaf(c1, c1, squares[1]);
        }
        const float r = 1.0f / sqrtf(fd_tree_lanes<32>(fd_tree(squares)) / (float)n + in.eps);
        if (threadIdx.x == 0) found[0] = mean, found[1] = r;
    }
    __syncthreads();
    const float mean = found[0], r = found[1];
    const float *weight = in.weight ? in.weight + row % in.n_weight_row * n : nullptr;
    const float *bias = in.bias ? in.bias + row % in.n_bias_row * n : nullptr;
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x) {
        float y = (x[k] - mean) * r;
        if (weight) y = y * weight[k];
        if (bias) y = y + bias[k];
        out[row * n + k] = y;
    }
}

fd_code fd_launch_layer_norm(const fd_launch_context *ctx, const fd_layer_norm *in, float *out, fd_error *err) {
    if (in->n_row < 1 || in->n < 1 || in->n > 1 << 30)
        return fd_fail(err, FD_ERR_INPUT, "kernel layer_norm: %d rows of %lld", in->n_row, (long long)in->n);
    return fd_launch(ctx, "layer_norm", layer_norm, dim3((unsigned)in->n_row), 256, 0, err, *in, out);
}
