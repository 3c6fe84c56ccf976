/* The tiled matrix product's running sums: a group of 64 columns added to them, and their tree
 * (kernels/matmul/tile.cu). */
#ifndef FD_KERNELS_MATMUL_TILE_SUMS_CUH
#define FD_KERNELS_MATMUL_TILE_SUMS_CUH

#include "kernels/matmul/tile_producer.cuh"

/* The sums of two rows for one token, in an even and the next odd register. It matters because a multiply-add is issued
 * every clock only if the two registers that it does not share with the one before are of different banks, even and
 * odd. So a row whose sums are even has its weights in odd registers: in the second half of an 8-byte read. */
typedef unsigned long long packed_sums[PAIR_ROWS / 2][PAIR_TOKENS];

/* `w`: second row, first row. In one piece with the packing, so that sums stay where they are. */
__device__ __forceinline__ void add_pair(unsigned long long &sums, float2 w, float x) {
    asm("{\n"
        ".reg .f32 first, second;\n"
        "mov.b64 {first, second}, %0;\n"
        "fma.rn.f32 first, %1, %3, first;\n"
        "fma.rn.f32 second, %2, %3, second;\n"
        "mov.b64 %0, {first, second};\n"
        "}"
        : "+l"(sums)
        : "f"(w.y), "f"(w.x), "f"(x));
}

/* A lane's partial of a group: the weights of the pair's rows, and x a few tokens ahead. */
enum { AHEAD = 4 };
struct operands {
    float2 w[PAIR_ROWS / 2];
    float x[AHEAD];
};

/* Where a group's operands lie for this lane, as shared addresses. */
struct operand_place {
    uint32_t w, x;
};

__device__ __forceinline__ void read_weights(operands &to, uint32_t from) {
#pragma unroll
    for (int r = 0; r < PAIR_ROWS / 2; r++) to.w[r] = fd_load_shared8(from + r * 2 * 64 * sizeof(float));
}
__device__ __forceinline__ void read_first(operands &to, operand_place from) {
    read_weights(to, from.w);
#pragma unroll
    for (int t = 0; t < AHEAD; t++) to.x[t] = fd_load_shared4(from.x + t * 64 * sizeof(float));
}

/* One group: this lane's partial of all outputs of the pair's tile. Overlap `now`, whose first AHEAD tokens are read
 * from `x` on, becomes the first operands of `next`. */
template <bool MORE>
__device__ __forceinline__ void add_group(packed_sums &sums, operands &now, uint32_t x, operand_place next) {
#pragma unroll
    for (int t = 0; t < PAIR_TOKENS; t++) {
#pragma unroll
        for (int i = 0; i < PAIR_ROWS / 2; i++) {
            /* To and fro: the next token begins with the weights that were used last. */
            const int r = t % 2 ? PAIR_ROWS / 2 - 1 - i : i;
            add_pair(sums[r][t], now.w[r], now.x[t % AHEAD]);
        }
        constexpr uint32_t token = 64 * sizeof(float);
        if (t + AHEAD < PAIR_TOKENS)
            now.x[t % AHEAD] = fd_load_shared4(x + (t + AHEAD) * token);
        else if (MORE)
            now.x[t % AHEAD] = fd_load_shared4(next.x + (t + AHEAD - PAIR_TOKENS) * token);
    }
    if (MORE) read_weights(now, next.w);
}

/* The first row's sum, or the second's. */
__device__ __forceinline__ float one_of(unsigned long long sums, int second) {
    return fd_from_bits32((uint32_t)(second ? sums >> 32 : sums));
}

/* A warp's outputs by 32: part q has two rows of 16 tokens, output i of it row i % 2 and token i / 2. */
__device__ __forceinline__ void add_up(const tile_args &a, tile_place place, const packed_sums &sums, int half,
                                       int pair, float *exchange) {
    fd_tile_add_up<OUTPUTS / 32>(
        half, exchange, [&](int q, int i) { return one_of(sums[q][i / 2], i % 2); }, [&] { fd_bar_sync(1 + pair, 64); },
        [&](int q, int i, float total) {
            fd_tile_store(a, *place.part, place.row0 + pair / 2 * PAIR_ROWS + q * 2 + i % 2,
                          place.token0 + pair % 2 * PAIR_TOKENS + i / 2, total);
        });
}

#endif
