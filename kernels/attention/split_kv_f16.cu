/* Attention of one row, or of one each of several sequences: a block takes some tiles of 64 positions and up to four
 * queries of one K/V head, which share what is read of K and V, with a running maximum and sum. The last block of those
 * queries to end adds what all of them left, in order of positions: the order of arrival changes nothing.
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
    int64_t partial; /* floats that a block leaves for a query: maximum, sum, and the head */
};

static share share_of(const fd_launch_context *ctx, int32_t n_head, int32_t n_head_kv, int32_t head_dim,
                      int32_t n_ctx) {
    const int sharing = n_head / n_head_kv;
    const int n_group = (sharing + HEADS - 1) / HEADS;
    const int tiles = (n_ctx + TILE - 1) / TILE;
    int most = ctx->n_sm * 2 / (n_head_kv * n_group);
    most = most < 1 ? 1 : most < MAX_SPLIT ? most : MAX_SPLIT;
    return {sharing, n_group, tiles < most ? tiles : most, 2 + head_dim};
}

size_t fd_attn_decode_f16_scratch(const fd_launch_context *ctx, int32_t n_head, int32_t n_head_kv, int32_t head_dim,
                                  int32_t n_ctx) {
    const share s = share_of(ctx, n_head, n_head_kv, head_dim, n_ctx);
    return sizeof(float) * ((size_t)n_head * (size_t)s.n_split * (size_t)s.partial + (size_t)(n_head_kv * s.n_group));
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

/* Grid: splits × groups × (rows × K/V heads). LANES lanes share a row of a cache, 8 elements each. */
template <int LANES>
__global__ void __launch_bounds__(THREADS)
    attention_split_kv_f16(const __grid_constant__ fd_attn_f16 all, const share s) {
    constexpr int WIDTH = LANES * 8, AT_ONCE = THREADS / LANES, ROUNDS = TILE / AT_ONCE;
    __shared__ float score[HEADS][TILE], top[HEADS], total[HEADS], shrink[HEADS];
    __shared__ __align__(16) uint16_t newest[2][WIDTH]; /* the newest row of K and of V */
    float *area = fd_shared_floats();                   /* queries [heads, WIDTH]; at the end [WARPS, heads, WIDTH] */
    const bool writes = all.k != nullptr;
    fd_pdl_launch_dependents();
    if (!writes) fd_pdl_wait();
    const fd_attn_f16 a = row_of(all, (int)blockIdx.z / all.n_head_kv);
    const int pos = __ldcg(a.pos0), kv_head = (int)blockIdx.z % all.n_head_kv, group = (int)blockIdx.y;
    const int first = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
    const int first_tile = first / TILE, n_tile = pos / TILE + 1 - first_tile;
    const int active = n_tile < s.n_split ? n_tile : s.n_split, split = (int)blockIdx.x;
    if (split >= active) return;
    const int begin = first_tile + (int)((int64_t)n_tile * split / active);
    const int end = first_tile + (int)((int64_t)n_tile * (split + 1) / active);
    const int head0 = kv_head * s.sharing + group * HEADS;
    const int heads = s.sharing - group * HEADS < HEADS ? s.sharing - group * HEADS : HEADS;
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % LANES, own = tid / LANES;
    const int64_t stride = (int64_t)a.n_head_kv * a.head_dim, of_head = (int64_t)kv_head * a.head_dim;
    const int cached = writes ? pos : pos + 1; /* rows */

    uint4 key[ROUNDS], value[ROUNDS];
    const auto load = [&](const uint16_t *cache, int tile, uint4(&rows)[ROUNDS]) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const int t = tile * TILE + r * AT_ONCE + own;
            rows[r] =
                t < cached ? load_eight(cache + t * stride + of_head, lane * 8, a.head_dim) : make_uint4(0, 0, 0, 0);
        }
    };
    load(a.cache_k, begin, key);
    load(a.cache_v, begin, value);
    const int element = tid % WIDTH;
    const fd_rope_angle q_turn = fd_rope_angle_of(a.q_rope, element, a.head_dim, pos);
    const fd_rope_angle k_turn = fd_rope_angle_of(a.k_rope, element, a.head_dim, pos);
    if (writes) fd_pdl_wait();

    /* The newest rows are asked for before anything is stored, by the last threads: the first ones turn queries. */
    const bool newest_here = writes && split == active - 1 && tid >= THREADS - WIDTH;
    float2 k_pair = make_float2(0.0f, 0.0f);
    float v_new = 0.0f;
    if (newest_here) {
        k_pair = fd_rope_load(k_turn, a.k + of_head);
        if (element < a.head_dim) v_new = __ldcg(a.v + of_head + element);
    }
    for (int h = tid / WIDTH; h < heads; h += THREADS / WIDTH)
        area[h * WIDTH + element] =
            fd_rope_rotate(q_turn, fd_rope_load(q_turn, a.q + (int64_t)(head0 + h) * a.head_dim));
    if (newest_here) {
        const uint16_t k = fd_to_half(fd_rope_rotate(k_turn, k_pair)), v = fd_to_half(v_new);
        if (group == 0 && element < a.head_dim) {
            a.cache_k[pos * stride + of_head + element] = k;
            a.cache_v[pos * stride + of_head + element] = v;
        }
        newest[0][element] = k, newest[1][element] = v;
    }
    if (tid < HEADS) top[tid] = -(float)INFINITY, total[tid] = 0.0f;
    __syncthreads();

    float out[HEADS][8] = {};
    for (int tile = begin; tile < end; tile++) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const int slot = r * AT_ONCE + own, t = tile * TILE + slot;
            float k[8];
            if (writes && t == pos) {
                key[r] = *(const uint4 *)(newest[0] + lane * 8);
                value[r] = *(const uint4 *)(newest[1] + lane * 8);
            }
            fd_unpack_halves(key[r], k);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= heads) break;
                const float4 low = *(const float4 *)(area + h * WIDTH + lane * 8),
                             high = *(const float4 *)(area + h * WIDTH + lane * 8 + 4);
                const float q[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                float dot = fd_tree_lanes<LANES>(fd_dot8(q, k)) * a.scale;
                if (a.softcap != 0.0f) dot = fd_approx_softcap(dot, a.softcap);
                if (lane == h % LANES) score[h][slot] = t <= pos && t >= first ? dot : -(float)INFINITY;
            }
        }
        if (tile + 1 < end) load(a.cache_k, tile + 1, key);
        __syncthreads();
        if (warp < heads) { /* a warp a query */
            const int l = tid % 32;
            const float low = score[warp][l], high = score[warp][l + 32], before = top[warp];
            const float now = fmaxf(before, fd_warp_max(fmaxf(low, high)));
            const float base = now == -(float)INFINITY ? 0.0f : now;
            const float p = fd_approx_exp(low, base), q = fd_approx_exp(high, base);
            score[warp][l] = p, score[warp][l + 32] = q;
            const float sum = fd_tree_lanes<32>(p + q);
            __syncwarp(); /* all lanes have read top */
            if (l == 0) {
                const float factor = fd_approx_exp(before, base);
                shrink[warp] = factor;
                total[warp] = total[warp] * factor + sum;
                top[warp] = now;
            }
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (h >= heads) break;
            const float factor = shrink[h];
#pragma unroll
            for (int i = 0; i < 8; i++) out[h][i] *= factor;
        }
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            float v[8];
            fd_unpack_halves(value[r], v);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= heads) break;
                const float p = score[h][r * AT_ONCE + own];
