/* Attention of one row, or of one each of several sequences: a block takes some tiles of 64 positions and up to eight
 * queries of one K/V head, which share what is read of K and V; each of its warps takes 16 positions of a tile, with copies, a
 * running maximum and a sum of its own. The last of those queries' blocks to end joins the results of all in order of
 * positions: the order of arrival changes nothing.
 *
 * Cached rows are requested before the kernel waits for its predecessor: earlier forward calls wrote them, and the
 * position is in place before the first kernel of a step starts. The newest row comes from shared memory. */
#include "kernels/attention/attention.h"
#include "kernels/attention/scratch.cuh"
#include "kernels/attention/decode_f16.cuh"
#include "kernels/attention/split_join_f16.cuh"
#include "kernels/attention/split_tile_f16.cuh"
#include "kernels/launch.cuh"
#include "kernels/elementwise/rope.cuh"
#include "kernels/tree.cuh"

/* One row's blocks fill the device. Those of several sequences would come in many waves of which most find no positions
 * that are theirs: together they are SEVERAL waves at most, and a block has SEVERAL tiles. What a sequence gets does not
 * depend on how many others there are now. */
static share share_of(const fd_launch_context *ctx, const fd_attn_f16 *in) {
    enum { SEVERAL = 4 };
    const int sharing = in->n_head / in->n_head_kv;
    const int n_group = (sharing + HEADS - 1) / HEADS;
    const int blocks = in->head_dim > 128 ? 1 : 2; /* of a multiprocessor, by their stages */
    const int units = in->n_head_kv_whole * n_group;
    int tiles = (in->n_ctx + TILE - 1) / TILE, most = ctx->n_sm * blocks / units;
    if (in->n_seq > 1) {
        const int of_one = SEVERAL * ctx->n_sm * blocks / (units * in->n_seq);
        tiles = (tiles + SEVERAL - 1) / SEVERAL;
        most = most < of_one ? most : of_one;
    }
    most = most < 1 ? 1 : most < MAX_SPLIT ? most : MAX_SPLIT;
    return {sharing, n_group, tiles < most ? tiles : most, ((int64_t)in->head_dim + 3) / 4 * 4};
}

size_t fd_attn_decode_f16_scratch(const fd_launch_context *ctx, const fd_attn_f16 *in) {
    const share s = share_of(ctx, in);
    const size_t floats = COUNTERS + (size_t)in->n_head * (size_t)s.n_split * ((size_t)s.width + 2);
    return (sizeof(float) * floats + 15) / 16 * 16; /* sequences' follow one another */
}

/* An element of q, after RoPE, as two halves. */
template <int WIDTH>
__device__ __forceinline__ void put_query(block_shared<WIDTH> &b, int query, int element, float value) {
    const int at = fd_tile_at<WIDTH>(query, element / 8) + element % 8;
    const uint16_t half = fd_to_half(value);
    b.query[0][at] = half;
    b.query[1][at] = fd_to_half(value - fd_half_to_float(half));
}

/* Queries after RoPE to b.query, zeros for those that are not there; the newest rows of K and V to b.newest and to the caches.
 * Angles are loaded before the wait. Ends with a barrier. */
template <int WIDTH>
__device__ __forceinline__ void stage_rows(const fd_attn_f16 &a, const block_work &w, block_shared<WIDTH> &b) {
    constexpr int across = WIDTH < THREADS ? WIDTH : THREADS, parts = WIDTH / across, apart = THREADS / across;
    const int tid = (int)threadIdx.x;
    const bool writes = a.k != nullptr, newest_here = writes && w.split == w.active - 1 && tid < across;
    fd_rope_angle q_angle[parts], k_angle[parts];
#pragma unroll
    for (int p = 0; p < parts; p++) {
        q_angle[p] = fd_rope_angle_of(a.q_rope, tid % across + p * across, a.head_dim, w.pos);
        k_angle[p] = fd_rope_angle_of(a.k_rope, tid % across + p * across, a.head_dim, w.pos);
    }
    if (writes) fd_pdl_wait();
#pragma unroll
    for (int p = 0; p < parts; p++) {
        const int element = tid % across + p * across;
        float2 k_pair = make_float2(0.0f, 0.0f);
        float v_new = 0.0f;
        if (newest_here) {
            k_pair = fd_rope_load(k_angle[p], a.k + w.of_head);
            if (element < a.head_dim) v_new = __ldcg(a.v + w.of_head + element);
        }
#pragma unroll
        for (int h = tid / across; h < HEADS; h += apart) {
            float q = 0.0f;
            if (h < w.heads)
                q = fd_rope_rotate(q_angle[p], fd_rope_load(q_angle[p], a.q + (int64_t)(w.head0 + h) * a.head_dim));
            put_query<WIDTH>(b, h, element, q);
        }
        if (newest_here)
            fd_write_newest(a, w.pos * w.stride + w.of_head, element, fd_rope_rotate(k_angle[p], k_pair), v_new,
                            w.group == 0, b.newest);
    }
    __syncthreads();
}

