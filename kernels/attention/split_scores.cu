/* Attention of one position after a long cache, first kernel: RoPE, the newest rows of K and V to the caches, and all
 * scores (kernels/attention/split_kv.cuh). */
#include "kernels/attention/split_kv.cuh"

/* Eight lanes share a dot: lane l has elements 8l … 8l + 7 of each group of 64, so partials 8l … 8l + 7. Of floats a lane
 * of the upper four has its second four first: eight lanes then read 128 bytes from different banks, as they do of halves
 * anyway. The two halves meet in one addition, which does not mind the order. */
template <class Element> __device__ __forceinline__ int element_of(int group, int lane, int i) {
    const int swapped = sizeof(Element) == sizeof(float) ? lane / 4 : 0, half = i / 4 ^ swapped;
    return group * 64 + lane * 8 + half * 4 + i % 4;
}

/* A lane's share of a row of the ring, or of a query or the newest key, which are floats. */
template <class Element, int GROUPS>
__device__ __forceinline__ void load_share(const float *row, int lane, float (&x)[GROUPS * 8]) {
    const int own = element_of<Element>(0, lane, 0), to_half = element_of<Element>(0, lane, 4) - own;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const float4 a = *(const float4 *)(row + own + g * 64), b = *(const float4 *)(row + own + g * 64 + to_half);
        x[g * 8 + 0] = a.x, x[g * 8 + 1] = a.y, x[g * 8 + 2] = a.z, x[g * 8 + 3] = a.w;
        x[g * 8 + 4] = b.x, x[g * 8 + 5] = b.y, x[g * 8 + 6] = b.z, x[g * 8 + 7] = b.w;
    }
}
template <class Element, int GROUPS>
__device__ __forceinline__ void load_share(const uint16_t *row, int lane, float (&x)[GROUPS * 8]) {
#pragma unroll
    for (int g = 0; g < GROUPS; g++) fd_spread_halves(*(const uint4 *)(row + g * 64 + lane * 8), x + g * 8);
}

/* WHOLE: heads have all 64·GROUPS elements. */
template <int GROUPS, bool WHOLE, class Element>
__device__ __forceinline__ float dot_share(const float (&q)[GROUPS * 8], const float (&k)[GROUPS * 8], int head_dim,
                                           int lane) {
    float acc[8] = {};
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (WHOLE || element_of<Element>(g, lane, i) < head_dim) acc[i] = fmaf(q[g * 8 + i], k[g * 8 + i], acc[i]);
    return fd_tree(acc);
}

/* COUNT sums over eight lanes at once: lanes halve what they hold at each level of the tree, as long as there is more
 * than one. Lane l ends with sum number scattered_to(l). */
template <int COUNT, int OFFSET = 1> __device__ __forceinline__ float scatter_sums(float (&sum)[COUNT], int lane) {
    constexpr int left = COUNT > 1 ? COUNT / 2 : 1;
    float next[left];
#pragma unroll
    for (int i = 0; i < left; i++) {
        const bool upper = COUNT > 1 && lane & OFFSET;
        const float keep = upper ? sum[COUNT > 1 ? i + left : 0] : sum[i];
        const float give = upper ? sum[i] : sum[COUNT > 1 ? i + left : 0];
        next[i] = keep + __shfl_xor_sync(0xffffffffu, give, OFFSET);
    }
    if constexpr (OFFSET < 4)
        return scatter_sums<left, OFFSET * 2>(next, lane);
    else
        return next[0];
}
template <int COUNT> __device__ __forceinline__ int scattered_to(int lane) {
    int sum = 0;
#pragma unroll
    for (int half = COUNT / 2; half > 0; half /= 2, lane /= 2) sum += lane % 2 * half;
    return sum;
}

/* The unit's queries, and, in the block that has its last chunk, the newest key; that of the K/V head's first unit stores
 * the newest rows. A thread turns one element of each head. Ends with a barrier. */
