/* Attention of one position near the beginning: one kernel, a block a head. What takes the time is latency, so all that
 * the block needs of memory is asked for at once: cached rows and angles before the wait for the previous kernel, the
 * newest rows right behind it, the other half of the values while the softmax is made. */
#include "kernels/attention/decode.cuh"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"

constexpr int SHORT = FD_ATTENTION_SHORT_CONTEXT, HALF = CHUNK / 2;
static_assert(SHORT <= DECODE_THREADS, "a thread a score");

/* score[0 … n − 1] to e^(s − max) / sum. Every warp finds maximum and sum for itself: a block has little else to do, and
 * barriers are what takes the time. Starts and ends with a barrier. */
__device__ __forceinline__ void softmax_short(float *score, float *e, int n) {
    const int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x;
    __syncthreads();
    float max = -(float)INFINITY;
#pragma unroll
    for (int i = 0; i < SHORT / 32; i++)
        if (lane + i * 32 < n) max = fmaxf(max, score[lane + i * 32]);
    max = fd_warp_max(max);
    const float own_e = own < n ? fd_exp32(score[own] - max) : 0.0f;
    if (own < n) e[own] = own_e;
    __syncthreads();
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int i = 0; i < SHORT / 64; i++) {
        if (lane + i * 64 < n) low = low + e[lane + i * 64];
        if (lane + i * 64 + 32 < n) high = high + e[lane + i * 64 + 32];
    }
    const float sum = fd_tree_lanes<32>(low) + fd_tree_lanes<32>(high);
    if (own < n) score[own] = own_e / sum;
    __syncthreads();
}

/* Half a chunk of the cache's values of element d, those before position `end`. */
__device__ __forceinline__ void load_values(const float *from, int64_t stride, int first, int end,
                                            float (&value)[HALF]) {
#pragma unroll
    for (int i = 0; i < HALF; i++) value[i] = first + i < end ? __ldcg(from + (first + i) * stride) : 0.0f;
}
__device__ __forceinline__ float mix_values(float acc, const float *p, int count, const float (&value)[HALF]) {
#pragma unroll
    for (int i = 0; i < HALF; i++)
        if (i < count) acc = fmaf(p[i], value[i], acc);
    return acc;
}

/* Grid: heads × rows. Of the cache, rows before *pos alone are read: they were written in earlier steps, and the position
 * was there before the step's first kernel. */
