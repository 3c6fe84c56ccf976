#include "kernels/embed.h"

#include "kernels/formats.cuh"
#include "kernels/launch.cuh"

/* A thread decodes one lane's share of one unit. */
template <class Format>
__global__ void __launch_bounds__(128) embed(const uint8_t *table, int64_t row_bytes, int64_t scale_offset,
                                             int64_t n_col, const int32_t *tokens, float *out) {
    fd_allow_next();
    fd_wait_previous();
    float *to = out + blockIdx.x * n_col;
    const int lane = (int)threadIdx.x % 8, n_unit = (int)((n_col + 64 * Format::groups - 1) / (64 * Format::groups));
    const fd_cursor cursor = Format::begin(table + tokens[blockIdx.x] * row_bytes, scale_offset, lane);
    const uint32_t magic = fd_magic();
    for (int at = (int)threadIdx.x / 8; at < n_unit; at += (int)blockDim.x / 8) {
        const typename Format::unit unit = Format::template load<FD_READ_AGAIN>(cursor, at, lane);
#pragma unroll
        for (int group = 0; group < Format::groups; group++) {
            float w[8];
            Format::decode(unit, group, lane, magic, w);
            const int64_t k = (int64_t)(at * Format::groups + group) * 64 + lane * 8;
            for (int i = 0; i < 8; i++)
                if (k + i < n_col) to[k + i] = w[i];
        }
    }
}

fd_code fd_launch_embed(const fd_queue *queue, const fd_device_matrix *table, const int32_t *tokens, int32_t n_tok,
                        float *out, fd_error *err) {
    if (n_tok < 1) return fd_fail(err, FD_ERR_INPUT, "kernel embed: %d tokens", n_tok);
    return fd_with_format(table->dtype, err, [&](auto format) {
        return fd_launch(queue, "embed", embed<decltype(format)>, dim3((unsigned)n_tok), 128, 0, err,
                         (const uint8_t *)table->data, table->row_bytes, table->scale_offset, table->n_col, tokens,
                         out);
    });
}
