/* What the kernels of kernels/attention_decode.cu do in a block: a head by itself below FD_ATTENTION_NEAR positions, or
 * the scores of some positions. */
#ifndef FD_KERNELS_ATTENTION_DECODE_CUH
#define FD_KERNELS_ATTENTION_DECODE_CUH

#include "kernels/attention_dot.cuh"
#include "kernels/attention_scratch.cuh"
#include "kernels/rope.cuh"

enum { DECODE_THREADS = 256, DECODE_WARPS = DECODE_THREADS / 32 };

/* One head's newest key and queries after RoPE; a thread an element. */
__device__ __forceinline__ float turned(const fd_rope_shape &shape, const float *head, int i, int pos) {
    const int64_t angles = (int64_t)pos * (shape.n_rot / 2);
    return fd_rope_element(shape, head, i, shape.cosine + angles, shape.sine + angles);
}

template <int GROUPS>
__device__ __forceinline__ void stage_query(const fd_attn_decode &a, int head, int pos, float *query) {
    const int k = (int)threadIdx.x;
    if (k < 64 * GROUPS)
        query[fd_query_at(k)] = k < a.head_dim ? turned(a.q_rope, a.q + (int64_t)head * a.head_dim, k, pos) : 0.0f;
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
        query[i / width * width + fd_query_at(k)] = k < a.head_dim ? turned(a.q_rope, head, k, pos) : 0.0f;
    }
}

/* The newest key to shared memory; to the cache, and the value with it, when `store`. */
__device__ __forceinline__ void stage_key(const fd_attn_decode &a, int kv_head, int pos, float *key, bool store) {
    const int i = (int)threadIdx.x;
    if (i >= a.head_dim) return;
    const int64_t from = (int64_t)kv_head * a.head_dim + i, to = (int64_t)pos * a.n_head_kv * a.head_dim + from;
    const float newest = turned(a.k_rope, a.k + (int64_t)kv_head * a.head_dim, i, pos);
    key[i] = newest;
    if (!store) return;
    a.cache_k[to] = newest;
    a.cache_v[to] = __ldcg(a.v + from);
}

/* A head's query and its K/V head's newest key, from shared memory to where they are kept. */
__device__ __forceinline__ void keep_turned(const fd_attn_decode &a, int head, const float *query, const float *key) {
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

/* acc = fma(p, v, acc) over `count` positions from `v` on; then over the newest position, when `newest`. */
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
__device__ __forceinline__ float mix_chunk(const float *p, const float *v, int64_t stride, int count,
                                           const float *newest) {
    const float acc = mix_on(0.0f, p, v, stride, count);
    return newest ? fmaf(p[count], __ldcg(newest), acc) : acc;
}

/* score[0 … n − 1], n ≤ DECODE_THREADS, to e^(s − max) / sum. Every warp finds maximum and sum for itself: a block has
 * little else to do, and barriers are what takes the time. `e`: room for as many. Starts and ends with a barrier. */
__device__ __forceinline__ void near_softmax(float *score, float *e, int n) {
    const int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x;
    static_assert(FD_ATTENTION_NEAR <= DECODE_THREADS, "a thread an element");
    __syncthreads();
    float max = -(float)INFINITY;
#pragma unroll
    for (int i = 0; i < FD_ATTENTION_NEAR / 32; i++)
        if (lane + i * 32 < n) max = fmaxf(max, score[lane + i * 32]);
    max = fd_warp_max(max);
    const float own_e = own < n ? fd_exp32(score[own] - max) : 0.0f;
    if (own < n) e[own] = own_e;
    __syncthreads();
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int i = 0; i < FD_ATTENTION_NEAR / 64; i++) {
        if (lane + i * 64 < n) low = low + e[lane + i * 64];
        if (lane + i * 64 + 32 < n) high = high + e[lane + i * 64 + 32];
    }
    const float sum = fd_tree_lanes<32>(low) + fd_tree_lanes<32>(high);
    if (own < n) score[own] = own_e / sum;
    __syncthreads();
}

/* What a thread asks of the cache before it waits for the step's queries: keys of the first positions and the first
 * values it mixes. Those rows were written in earlier steps. */
template <int GROUPS> struct near_held {
    static constexpr int passes = 4 / GROUPS, values = 32;
    static constexpr int area = 2 * 64 * GROUPS + 2 * FD_ATTENTION_NEAR + FD_ATTENTION_NEAR / CHUNK * 64 * GROUPS;
    float key[passes][GROUPS * 8], value[values];
};

/* pos < FD_ATTENTION_NEAR; `area` has near_held::area floats. `wait` returns when q, k and v are there. KEEP: what the
 * outputs beside `out` ask for is written too. */
