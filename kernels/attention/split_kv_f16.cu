/* Attention of one row, or of one each of several sequences: a block takes some tiles of 64 positions and up to four
 * queries of one K/V head, which share what is read of K and V, with a running maximum and sum. The last of those
 * queries' blocks to end joins the results of all in order of positions: the order of arrival changes nothing.
 *
 * Cached rows are requested before the kernel waits for its predecessor: earlier forward calls wrote them, and the
 * position is in place before the first kernel of a step starts. The newest row comes from shared memory. */
#include "kernels/attention/attention.h"
#include "kernels/attention/scratch.cuh"
#include "kernels/attention/decode_f16.cuh"
#include "kernels/launch.cuh"
#include "kernels/elementwise/rope.cuh"
#include "kernels/tree.cuh"

enum { TILE = 64, THREADS = 256, WARPS = THREADS / 32 };
enum { HEADS = 4 };       /* queries a block takes at most */
enum { MAX_SPLIT = 512 }; /* their factors fit where their sums were: WARPS · 64 floats a query */

/* How queries and positions are shared out. */
struct share {
    int sharing;     /* queries of a K/V head */
    int n_group;     /* of them, a block each */
    int n_split;     /* blocks of a group */
    int64_t partial; /* floats that a block stores for a query: maximum, sum, and the head */
};

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

/* The row's part of everything; rows come K/V head by K/V head in the grid's third dimension. */
__device__ __forceinline__ fd_attn_f16 row_of(const fd_attn_f16 &all, int row) {
    fd_attn_f16 a = all;
    if (!all.sequences) return a;
    const int64_t width_q = (int64_t)a.n_head * a.head_dim, width = (int64_t)a.n_head_kv * a.head_dim;
    const int64_t cache = all.cache_stride * __ldcg(all.sequences + row);
    a.q += row * width_q;
    a.k += a.k ? row * width : 0;
    a.v += a.v ? row * width : 0;
    a.out.half += a.out.half ? row * width_q : 0;
    a.out.real += a.out.real ? row * width_q : 0;
    a.pos0 += row;
    a.cache_k += cache;
    a.cache_v += cache;
    a.scratch += row * all.scratch_stride;
    return a;
}

/* A block's part of the work: some queries of a K/V head over some tiles of positions. */
struct block_work {
    int pos, first, cached;  /* the row's position; the first one it sees; rows that the caches hold already */
    int group, head0, heads; /* of the K/V head's queries; the block's queries */
    int split, active;       /* its number among the blocks that share these queries' positions */
    int begin, end;          /* its tiles */
    int64_t stride, of_head; /* elements from one cached row to the next; of the K/V head within a row */
};

/* `begin` and `end` follow in tiles_of: blocks without tiles return before that. */
__device__ __forceinline__ block_work work_of(const fd_attn_f16 &a, const share &s) {
    const int kv_head = (int)blockIdx.z % a.n_head_kv;
    block_work w;
    w.pos = __ldcg(a.pos0), w.group = (int)blockIdx.y, w.split = (int)blockIdx.x;
    w.cached = a.k ? w.pos : w.pos + 1;
    w.first = fd_first_seen(a, w.pos);
    const int n_tile = w.pos / TILE + 1 - w.first / TILE;
    w.active = n_tile < s.n_split ? n_tile : s.n_split;
    w.head0 = kv_head * s.sharing + w.group * HEADS;
    w.heads = s.sharing - w.group * HEADS < HEADS ? s.sharing - w.group * HEADS : HEADS;
    w.stride = (int64_t)a.n_head_kv * a.head_dim, w.of_head = (int64_t)kv_head * a.head_dim;
    return w;
}

__device__ __forceinline__ void tiles_of(block_work &w) {
    const int first_tile = w.first / TILE, n_tile = w.pos / TILE + 1 - first_tile;
    w.begin = first_tile + (int)((int64_t)n_tile * w.split / w.active);
    w.end = first_tile + (int)((int64_t)n_tile * (w.split + 1) / w.active);
}

/* LANES lanes share a cached row, eight elements each; a thread holds its share of ROUNDS rows of a tile. */
template <int LANES> struct layout {
    static constexpr int width = LANES * 8, at_once = THREADS / LANES, rounds = TILE / at_once;
    static __device__ __forceinline__ int lane() { return (int)threadIdx.x % LANES; }
    /* The position within a tile of the thread's row number r. */
    static __device__ __forceinline__ int row(int r) { return r * at_once + (int)threadIdx.x / LANES; }
};

template <int LANES> struct block_shared {
    alignas(16) uint16_t newest[2][LANES * 8]; /* the newest row of K and of V */
    float score[HEADS][TILE];                  /* then e^(score − top) */
    float top[HEADS], total[HEADS];            /* the running maximum and sum */
    float factor[HEADS];                       /* what earlier sums are multiplied by */
};

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

