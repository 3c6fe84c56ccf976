/* The three ops on their own, for any number of rows. */
#include "kernels/attention/attention.h"

#include "kernels/attention/dot.cuh"
#include "kernels/attention/mix_tile.cuh"
#include "kernels/attention/scores_wide.h"
#include "kernels/attention/scores_tile.cuh"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"

enum { POSITIONS = 64, QUERIES = 16, MIX_WIDTH = 64, MIX_ROWS = 16, MIX_ROWS_PER_THREAD = 4 };
enum { SOFTMAX_LEAST_WARPS = 8 }; /* a multiprocessor; with fewer, several warps share a row */

/* Block: 64 positions × 16 query rows (a token and one of the heads that share a K/V head); eight lanes a position. */
template <int GROUPS, class Element>
__global__ void __launch_bounds__(256)
    attn_scores(const fd_attention a, const float *q, const Element *cache_k, float scale, float *scores) {
    __shared__ __align__(16) float query[QUERIES][GROUPS * 64];
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int sharing = a.n_head / a.n_head_kv, kv_head = (int)blockIdx.y;
    const int64_t first = (int64_t)blockIdx.z * QUERIES, n_query = (int64_t)a.n_tok * sharing;
    const int pos0 = *a.pos0;

    for (int i = (int)threadIdx.x; i < QUERIES * GROUPS * 64; i += 256) {
        const int64_t at = first + i / (GROUPS * 64);
        const int k = i % (GROUPS * 64);
        const int64_t row = at / sharing * a.n_head + kv_head * sharing + at % sharing;
        query[i / (GROUPS * 64)][fd_query_at(k)] = at < n_query && k < a.head_dim ? q[row * a.head_dim + k] : 0.0f;
    }
    __syncthreads();

    const int lane = (int)threadIdx.x % 8;
    for (int pass = 0; pass < POSITIONS / 32; pass++) {
        const int position = (int)blockIdx.x * POSITIONS + pass * 32 + (int)threadIdx.x / 8;
        const int read = position < a.n_kv ? position : a.n_kv - 1;
        fd_key_share<GROUPS, Element> share;
        share.load(cache_k + ((int64_t)read * a.n_head_kv + kv_head) * a.head_dim, a.head_dim, lane);
        float key[GROUPS * 8];
        share.spread(key);
        for (int i = 0; i < QUERIES && first + i < n_query; i++) {
            const int64_t token = (first + i) / sharing, head = kv_head * sharing + (first + i) % sharing;
            /* The same for the whole block: nothing past the row's own position need be computed. */
            const bool any_seen = (int)blockIdx.x * POSITIONS + pass * 32 <= pos0 + token;
            const float dot = any_seen ? fd_query_dot<GROUPS>(query[i], key, a.head_dim, lane) : 0.0f;
            if (lane == i % 8 && position < a.n_kv) {
                const int64_t own = pos0 + token;
                const bool seen = position <= own && (a.window == 0 || position > own - a.window);
                float score = dot * scale;
                if (a.softcap > 0.0f) score = fd_softcap32(score, a.softcap);
                scores[(token * a.n_head + head) * a.n_kv + position] = seen ? score : -(float)INFINITY;
            }
        }
    }
}

