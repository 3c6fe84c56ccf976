/* Attention of one position: a block a head does it all while positions are few; else two kernels, scores with softmax,
 * and mix.
 *
 * Blocks take chunks of 64 positions. Which block of a head arrives last is not determined, but what it then does is:
 * it reads what all of them wrote and sums in the order of positions, so no result depends on the order of arrival. */
#include "kernels/attention.h"

#include "kernels/attention_dot.cuh"
#include "kernels/attention_scratch.cuh"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/rope.cuh"
#include "kernels/step_attention.cuh"

size_t fd_attn_decode_scratch(int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t n_ctx) {
    const size_t per_head = (size_t)n_ctx + 1 + (size_t)chunks_of(n_ctx) * (size_t)head_dim;
    return sizeof(float) * ((size_t)n_head * per_head + (size_t)n_head_kv + (size_t)n_head);
}

/* The row's part of everything; rows are the grid's third dimension. */
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

/* e^(s − max) in place and its sum, of `heads` heads in a row. Exponentials by all threads, each sum by one warp. */
__device__ __forceinline__ void softmax_sums(float *scores, int stride, int n, int heads, float *maxima, float *sums) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_warp = (int)blockDim.x / 32;
    for (int h = warp; h < heads; h += n_warp) {
        float max = -(float)INFINITY;
#pragma unroll 4
        for (int t = lane; t < n; t += 32) max = fmaxf(max, __ldcg(scores + (int64_t)h * stride + t));
        max = fd_warp_max(max);
        if (lane == 0) maxima[h] = max;
    }
    __syncthreads();
    for (int h = 0; h < heads; h++) {
        const float max = maxima[h];
        float *e = scores + (int64_t)h * stride;
        for (int t = (int)threadIdx.x; t < n; t += (int)blockDim.x) e[t] = fd_exp32(__ldcg(e + t) - max);
    }
    __syncthreads();
    for (int h = warp; h < heads; h += n_warp) {
        const float sum = fd_warp_sum(scores + (int64_t)h * stride, n, lane);
        if (lane == 0) sums[h] = sum;
    }
}

/* Grid: chunks × K/V heads. Turns the queries that share the K/V head; the block of the newest chunk turns and stores
 * its key and stores its value. */
template <int GROUPS>
__global__ void __launch_bounds__(256) decode_scores(const __grid_constant__ fd_attn_decode all) {
    float *query = fd_shared_floats(); /* [sharing, 64·GROUPS], then [sharing] maxima */
    fd_allow_next();
    fd_wait_previous();
    const fd_attn_decode a = row_of(all);
    const scratch_layout s = layout_of(&a);
    const int position = __ldcg(a.pos), n = position + 1, n_chunk = (n + CHUNK - 1) / CHUNK;
    const int active = n_chunk < (int)gridDim.x ? n_chunk : (int)gridDim.x;
    if ((int)blockIdx.x >= active) return;

    const int sharing = a.n_head / a.n_head_kv, kv_head = (int)blockIdx.y, width = 64 * GROUPS;
    for (int i = (int)threadIdx.x; i < sharing * width; i += (int)blockDim.x) {
        const int k = i % width;
        const int64_t angles = (int64_t)position * (a.q_rope.n_rot / 2);
        const float *head = a.q + (int64_t)(kv_head * sharing + i / width) * a.head_dim;
        query[i / width * width + fd_query_at(k)] =
            k < a.head_dim ? fd_rope_element(a.q_rope, head, k, a.q_rope.cosine + angles, a.q_rope.sine + angles)
                           : 0.0f;
    }
    if ((n_chunk - 1) % (int)gridDim.x == (int)blockIdx.x) {
        const int64_t angles = (int64_t)position * (a.k_rope.n_rot / 2);
        const int64_t to = ((int64_t)position * a.n_head_kv + kv_head) * a.head_dim;
        const int64_t from = (int64_t)kv_head * a.head_dim;
        for (int i = (int)threadIdx.x; i < a.head_dim; i += (int)blockDim.x) {
            a.cache_k[to + i] =
                fd_rope_element(a.k_rope, a.k + from, i, a.k_rope.cosine + angles, a.k_rope.sine + angles);
            a.cache_v[to + i] = __ldcg(a.v + from + i);
        }
    }
    __syncthreads();

    const int lane = (int)threadIdx.x % 8;
    for (int chunk = (int)blockIdx.x; chunk < n_chunk; chunk += (int)gridDim.x) {
        for (int t = chunk * CHUNK + (int)threadIdx.x / 8; t - (int)threadIdx.x / 8 < chunk * CHUNK + CHUNK; t += 32) {
            const int read = t < n ? t : n - 1;
            float key[GROUPS * 8];
            fd_load_key<GROUPS>(a.cache_k + ((int64_t)read * a.n_head_kv + kv_head) * a.head_dim, a.head_dim, lane,
                                key);
            for (int h = 0; h < sharing; h++) {
                const float dot = fd_query_dot<GROUPS>(query + h * width, key, a.head_dim, lane);
                if (lane == h % 8 && t < n) s.scores[(int64_t)(kv_head * sharing + h) * a.n_ctx + t] = dot * a.scale;
            }
        }
    }
    if (!arrive_last(s.arrived + kv_head, (unsigned)active)) return;
    softmax_sums(s.scores + (int64_t)kv_head * sharing * a.n_ctx, a.n_ctx, n, sharing, query + sharing * width,
                 s.sums + kv_head * sharing);
}

