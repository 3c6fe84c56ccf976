/* Attention of up to eight queries over 16 positions, by one warp on tensor cores (kernels/attention/split_kv_f16.cu): copies of
 * K and V to stages of the warp's own, scores, softmax and mix. No warp waits for another.
 *
 * Queries and weights are two halves each, a value and what rounding it left, so that a product has their binary32
 * precision; K and V are binary16 as the caches hold them. Products are exact and summed in binary32. */
#ifndef FD_KERNELS_ATTENTION_SPLIT_TILE_F16_CUH
#define FD_KERNELS_ATTENTION_SPLIT_TILE_F16_CUH

#include "kernels/attention/mma_f16.cuh"
#include "kernels/attention/split_work_f16.cuh"

/* A warp's stages, which are filled and read in turn: 16 rows of K, then of V. */
template <int WIDTH> struct stages_of {
    static constexpr int count = WIDTH > 128 ? 2 : WIDTH > 64 ? 3 : 4;
    static constexpr int elements = 2 * STEP * WIDTH;
    static constexpr size_t bytes = sizeof(uint16_t) * WARPS * count * elements; /* of a block */
};

__device__ __forceinline__ int lane_of_warp() {
    return (int)threadIdx.x % 32;
}

/* The warp's first position in the block's tile number `step`. */
__device__ __forceinline__ int first_of_step(const block_work &w, int step) {
    return (w.begin + step) * TILE + (int)threadIdx.x / 32 * STEP;
}

/* Requests the warp's 16 positions of a step: zeros where the caches hold no row, and past the head's end. A group of copies in
 * any case, so that groups count steps. */
template <int WIDTH>
__device__ __forceinline__ void load_step(const fd_attn_f16 &a, const block_work &w, int step, uint16_t *stage) {
    constexpr int chunks = WIDTH / 8;
    if (w.begin + step < w.end) {
        const int first = first_of_step(w, step);
#pragma unroll
        for (int i = 0; i < STEP * chunks / 32; i++) {
            const int at = i * 32 + lane_of_warp(), row = at / chunks, chunk = at % chunks, t = first + row;
            const int64_t from = t * w.stride + w.of_head + chunk * 8;
            uint16_t *to = stage + fd_tile_at<WIDTH>(row, chunk);
            if (a.head_dim % 8 == 0) {
                const bool there = t < w.cached && chunk * 8 < a.head_dim;
                fd_cp_async16(to, there ? a.cache_k + from : a.cache_k, there);
                fd_cp_async16(to + STEP * WIDTH, there ? a.cache_v + from : a.cache_v, there);
                continue;
            }
            for (int k = 0; k < 8; k++) {
                const bool there = t < w.cached && chunk * 8 + k < a.head_dim;
                to[k] = there ? __ldcg(a.cache_k + from + k) : (uint16_t)0;
                to[STEP * WIDTH + k] = there ? __ldcg(a.cache_v + from + k) : (uint16_t)0;
            }
        }
    }
    fd_cp_async_commit_group();
}

/* The newest row to its place in the stage of positions from `first` on, where it is one of them. */
template <int WIDTH>
__device__ __forceinline__ void put_newest(const fd_attn_f16 &a, const block_work &w, const block_shared<WIDTH> &b,
                                           int first, uint16_t *stage) {
    const int row = w.pos - first;
    if (!a.k || row < 0 || row >= STEP) return;
    for (int chunk = lane_of_warp(); chunk < WIDTH / 8; chunk += 32) {
        uint16_t *to = stage + fd_tile_at<WIDTH>(row, chunk);
        *(uint4 *)to = *(const uint4 *)(b.newest[0] + chunk * 8);
        *(uint4 *)(to + STEP * WIDTH) = *(const uint4 *)(b.newest[1] + chunk * 8);
    }
    __syncwarp();
}

/* Fragments of the queries' elements 32k … 32k + 31: of the rounded queries, and of what that left. */
struct query_fragment {
    uint32_t part[2][4];
};
template <int WIDTH> __device__ __forceinline__ query_fragment load_query(const block_shared<WIDTH> &b, int k) {
    const int row = lane_of_warp() % 8, matrix = lane_of_warp() / 8;
    query_fragment q;
#pragma unroll
    for (int i = 0; i < 2; i++)
        fd_ldmatrix(q.part[i], fd_shared_address(b.query[i] + fd_tile_at<WIDTH>(row, 4 * k + matrix)));
    return q;
}

