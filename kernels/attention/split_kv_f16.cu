/* Attention of one row, or of one each of several sequences: a block takes some tiles of 64 positions and up to four
 * queries of one K/V head, which share what is read of K and V, with a running maximum and sum. The last of those
 * queries' blocks to end joins the results of all in order of positions: the order of arrival changes nothing.
 *
 * Cached rows are requested before the kernel waits for its predecessor: earlier forward calls wrote them, and the
 * position is in place before the first kernel of a step starts. The newest row comes from shared memory. */
#include "kernels/attention/attention.h"
#include "kernels/attention/scratch.cuh"
#include "kernels/attention/decode_f16.cuh"
#include "kernels/attention/split_join_f16.cuh"
#include "kernels/attention/split_work_f16.cuh"
#include "kernels/launch.cuh"
#include "kernels/elementwise/rope.cuh"
#include "kernels/tree.cuh"

static share share_of(const fd_launch_context *ctx, const fd_attn_f16 *in) {
    const int sharing = in->n_head / in->n_head_kv;
    const int n_group = (sharing + HEADS - 1) / HEADS;
    const int tiles = (in->n_ctx + TILE - 1) / TILE;
    int most = ctx->n_sm * 2 / (in->n_head_kv_whole * n_group);
    most = most < 1 ? 1 : most < MAX_SPLIT ? most : MAX_SPLIT;
    return {sharing, n_group, tiles < most ? tiles : most, 2 + (int64_t)in->head_dim};
}

size_t fd_attn_decode_f16_scratch(const fd_launch_context *ctx, const fd_attn_f16 *in) {
    const share s = share_of(ctx, in);
    return sizeof(float) *
           ((size_t)in->n_head * (size_t)s.n_split * (size_t)s.partial + (size_t)(in->n_head_kv * s.n_group));
}

/* Eight elements from `at` on of a row of a cache; zeros past the head's end. */
__device__ __forceinline__ uint4 load_eight(const uint16_t *row, int at, int head_dim) {
    if (head_dim % 8 == 0) return at < head_dim ? __ldcg((const uint4 *)(row + at)) : make_uint4(0, 0, 0, 0);
    uint32_t pair[4] = {0, 0, 0, 0};
    for (int i = 0; i < 8; i++)
        if (at + i < head_dim) pair[i / 2] |= (uint32_t)__ldcg(row + at + i) << i % 2 * 16;
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

template <int LANES, int ROUNDS>
__device__ __forceinline__ void load_rows(const fd_attn_f16 &a, const block_work &w, const uint16_t *cache, int tile,
                                          uint4 (&rows)[ROUNDS]) {
    using L = layout<LANES>;
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int t = tile * TILE + L::row(r);
        rows[r] = t < w.cached ? load_eight(cache + t * w.stride + w.of_head, L::lane() * 8, a.head_dim)
                               : make_uint4(0, 0, 0, 0);
    }
}

/* q after RoPE to query [heads, width]; the newest rows of K and V to shared memory and to the caches. The angles are
 * loaded before the wait. The last threads load the newest rows before anything is stored: the first ones rotate
 * queries. */
template <int LANES>
__device__ __forceinline__ void stage_rows(const fd_attn_f16 &a, const block_work &w, float *query,
                                           block_shared<LANES> &b) {
    constexpr int width = layout<LANES>::width;
    const int tid = (int)threadIdx.x, element = tid % width;
    const bool writes = a.k != nullptr;
    const fd_rope_angle q_angle = fd_rope_angle_of(a.q_rope, element, a.head_dim, w.pos);
    const fd_rope_angle k_angle = fd_rope_angle_of(a.k_rope, element, a.head_dim, w.pos);
    if (writes) fd_pdl_wait();
    const bool newest_here = writes && w.split == w.active - 1 && tid >= THREADS - width;
    float2 k_pair = make_float2(0.0f, 0.0f);
    float v_new = 0.0f;
    if (newest_here) {
        k_pair = fd_rope_load(k_angle, a.k + w.of_head);
        if (element < a.head_dim) v_new = __ldcg(a.v + w.of_head + element);
    }
    for (int h = tid / width; h < w.heads; h += THREADS / width)
        query[h * width + element] =
            fd_rope_rotate(q_angle, fd_rope_load(q_angle, a.q + (int64_t)(w.head0 + h) * a.head_dim));
    if (newest_here)
        fd_write_newest(a, w.pos * w.stride + w.of_head, element, fd_rope_rotate(k_angle, k_pair), v_new, w.group == 0,
                        b.newest);
    if (tid < HEADS) b.top[tid] = -(float)INFINITY, b.total[tid] = 0.0f;
    __syncthreads();
}

