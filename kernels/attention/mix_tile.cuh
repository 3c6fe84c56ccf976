/* Mix of many query rows: 64 rows × up to 128 elements a block, a row a token and one of the heads that share a K/V
 * head.
 *
 * Blocks of 64 positions from position 0 are a stage of shared memory each, weights and values; the next one arrives
 * while this one is multiplied. A thread has four neighbouring elements of some rows: with 32 lanes along a head, a
 * warp reads 8 rows' weights as broadcasts and a position's values once for all of them. */
#ifndef FD_KERNELS_ATTENTION_MIX_TILE_CUH
#define FD_KERNELS_ATTENTION_MIX_TILE_CUH

#include "kernels/attention/attention.h"
#include "kernels/attention/cached.cuh"
#include "kernels/device.cuh"

enum { MIX_TILE = 64, MIX_LEAST_ROWS = 32, MIX_BLOCK = FD_ATTENTION_BLOCK };

/* LANES along a head, 16 or 32, of four elements each. */
template <int LANES> struct mix_tile {
    static constexpr int width = LANES * 4, rows = MIX_TILE * LANES / 256; /* elements a block, rows a thread */
    static constexpr int weights = MIX_TILE * MIX_BLOCK, stage = weights + MIX_BLOCK * width;
    static constexpr size_t bytes = 2 * stage * sizeof(float);
};

/* Each row of a tile: where its weights begin, which row [n_tok · n_head] of the output is its own, how many positions
 * it sees. Past the last row: -1. */
struct mix_rows {
    int64_t weights[MIX_TILE];
    int64_t head[MIX_TILE];
    int seen[MIX_TILE];
};

/* A thread's rows take part where they see the position: all of them before the first row's own. */
template <int LANES, bool WHOLE, class Element>
__device__ __forceinline__ void mix_block(const float *p, const Element *v, const int *own_seen, int block,
                                          float (&total)[mix_tile<LANES>::rows][4]) {
    constexpr int rows = mix_tile<LANES>::rows;
    float acc[rows][4] = {};
    int seen[rows] = {};
#pragma unroll
    for (int r = 0; r < rows && !WHOLE; r++) seen[r] = own_seen[r] - block;
#pragma unroll 2
    for (int t = 0; t < MIX_BLOCK; t += 4) {
        float4 value[4];
#pragma unroll
        for (int i = 0; i < 4; i++) value[i] = fd_shared_cached4(v + (t + i) * mix_tile<LANES>::width);
#pragma unroll
        for (int r = 0; r < rows; r++) {
            const float4 quad = *(const float4 *)(p + r * MIX_BLOCK + t);
            const float w[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (WHOLE || t + i < seen[r]) {
                    acc[r][0] = fmaf(w[i], value[i].x, acc[r][0]);
                    acc[r][1] = fmaf(w[i], value[i].y, acc[r][1]);
                    acc[r][2] = fmaf(w[i], value[i].z, acc[r][2]);
                    acc[r][3] = fmaf(w[i], value[i].w, acc[r][3]);
                }
        }
    }
    /* A row that sees nothing of the block adds +0 to a total that is never -0. */
#pragma unroll
    for (int r = 0; r < rows; r++)
#pragma unroll
        for (int d = 0; d < 4; d++) total[r][d] = total[r][d] + acc[r][d];
}

/* Four elements of the cache; zeros where they are not valid. */
__device__ __forceinline__ void request_quad(float *to, const float *from, bool valid) {
    fd_cp_async16(to, from, valid);
}
__device__ __forceinline__ void request_quad(uint16_t *to, const uint16_t *from, bool valid) {
    fd_cp_async8(to, from, valid);
}

/* Requests the weights and values of the positions from `block` on; zeros past the last row and position. */
template <int LANES, class Element>
__device__ __forceinline__ void mix_request(const fd_attention &a, const mix_rows &rows, const float *weights,
                                            const Element *values, int block, float *stage) {
    const int own = block + (int)threadIdx.x % MIX_BLOCK;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < MIX_TILE * MIX_BLOCK; i += 256) {
        const int64_t row = rows.weights[i / MIX_BLOCK];
        const bool valid = row >= 0 && own < a.n_kv;
        fd_cp_async4(stage + i, valid ? weights + row + own : weights, valid);
    }
    const int d = (int)(blockIdx.y * mix_tile<LANES>::width + threadIdx.x % LANES * 4);
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < MIX_BLOCK * LANES; i += 256) {
        const int t = block + i / LANES;
        const bool valid = t < a.n_kv && d < a.head_dim;
        request_quad((Element *)(stage + mix_tile<LANES>::weights) + i * 4,
                     valid ? values + (int64_t)t * a.n_head_kv * a.head_dim + d : values, valid);
    }
}