/* The threads' sums, added over each warp, to sums [WARPS, heads, width]. Ends with a barrier. */
template <int LANES>
__device__ __forceinline__ void store_warp_sums(const block_work &w, float (&out)[HEADS][8], float *sums) {
    using L = layout<LANES>;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= w.heads) break;
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int offset = LANES; offset < 32; offset *= 2)
                out[h][i] = out[h][i] + __shfl_xor_sync(0xffffffffu, out[h][i], offset);
        }
        if (threadIdx.x % 32 < LANES) {
            float *to = sums + ((int)threadIdx.x / 32 * w.heads + h) * L::width + L::lane() * 8;
            *(float4 *)to = make_float4(out[h][0], out[h][1], out[h][2], out[h][3]);
            *(float4 *)(to + 4) = make_float4(out[h][4], out[h][5], out[h][6], out[h][7]);
        }
    }
    __syncthreads();
}

/* The block's sums over its warps: where they are when it has seen all positions, else to partials [heads, n_split,
 * s.partial]. */
template <int LANES>
__device__ __forceinline__ void store_block_sums(const fd_attn_f16 &a, const block_work &w, const share &s,
                                                 const block_shared<LANES> &b, float *sums, float *partials) {
    constexpr int width = layout<LANES>::width;
    const int tid = (int)threadIdx.x;
    for (int i = tid; i < w.heads * width; i += THREADS) {
        const int h = i / width, d = i % width;
        if (d >= a.head_dim) continue;
        float sum = sums[h * width + d];
#pragma unroll
        for (int warp = 1; warp < WARPS; warp++) sum = sum + sums[(warp * w.heads + h) * width + d];
        if (w.active == 1) {
            sums[h * width + d] = sum; /* this thread alone reads and writes it */
            continue;
        }
        partials[((int64_t)h * s.n_split + w.split) * s.partial + 2 + d] = sum;
    }
    if (w.active > 1 && tid < w.heads) {
        partials[((int64_t)tid * s.n_split + w.split) * s.partial] = b.top[tid];
        partials[((int64_t)tid * s.n_split + w.split) * s.partial + 1] = b.total[tid];
    }
}

/* In the last block: maximum and sum over all blocks to b.top and b.total, a warp a query, and each block's factor to
 * factors [heads][WARPS·width]. Ends with a barrier. */
template <int LANES>
__device__ __forceinline__ void join_blocks(const block_work &w, const share &s, block_shared<LANES> &b,
                                            const float *partials, float *factors) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (warp < w.heads) {
        const float *from = partials + (int64_t)warp * s.n_split * s.partial;
        float most = -(float)INFINITY, sum = 0.0f;
        for (int i = lane; i < w.active; i += 32) most = fmaxf(most, __ldcg(from + i * s.partial));
        most = fd_warp_max(most);
        const float base = most == -(float)INFINITY ? 0.0f : most;
        for (int i = lane; i < w.active; i += 32) {
            const float factor = fd_approx_exp(__ldcg(from + i * s.partial), base);
            factors[warp * WARPS * layout<LANES>::width + i] = factor;
            sum = fmaf(factor, __ldcg(from + i * s.partial + 1), sum);
        }
        sum = fd_tree_lanes<32>(sum);
        if (lane == 0) b.top[warp] = most, b.total[warp] = sum;
    }
    __syncthreads();
}

/* Σ factor·partial over the blocks, in order of positions; `from`: an element of the first block's. */
__device__ __forceinline__ float sum_of_blocks(const block_work &w, const share &s, const float *from,
                                               const float *factors) {
    float sum = 0.0f;
    for (int j = 0; j < w.active; j += 16) {
        float part[16];
#pragma unroll
        for (int n = 0; n < 16; n++) part[n] = j + n < w.active ? __ldcg(from + (j + n) * s.partial) : 0.0f;
#pragma unroll
        for (int n = 0; n < 16; n++)
            if (j + n < w.active) sum = fmaf(factors[j + n], part[n], sum);
    }
    return sum;
}

template <int LANES>
__device__ __forceinline__ void write_heads(const fd_attn_f16 &a, const block_work &w, const share &s,
                                            const block_shared<LANES> &b, const float *area, const float *partials) {
    constexpr int width = layout<LANES>::width;
    for (int i = (int)threadIdx.x; i < w.heads * width; i += THREADS) {
        const int h = i / width, d = i % width;
        if (d >= a.head_dim) continue;
        const float sum = w.active == 1 ? area[h * width + d]
                                        : sum_of_blocks(w, s, partials + (int64_t)h * s.n_split * s.partial + 2 + d,
                                                        area + h * WARPS * width);
        const float scale = fd_approx_mix_factor(a.sinks ? a.sinks + w.head0 + h : nullptr, b.top[h], b.total[h]);
        fd_store(a.out, (int64_t)(w.head0 + h) * a.head_dim + d, sum * scale);
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
