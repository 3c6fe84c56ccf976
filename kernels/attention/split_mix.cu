/* Attention of one position after a long cache, third kernel: weights, and the mix of each chunk of 64 positions
 * (kernels/attention/split_kv.cuh). */
#include "kernels/attention/split_kv.cuh"

/* A thread's weights of a chunk; and its chains, each two neighbouring elements of a head. */
template <int GROUPS> struct mix_shape {
    static constexpr int weights = split_shape<GROUPS>::most_heads * CHUNK / DECODE_THREADS, chains = 2;
    static constexpr int stride = CHUNK + 4; /* of heads' weights: eight heads' same four lie in different banks */
    static_assert(split_shape<GROUPS>::most_heads * split_shape<GROUPS>::width / 2 <= chains * DECODE_THREADS,
                  "a unit's elements are two chains a thread");
};

/* A thread's weights of a chunk: at one position, of heads first, first + 4, …; e^(score − largest) is loaded a chunk
 * ahead. */
template <int GROUPS> struct weights_ahead {
    static constexpr int weights = mix_shape<GROUPS>::weights, step = DECODE_THREADS / CHUNK;
    const float *from;   /* e of head `first` at the thread's first position */
    float *observe, *to; /* likewise; NULL: no one looks */
    float e[weights], sum[weights];
    int heads; /* of the thread */

    __device__ __forceinline__ void begin(const fd_attn_decode &a, const split_work &w, float *weight) {
        const int first = (int)threadIdx.x / CHUNK, t = (int)threadIdx.x % CHUNK;
        const scratch_layout s = layout_of(&a);
        const int64_t at = (int64_t)(w.head0 + first) * a.n_ctx + t;
        from = s.scores + at;
        observe = a.weights_out ? a.weights_out + at : NULL;
        to = weight + first * mix_shape<GROUPS>::stride + t;
        heads = (w.heads - first + step - 1) / step;
#pragma unroll
        for (int i = 0; i < weights; i++)
            if (i < heads) sum[i] = __ldcg(s.sum + w.head0 + first + i * step);
    }
    __device__ __forceinline__ void load(const fd_attn_decode &a, int chunk, int pos) {
        if (chunk + (int)threadIdx.x % CHUNK > pos) return;
#pragma unroll
        for (int i = 0; i < weights; i++)
            if (i < heads) e[i] = __ldcg(from + (int64_t)(i * step) * a.n_ctx + chunk);
    }
    __device__ __forceinline__ void store(const fd_attn_decode &a, int chunk, int pos) const {
        if (chunk + (int)threadIdx.x % CHUNK > pos) return;
#pragma unroll
        for (int i = 0; i < weights; i++) {
            if (i >= heads) break;
            const float p = e[i] / sum[i];
            to[i * step * mix_shape<GROUPS>::stride] = p;
            if (observe) observe[(int64_t)(i * step) * a.n_ctx + chunk] = p;
        }
    }
};

/* A thread's chain: two neighbouring elements of a head, the sums of 64 positions. */
struct mix_chain {
    const float *weight; /* of the head */
    const float *newest; /* the newest values */
    float *sums;         /* of the head's chunk 0 */
    int d;               /* the first element; -1: there is no such chain */
};

template <int GROUPS>
__device__ __forceinline__ void begin_chain(const fd_attn_decode &a, const split_work &w, const float *weight,
                                            int chain, mix_chain &c) {
    const int h = chain % w.heads, d = chain / w.heads * 2;
    c.d = d < a.head_dim ? d : -1;
    c.weight = weight + h * mix_shape<GROUPS>::stride;
    c.newest = a.v + (int64_t)w.kv_head * a.head_dim + d;
    c.sums = layout_of(&a).chunk_sums + (int64_t)(w.head0 + h) * chunks_of(a.n_ctx) * a.head_dim + d;
}

/* acc = fma(p, v, acc) over a chunk's rows: those that are cached, and the newest one. */
template <int GROUPS>
__device__ __forceinline__ void mix_chunk(const fd_attn_decode &a, int first, int pos, const float *rows,
                                          const mix_chain &c) {
    constexpr int width = split_shape<GROUPS>::width;
    const int cached = pos - first;
    const float *p = c.weight, *v = rows + c.d;
    float2 acc = make_float2(0.0f, 0.0f);
    if (cached >= CHUNK) {
#pragma unroll 8
        for (int t = 0; t < CHUNK; t += 4) {
            const float4 quad = *(const float4 *)(p + t);
            const float weight[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 value = *(const float2 *)(v + (t + i) * width);
                acc.x = fmaf(weight[i], value.x, acc.x);
                acc.y = fmaf(weight[i], value.y, acc.y);
            }
        }
    } else {
#pragma unroll 1
        for (int t = 0; t < cached; t++) {
            const float2 value = *(const float2 *)(v + t * width);
            acc.x = fmaf(p[t], value.x, acc.x);
            acc.y = fmaf(p[t], value.y, acc.y);
        }
        acc.x = fmaf(p[cached], __ldcg(c.newest), acc.x);
        if (c.d + 1 < a.head_dim) acc.y = fmaf(p[cached], __ldcg(c.newest + 1), acc.y);
    }
    float *to = c.sums + (int64_t)(first / CHUNK) * a.head_dim;
    to[0] = acc.x;
    if (c.d + 1 < a.head_dim) to[1] = acc.y;
}

/* Grid: blocks × 1 × rows. The newest value is read where the product before left it.
 *
 *   e, sum (scratch) ── weight of a chunk (shared) ──┐
 *   cached V ── ring (shared) ───────────────────────┴── acc: 64 positions ── chunk_sums (scratch) */
template <int GROUPS>
__global__ void __launch_bounds__(DECODE_THREADS, SPLIT_BLOCKS)
    attention_split_mix(const __grid_constant__ fd_attn_decode all) {
    using mix = mix_shape<GROUPS>;
    __shared__ __align__(16) float weight[split_shape<GROUPS>::most_heads * mix::stride];
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const split_work w = split_work_of<GROUPS>(a);
    weights_ahead<GROUPS> ahead = {};
    mix_chain chain[mix::chains] = {};
#pragma unroll
    for (int c = 0; c < mix::chains; c++)
        begin_chain<GROUPS>(a, w, weight, (int)threadIdx.x + c * DECODE_THREADS, chain[c]);
    split_walk<GROUPS>(
        a, w, a.cache_v, fd_shared_floats(),
        [&] {
            fd_pdl_wait();
            ahead.begin(a, w, weight);
            ahead.load(a, w.chunk * CHUNK, w.pos);
        },
        [&](int first, const float *rows) {
            ahead.store(a, first, w.pos);
            ahead.load(a, first + w.step * CHUNK, w.pos);
            __syncthreads();
#pragma unroll
            for (int c = 0; c < mix::chains; c++)
                if (chain[c].d >= 0) mix_chunk<GROUPS>(a, first, w.pos, rows, chain[c]);
        });
}

fd_code fd_launch_split_mix(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned blocks, unsigned rows,
                            fd_error *err) {
    return fd_with_groups(in->head_dim, err, [&](auto groups) {
        constexpr int n = decltype(groups)::value;
        return fd_launch(ctx, "attention_split_mix", attention_split_mix<n>, dim3(blocks, 1, rows), DECODE_THREADS,
                         split_shape<n>::bytes, err, *in);
    });
}