/* Grid: tiles of rows and K/V heads, those that see most first, but from number `turn` on last; slices of a head. */
template <int LANES, class Element>
__global__ void __launch_bounds__(256, 2)
    attn_mix_tile(const fd_attention a, const float *weights, const Element *cache_v, int turn, float *out) {
    using tile = mix_tile<LANES>;
    __shared__ mix_rows rows;
    float *stages = fd_shared_floats();
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int sharing = a.n_head / a.n_head_kv, pos0 = *a.pos0;
    const int n_query = a.n_tok * sharing, n_block = (int)gridDim.x;
    const int block_at = (int)blockIdx.x < turn ? (int)blockIdx.x : turn + n_block - 1 - (int)blockIdx.x;
    const int kv_head = block_at % a.n_head_kv;
    const int first = (n_block / a.n_head_kv - 1 - block_at / a.n_head_kv) * MIX_TILE;
    if (threadIdx.x < MIX_TILE) {
        const int row = first + (int)threadIdx.x, token = row / sharing;
        const int64_t head = (int64_t)token * a.n_head + kv_head * sharing + row % sharing;
        rows.head[threadIdx.x] = row < n_query ? head : -1;
        rows.weights[threadIdx.x] = row < n_query ? head * a.n_kv : -1;
        rows.seen[threadIdx.x] = pos0 + token + 1;
    }
    __syncthreads();
    const int all_see = rows.seen[0], n = pos0 + (min(first + MIX_TILE, n_query) - 1) / sharing + 1;
    const int own_row = (int)threadIdx.x / LANES * tile::rows, lane = (int)threadIdx.x % LANES;
    const Element *values = cache_v + (int64_t)kv_head * a.head_dim;
    float total[tile::rows][4] = {};

    mix_request<LANES>(a, rows, weights, values, 0, stages);
    fd_cp_async_commit_group();
    for (int block = 0; block < n; block += MIX_BLOCK) {
        const float *now = stages + block / MIX_BLOCK % 2 * tile::stage;
        float *next = stages + (block / MIX_BLOCK + 1) % 2 * tile::stage;
        if (block + MIX_BLOCK < n) mix_request<LANES>(a, rows, weights, values, block + MIX_BLOCK, next);
        fd_cp_async_commit_group();
        fd_cp_async_wait_group(1);
        __syncthreads();
        const float *p = now + own_row * MIX_BLOCK;
        const Element *v = (const Element *)(now + tile::weights) + lane * 4;
        if (block + MIX_BLOCK <= all_see)
            mix_block<LANES, true>(p, v, rows.seen + own_row, block, total);
        else
            mix_block<LANES, false>(p, v, rows.seen + own_row, block, total);
        __syncthreads();
    }

    const int d = (int)blockIdx.y * tile::width + lane * 4;
    if (d >= a.head_dim) return;
#pragma unroll
    for (int r = 0; r < tile::rows; r++) {
        const int64_t head = rows.head[own_row + r];
        if (head < 0) break;
        *(float4 *)(out + head * a.head_dim + d) = make_float4(total[r][0], total[r][1], total[r][2], total[r][3]);
    }
}

#endif