/* b.score of the tile: (q·k)·scale, -inf where the row does not look. Puts the newest row into its place. */
template <int LANES, int ROUNDS>
__device__ __forceinline__ void score_tile(const fd_attn_f16 &a, const block_work &w, int tile, const float *query,
                                           block_shared<LANES> &b, uint4 (&key)[ROUNDS], uint4 (&value)[ROUNDS]) {
    using L = layout<LANES>;
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int row = L::row(r), t = tile * TILE + row;
        float k[8];
        if (a.k && t == w.pos) {
            key[r] = *(const uint4 *)(b.newest[0] + L::lane() * 8);
            value[r] = *(const uint4 *)(b.newest[1] + L::lane() * 8);
        }
        fd_unpack_halves(key[r], k);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (h >= w.heads) break;
            const float4 low = *(const float4 *)(query + h * L::width + L::lane() * 8),
                         high = *(const float4 *)(query + h * L::width + L::lane() * 8 + 4);
            const float q[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            float dot = fd_tree_lanes<LANES>(fd_dot8(q, k)) * a.scale;
            if (a.softcap != 0.0f) dot = fd_approx_softcap(dot, a.softcap);
            if (L::lane() == h % LANES) b.score[h][row] = t <= w.pos && t >= w.first ? dot : -(float)INFINITY;
        }
    }
}

/* Scores to e^(score − top), top and total moved on; a warp a query. */
template <int LANES> __device__ __forceinline__ void softmax_tile(const block_work &w, block_shared<LANES> &b) {
    const int warp = (int)threadIdx.x / 32, l = (int)threadIdx.x % 32;
    if (warp >= w.heads) return;
    const float low = b.score[warp][l], high = b.score[warp][l + 32], before = b.top[warp];
    const float now = fmaxf(before, fd_warp_max(fmaxf(low, high)));
    const float base = now == -(float)INFINITY ? 0.0f : now;
    const float p = fd_approx_exp(low, base), q = fd_approx_exp(high, base);
    b.score[warp][l] = p, b.score[warp][l + 32] = q;
    const float sum = fd_tree_lanes<32>(p + q);
    __syncwarp(); /* all lanes have read top */
    if (l == 0) {
        const float factor = fd_approx_exp(before, base);
        b.factor[warp] = factor;
        b.total[warp] = b.total[warp] * factor + sum;
        b.top[warp] = now;
    }
}

/* out = out·factor + Σ p·v over the thread's rows of the tile. */
template <int LANES, int ROUNDS>
__device__ __forceinline__ void mix_tile(const block_work &w, const block_shared<LANES> &b,
                                         const uint4 (&value)[ROUNDS], float (&out)[HEADS][8]) {
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= w.heads) break;
        const float factor = b.factor[h];
#pragma unroll
        for (int i = 0; i < 8; i++) out[h][i] *= factor;
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        float v[8];
        fd_unpack_halves(value[r], v);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (h >= w.heads) break;
            const float p = b.score[h][layout<LANES>::row(r)];
#pragma unroll
            for (int i = 0; i < 8; i++) out[h][i] = fmaf(p, v[i], out[h][i]);
        }
    }
}

/* Grid: splits × groups × (rows × K/V heads).
 *
 *   cached K, V ── key[], value[] in registers, a tile ahead ──┐        q ── RoPE ── query, shared
 *   k ── RoPE ─┬─ newest row, shared ──────────────────────────┤                      │
 *   v ─────────┴─ caches                                       │                      │
 *                                 key ── score_tile: q·k ◄─────┼──────────────────────┘
 *                                          │                   │
 *                                        softmax_tile: e^(score − top), top, total, factor (shared)
 *                                          │                   │
 *                                        mix_tile: out = out·factor + p·v (registers)      next tile ▲
 *                                          │
 *                  store_warp_sums, store_block_sums: over lanes, warps ──┬── one block: write_heads
 *                                                                         └── scratch ── last block: join_blocks,
 *                                                                                        write_heads */