template <int GROUPS, class Element>
__device__ __forceinline__ void stage_unit(const fd_attn_decode &a, const split_work &w, const fd_rope_angle &q_angle,
                                           const fd_rope_angle &k_angle, float *query, Element *key) {
    constexpr int width = split_shape<GROUPS>::width;
    const int element = (int)threadIdx.x % width;
    const bool exists = element < a.head_dim, has_newest = (w.n_chunk - 1) % w.step == w.chunk;
    const int64_t of_head = (int64_t)w.kv_head * a.head_dim;
#pragma unroll 4
    for (int h = (int)threadIdx.x / width; h < w.heads; h += DECODE_THREADS / width) {
        const int64_t head = (int64_t)(w.head0 + h) * a.head_dim;
        const float turned = fd_rope_rotate(q_angle, fd_rope_load(q_angle, a.q + head));
        query[h * width + element] = turned;
        if (has_newest && exists && a.q_out) a.q_out[head + element] = turned;
    }
    if (has_newest && (int)threadIdx.x < width) {
        const float newest = fd_rope_rotate(k_angle, fd_rope_load(k_angle, a.k + of_head));
        key[element] = fd_to_cached<Element>(newest);
        if (w.first_of_kv_head && exists) {
            const int64_t at = w.pos * w.stride + of_head + element;
            ((Element *)a.cache_k)[at] = fd_to_cached<Element>(newest);
            ((Element *)a.cache_v)[at] = fd_to_cached<Element>(__ldcg(a.v + of_head + element));
            if (a.k_out) a.k_out[of_head + element] = newest;
        }
    }
    __syncthreads();
}

/* What a lane does of a unit: its share of up to AT_ONCE queries; where the unit has more heads, half of the warps take
 * the others. */
template <int GROUPS, class Element> struct scores_lane {
    static constexpr int AT_ONCE = 8 / GROUPS;
    float query[AT_ONCE][GROUPS * 8];
    int heads;
    int row, step;  /* the first row of each chunk, and from one to the next */
    int head;       /* the unit's whose dots the lane ends with; -1: with none's */
    float *scores;  /* of that head */
    float *observe; /* likewise; NULL: no one looks */
    float most;     /* the largest of its scores so far */

    __device__ __forceinline__ void begin(const fd_attn_decode &a, const split_work &w, const float *staged, int lane) {
        const int sets = w.heads > AT_ONCE ? 2 : 1, eight = (int)threadIdx.x / 8;
        step = DECODE_THREADS / 8 / sets;
        row = eight % step;
        const int skip = eight / step * AT_ONCE, h = scattered_to<AT_ONCE>(lane);
        heads = w.heads - skip < AT_ONCE ? w.heads - skip : AT_ONCE;
        head = lane < AT_ONCE && h < heads ? skip + h : -1;
        scores = layout_of(&a).scores + (int64_t)(w.head0 + skip + h) * a.n_ctx;
        observe = a.scores_out ? a.scores_out + (int64_t)(w.head0 + skip + h) * a.n_ctx : NULL;
        most = -(float)INFINITY;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (i < heads)
                load_share<Element, GROUPS>(staged + (skip + i) * split_shape<GROUPS>::width, lane, query[i]);
    }
    /* The dot of a key and the lane's head, where it ends with one. ALL: there are AT_ONCE heads, and the compiler may
     * interleave them. */
    template <bool WHOLE, bool ALL>
    __device__ __forceinline__ float dot(const float (&key)[GROUPS * 8], int head_dim, int lane) const {
        float sum[AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (ALL || i < heads) sum[i] = dot_share<GROUPS, WHOLE, Element>(query[i], key, head_dim, lane);
        return scatter_sums(sum, lane);
    }
};

/* Scores of a chunk; a lane's rows two at a time. */
template <int GROUPS, bool WHOLE, bool ALL, class Element>
__device__ __forceinline__ void score_chunk(const fd_attn_decode &a, scores_lane<GROUPS, Element> &l, int first,
                                            int pos, const Element *rows, const Element *newest, int lane) {
    constexpr int width = split_shape<GROUPS>::width;
#pragma unroll 1
    for (int row = l.row; row < CHUNK; row += 2 * l.step) {
        float key[2][GROUPS * 8], score[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Element *from = first + row + i * l.step == pos ? newest : rows + (row + i * l.step) * width;
            load_share<Element, GROUPS>(from, lane, key[i]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) score[i] = l.template dot<WHOLE, ALL>(key[i], a.head_dim, lane) * a.scale;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int t = first + row + i * l.step;
            if (l.head < 0 || t > pos) continue;
            l.scores[t] = score[i];
            l.most = fmaxf(l.most, score[i]);
            if (l.observe) l.observe[t] = score[i];
        }
    }
}

/* The largest of the block's scores of each of the unit's heads, to the scratch. */
template <int GROUPS>
__device__ __forceinline__ void store_largest(const fd_attn_decode &a, const split_work &w, int head, float most) {
    constexpr int most_heads = split_shape<GROUPS>::most_heads;
    __shared__ float of_warp[DECODE_WARPS][most_heads];
    const int tid = (int)threadIdx.x;
    if (tid < DECODE_WARPS * most_heads) of_warp[tid / most_heads][tid % most_heads] = -(float)INFINITY;
    __syncthreads();
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 8)); /* the warp's four rows */
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 16));
    if (tid % 32 < 8 && head >= 0) of_warp[tid / 32][head] = most;
    __syncthreads();
    if (tid >= w.heads) return;
    float all = -(float)INFINITY;
    for (int warp = 0; warp < DECODE_WARPS; warp++) all = fmaxf(all, of_warp[warp][tid]);
    layout_of(&a).largest[(w.head0 + tid) * SPLIT_MOST_BLOCKS + w.chunk] = all;
}

