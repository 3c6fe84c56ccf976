#include "kernels/attention/kv_cache.h"

#include "kernels/attention/cached.cuh"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"

template <typename Element>
__global__ void __launch_bounds__(256)
    kv_write(const float *x, int64_t width, const int32_t *pos0, int32_t row_offset, Element *cache, int32_t n_ctx) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t row = blockIdx.y, to = *pos0 + row + row_offset;
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < width && to >= 0 && to < n_ctx) cache[to * width + at] = fd_to_cached<Element>(x[row * width + at]);
}

template <typename Element> static fd_code launch(const fd_launch_context *ctx, const fd_kv_write *in, fd_error *err) {
    const dim3 grid(fd_blocks(in->width, 256), (unsigned)in->n_tok);
    return fd_launch(ctx, "kv_write", kv_write<Element>, grid, 256, 0, err, in->x, in->width, in->pos0, in->row_offset,
                     (Element *)in->cache, in->n_ctx);
}

fd_code fd_launch_kv_write(const fd_launch_context *ctx, const fd_kv_write *in, fd_error *err) {
    if (in->n_tok < 1 || in->n_tok > 65535 || in->width < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel kv_write: %d rows of %lld", in->n_tok, (long long)in->width);
    return in->halves ? launch<uint16_t>(ctx, in, err) : launch<float>(ctx, in, err);
}
