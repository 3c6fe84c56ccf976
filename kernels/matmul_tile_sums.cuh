/* The tiled matrix product's running sums: a group of 64 columns added to them, and their tree (matmul_tile.cu). */
#ifndef FD_KERNELS_MATMUL_TILE_SUMS_CUH
#define FD_KERNELS_MATMUL_TILE_SUMS_CUH

#include "kernels/matmul_tile_fill.cuh"
#include "kernels/tree.cuh"

typedef float tile_sums[PAIR_ROWS][PAIR_TOKENS];

/* The sums of two rows for one token, in an even and the next odd register: what is packed lies so, and the compiler
 * leaves it there until the next packing. It matters because a multiply-add is issued every clock only if the two
 * registers that it does not share with the one before are of different banks, even and odd. So a row whose sums are
 * even has its weights in odd registers: in the second half of an 8-byte read. */
typedef unsigned long long packed_sums[PAIR_ROWS / 2][PAIR_TOKENS];

__device__ __forceinline__ void unpack(const packed_sums &from, tile_sums &to) {
#pragma unroll
    for (int r = 0; r < PAIR_ROWS / 2; r++)
#pragma unroll
        for (int t = 0; t < PAIR_TOKENS; t++)
            asm("mov.b64 {%0, %1}, %2;" : "=f"(to[2 * r][t]), "=f"(to[2 * r + 1][t]) : "l"(from[r][t]));
}
__device__ __forceinline__ void pack(const tile_sums &from, packed_sums &to) {
#pragma unroll
    for (int r = 0; r < PAIR_ROWS / 2; r++)
#pragma unroll
        for (int t = 0; t < PAIR_TOKENS; t++)
            asm("mov.b64 %0, {%1, %2};" : "=l"(to[r][t]) : "f"(from[2 * r][t]), "f"(from[2 * r + 1][t]));
}

/* One group: this lane's partial of all outputs of the pair's tile. Reads of x stay in their order, each shortly before
 * its use: moved together they would take registers that are not there. */
__device__ __forceinline__ void add_group(const float *ws, const float *xs, tile_sums &sums) {
    float2 w[PAIR_ROWS / 2]; /* second row, first row */
#pragma unroll
    for (int r = 0; r < PAIR_ROWS / 2; r++) w[r] = *(const float2 *)(ws + r * 2 * WIDTH);
#pragma unroll
    for (int t = 0; t < PAIR_TOKENS; t++) {
        const float x = *(const volatile float *)(xs + t * WIDTH);
#pragma unroll
        for (int i = 0; i < PAIR_ROWS / 2; i++) {
            const int r = t % 2 ? PAIR_ROWS / 2 - 1 - i : i;
            sums[2 * r][t] = fmaf(w[r].y, x, sums[2 * r][t]);
            sums[2 * r + 1][t] = fmaf(w[r].x, x, sums[2 * r + 1][t]);
        }
    }
}

template <int N> __device__ __forceinline__ void add_groups(const float *ws, const float *xs, packed_sums &acc) {
    tile_sums sums;
    unpack(acc, sums);
#pragma unroll
    for (int g = 0; g < N; g++) add_group(ws + g * 128, xs + g * 64, sums);
    pack(sums, acc);
}

/* A warp's outputs by 32: part q has two rows of 16 tokens, output i of it row i % 2 and token i / 2. */
enum { PARTS = OUTPUTS / 32 };

/* The tree: levels 0 to 4 across a warp's lanes, level 5 between the pair's warps through shared memory. */
__device__ __forceinline__ void add_up(const tile_args &a, tile_place place, const packed_sums &acc, int half, int pair,
                                       float *exchange) {
    const int lane = (int)(threadIdx.x % 32), output = fd_bit_reverse5(lane);
    tile_sums sums;
    unpack(acc, sums);
    float sum[PARTS];
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        float part[32];
#pragma unroll
        for (int i = 0; i < 32; i++) part[i] = sums[q * 2 + i % 2][i / 2];
        fd_tree_scatter32(part, lane);
        sum[q] = part[0];
        if (half == 1) exchange[q * 32 + lane] = sum[q];
    }
    asm volatile("bar.sync %0, 64;" ::"r"(1 + pair) : "memory");
    if (half == 1) return;
    const int64_t row = place.row0 + pair / 2 * PAIR_ROWS + output % 2;
    const int token = place.token0 + pair % 2 * PAIR_TOKENS + output / 2;
    const tile_part &part = *place.part;
    float *to = part.out + token * part.n_row + row;
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        if (row + q * 2 >= part.n_row || token >= a.n_tok) continue;
        float total = sum[q] + exchange[q * 32 + lane];
        if (part.bias) total = total + part.bias[row + q * 2];
        to[q * 2] = total;
    }
}

#endif
