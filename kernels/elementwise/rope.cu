#include "kernels/elementwise/rope.cuh"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"

__global__ void __launch_bounds__(256)
    rope(const fd_rope_shape shape, const float *x, const int32_t *pos0, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t row = blockIdx.y, width = (int64_t)shape.n_head * shape.head_dim;
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= width) return;
    const float *head = x + row * width + at / shape.head_dim * shape.head_dim;
    out[row * width + at] = fd_rope_element(shape, head, (int)(at % shape.head_dim), *pos0 + row);
}

fd_code fd_launch_rope(const fd_launch_context *ctx, const fd_rope_shape *shape, const float *x, int32_t n_tok,
                       const int32_t *pos0, float *out, fd_error *err) {
    if (n_tok < 1 || n_tok > 65535 || shape->n_rot < 2 || shape->n_rot % 2 != 0 || shape->n_rot > shape->head_dim)
        return fd_fail(err, FD_ERR_INPUT, "kernel rope: %d rows, %d of %d elements turn", n_tok, shape->n_rot,
                       shape->head_dim);
    const int64_t width = (int64_t)shape->n_head * shape->head_dim;
    return fd_launch(ctx, "rope", rope, dim3(fd_blocks(width, 256), (unsigned)n_tok), 256, 0, err, *shape, x, pos0,
                     out);
}