fd_code fd_launch_attn_scores(const fd_launch_context *ctx, const fd_attention *shape, const float *q,
                              const void *cache_k, float scale, float *scores, fd_error *err) {
    const int64_t n_query = (int64_t)shape->n_tok * (shape->n_head / shape->n_head_kv);
    if (shape->n_head % shape->n_head_kv != 0 || shape->n_tok < 1 || shape->n_kv < 1 || n_query > 65535 * QUERIES)
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_scores: %d heads over %d, %d rows, %d positions", shape->n_head,
                       shape->n_head_kv, shape->n_tok, shape->n_kv);
    if (shape->head_dim > FD_ATTENTION_MAX_HEAD_DIM)
        return fd_launch_attn_scores_wide(ctx, shape, q, cache_k, scale, scores, err);
    if (n_query >= SCORES_LEAST_ROWS && scores_tile_takes(shape)) {
        const dim3 tiles(fd_blocks(shape->n_kv, SCORES_TILE), (unsigned)shape->n_head_kv,
                         fd_blocks(n_query, SCORES_TILE));
        return fd_with_cached_groups(shape, err, [&](auto groups, auto element) {
            constexpr int n = decltype(groups)::value;
            using Element = typename decltype(element)::type;
            return fd_launch(ctx, "attn_scores_tile", attn_scores_tile<n, Element>, tiles, 256, scores_tile_bytes<n>,
                             err, *shape, q, (const Element *)cache_k, scale, scores);
        });
    }
    const dim3 grid(fd_blocks(shape->n_kv, POSITIONS), (unsigned)shape->n_head_kv, fd_blocks(n_query, QUERIES));
    return fd_with_cached_groups(shape, err, [&](auto groups, auto element) {
        using Element = typename decltype(element)::type;
        return fd_launch(ctx, "attn_scores", attn_scores<decltype(groups)::value, Element>, grid, 256, 0, err, *shape,
                         q, (const Element *)cache_k, scale, scores);
    });
}

/* Warp: one head of one row. Lane l has positions l, l + 32, …, and so partial sums l and l + 32; it holds 16 of them
 * at a time, all of a row where it is not longer. */
enum { HELD = 16, HELD_POSITIONS = HELD * 32 };

__device__ __forceinline__ void read_positions(const float *row, int first, int n, int lane, float (&value)[HELD]) {
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int t = first + i * 32 + lane;
        value[i] = t < n ? __ldcg(row + t) : -(float)INFINITY;
    }
}

__global__ void __launch_bounds__(256) attn_softmax_rows(const fd_attention a, const float *scores, float *weights) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t at = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (at >= (int64_t)a.n_tok * a.n_head) return;
    const int n = *a.pos0 + (int)(at / a.n_head) + 1, lane = (int)threadIdx.x % 32;
    const bool held = n <= HELD_POSITIONS;
    const float *score = scores + at * a.n_kv;
    float *weight = weights + at * a.n_kv;
    const float sink = a.sinks ? a.sinks[at % a.n_head] : -(float)INFINITY;
    float max = sink, low = 0.0f, high = 0.0f, value[HELD];

    for (int first = 0; first < n; first += HELD_POSITIONS) {
        read_positions(score, first, n, lane, value);
#pragma unroll
        for (int i = 0; i < HELD; i++) max = fmaxf(max, value[i]);
    }
    max = fd_warp_max(max);

    for (int first = 0; first < n; first += HELD_POSITIONS) {
        if (!held) read_positions(score, first, n, lane, value);
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            if (first + i * 32 >= n) break;
            if (first + i * 32 + lane >= n) continue;
            value[i] = fd_exp32(value[i] - max);
            if (i % 2 == 0)
                low = low + value[i];
            else
                high = high + value[i];
            if (!held) weight[first + i * 32 + lane] = value[i];
        }
    }
    float sum = fd_tree_lanes<32>(low) + fd_tree_lanes<32>(high);
    if (a.sinks) sum = sum + fd_exp32(sink - max);

    const int end = a.causal_only ? n : a.n_kv;
    for (int first = 0; first < end; first += HELD_POSITIONS) {
        if (!held) read_positions(weight, first, n, lane, value);
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int t = first + i * 32 + lane;
            if (t < n)
                weight[t] = value[i] / sum;
            else if (t < end)
                weight[t] = 0.0f;
        }
    }
}