template <int GROUPS>
__global__ void __launch_bounds__(DECODE_THREADS, 2)
    attention_single_block(const __grid_constant__ fd_attn_decode all) {
    constexpr int width = 64 * GROUPS, at_once = DECODE_THREADS / width; /* chunks that the block mixes */
    constexpr int passes = 4 / GROUPS, pass_rows = DECODE_THREADS / 8;   /* of keys that are held */
    __shared__ __align__(16) float query[width], key_new[width], score[SHORT], e[SHORT],
        chunk_sums[SHORT / CHUNK * width];
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const int pos = __ldcg(a.pos), n = pos + 1, n_chunk = chunks_of(n), head = (int)blockIdx.x;
    const int sharing = a.n_head / a.n_head_kv, kv_head = head / sharing, lane = (int)threadIdx.x % 8;
    const int d = (int)threadIdx.x % width, part = (int)threadIdx.x / width; /* also the first chunk it mixes */
    const int64_t stride = (int64_t)a.n_head_kv * a.head_dim, of_head = (int64_t)kv_head * a.head_dim;
    const float *cache_k = a.cache_k + of_head, *cache_v = a.cache_v + of_head + d;
    const bool has_d = d < a.head_dim;

    float key[passes][GROUPS * 8], value[HALF];
#pragma unroll
    for (int pass = 0; pass < passes; pass++) {
        const int t = pass * pass_rows + (int)threadIdx.x / 8;
        if (t < pos) fd_load_key<GROUPS>(cache_k + t * stride, a.head_dim, lane, key[pass]);
    }
    load_values(cache_v, stride, part * CHUNK, has_d ? pos : 0, value);
    /* The first `width` threads turn the query, the next ones, or the same, the newest key. */
    const bool turns_q = part == 0, turns_k = part == (at_once > 1 ? 1 : 0);
    const fd_rope_angle q_turn = fd_rope_angle_of(a.q_rope, d, a.head_dim, pos);
    const fd_rope_angle k_turn = fd_rope_angle_of(a.k_rope, d, a.head_dim, pos);
    fd_pdl_wait();

    const float2 q_pair = turns_q ? fd_rope_load(q_turn, a.q + (int64_t)head * a.head_dim) : make_float2(0.0f, 0.0f);
    const float2 k_pair = turns_k ? fd_rope_load(k_turn, a.k + of_head) : make_float2(0.0f, 0.0f);
    const float v_new = has_d ? __ldcg(a.v + of_head + d) : 0.0f;
    if (turns_q) query[fd_query_at(d)] = fd_rope_rotate(q_turn, q_pair);
    if (turns_k) key_new[d] = fd_rope_rotate(k_turn, k_pair);
    if (head % sharing == 0 && has_d) {
        if (part == 0) a.cache_v[pos * stride + of_head + d] = v_new;
        if (turns_k) a.cache_k[pos * stride + of_head + d] = fd_rope_rotate(k_turn, k_pair);
    }
    __syncthreads();
    store_rotated(a, head, query, key_new);
    const auto put_score = [&](int t, const float(&k)[GROUPS * 8]) {
        const float s = fd_query_dot<GROUPS>(query, k, a.head_dim, lane) * a.scale;
        if (lane == 0 && t < n) score[t] = s;
        if (lane == 0 && t < n && a.scores_out) a.scores_out[(int64_t)head * a.n_ctx + t] = s;
    };
#pragma unroll
    for (int pass = 0; pass < passes; pass++) {
        const int t = pass * pass_rows + (int)threadIdx.x / 8;
        if (pass * pass_rows >= n) break;
        if (t >= pos) key_from<GROUPS>(key_new, a.head_dim, lane, key[pass]);
        put_score(t, key[pass]);
    }
#pragma unroll 1
    for (int base = passes * pass_rows; base < n; base += pass_rows) {
        const int t = base + (int)threadIdx.x / 8;
        if (t < pos)
            fd_load_key<GROUPS>(cache_k + t * stride, a.head_dim, lane, key[0]);
        else
            key_from<GROUPS>(key_new, a.head_dim, lane, key[0]);
        put_score(t, key[0]);
    }
    float second[HALF];
    load_values(cache_v, stride, part * CHUNK + HALF, has_d ? pos : 0, second);
    softmax_short(score, e, n);
    if (a.weights_out && (int)threadIdx.x < n)
        a.weights_out[(int64_t)head * a.n_ctx + threadIdx.x] = score[threadIdx.x];

    for (int chunk = part; chunk < n_chunk; chunk += at_once) {
        const int first = chunk * CHUNK, cached = pos - first < CHUNK ? pos - first : CHUNK;
        if (chunk != part) {
            load_values(cache_v, stride, first, has_d ? pos : 0, value);
            load_values(cache_v, stride, first + HALF, has_d ? pos : 0, second);
        }
        float acc = mix_values(0.0f, score + first, cached, value);
        acc = mix_values(acc, score + first + HALF, cached - HALF, second);
        chunk_sums[chunk * width + d] = cached < CHUNK ? fmaf(score[pos], v_new, acc) : acc;
    }
    __syncthreads();
    if ((int)threadIdx.x < a.head_dim) {
        float total = 0.0f;
        for (int chunk = 0; chunk < n_chunk; chunk++) total = total + chunk_sums[chunk * width + threadIdx.x];
        a.out[(int64_t)head * a.head_dim + threadIdx.x] = total;
    }
}

/* Dynamic shared memory that the kernel asks for. Where heads together are wide, the product behind it has long rings,
 * and on a multiprocessor that one of its blocks shares, q, k and v wait behind the ring's first fill
 * (docs/performance-diary.md). So no ring shares it. Narrow heads go with short products, whose rings would keep this kernel
 * from starting early. */
static size_t shared_to_ask(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned rows) {
    enum { WIDE = 12 }; /* elements of all heads, a multiprocessor */
    const bool wide = (int64_t)in->n_head * in->head_dim >= (int64_t)WIDE * ctx->n_sm;
    return wide && (int64_t)in->n_head * rows <= ctx->n_sm ? fd_shared_alone(ctx) : 0;
}

fd_code fd_launch_attn_single_block(const fd_launch_context *ctx, const fd_attn_decode *in, fd_error *err) {
    const unsigned rows = in->n_seq > 1 ? (unsigned)in->n_seq : 1;
    const size_t shared = shared_to_ask(ctx, in, rows);
    return fd_with_groups(in->head_dim, err, [&](auto groups) {
        auto kernel = attention_single_block<decltype(groups)::value>;
        return fd_launch(ctx, "attention_single_block", kernel, dim3((unsigned)in->n_head, 1, rows), DECODE_THREADS,
                         shared, err, *in);
    });
}
