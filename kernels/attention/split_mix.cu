/* Attention of one position after a long cache, third kernel: weights, and the mix of each chunk of 64 positions
 * (kernels/attention/split_kv.cuh). Where a block has few chunks all of its threads take one together, four elements of a
 * head each; where it has many, each warp takes one. */
#include "kernels/attention/mix_warps.cuh"

enum { FEW_CHUNKS = 3 }; /* of a block */

/* A thread's weights of a chunk; and its chain, four neighbouring elements of a head: with two of them, reading shared
 * memory took as long as reading the cache. */
template <int GROUPS> struct mix_shape {
    static constexpr int weights = split_shape<GROUPS>::most_heads * CHUNK / DECODE_THREADS;
    static constexpr int stride = CHUNK + 4; /* of heads' weights: eight heads' same four lie in different banks */
    static_assert(split_shape<GROUPS>::most_heads * split_shape<GROUPS>::width / 4 <= DECODE_THREADS,
                  "a unit's elements are a chain a thread");
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

/* A thread's chain: up to four neighbouring elements of a head, the sums of 64 positions. */
struct mix_chain {
    const float *weight; /* of the head */
    const float *newest; /* the newest values */
    float *sums;         /* of the head's chunk 0 */
    int d, n;            /* the first element, and how many; none: there is no such chain */
};

template <int GROUPS>
__device__ __forceinline__ mix_chain chain_of(const fd_attn_decode &a, const split_work &w, const float *weight) {
    const int h = (int)threadIdx.x % w.heads, d = (int)threadIdx.x / w.heads * 4;
    mix_chain c;
    c.d = d;
    c.n = a.head_dim - d < 4 ? a.head_dim - d : 4;
    c.weight = weight + h * mix_shape<GROUPS>::stride;
    c.newest = a.v + (int64_t)w.kv_head * a.head_dim + d;
    c.sums = layout_of(&a).chunk_sums + (int64_t)(w.head0 + h) * chunks_of(a.n_ctx) * a.head_dim + d;
    return c;
}

__device__ __forceinline__ void mix_row(float weight, const float4 &value, float (&acc)[4]) {
    acc[0] = fmaf(weight, value.x, acc[0]);
    acc[1] = fmaf(weight, value.y, acc[1]);
    acc[2] = fmaf(weight, value.z, acc[2]);
    acc[3] = fmaf(weight, value.w, acc[3]);
}

/* acc = fma(p, v, acc) over a chunk's rows: those that are cached, and the newest one. What lies past a row's elements is
 * mixed too, and left. */
template <int GROUPS, class Element>
__device__ __forceinline__ void mix_chunk(const fd_attn_decode &a, int first, int pos, const Element *rows,
                                          const mix_chain &c) {
    constexpr int width = split_shape<GROUPS>::width;
    const int cached = pos - first;
    const float *p = c.weight;
    const Element *v = rows + c.d;
    float acc[4] = {};
    if (cached >= CHUNK) {
#pragma unroll 4
        for (int t = 0; t < CHUNK; t += 4) {
            const float4 quad = *(const float4 *)(p + t);
            const float weight[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
            for (int i = 0; i < 4; i++) mix_row(weight[i], fd_shared_cached4(v + (t + i) * width), acc);
        }
    } else {
#pragma unroll 1
        for (int t = 0; t < cached; t++) mix_row(p[t], fd_shared_cached4(v + t * width), acc);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < c.n) acc[i] = fmaf(p[cached], fd_as_cached<Element>(__ldcg(c.newest + i)), acc[i]);
    }
    float *to = c.sums + (int64_t)(first / CHUNK) * a.head_dim;
    if (a.head_dim % 4 == 0) {
        *(float4 *)to = make_float4(acc[0], acc[1], acc[2], acc[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < c.n) to[i] = acc[i];
}

/* The block's chunks.
 *
 *   e, sum (scratch) ── weight of a chunk (shared) ──┐
 *   cached V ── ring (shared) ───────────────────────┴── acc: 64 positions ── chunk_sums (scratch) */
template <int GROUPS, class Element>
__device__ __forceinline__ void mix_by_block(const fd_attn_decode &a, const split_work &w) {
    Element *ring = (Element *)fd_shared_floats();
    float *weight = (float *)((char *)ring + split_ring<GROUPS, Element>::bytes);
    weights_ahead<GROUPS> ahead = {};
    const mix_chain chain = chain_of<GROUPS>(a, w, weight);
    split_walk<GROUPS>(
        a, w, (const Element *)a.cache_v, ring,
        [&] {
            fd_pdl_wait();
            ahead.begin(a, w, weight);
            ahead.load(a, w.chunk * CHUNK, w.pos);
        },
        [&](int first, const Element *rows) {
            ahead.store(a, first, w.pos);
            ahead.load(a, first + w.step * CHUNK, w.pos);
            __syncthreads();
            if (chain.n > 0) mix_chunk<GROUPS>(a, first, w.pos, rows, chain);
        });
}

/* Grid: blocks × 1 × rows. The newest value is read where the product before left it. */
template <int GROUPS, int HEADS, class Element>
__global__ void __launch_bounds__(DECODE_THREADS, SPLIT_BLOCKS)
    attention_split_mix(const __grid_constant__ fd_attn_decode all) {
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const split_work w = split_work_of<GROUPS>(a);
    if (w.n_chunk <= FEW_CHUNKS * w.step)
        mix_by_block<GROUPS, Element>(a, w);
    else
        mix_by_warps<GROUPS, HEADS, Element>(a, w);
}

template <int GROUPS, int HEADS, class Element>
static fd_code launch(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned blocks, unsigned rows,
                      fd_error *err) {
    using mix = mix_shape<GROUPS>;
    const size_t by_block =
                     split_ring<GROUPS, Element>::bytes + sizeof(float) * split_shape<GROUPS>::most_heads * mix::stride,
                 by_warps = warps_shape<GROUPS, HEADS, Element>::bytes;
    return fd_launch(ctx, "attention_split_mix", attention_split_mix<GROUPS, HEADS, Element>, dim3(blocks, 1, rows),
                     DECODE_THREADS, by_block > by_warps ? by_block : by_warps, err, *in);
}

fd_code fd_launch_split_mix(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned blocks, unsigned rows,
                            fd_error *err) {
    return fd_with_cached_groups(in, err, [&](auto groups, auto element) {
        constexpr int n = decltype(groups)::value, most = split_shape<n>::most_heads / warps_shape<n, 1, float>::sets;
        using Element = typename decltype(element)::type;
        const bool few = in->n_head / in->n_head_kv <= split_shape<n>::most_heads / 2;
        return few ? launch<n, most / 2, Element>(ctx, in, blocks, rows, err)
                   : launch<n, most, Element>(ctx, in, blocks, rows, err);
    });
}