/* Block: one head of one row, for few rows. */
__global__ void __launch_bounds__(128) attn_softmax(const fd_attention a, const float *scores, float *weights) {
    __shared__ float warp_max[4], total;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t row = blockIdx.y;
    const int n = *a.pos0 + (int)row + 1, lane = (int)threadIdx.x % 32;
    const float *score = scores + (row * a.n_head + blockIdx.x) * a.n_kv;
    float *weight = weights + (row * a.n_head + blockIdx.x) * a.n_kv;

    const float sink = a.sinks ? a.sinks[blockIdx.x] : -(float)INFINITY;
    float max = sink;
    for (int t = (int)threadIdx.x; t < n; t += 128) max = fmaxf(max, score[t]);
    max = fd_warp_max(max);
    if (lane == 0) warp_max[threadIdx.x / 32] = max;
    __syncthreads();
    max = fmaxf(fmaxf(warp_max[0], warp_max[1]), fmaxf(warp_max[2], warp_max[3]));

    for (int t = (int)threadIdx.x; t < n; t += 128) weight[t] = fd_exp32(score[t] - max);
    __syncthreads();
    if (threadIdx.x < 32) {
        float sum = fd_warp_sum(weight, n, lane);
        if (a.sinks) sum = sum + fd_exp32(sink - max);
        if (lane == 0) total = sum;
    }
    __syncthreads();
    const float sum = total;
    for (int t = (int)threadIdx.x; t < a.n_kv; t += 128) weight[t] = t < n ? weight[t] / sum : 0.0f;
}

