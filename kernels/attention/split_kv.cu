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

/* Blocks take pieces of positions of a K/V head in turn. In both kernels the cache's rows before *pos are asked for
 * before the wait: they were written in earlier steps. */
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

/* Grid: blocks that share a head × heads. Each finds the head's maximum and sum for itself: that costs less than to
 * wait for one that does it. A thread mixes one element of the head over one chunk at a time. */
template <int GROUPS>
__global__ void __launch_bounds__(DECODE_THREADS) attention_split_mix(const __grid_constant__ fd_attn_decode all) {
    constexpr int width = 64 * GROUPS, at_once = DECODE_THREADS / width, ahead = 32;
    __shared__ __align__(16) float tile[TILE], weight[DECODE_THREADS];
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const int pos = __ldcg(a.pos), n = pos + 1, n_chunk = chunks_of(n), head = (int)blockIdx.y;
    const int split = (int)gridDim.x, begin = n_chunk * (int)blockIdx.x / split,
              end = n_chunk * ((int)blockIdx.x + 1) / split;
    const int d = (int)threadIdx.x % width, own = (int)threadIdx.x / width;
    const int64_t stride = (int64_t)a.n_head_kv * a.head_dim;
    const scratch_layout s = layout_of(&a);
    const float *v = a.cache_v + (int64_t)(head / (a.n_head / a.n_head_kv)) * a.head_dim + d;
    const float *score = s.scores + (int64_t)head * a.n_ctx;
    float *chunk_sums = s.chunk_sums + (int64_t)head * chunks_of(a.n_ctx) * a.head_dim + d;

    float value[ahead];
#pragma unroll
    for (int i = 0; i < ahead; i++) {
        const int t = (begin + own) * CHUNK + i;
        value[i] = begin + own < end && t < pos && d < a.head_dim ? __ldcg(v + t * stride) : 0.0f;
    }
    fd_pdl_wait();
    if (begin < end) {
        const float2 of = maximum_and_sum(score, n, tile);
        for (int first = begin; first < end; first += at_once) {
            const int t = first * CHUNK + (int)threadIdx.x;
            if ((int)threadIdx.x < at_once * CHUNK && t < n) {
                const float w = fd_exp32(__ldcg(score + t) - of.x) / of.y;
                weight[threadIdx.x] = w;
                if (a.weights_out && t < end * CHUNK) a.weights_out[(int64_t)head * a.n_ctx + t] = w;
            }
            __syncthreads();
            const int chunk = first + own, at = chunk * CHUNK, count = n - at < CHUNK ? n - at : CHUNK;
            const float *p = weight + own * CHUNK;
            if (chunk < end && d < a.head_dim) {
                float acc = 0.0f;
                int done = 0;
                if (first == begin) {
                    /* The newest value was written by the kernel before. */
                    const int held = pos - at < ahead ? pos - at : ahead;
#pragma unroll
                    for (int i = 0; i < ahead; i++)
                        if (i < held) acc = fmaf(p[i], value[i], acc);
                    done = held;
                }
                chunk_sums[chunk * a.head_dim] = mix_on(acc, p + done, v + (at + done) * stride, stride, count - done);
            }
            __syncthreads();
        }
    }
    if (!arrive_last(s.arrived + head, (unsigned)split) || (int)threadIdx.x >= a.head_dim) return;
    float total = 0.0f;
#pragma unroll 1
    for (int first = 0; first < n_chunk; first += ahead) {
#pragma unroll
        for (int i = 0; i < ahead; i++)
            value[i] = first + i < n_chunk ? __ldcg(chunk_sums + (first + i) * a.head_dim) : 0.0f;
#pragma unroll
        for (int i = 0; i < ahead; i++)
            if (first + i < n_chunk) total = total + value[i];
    }
    a.out[(int64_t)head * a.head_dim + d] = total;
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