template <int LANES>
__global__ void __launch_bounds__(THREADS)
    attention_split_kv_f16(const __grid_constant__ fd_attn_f16 all, const share s) {
    constexpr int rounds = layout<LANES>::rounds;
    __shared__ block_shared<LANES> b;
    float *area = fd_shared_floats(); /* queries [heads, width]; at the end sums [WARPS, heads, width], or factors */
    fd_pdl_launch_dependents();
    if (!all.k) fd_pdl_wait();
    const fd_attn_f16 a = row_of(all, (int)blockIdx.z / all.n_head_kv);
    block_work w = work_of(a, s);
    if (w.split >= w.active) return;
    tiles_of(w);

    uint4 key[rounds], value[rounds];
    load_rows<LANES>(a, w, a.cache_k, w.begin, key);
    load_rows<LANES>(a, w, a.cache_v, w.begin, value);
    stage_rows<LANES>(a, w, area, b);
    float out[HEADS][8] = {};
    for (int tile = w.begin; tile < w.end; tile++) {
        score_tile<LANES>(a, w, tile, area, b, key, value);
        if (tile + 1 < w.end) load_rows<LANES>(a, w, a.cache_k, tile + 1, key);
        __syncthreads();
        softmax_tile<LANES>(w, b);
        __syncthreads();
        mix_tile<LANES>(w, b, value, out);
        if (tile + 1 < w.end) load_rows<LANES>(a, w, a.cache_v, tile + 1, value);
        __syncthreads(); /* the next tile writes its scores here; after the last, `area` is free for sums */
    }

    store_warp_sums<LANES>(w, out, area);
    float *partials = a.scratch + (int64_t)w.head0 * s.n_split * s.partial; /* [heads, n_split, partial] */
    store_block_sums<LANES>(a, w, s, b, area, partials);
    if (w.active > 1) {
        const int unit = (int)blockIdx.z % a.n_head_kv * (int)gridDim.y + w.group;
        unsigned *arrived = (unsigned *)(a.scratch + (int64_t)a.n_head * s.n_split * s.partial) + unit;
        if (!arrive_last(arrived, (unsigned)w.active)) return;
        __syncthreads();
        join_blocks<LANES>(w, s, b, partials, area);
    }
    write_heads<LANES>(a, w, s, b, area, partials);
}

template <int LANES> static fd_code launch(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    const share s = share_of(ctx, in);
    const int heads = s.sharing < HEADS ? s.sharing : HEADS;
    const dim3 grid((unsigned)s.n_split, (unsigned)s.n_group, (unsigned)(in->n_head_kv * in->n_tok));
    return fd_launch(ctx, "attention_split_kv_f16", attention_split_kv_f16<LANES>, grid, THREADS,
                     sizeof(float) * WARPS * heads * LANES * 8, err, *in, s);
}

fd_code fd_launch_attn_decode_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    if (in->n_head < 1 || in->n_head_kv < 1 || in->n_head_kv_whole < in->n_head_kv || in->n_head % in->n_head_kv != 0 ||
        in->head_dim < 1 || in->n_tok < 1 || (in->n_tok > 1 && !in->sequences) ||
        (int64_t)in->n_tok * in->n_head_kv > 65535)
        return fd_fail(err, FD_ERR_INPUT, "kernel attention_split_kv_f16: %d heads over %d, %d rows", in->n_head,
                       in->n_head_kv, in->n_tok);
    if (in->short_context && !in->sequences && in->head_dim % 8 == 0 && in->head_dim <= FD_ATTENTION_MAX_HEAD_DIM)
        return fd_launch_attn_single_block_f16(ctx, in, err);
    if (in->head_dim <= 64) return launch<8>(ctx, in, err);
    if (in->head_dim <= 128) return launch<16>(ctx, in, err);
    if (in->head_dim <= FD_ATTENTION_MAX_HEAD_DIM) return launch<32>(ctx, in, err);
    return fd_fail(err, FD_ERR_UNSUPPORTED, "attention: heads of %d elements, the kernels take %d at most",
                   in->head_dim, FD_ATTENTION_MAX_HEAD_DIM);
}