/* Grid: blocks × 1 × rows.
 *
 *   cached K ── ring (shared) ── key, a row for eight lanes ──┐
 *   k ── RoPE ── newest key (shared) ─────────────────────────┼── dots ── scatter_sums ── scores (scratch)
 *   q ── RoPE ── query (shared) ── registers ─────────────────┘ */
template <int GROUPS, bool WHOLE, class Element>
__global__ void __launch_bounds__(DECODE_THREADS, SPLIT_BLOCKS)
    attention_split_scores(const __grid_constant__ fd_attn_decode all) {
    using shape = split_ring<GROUPS, Element>;
    constexpr int width = split_shape<GROUPS>::width;
    __shared__ __align__(16) Element newest[width]; /* key, after RoPE */
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const split_work w = split_work_of<GROUPS>(a);
    const int lane = (int)threadIdx.x % 8, element = (int)threadIdx.x % width;
    const fd_rope_angle q_angle = fd_rope_angle_of(a.q_rope, element, a.head_dim, w.pos);
    const fd_rope_angle k_angle = fd_rope_angle_of(a.k_rope, element, a.head_dim, w.pos);
    Element *ring = (Element *)fd_shared_floats();
    float *query = (float *)(ring + (shape::stages - 1) * shape::stage); /* until the first chunk */
    scores_lane<GROUPS, Element> l;
    split_walk<GROUPS>(
        a, w, (const Element *)a.cache_k, ring,
        [&] {
            fd_pdl_wait();
            stage_unit<GROUPS, Element>(a, w, q_angle, k_angle, query, newest);
            l.begin(a, w, query, lane);
        },
        [&](int first, const Element *rows) {
            if (l.heads == l.AT_ONCE)
                score_chunk<GROUPS, WHOLE, true, Element>(a, l, first, w.pos, rows, newest, lane);
            else
                score_chunk<GROUPS, WHOLE, false, Element>(a, l, first, w.pos, rows, newest, lane);
        });
    store_largest<GROUPS>(a, w, l.head, l.most);
}

fd_code fd_launch_split_scores(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned blocks, unsigned rows,
                               fd_error *err) {
    return fd_with_cached_groups(in, err, [&](auto groups, auto element) {
        constexpr int n = decltype(groups)::value;
        using Element = typename decltype(element)::type;
        auto kernel = in->head_dim == 64 * n ? attention_split_scores<n, true, Element>
                                             : attention_split_scores<n, false, Element>;
        return fd_launch(ctx, "attention_split_scores", kernel, dim3(blocks, 1, rows), DECODE_THREADS,
                         split_ring<n, Element>::bytes, err, *in);
    });
}