/* Those of long heads are read again for each step: registers hold their sums. */
template <int WIDTH> struct query_fragments {
    static constexpr bool held = WIDTH <= 128;
    const block_shared<WIDTH> &b;
    query_fragment kept[held ? WIDTH / 32 : 1];

    __device__ __forceinline__ explicit query_fragments(const block_shared<WIDTH> &shared) : b(shared) {
        if constexpr (held) {
#pragma unroll
            for (int k = 0; k < WIDTH / 32; k++) kept[k] = load_query<WIDTH>(b, k);
        }
    }
    __device__ __forceinline__ query_fragment at(int k) const {
        if constexpr (held) return kept[k];
        return load_query<WIDTH>(b, k);
    }
};

/* What a lane holds of the warp's part: of queries 2 (l mod 4) and the next. Sums over positions are the lane's own rows' until
 * the end. */
template <int WIDTH> struct running {
    float top[2] = {-(float)INFINITY, -(float)INFINITY}, total[2] = {0.0f, 0.0f};
    float out[WIDTH / 16][4] = {}; /* Σ e^(score − top)·v of elements 16m + l / 4 and 8 on */
};

/* s = q·k: lane l has positions l / 4 and 8 on, queries 2 (l mod 4) and the next. */
template <int WIDTH>
__device__ __forceinline__ void score_step(const query_fragments<WIDTH> &queries, const uint16_t *keys, float (&s)[4]) {
    const int lane = lane_of_warp(), row = lane / 8 % 2 * 8 + lane % 8, chunk = lane / 16;
    float rest[4] = {};
#pragma unroll
    for (int k = 0; k < WIDTH / 32; k++) {
        const query_fragment q = queries.at(k);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t key[4];
            fd_ldmatrix(key, fd_shared_address(keys + fd_tile_at<WIDTH>(row, 2 * (2 * k + half) + chunk)));
            fd_mma(s, key, q.part[0][2 * half], q.part[0][2 * half + 1]);
            fd_mma(rest, key, q.part[1][2 * half], q.part[1][2 * half + 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] += rest[i];
}

/* Scale, softcap, and -inf where the row does not look. */
__device__ __forceinline__ void mask_step(const fd_attn_f16 &a, const block_work &w, int first, float (&s)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int t = first + lane_of_warp() / 4 + i / 2 * 8;
        s[i] *= a.scale;
        if (a.softcap != 0.0f) s[i] = fd_approx_softcap(s[i], a.softcap);
        if (t > w.pos || t < w.first) s[i] = -(float)INFINITY;
    }
}

/* s to e^(s − top), top and total moved on, the sums scaled to it. */
template <int WIDTH> __device__ __forceinline__ void softmax_step(running<WIDTH> &r, float (&s)[4]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = fmaxf(s[h], s[h + 2]);
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
        const float now = fmaxf(r.top[h], most), base = now == -(float)INFINITY ? 0.0f : now;
        const float factor = fd_approx_exp(r.top[h], base);
        s[h] = fd_approx_exp(s[h], base), s[h + 2] = fd_approx_exp(s[h + 2], base);
        r.total[h] = fmaf(r.total[h], factor, s[h] + s[h + 2]);
        r.top[h] = now;
#pragma unroll
        for (int m = 0; m < WIDTH / 16; m++) r.out[m][h] *= factor, r.out[m][h + 2] *= factor;
    }
}

/* Two rows of weights of 8 positions to a product's right factor: queries and positions change places. */
__device__ __forceinline__ uint32_t transposed(uint32_t pairs) {
    uint32_t to;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pairs));
    return to;
}
/* What rounding two values to halves leaves of them. */
__device__ __forceinline__ uint32_t left_of(float low, float high, uint32_t pair) {
    return fd_half_pair(low - fd_low_half(pair), high - fd_high_half(pair));
}

/* out += Σ p·v. */
template <int WIDTH>
__device__ __forceinline__ void mix_step(const uint16_t *values, const float (&p)[4], running<WIDTH> &r) {
    const int lane = lane_of_warp(), row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
    const uint32_t near = fd_half_pair(p[0], p[1]), far = fd_half_pair(p[2], p[3]);
    const uint32_t near_rest = transposed(left_of(p[0], p[1], near)), far_rest = transposed(left_of(p[2], p[3], far));
    const uint32_t near_p = transposed(near), far_p = transposed(far);
#pragma unroll
    for (int m = 0; m < WIDTH / 16; m++) {
        uint32_t value[4];
        fd_ldmatrix_transposed(value, fd_shared_address(values + fd_tile_at<WIDTH>(row, 2 * m + chunk)));
        fd_mma(r.out[m], value, near_p, far_p);
        fd_mma(r.out[m], value, near_rest, far_rest);
    }
}

#endif
