#include "kernels/attention/kv_cache.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"

__global__ void __launch_bounds__(256)
    kv_write(const float *x, int64_t width, const int32_t *pos0, int32_t row_offset, float *cache, int32_t n_ctx) {
    fd_allow_next();
    fd_wait_previous();
    const int64_t row = blockIdx.y, to = *pos0 + row + row_offset;
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < width && to >= 0 && to < n_ctx) cache[to * width + at] = x[row * width + at];
}

fd_code fd_launch_kv_write(const fd_queue *queue, const float *x, int32_t n_tok, int64_t width, const int32_t *pos0,
                           int32_t row_offset, float *cache, int32_t n_ctx, fd_error *err) {
    if (n_tok < 1 || n_tok > 65535 || width < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel kv_write: %d rows of %lld", n_tok, (long long)width);
    return fd_launch(queue, "kv_write", kv_write, dim3(fd_blocks(width, 256), (unsigned)n_tok), 256, 0, err, x, width,
                     pos0, row_offset, cache, n_ctx);
}
