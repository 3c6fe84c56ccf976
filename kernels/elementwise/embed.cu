#include "kernels/elementwise/embed.h"

#include "kernels/elementwise/embed.cuh"
#include "kernels/launch.cuh"

template <class Format>
__global__ void __launch_bounds__(128) embed(const uint8_t *table, int64_t row_bytes, int64_t scale_offset,
                                             int64_t n_col, const int32_t *tokens, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    fd_embed_row<Format>(table + tokens[blockIdx.x] * row_bytes, scale_offset, n_col, out + blockIdx.x * n_col);
}

fd_code fd_launch_embed(const fd_launch_context *ctx, const fd_device_matrix *table, const int32_t *tokens,
                        int32_t n_tok, float *out, fd_error *err) {
    if (n_tok < 1) return fd_fail(err, FD_ERR_INPUT, "kernel embed: %d tokens", n_tok);
    return fd_with_format(table->dtype, err, [&](auto format) {
        return fd_launch(ctx, "embed", embed<decltype(format)>, dim3((unsigned)n_tok), 128, 0, err,
                         (const uint8_t *)table->data, table->row_bytes, table->scale_offset, table->n_col, tokens,
                         out);
    });
}
