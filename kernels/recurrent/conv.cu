/* CONV, TOKEN_SHIFT: a row and the few before it. A thread an element. */
#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/recurrent/state.cuh"

__global__ void __launch_bounds__(256) conv(const __grid_constant__ fd_conv a) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    if (i >= a.n) return;
    const int64_t oldest = *a.rows.pos0 + row - (a.n_tap - 1);
    float acc = 0.0f;
    for (int j = 0; j < a.n_tap; j++)
        if (oldest + j >= 0) acc = fmaf(a.weight[i * a.n_tap + j], a.rows.cache[(oldest + j) * a.n + i], acc);
    a.rows.out[row * a.n + i] = a.bias ? acc + a.bias[i] : acc;
}

fd_code fd_launch_conv(const fd_launch_context *ctx, const fd_conv *in, fd_error *err) {
    FD_TRY(fd_recurrent_check("conv", &in->rows, in->n, in->n_tap, err));
    const dim3 grid(fd_blocks(in->n, 256), (unsigned)in->rows.n_tok);
    return fd_launch(ctx, "conv", conv, grid, 256, 0, err, *in);
}

__global__ void __launch_bounds__(256)
    token_shift(const __grid_constant__ fd_recurrent_rows a, const float *weight, int64_t n) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    if (i >= n) return;
    const int64_t t = *a.pos0 + row;
    const float own = a.cache[t * n + i], before = t > 0 ? a.cache[(t - 1) * n + i] : 0.0f;
    a.out[row * n + i] = fmaf(before - own, weight[i], own);
}

fd_code fd_launch_token_shift(const fd_launch_context *ctx, const fd_recurrent_rows *rows, const float *weight,
                              int64_t n, fd_error *err) {
    FD_TRY(fd_recurrent_check("token_shift", rows, n, 1, err));
    const dim3 grid(fd_blocks(n, 256), (unsigned)rows->n_tok);
    return fd_launch(ctx, "token_shift", token_shift, grid, 256, 0, err, *rows, weight, n);
}
