/* Scores of many query rows: 64 positions × 64 rows a block, a thread 4 × 4 whole dots.
 *
 * A thread follows the contract's tree from the left: it makes the partial sums of its dots one after the other and
 * adds neighbours as soon as both are there, so that a dot takes one register a level instead of lanes that exchange.
 * Heads of 64·GROUPS elements, or of fewer than 64: zeros fill those, and leave a partial sum at the +0 it
 * starts from. */
#ifndef FD_KERNELS_ATTENTION_SCORES_TILE_CUH
#define FD_KERNELS_ATTENTION_SCORES_TILE_CUH

#include "kernels/attention/attention.h"
#include "kernels/attention/cached.cuh"
#include "kernels/device.cuh"
#include "numerics/contract.h"

enum { SCORES_TILE = 64, SCORES_LEAST_ROWS = 32, SCORES_SIDE = 4 };

/* Keys lie with the two of each pair swapped: an element of q and its factor are then read to registers of different
 * banks, even and odd. From the same bank a multiply-add takes two clocks as often as not. */

/* A head's row in shared memory; 16 bytes more, so that eight rows' same 16 bytes lie in different banks. */
template <int GROUPS> constexpr int scores_stride = GROUPS * 64 + 4;
template <int GROUPS> constexpr size_t scores_tile_bytes = 2 * SCORES_TILE *scores_stride<GROUPS> * sizeof(float);

struct scores_dots {
    float at[SCORES_SIDE][SCORES_SIDE]; /* [query][position] */
};

/* Partial sums `first` … first + COUNT - 1, COUNT a power of two, and their tree. */
template <int GROUPS, int COUNT>
__device__ __forceinline__ scores_dots scores_partials(const float *query, const float *key, int first) {
    scores_dots sum;
    if constexpr (COUNT == 4) {
        float acc[SCORES_SIDE][SCORES_SIDE][4];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            float4 q[SCORES_SIDE], k[SCORES_SIDE];
#pragma unroll
            for (int i = 0; i < SCORES_SIDE; i++) {
                q[i] = *(const float4 *)(query + i * scores_stride<GROUPS> + g * 64 + first);
                k[i] = *(const float4 *)(key + i * 16 * scores_stride<GROUPS> + g * 64 + first);
            }
#pragma unroll
            for (int i = 0; i < SCORES_SIDE; i++)
#pragma unroll
                for (int j = 0; j < SCORES_SIDE; j++) {
                    float(&a)[4] = acc[i][j];
                    a[0] = fmaf(q[i].x, k[j].y, g ? a[0] : 0.0f);
                    a[1] = fmaf(q[i].y, k[j].x, g ? a[1] : 0.0f);
                    a[2] = fmaf(q[i].z, k[j].w, g ? a[2] : 0.0f);
                    a[3] = fmaf(q[i].w, k[j].z, g ? a[3] : 0.0f);
                }
        }
#pragma unroll
        for (int i = 0; i < SCORES_SIDE; i++)
#pragma unroll
            for (int j = 0; j < SCORES_SIDE; j++)
                sum.at[i][j] = (acc[i][j][0] + acc[i][j][1]) + (acc[i][j][2] + acc[i][j][3]);
    } else {
        const scores_dots low = scores_partials<GROUPS, COUNT / 2>(query, key, first);
        const scores_dots high = scores_partials<GROUPS, COUNT / 2>(query, key, first + COUNT / 2);
#pragma unroll
        for (int i = 0; i < SCORES_SIDE; i++)
#pragma unroll
            for (int j = 0; j < SCORES_SIDE; j++) sum.at[i][j] = low.at[i][j] + high.at[i][j];
    }
    return sum;
}

/* Thread 16y + x: rows 4y … 4y + 3, positions x, x + 16, x + 32, x + 48 of the tile. */
template <int GROUPS, class Element>
__global__ void __launch_bounds__(256)
    attn_scores_tile(const fd_attention a, const float *q, const Element *cache_k, float scale, float *scores) {
    float *queries = fd_shared_floats(), *keys = queries + SCORES_TILE * scores_stride<GROUPS>;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int sharing = a.n_head / a.n_head_kv, kv_head = (int)blockIdx.y, position0 = (int)blockIdx.x * SCORES_TILE;
    const int64_t first = (int64_t)blockIdx.z * SCORES_TILE, n_query = (int64_t)a.n_tok * sharing;
    const int pos0 = *a.pos0, x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    const int64_t last = first + SCORES_TILE < n_query ? first + SCORES_TILE - 1 : n_query - 1;
    scores_dots dots = {};
    if (position0 <= pos0 + last / sharing) { /* some row of the tile sees a position of it */
        constexpr int quads = GROUPS * 16;
        for (int i = (int)threadIdx.x; i < SCORES_TILE * quads; i += 256) {
            const int row = i / quads, k = i % quads * 4;
            const int64_t at = first + row < n_query ? first + row : n_query - 1;
            const int64_t head = at / sharing * a.n_head + kv_head * sharing + at % sharing;
            const int position = position0 + row < a.n_kv ? position0 + row : a.n_kv - 1;
            const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            *(float4 *)(queries + row * scores_stride<GROUPS> + k) =
                k < a.head_dim ? __ldcg((const float4 *)(q + head * a.head_dim + k)) : zero;
            const float4 key_quad =
                k < a.head_dim ? fd_load_cached4(cache_k + ((int64_t)position * a.n_head_kv + kv_head) * a.head_dim + k)
                               : zero;
            *(float4 *)(keys + row * scores_stride<GROUPS> + k) =
                make_float4(key_quad.y, key_quad.x, key_quad.w, key_quad.z);
        }
        __syncthreads();
        const float *query = queries + y * SCORES_SIDE * scores_stride<GROUPS>, *key = keys + x * scores_stride<GROUPS>;
        const scores_dots low = scores_partials<GROUPS, 32>(query, key, 0),
                          high = scores_partials<GROUPS, 32>(query, key, 32);
#pragma unroll
        for (int i = 0; i < SCORES_SIDE; i++)
#pragma unroll
            for (int j = 0; j < SCORES_SIDE; j++) dots.at[i][j] = low.at[i][j] + high.at[i][j];
    } else if (a.causal_only) {
        return;
    }
#pragma unroll
    for (int i = 0; i < SCORES_SIDE; i++) {
        const int64_t row = first + y * SCORES_SIDE + i;
        if (row >= n_query) break;
        const int64_t token = row / sharing, head = kv_head * sharing + row % sharing, own = pos0 + token;
#pragma unroll
        for (int j = 0; j < SCORES_SIDE; j++) {
            const int position = position0 + x + 16 * j;
            if (position >= a.n_kv) continue;
            const bool seen = position <= own && (a.window == 0 || position > own - a.window);
            float score = dots.at[i][j] * scale;
            if (a.softcap > 0.0f) score = fd_softcap32(score, a.softcap);
            scores[(token * a.n_head + head) * a.n_kv + position] = seen ? score : -(float)INFINITY;
        }
    }
}

/* Heads that the tile takes: zeros may fill a partial sum that nothing has been added to, and no other. */
static inline bool scores_tile_takes(const fd_attention *shape) {
    return shape->head_dim % 64 == 0 || (shape->head_dim < 64 && shape->head_dim % 4 == 0);
}

#endif