/* Grid: chunks × heads; a thread one element of the head (or two). */
__global__ void __launch_bounds__(256) decode_mix(const __grid_constant__ fd_attn_decode all) {
    __shared__ float weight[CHUNK];
    fd_allow_next();
    fd_wait_previous();
    const fd_attn_decode a = row_of(all);
    const scratch_layout s = layout_of(&a);
    const int n = __ldcg(a.pos) + 1, n_chunk = (n + CHUNK - 1) / CHUNK;
    const int active = n_chunk < (int)gridDim.x ? n_chunk : (int)gridDim.x;
    if ((int)blockIdx.x >= active) return;

    const int head = (int)blockIdx.y, d = (int)threadIdx.x;
    const int64_t v_stride = (int64_t)a.n_head_kv * a.head_dim;
    const float *v = a.cache_v + (int64_t)(head / (a.n_head / a.n_head_kv)) * a.head_dim + d;
    const float *e = s.scores + (int64_t)head * a.n_ctx;
    const int64_t chunk_stride = a.head_dim;
    float *chunk_sums = s.chunk_sums + (int64_t)head * ((a.n_ctx + CHUNK - 1) / CHUNK) * chunk_stride + d;
    const float sum = __ldcg(s.sums + head);

    for (int chunk = (int)blockIdx.x; chunk < n_chunk; chunk += (int)gridDim.x) {
        const int first = chunk * CHUNK, count = n - first < CHUNK ? n - first : CHUNK;
        if ((int)threadIdx.x < count) weight[threadIdx.x] = __ldcg(e + first + threadIdx.x) / sum;
        __syncthreads();
        if (d < a.head_dim) {
            float acc = 0.0f;
            int t = 0;
            for (; t + 16 <= count; t += 16) {
                float value[16];
#pragma unroll
                for (int i = 0; i < 16; i++) value[i] = __ldcg(v + (first + t + i) * v_stride);
#pragma unroll
                for (int i = 0; i < 16; i++) acc = fmaf(weight[t + i], value[i], acc);
            }
            for (; t < count; t++) acc = fmaf(weight[t], __ldcg(v + (first + t) * v_stride), acc);
            if (n_chunk == 1)
                a.out[(int64_t)head * a.head_dim + d] = 0.0f + acc;
            else
                chunk_sums[chunk * chunk_stride] = acc;
        }
        __syncthreads();
    }
    if (n_chunk == 1 || !arrive_last(s.arrived + a.n_head_kv + head, (unsigned)active) || d >= a.head_dim) return;
    float total = 0.0f;
#pragma unroll 8
    for (int chunk = 0; chunk < n_chunk; chunk++) total = total + __ldcg(chunk_sums + chunk * chunk_stride);
    a.out[(int64_t)head * a.head_dim + d] = total;
}

/* Grid: heads. */
template <int GROUPS>
__global__ void __launch_bounds__(STEP_THREADS) decode_near(const __grid_constant__ fd_attn_decode all) {
    __shared__ __align__(16) float area[STEP_MIN_X];
    fd_allow_next();
    fd_wait_previous();
    const fd_attn_decode a = row_of(all);
    step_attention_near<GROUPS>(a, __ldcg(a.pos), area);
}

fd_code fd_launch_attn_decode(const fd_queue *queue, const fd_attn_decode *in, fd_error *err) {
    if (in->n_head < 1 || in->n_head_kv < 1 || in->n_head % in->n_head_kv != 0 || in->n_ctx < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_decode: %d heads over %d, context %d", in->n_head, in->n_head_kv,
                       in->n_ctx);
    const unsigned rows = in->n_seq > 1 ? (unsigned)in->n_seq : 1;
    if (rows > 65535 || (rows > 1 && !in->sequences))
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_decode: %u sequences%s", rows,
                       in->sequences ? "" : ", and nothing says which");
    if (in->near)
        return fd_with_groups(in->head_dim, err, [&](auto groups) {
            return fd_launch(queue, "decode_near", decode_near<decltype(groups)::value>,
                             dim3((unsigned)in->n_head, 1, rows), STEP_THREADS, 0, err, *in);
        });
    const int64_t n_chunk = chunks_of(in->n_ctx), sharing = in->n_head / in->n_head_kv;
    const int64_t score_blocks = fd_blocks((int64_t)queue->n_sm * 2, in->n_head_kv);
    const int64_t mix_blocks = fd_blocks((int64_t)queue->n_sm * 4, in->n_head);
    FD_TRY(fd_with_groups(in->head_dim, err, [&](auto groups) {
        constexpr int n_group = decltype(groups)::value;
        const dim3 grid((unsigned)(n_chunk < score_blocks ? n_chunk : score_blocks), (unsigned)in->n_head_kv, rows);
        const size_t shared = sizeof(float) * (size_t)sharing * (64 * n_group + 1);
        return fd_launch(queue, "decode_scores", decode_scores<n_group>, grid, 256, shared, err, *in);
    }));
    const dim3 grid((unsigned)(n_chunk < mix_blocks ? n_chunk : mix_blocks), (unsigned)in->n_head, rows);
    const int threads = in->head_dim <= CHUNK ? CHUNK : (in->head_dim + 31) / 32 * 32;
    return fd_launch(queue, "decode_mix", decode_mix, grid, threads, 0, err, *in);
}
