/* What the kernels of a decode step's attention share (kernels/attention/single_block.cu,
 * kernels/attention/split_kv.cu). */
#ifndef FD_KERNELS_ATTENTION_SPLIT_KV_CUH
#define FD_KERNELS_ATTENTION_SPLIT_KV_CUH

#include "kernels/attention/dot.cuh"
#include "kernels/attention/scratch.cuh"
#include "kernels/elementwise/rope.cuh"

/* Near the beginning (kernels/attention/single_block.cu). */
fd_code fd_launch_attn_single_block(const fd_launch_context *ctx, const fd_attn_decode *in, fd_error *err);

enum { DECODE_THREADS = 256, DECODE_WARPS = DECODE_THREADS / 32 };

/* The row's part of everything; rows are the grid's third dimension. Read before the wait, as positions are. */
__device__ __forceinline__ fd_attn_decode row_of(const fd_attn_decode &all) {
    fd_attn_decode a = all;
    if (!all.sequences) return a;
    const int64_t row = blockIdx.z, width_q = (int64_t)a.n_head * a.head_dim, width = (int64_t)a.n_head_kv * a.head_dim;
    const int64_t cache = all.cache_stride * __ldcg(all.sequences + row);
    a.q += row * width_q;
    a.k += row * width;
    a.v += row * width;
    a.out += row * width_q;
    a.pos += row;
    a.cache_k += cache;
    a.cache_v += cache;
    a.scratch += row * all.scratch_stride;
    return a;
}

/* The queries of all heads that share a K/V head, one after the other. */
template <int GROUPS>
__device__ __forceinline__ void stage_queries(const fd_attn_decode &a, int kv_head, int sharing, int pos,
                                              float *query) {
    constexpr int width = 64 * GROUPS;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < sharing * width; i += DECODE_THREADS) {
        const int k = i % width;
        const float *head = a.q + (int64_t)(kv_head * sharing + i / width) * a.head_dim;
        query[i / width * width + fd_query_at(k)] = k < a.head_dim ? fd_rope_element(a.q_rope, head, k, pos) : 0.0f;
    }
}

/* The newest key to shared memory; to the cache, and the value with it, when `store`. */
__device__ __forceinline__ void stage_key(const fd_attn_decode &a, int kv_head, int pos, float *key, bool store) {
    const int i = (int)threadIdx.x;
    if (i >= a.head_dim) return;
    const int64_t from = (int64_t)kv_head * a.head_dim + i, to = (int64_t)pos * a.n_head_kv * a.head_dim + from;
    const float newest = fd_rope_element(a.k_rope, a.k + (int64_t)kv_head * a.head_dim, i, pos);
    key[i] = newest;
    if (!store) return;
    a.cache_k[to] = newest;
    a.cache_v[to] = __ldcg(a.v + from);
}

/* A head's query and its K/V head's newest key, from shared memory to an observer's tensors. */
__device__ __forceinline__ void store_rotated(const fd_attn_decode &a, int head, const float *query, const float *key) {
    const int i = (int)threadIdx.x, sharing = a.n_head / a.n_head_kv;
    if (i >= a.head_dim) return;
    if (a.q_out) a.q_out[(int64_t)head * a.head_dim + i] = query[fd_query_at(i)];
    if (a.k_out && head % sharing == 0) a.k_out[(int64_t)(head / sharing) * a.head_dim + i] = key[i];
}

template <int GROUPS>
__device__ __forceinline__ void key_from(const float *key, int head_dim, int lane, float (&k)[GROUPS * 8]) {
#pragma unroll
    for (int i = 0; i < GROUPS * 8; i++) {
        const int at = i / 8 * 64 + lane * 8 + i % 8;
        if (at < head_dim) k[i] = key[at];
    }
}

/* acc = fma(p, v, acc) over `count` positions from `v` on. */
__device__ __forceinline__ float mix_on(float acc, const float *p, const float *v, int64_t stride, int count) {
#pragma unroll 1
    for (int t = 0; t < count; t += 32) {
        float value[32];
#pragma unroll
        for (int i = 0; i < 32; i++) value[i] = t + i < count ? __ldcg(v + (t + i) * stride) : 0.0f;
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (t + i < count) acc = fmaf(p[t + i], value[i], acc);
    }
    return acc;
}

/* Scores of all heads: a block takes some positions of a K/V head at a time. `area` holds the queries that share it.
 * `wait` returns when q, k and v are there. */
template <int GROUPS, class Wait>
__device__ __forceinline__ void scores_of_pieces(const fd_attn_decode &a, int pos, float *area, Wait wait) {
    constexpr int width = 64 * GROUPS, at_once = DECODE_THREADS / 8;
    const int n = pos + 1, n_piece = (n + at_once - 1) / at_once, sharing = a.n_head / a.n_head_kv;
    const int lane = (int)threadIdx.x % 8;
    float *key_new = area, *query = key_new + width;
    const scratch_layout s = layout_of(&a);
    for (int item = (int)blockIdx.x; item < n_piece * a.n_head_kv; item += (int)gridDim.x) {
        const int kv_head = item % a.n_head_kv, piece = item / a.n_head_kv, t = piece * at_once + (int)threadIdx.x / 8;
        float key[GROUPS * 8];
        if (t < pos)
            fd_load_key<GROUPS>(a.cache_k + ((int64_t)t * a.n_head_kv + kv_head) * a.head_dim, a.head_dim, lane, key);
        if (item == (int)blockIdx.x) wait();
        stage_queries<GROUPS>(a, kv_head, sharing, pos, query);
        if (piece == n_piece - 1) stage_key(a, kv_head, pos, key_new, true);
        __syncthreads();
        if (t >= pos) key_from<GROUPS>(key_new, a.head_dim, lane, key);
        for (int h = 0; h < sharing; h++) {
            const float dot = fd_query_dot<GROUPS>(query + h * width, key, a.head_dim, lane);
            const int64_t at = (int64_t)(kv_head * sharing + h) * a.n_ctx + t;
            if (lane == h % 8 && t < n) s.scores[at] = dot * a.scale;
            if (a.scores_out && lane == h % 8 && t < n) a.scores_out[at] = dot * a.scale;
            if (piece == n_piece - 1) store_rotated(a, kv_head * sharing + h, query + h * width, key_new);
        }
        __syncthreads();
    }
}

#endif