template <int GROUPS, bool KEEP, class Wait>
__device__ __forceinline__ void attention_near(const fd_attn_decode &a, int pos, float *area, Wait wait) {
    using Held = near_held<GROUPS>;
    constexpr int width = 64 * GROUPS, at_once = DECODE_THREADS / width, pass_rows = DECODE_THREADS / 8;
    float *query = area, *key_new = query + width, *score = key_new + width, *e = score + FD_ATTENTION_NEAR,
          *chunk_sums = e + FD_ATTENTION_NEAR;
    const int n = pos + 1, n_chunk = chunks_of(n), sharing = a.n_head / a.n_head_kv, lane = (int)threadIdx.x % 8;
    const int64_t stride = (int64_t)a.n_head_kv * a.head_dim;
    const int d = (int)threadIdx.x % width, own_chunk = (int)threadIdx.x / width;
    const int head = (int)blockIdx.x;
    const int kv_head = head / sharing;
    const float *cache_k = a.cache_k + (int64_t)kv_head * a.head_dim;
    const float *cache_v = a.cache_v + (int64_t)kv_head * a.head_dim + d;
    Held held;
#pragma unroll
    for (int pass = 0; pass < Held::passes; pass++) {
        const int t = pass * pass_rows + (int)threadIdx.x / 8;
        if (t < pos) fd_load_key<GROUPS>(cache_k + t * stride, a.head_dim, lane, held.key[pass]);
    }
#pragma unroll
    for (int i = 0; i < Held::values; i++) {
        const int t = own_chunk * CHUNK + i;
        held.value[i] = t < pos && d < a.head_dim ? __ldcg(cache_v + t * stride) : 0.0f;
    }
    wait();
    stage_query<GROUPS>(a, head, pos, query);
    stage_key(a, kv_head, pos, key_new, head % sharing == 0);
    __syncthreads();
    if (KEEP) keep_turned(a, head, query, key_new);
    const auto put_score = [&](int t, const float(&key)[GROUPS * 8]) {
        const float dot = fd_query_dot<GROUPS>(query, key, a.head_dim, lane);
        if (lane == 0 && t < n) score[t] = dot * a.scale;
        if (KEEP && a.scores_out && lane == 0 && t < n) a.scores_out[(int64_t)head * a.n_ctx + t] = dot * a.scale;
    };
#pragma unroll
    for (int pass = 0; pass < Held::passes; pass++) {
        const int t = pass * pass_rows + (int)threadIdx.x / 8;
        if (pass * pass_rows >= n) break;
        if (t >= pos) key_from<GROUPS>(key_new, a.head_dim, lane, held.key[pass]);
        put_score(t, held.key[pass]);
    }
#pragma unroll 1
    for (int base = Held::passes * pass_rows; base < n; base += pass_rows) {
        const int t = base + (int)threadIdx.x / 8;
        float key[GROUPS * 8];
        if (t < pos)
            fd_load_key<GROUPS>(cache_k + t * stride, a.head_dim, lane, key);
        else
            key_from<GROUPS>(key_new, a.head_dim, lane, key);
        put_score(t, key);
    }
    near_softmax(score, e, n);
    if (KEEP && a.weights_out && (int)threadIdx.x < n)
        a.weights_out[(int64_t)head * a.n_ctx + threadIdx.x] = score[threadIdx.x];
    for (int chunk = own_chunk; chunk < n_chunk && d < a.head_dim; chunk += at_once) {
        const int first = chunk * CHUNK, cached = pos - first < CHUNK ? pos - first : CHUNK;
        const float *newest = cached < CHUNK ? a.v + (int64_t)kv_head * a.head_dim + d : nullptr;
        if (chunk == own_chunk) {
            float acc = 0.0f;
#pragma unroll
            for (int i = 0; i < Held::values; i++)
                if (i < cached) acc = fmaf(score[first + i], held.value[i], acc);
            if (Held::values < CHUNK && cached > Held::values) {
                acc = mix_on(acc, score + first + Held::values, cache_v + (first + Held::values) * stride, stride,
                             cached - Held::values);
            }
            chunk_sums[chunk * width + d] = newest ? fmaf(score[first + cached], __ldcg(newest), acc) : acc;
        } else {
            chunk_sums[chunk * width + d] = mix_chunk(score + first, cache_v + first * stride, stride, cached, newest);
        }
    }
    __syncthreads();
    if ((int)threadIdx.x < a.head_dim) {
        float total = 0.0f;
        for (int chunk = 0; chunk < n_chunk; chunk++) total = total + chunk_sums[chunk * width + threadIdx.x];
        a.out[(int64_t)head * a.head_dim + threadIdx.x] = total;
    }
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
            if (piece == n_piece - 1) keep_turned(a, kv_head * sharing + h, query + h * width, key_new);
        }
        __syncthreads();
    }
}

#endif
