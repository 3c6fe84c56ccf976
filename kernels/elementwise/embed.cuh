/* One row of the embedding, dequantised by a whole block. */
#ifndef FD_KERNELS_ELEMENTWISE_EMBED_CUH
#define FD_KERNELS_ELEMENTWISE_EMBED_CUH

#include "kernels/formats/formats.cuh"

/* A thread decodes one lane's share of one unit. */
template <class Format>
__device__ __forceinline__ void fd_embed_row(const uint8_t *row, int64_t scale_offset, int64_t n_col, float *to) {
    const int lane = (int)threadIdx.x % 8, n_unit = Format::units_of(n_col);
    const fd_cursor cursor = Format::begin(row, scale_offset, lane);
    const uint32_t magic = fd_opaque_magic();
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

#endif