fd_code fd_launch_attn_softmax(const fd_launch_context *ctx, const fd_attention *shape, const float *scores,
                               float *weights, fd_error *err) {
    if (shape->n_tok < 1 || shape->n_tok > 65535 || shape->n_kv < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_softmax: %d rows, %d positions", shape->n_tok, shape->n_kv);
    const int64_t n_row = (int64_t)shape->n_tok * shape->n_head;
    if (n_row >= (int64_t)SOFTMAX_LEAST_WARPS * ctx->n_sm)
        return fd_launch(ctx, "attn_softmax_rows", attn_softmax_rows, dim3(fd_blocks(n_row, 8)), 256, 0, err, *shape,
                         scores, weights);
    return fd_launch(ctx, "attn_softmax", attn_softmax, dim3((unsigned)shape->n_head, (unsigned)shape->n_tok), 128, 0,
                     err, *shape, scores, weights);
}

/* Block: 64 elements of a head × 16 rows; a thread one element of four rows. Blocks of 64 positions from position 0:
 * within one acc = fma(p, v, acc) from +0, then total = total + acc. */
template <class Element>
__global__ void __launch_bounds__(256)
    attn_mix(const fd_attention a, const float *weights, const Element *cache_v, float *out) {
    __shared__ __align__(16) float p[MIX_ROWS][FD_ATTENTION_BLOCK];
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int d = (int)blockIdx.x * MIX_WIDTH + (int)threadIdx.x % MIX_WIDTH, head = (int)blockIdx.y;
    const int row0 = (int)blockIdx.z * MIX_ROWS, own_row0 = (int)threadIdx.x / MIX_WIDTH * MIX_ROWS_PER_THREAD;
    const int rows = a.n_tok - row0 < MIX_ROWS ? a.n_tok - row0 : MIX_ROWS, pos0 = *a.pos0;
    const int kv_head = head / (a.n_head / a.n_head_kv);
    const int64_t v_stride = (int64_t)a.n_head_kv * a.head_dim;
    const Element *v = cache_v + (int64_t)kv_head * a.head_dim + d;
    float total[MIX_ROWS_PER_THREAD] = {};

    for (int block = 0; block < pos0 + row0 + rows; block += FD_ATTENTION_BLOCK) {
        for (int i = (int)threadIdx.x; i < MIX_ROWS * FD_ATTENTION_BLOCK; i += 256) {
            const int row = i / FD_ATTENTION_BLOCK, t = block + i % FD_ATTENTION_BLOCK;
            const bool seen = row < rows && t <= pos0 + row0 + row;
            p[row][i % FD_ATTENTION_BLOCK] =
                seen ? weights[((int64_t)(row0 + row) * a.n_head + head) * a.n_kv + t] : 0.0f;
        }
        __syncthreads();
        if (d < a.head_dim) {
            /* Positions of this block that the thread's first row sees; each further row sees one more, if there is
             * one. */
            const int seen = pos0 + row0 + own_row0 + 1 - block;
            float acc[MIX_ROWS_PER_THREAD] = {};
            if (seen >= FD_ATTENTION_BLOCK) {
#pragma unroll 4
                for (int t = 0; t < FD_ATTENTION_BLOCK; t += 4) {
                    float value[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) value[i] = fd_from_cached(v[(block + t + i) * v_stride]);
#pragma unroll
                    for (int r = 0; r < MIX_ROWS_PER_THREAD; r++) {
                        const float4 w = *(const float4 *)&p[own_row0 + r][t];
                        acc[r] = fmaf(w.x, value[0], acc[r]);
                        acc[r] = fmaf(w.y, value[1], acc[r]);
                        acc[r] = fmaf(w.z, value[2], acc[r]);
                        acc[r] = fmaf(w.w, value[3], acc[r]);
                    }
                }
            } else {
                const int most = seen + MIX_ROWS_PER_THREAD - 1;
                for (int t = 0; t < FD_ATTENTION_BLOCK && t < most && block + t < a.n_kv; t++) {
                    const float value = fd_from_cached(v[(block + t) * v_stride]);
#pragma unroll
                    for (int r = 0; r < MIX_ROWS_PER_THREAD; r++)
                        if (t < seen + r) acc[r] = fmaf(p[own_row0 + r][t], value, acc[r]);
                }
            }
#pragma unroll
            for (int r = 0; r < MIX_ROWS_PER_THREAD; r++)
                if (seen + r > 0) total[r] = total[r] + acc[r];
        }
        __syncthreads();
    }
    if (d >= a.head_dim) return;
#pragma unroll
    for (int r = 0; r < MIX_ROWS_PER_THREAD; r++)
        if (own_row0 + r < rows) out[((int64_t)(row0 + own_row0 + r) * a.n_head + head) * a.head_dim + d] = total[r];
}

template <int LANES, class Element>
static fd_code launch_mix_tile(const fd_launch_context *ctx, const fd_attention *shape, const float *weights,
                               const Element *cache_v, float *out, fd_error *err) {
    const int64_t n_query = (int64_t)shape->n_tok * (shape->n_head / shape->n_head_kv);
    const unsigned blocks = fd_blocks(n_query, MIX_TILE) * (unsigned)shape->n_head_kv;
    /* Where all blocks run at once, two a multiprocessor, one that sees much goes with one that sees little. */
    const int turn = (int)blocks <= 2 * ctx->n_sm ? ctx->n_sm : (int)blocks;
    const dim3 grid(blocks, fd_blocks(shape->head_dim, mix_tile<LANES>::width));
    return fd_launch(ctx, "attn_mix_tile", attn_mix_tile<LANES, Element>, grid, 256, mix_tile<LANES>::bytes, err,
                     *shape, weights, cache_v, turn, out);
}

template <class Element>
static fd_code launch_mix(const fd_launch_context *ctx, const fd_attention *shape, const float *weights,
                          const Element *cache_v, float *out, fd_error *err) {
    const int64_t n_query = (int64_t)shape->n_tok * (shape->n_head / shape->n_head_kv);
    if (n_query >= MIX_LEAST_ROWS && shape->head_dim % 4 == 0 && n_query <= INT32_MAX - MIX_TILE)
        return shape->head_dim <= mix_tile<16>::width ? launch_mix_tile<16>(ctx, shape, weights, cache_v, out, err)
                                                      : launch_mix_tile<32>(ctx, shape, weights, cache_v, out, err);
    const dim3 grid(fd_blocks(shape->head_dim, MIX_WIDTH), (unsigned)shape->n_head, fd_blocks(shape->n_tok, MIX_ROWS));
    return fd_launch(ctx, "attn_mix", attn_mix<Element>, grid, 256, 0, err, *shape, weights, cache_v, out);
}

fd_code fd_launch_attn_mix(const fd_launch_context *ctx, const fd_attention *shape, const float *weights,
                           const void *cache_v, float *out, fd_error *err) {
    if (shape->n_head % shape->n_head_kv != 0 || shape->n_tok < 1 || shape->n_tok > 65535 * MIX_ROWS ||
        shape->head_dim < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_mix: %d heads over %d, %d rows", shape->n_head, shape->n_head_kv,
                       shape->n_tok);
    return fd_with_cached(shape->halves, [&](auto element) {
        using Element = typename decltype(element)::type;
        return launch_mix(ctx, shape, weights, (const Element *)cache_v, out, err);
    });
}