/* Grid: splits × groups × (rows × K/V heads).
 *
 *   cached K, V ── cp.async ── the warp's stages, shared ──┐        q ── RoPE ── b.query, two halves, shared
 *   k ── RoPE ─┬─ b.newest ── put_newest ──────────────────┤                      │
 *   v ─────────┴─ caches                                   │                      │
 *                        keys ── score_step: k·q (mma) ◄───┼──────────────────────┘
 *                                     │                    │
 *                                softmax_step: e^(score − top), top, total, out·factor (registers)
 *                                     │                    │
 *                                mix_step: out += v·p (mma) ◄── values           next step ▲
 *                                     │
 *              store_warp_sums, store_block_sums: over warps ──┬── one block: write_heads
 *                                                              └── scratch ── last block: join_blocks, write_heads */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS)
    attention_split_kv_f16(const __grid_constant__ fd_attn_f16 all, const share s) {
    using stages = stages_of<WIDTH>;
    __shared__ block_shared<WIDTH> b;
    float *area = fd_shared_floats(); /* stages; at the end sums [WARPS, heads, WIDTH], or factors */
    fd_pdl_launch_dependents();
    if (!all.k) fd_pdl_wait();
    const fd_attn_f16 a = row_of(all, (int)blockIdx.z / all.n_head_kv);
    block_work w = work_of(a, s);
    if (w.split >= w.active) return;
    tiles_of(w);

    uint16_t *own = (uint16_t *)area + (int)threadIdx.x / 32 * stages::count * stages::elements;
#pragma unroll
    for (int step = 0; step < stages::count; step++) load_step<WIDTH>(a, w, step, own + step * stages::elements);
    stage_rows<WIDTH>(a, w, b);
    const query_fragments<WIDTH> queries(b);
    running<WIDTH> r;
    for (int step = 0, at = 0; w.begin + step < w.end; step++, at = at + 1 < stages::count ? at + 1 : 0) {
        uint16_t *stage = own + at * stages::elements;
        const int first = first_of_step(w, step);
        fd_cp_async_wait_group<stages::count - 1>();
        __syncwarp();
        put_newest<WIDTH>(a, w, b, first, stage);
        float s_of[4] = {};
        score_step<WIDTH>(queries, stage, s_of);
        mask_step(a, w, first, s_of);
        softmax_step<WIDTH>(r, s_of);
        mix_step<WIDTH>(stage + STEP * WIDTH, s_of, r);
        __syncwarp(); /* all lanes have read the stage */
        load_step<WIDTH>(a, w, step + stages::count, stage);
    }

    fd_cp_async_wait_all();
    __syncthreads(); /* the sums lie where the stages were */
    store_warp_sums<WIDTH>(w, r, b, area);
    const partial_sums partials = partial_sums_of(a, s);
    store_block_sums<WIDTH>(a, w, s, b, area, partials);
    if (w.active > 1) {
        const int unit = (int)blockIdx.z % a.n_head_kv * (int)gridDim.y + w.group;
        if (!arrive_last(partials.arrived + unit, (unsigned)w.active)) return;
        join_blocks<WIDTH>(w, s, b, partials, area);
    }
    write_heads<WIDTH>(a, w, s, b, area, partials);
}

template <int WIDTH> static fd_code launch(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    const share s = share_of(ctx, in);
    const dim3 grid((unsigned)s.n_split, (unsigned)s.n_group, (unsigned)(in->n_head_kv * in->n_tok));
    return fd_launch(ctx, "attention_split_kv_f16", attention_split_kv_f16<WIDTH>, grid, THREADS,
                     stages_of<WIDTH>::bytes, err, *in, s);
}

fd_code fd_launch_attn_decode_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err) {
    if (in->n_head < 1 || in->n_head_kv < 1 || in->n_head_kv_whole < in->n_head_kv || in->n_head % in->n_head_kv != 0 ||
        in->head_dim < 1 || in->n_tok < 1 || (in->n_tok > 1 && !in->sequences) ||
        (int64_t)in->n_tok * in->n_head_kv > 65535 || in->n_head > COUNTERS)
        return fd_fail(err, FD_ERR_INPUT, "kernel attention_split_kv_f16: %d heads over %d, %d rows", in->n_head,
                       in->n_head_kv, in->n_tok);
    if (in->short_context && !in->sequences && in->head_dim % 8 == 0 && in->head_dim <= FD_ATTENTION_MAX_HEAD_DIM)
        return fd_launch_attn_single_block_f16(ctx, in, err);
    if (in->head_dim <= 64) return launch<64>(ctx, in, err);
    if (in->head_dim <= 128) return launch<128>(ctx, in, err);
    if (in->head_dim <= FD_ATTENTION_MAX_HEAD_DIM) return launch<256>(ctx, in, err);
    return fd_fail(err, FD_ERR_UNSUPPORTED, "attention: heads of %d elements, the kernels take %d at most",
                   in->head_dim, FD_ATTENTION_MAX_HEAD_DIM);
}
