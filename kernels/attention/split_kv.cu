/* Attention of one position: a block a head does it all while positions are few; else two kernels, scores, then softmax
 * and mix (kernels/attention/decode.cuh).
 *
 * Blocks mix chunks of 64 positions. Which block of a head arrives last is not determined, but what it then does is: it
 * reads what all of them wrote and sums in the order of positions, so no result depends on the order of arrival. */
#include "kernels/attention/attention.h"

#include "kernels/attention/decode.cuh"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"

size_t fd_attn_decode_scratch(int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t n_ctx) {
    (void)n_head_kv;
    const size_t per_head = (size_t)n_ctx + (size_t)chunks_of(n_ctx) * (size_t)head_dim + 1;
    return sizeof(float) * (size_t)n_head * per_head;
}

/* Blocks take pieces of positions of a K/V head in turn. Both kernels request the cache's rows before *pos before the
 * wait: earlier steps wrote them. */
template <int GROUPS>
__global__ void __launch_bounds__(DECODE_THREADS) attention_split_scores(const __grid_constant__ fd_attn_decode all) {
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    scores_of_pieces<GROUPS>(a, __ldcg(a.pos), fd_shared_floats(), [] { fd_pdl_wait(); });
}

/* The largest of score[0 … n − 1] and Σ e^(s − largest) in the contract's order; all threads get both. The first TILE
 * scores go through `tile` once, further ones tile by tile. */
enum { TILE = 4096 };
__device__ __forceinline__ float2 maximum_and_sum(const float *score, int n, float *tile) {
    __shared__ float maxima[DECODE_WARPS], total;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float max = -(float)INFINITY;
#pragma unroll 8
    for (int t = (int)threadIdx.x; t < n; t += DECODE_THREADS) {
        const float own = __ldcg(score + t);
        if (t < TILE) tile[t] = own;
        max = fmaxf(max, own);
    }
    max = fd_warp_max(max);
    if (lane == 0) maxima[warp] = max;
    __syncthreads();
    max = fd_warp_max(maxima[lane % DECODE_WARPS]);
    float low = 0.0f, high = 0.0f;
    for (int first = 0; first < n; first += TILE) {
        const int count = n - first < TILE ? n - first : TILE;
        for (int t = (int)threadIdx.x; t < count; t += DECODE_THREADS)
            tile[t] = fd_exp32((first == 0 ? tile[t] : __ldcg(score + first + t)) - max);
        __syncthreads();
        if (warp == 0) {
            int t = lane;
#pragma unroll 8
            for (; t + 32 < count; t += 64) {
                low = low + tile[t];
                high = high + tile[t + 32];
            }
            if (t < count) low = low + tile[t];
        }
        __syncthreads();
    }
    if (warp == 0) {
        const float sum = fd_tree_lanes<32>(low) + fd_tree_lanes<32>(high);
        if (lane == 0) total = sum;
    }
    __syncthreads();
    return make_float2(max, total);
}

/* A block's chunks of a head. */
struct mix_work {
    int pos, head, begin, end;
    int64_t stride;
    const float *v;    /* element d of the head's values */
    float *chunk_sums; /* likewise */
};

enum { AHEAD = 32 }; /* values on their way */

/* Mixes the block's chunks into chunk_sums, at_once of them at a time; `value`: the first values of the thread's first
 * chunk. The newest value was written by the kernel before this one, and is read here. */
template <int GROUPS>
__device__ __forceinline__ void mix_chunks(const fd_attn_decode &a, const mix_work &w, const float *score, float *tile,
                                           float *weight, const float (&value)[AHEAD]) {
    constexpr int width = 64 * GROUPS, at_once = DECODE_THREADS / width;
    const int n = w.pos + 1, d = (int)threadIdx.x % width, own = (int)threadIdx.x / width;
    const float2 of = maximum_and_sum(score, n, tile);
    for (int first = w.begin; first < w.end; first += at_once) {
        const int t = first * CHUNK + (int)threadIdx.x;
        if ((int)threadIdx.x < at_once * CHUNK && t < n) {
            const float p = fd_exp32(__ldcg(score + t) - of.x) / of.y;
            weight[threadIdx.x] = p;
            if (a.weights_out && t < w.end * CHUNK) a.weights_out[(int64_t)w.head * a.n_ctx + t] = p;
        }
        __syncthreads();
        const int chunk = first + own, at = chunk * CHUNK, count = n - at < CHUNK ? n - at : CHUNK;
        const float *p = weight + own * CHUNK;
        if (chunk < w.end && d < a.head_dim) {
            float acc = 0.0f;
            int done = 0;
            if (first == w.begin) {
                done = w.pos - at < AHEAD ? w.pos - at : AHEAD;
#pragma unroll
                for (int i = 0; i < AHEAD; i++)
                    if (i < done) acc = fmaf(p[i], value[i], acc);
            }
            w.chunk_sums[chunk * a.head_dim] =
                mix_on(acc, p + done, w.v + (at + done) * w.stride, w.stride, count - done);
        }
        __syncthreads();
    }
}

