/* The tiled matrix product's running sums: a group of 64 columns added to them, and their tree (matmul_tile.cu). */
#ifndef FD_KERNELS_MATMUL_TILE_SUMS_CUH
#define FD_KERNELS_MATMUL_TILE_SUMS_CUH

#include "kernels/matmul_tile_fill.cuh"
#include "kernels/tree.cuh"

/* One group: this lane's partial of all outputs of the pair's tile. Reads are volatile so that they stay in this order,
 * each a few multiply-adds before its use: moved together they would take registers that are not there. */
__device__ __forceinline__ void add_group(const float *ws, const float *xs, float (&acc)[PAIR_ROWS][PAIR_TOKENS]) {
    float w[PAIR_ROWS];
#pragma unroll
    for (int r = 0; r < PAIR_ROWS; r++) w[r] = *(const volatile float *)(ws + r * WIDTH);
#pragma unroll
    for (int t = 0; t < PAIR_TOKENS; t++) {
        const float x = *(const volatile float *)(xs + t * WIDTH);
#pragma unroll
        for (int r = 0; r < PAIR_ROWS; r++) acc[r][t] = fmaf(w[r], x, acc[r][t]);
    }
}

/* A warp's outputs by 32: part q has four rows of eight tokens, output i of it row i % 4 and token i / 4. */
enum { PARTS = OUTPUTS / 32, ROW_PARTS = PAIR_ROWS / 4 };

/* The tree: levels 0 to 4 across a warp's lanes, level 5 between the pair's warps through shared memory. */
__device__ __forceinline__ void add_up(const tile_args &a, tile_place place, const float (&acc)[PAIR_ROWS][PAIR_TOKENS],
                                       int half, int pair, float *exchange) {
    const int lane = (int)(threadIdx.x % 32), output = fd_bit_reverse5(lane);
    float sum[PARTS];
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        float part[32];
#pragma unroll
        for (int i = 0; i < 32; i++) part[i] = acc[q % ROW_PARTS * 4 + i % 4][q / ROW_PARTS * 8 + i / 4];
        fd_tree_scatter32(part, lane);
        sum[q] = part[0];
        if (half == 1) exchange[q * 32 + lane] = sum[q];
    }
    asm volatile("bar.sync %0, 64;" ::"r"(1 + pair) : "memory");
    if (half == 1) return;
    const int64_t row = place.row0 + pair / 2 * PAIR_ROWS + output % 4;
    const int token = place.token0 + pair % 2 * PAIR_TOKENS + output / 4;
    float *to = a.out + token * a.n_row + row;
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        const int further_row = q % ROW_PARTS * 4, further_token = q / ROW_PARTS * 8;
        if (row + further_row >= a.n_row || token + further_token >= a.n_tok) continue;
        float total = sum[q] + exchange[q * 32 + lane];
        if (a.bias) total = total + a.bias[row + further_row];
        to[further_token * a.n_row + further_row] = total;
    }
}

#endif