#pragma unroll
                for (int i = 0; i < 8; i++) out[h][i] = fmaf(p, v[i], out[h][i]);
            }
        }
        if (tile + 1 < end) load(a.cache_v, tile + 1, value);
        __syncthreads(); /* the next tile writes its scores here; after the last, `area` is free for sums */
    }

#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= heads) break;
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int offset = LANES; offset < 32; offset *= 2)
                out[h][i] = out[h][i] + __shfl_xor_sync(0xffffffffu, out[h][i], offset);
        }
        if (tid % 32 < LANES) {
            float *to = area + (warp * heads + h) * WIDTH + lane * 8;
            *(float4 *)to = make_float4(out[h][0], out[h][1], out[h][2], out[h][3]);
            *(float4 *)(to + 4) = make_float4(out[h][4], out[h][5], out[h][6], out[h][7]);
        }
    }
    __syncthreads();

    /* The block's sums: to the output when it has seen all positions, else to the scratch. */
    const int unit = kv_head * (int)gridDim.y + group;
    float *partials = a.scratch + (int64_t)head0 * s.n_split * s.partial; /* [heads, n_split, partial] */
    unsigned *arrived = (unsigned *)(a.scratch + (int64_t)a.n_head * s.n_split * s.partial) + unit;
    for (int i = tid; i < heads * WIDTH; i += THREADS) {
        const int h = i / WIDTH, d = i % WIDTH;
        if (d >= a.head_dim) continue;
        float sum = area[h * WIDTH + d];
#pragma unroll
        for (int w = 1; w < WARPS; w++) sum = sum + area[(w * heads + h) * WIDTH + d];
        if (active == 1) {
            area[h * WIDTH + d] = sum; /* this thread alone reads and writes it */
            continue;
        }
        partials[((int64_t)h * s.n_split + split) * s.partial + 2 + d] = sum;
    }
    if (active > 1) {
        if (tid < heads) {
            partials[((int64_t)tid * s.n_split + split) * s.partial] = top[tid];
            partials[((int64_t)tid * s.n_split + split) * s.partial + 1] = total[tid];
        }
        if (!arrive_last(arrived, (unsigned)active)) return;
        __syncthreads();
        /* Maximum and sum over all blocks, a warp a query; what each block's share shrinks by stays in `area`. */
        if (warp < heads) {
            const float *from = partials + (int64_t)warp * s.n_split * s.partial;
            float most = -(float)INFINITY, sum = 0.0f;
            for (int i = tid % 32; i < active; i += 32) most = fmaxf(most, __ldcg(from + i * s.partial));
            most = fd_warp_max(most);
            const float base = most == -(float)INFINITY ? 0.0f : most;
            for (int i = tid % 32; i < active; i += 32) {
                const float factor = fd_approx_exp(__ldcg(from + i * s.partial), base);
                area[warp * WARPS * WIDTH + i] = factor;
                sum = fmaf(factor, __ldcg(from + i * s.partial + 1), sum);
            }
            sum = fd_tree_lanes<32>(sum);
            if (tid % 32 == 0) top[warp] = most, total[warp] = sum;
        }
        __syncthreads();
    }
    for (int i = tid; i < heads * WIDTH; i += THREADS) {
        const int h = i / WIDTH, d = i % WIDTH;
        if (d >= a.head_dim) continue;
        float sum = 0.0f;
        if (active == 1) {
            sum = area[h * WIDTH + d];
        } else {
            const float *from = partials + (int64_t)h * s.n_split * s.partial + 2 + d;
            const float *factors = area + h * WARPS * WIDTH;
            for (int j = 0; j < active; j += 16) {
                float part[16];
#pragma unroll
                for (int n = 0; n < 16; n++) part[n] = j + n < active ? __ldcg(from + (j + n) * s.partial) : 0.0f;
#pragma unroll
                for (int n = 0; n < 16; n++)
                    if (j + n < active) sum = fmaf(factors[j + n], part[n], sum);
            }
        }
        const float scale = fd_approx_mix_factor(a.sinks ? a.sinks + head0 + h : nullptr, top[h], total[h]);
        store(a.out, (int64_t)(head0 + h) * a.head_dim + d, sum * scale);
    }
}

template <int LANES> static fd_code launch(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    const share s = share_of(ctx, in->n_head, in->n_head_kv, in->head_dim, in->n_ctx);
    const int heads = s.sharing < HEADS ? s.sharing : HEADS;
    const dim3 grid((unsigned)s.n_split, (unsigned)s.n_group, (unsigned)(in->n_head_kv * in->n_tok));
    return fd_launch(ctx, "attention_split_kv_f16", attention_split_kv_f16<LANES>, grid, THREADS,
                     sizeof(float) * WARPS * heads * LANES * 8, err, *in, s);
}

fd_code fd_launch_attn_decode_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    if (in->n_head < 1 || in->n_head_kv < 1 || in->n_head % in->n_head_kv != 0 || in->head_dim < 1 || in->n_tok < 1 ||
        (in->n_tok > 1 && !in->sequences) || (int64_t)in->n_tok * in->n_head_kv > 65535)
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