/* The chunks' sums in order of positions. */
__device__ __forceinline__ float add_chunks(const float *chunk_sums, int n_chunk, int head_dim) {
    float total = 0.0f, value[AHEAD];
#pragma unroll 1
    for (int first = 0; first < n_chunk; first += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            value[i] = first + i < n_chunk ? __ldcg(chunk_sums + (first + i) * head_dim) : 0.0f;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i < n_chunk) total = total + value[i];
    }
    return total;
}

/* Grid: blocks that share a head × heads. Each finds the head's maximum and sum for itself: that costs less than
 * waiting for one that does it. A thread mixes one element of the head over one chunk at a time.
 *
 *   scores (scratch) ── maximum_and_sum ── weight of a chunk (shared) ──┐
 *   cached V ── value, the first 32 of a chunk, before the wait ────────┴─ mix_chunks ── chunk_sums (scratch)
 *                                             last block of the head: add_chunks ── out ◄─────┘ */
template <int GROUPS>
__global__ void __launch_bounds__(DECODE_THREADS) attention_split_mix(const __grid_constant__ fd_attn_decode all) {
    constexpr int width = 64 * GROUPS;
    __shared__ __align__(16) float tile[TILE], weight[DECODE_THREADS];
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const scratch_layout s = layout_of(&a);
    const int pos = __ldcg(a.pos), n_chunk = chunks_of(pos + 1), head = (int)blockIdx.y, split = (int)gridDim.x;
    const int d = (int)threadIdx.x % width, own = (int)threadIdx.x / width;
    const mix_work w = {pos,
                        head,
                        n_chunk * (int)blockIdx.x / split,
                        n_chunk * ((int)blockIdx.x + 1) / split,
                        (int64_t)a.n_head_kv * a.head_dim,
                        a.cache_v + (int64_t)(head / (a.n_head / a.n_head_kv)) * a.head_dim + d,
                        s.chunk_sums + (int64_t)head * chunks_of(a.n_ctx) * a.head_dim + d};
    float value[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        const int t = (w.begin + own) * CHUNK + i;
        value[i] = w.begin + own < w.end && t < pos && d < a.head_dim ? __ldcg(w.v + t * w.stride) : 0.0f;
    }
    fd_pdl_wait();
    if (w.begin < w.end) mix_chunks<GROUPS>(a, w, s.scores + (int64_t)head * a.n_ctx, tile, weight, value);
    if (!arrive_last(s.arrived + head, (unsigned)split) || (int)threadIdx.x >= a.head_dim) return;
    a.out[(int64_t)head * a.head_dim + d] = add_chunks(w.chunk_sums, n_chunk, a.head_dim);
}

fd_code fd_launch_attn_decode(const fd_launch_context *ctx, const fd_attn_decode *in, fd_error *err) {
    if (in->n_head < 1 || in->n_head_kv < 1 || in->n_head % in->n_head_kv != 0 || in->n_ctx < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_decode: %d heads over %d, context %d", in->n_head, in->n_head_kv,
                       in->n_ctx);
    const unsigned rows = in->n_seq > 1 ? (unsigned)in->n_seq : 1;
    if (rows > 65535 || (rows > 1 && !in->sequences))
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_decode: %u sequences%s", rows,
                       in->sequences ? "" : ", and nothing says which");
    if (in->short_context) return fd_launch_attn_single_block(ctx, in, err);
    const int64_t n_chunk = chunks_of(in->n_ctx), sharing = in->n_head / in->n_head_kv;
    return fd_with_groups(in->head_dim, err, [&](auto groups) -> fd_code {
        constexpr int n_group = decltype(groups)::value, at_once = n_group < 4 ? 4 / n_group : 1;
        const int64_t pieces = fd_blocks(in->n_ctx, DECODE_THREADS / 8) * (int64_t)in->n_head_kv;
        const int64_t score_blocks = pieces < ctx->n_sm * 2 ? pieces : ctx->n_sm * 2;
        const size_t score_shared = sizeof(float) * (size_t)(64 * n_group) * (size_t)(1 + sharing);
        FD_TRY(fd_launch(ctx, "attention_split_scores", attention_split_scores<n_group>,
                         dim3((unsigned)score_blocks, 1, rows), DECODE_THREADS, score_shared, err, *in));
        const int64_t most = fd_blocks((int64_t)ctx->n_sm * 3, in->n_head), wanted = fd_blocks(n_chunk, at_once);
        return fd_launch(ctx, "attention_split_mix", attention_split_mix<n_group>,
                         dim3((unsigned)(wanted < most ? wanted : most), (unsigned)in->n_head, rows), DECODE_THREADS, 0,
                         err, *in);
    });
}
