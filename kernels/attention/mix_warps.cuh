/* The mix where a block has many chunks (kernels/attention/split_mix.cu): a warp takes a chunk of one unit by itself, all of
 * the unit's heads, so that a value that came from shared memory is multiplied by four or eight weights. Values come
 * through a ring of the warp's own, and no warp waits for another. Its latency is longer: a chunk's rows come in turns. */
#ifndef FD_KERNELS_ATTENTION_MIX_WARPS_CUH
#define FD_KERNELS_ATTENTION_MIX_WARPS_CUH

#include "kernels/attention/split_kv.cuh"

enum {
    WEIGHTS_AT_ONCE = 32,
    WEIGHTS_STRIDE = WEIGHTS_AT_ONCE + 4
}; /* positions of a head: heads' fours in other banks */

/* HEADS that a lane mixes, of one or two fours of elements. */
template <int GROUPS, int HEADS, class Element> struct warps_shape {
    static constexpr int width = split_shape<GROUPS>::width;
    static constexpr int lanes = width / 4 < 32 ? width / 4 : 32; /* along a head */
    static constexpr int fours = width / (lanes * 4), sets = 32 / lanes;
    static constexpr int slots = sets * HEADS; /* heads that the warp mixes */
    static constexpr int rows = 1024 / width;  /* of a stage */
    static constexpr int stages = sizeof(Element) == sizeof(float) ? (slots > 8 ? 2 : 3) : 5;
    static constexpr int ring = stages * rows * width; /* elements */
    static constexpr size_t of_warp = sizeof(Element) * ring + sizeof(float) * slots * WEIGHTS_STRIDE;
    static constexpr size_t bytes = DECODE_WARPS * of_warp;
    static_assert(WEIGHTS_AT_ONCE % rows == 0 && rows % 4 == 0 && CHUNK % WEIGHTS_AT_ONCE == 0, "stages fill a chunk");
};

/* The chunks of a warp: neighbouring ones go to different blocks, so that few chunks use many multiprocessors. */
struct mix_work {
    int chunk, step, lane;
};
__device__ __forceinline__ mix_work mix_work_of(const split_work &w) {
    return {(int)threadIdx.x / 32 * w.step + w.chunk, DECODE_WARPS * w.step, (int)threadIdx.x % 32};
}

/* Requests stages of cached rows, one after the other, of the warp's chunks in order. A lane copies the same 16 bytes of
 * some rows, or a row's in turns. */
template <int GROUPS, int HEADS, class Element> struct mix_reader {
    using shape = warps_shape<GROUPS, HEADS, Element>;
    static constexpr int piece = 16 / sizeof(Element), pieces = shape::width / piece;
    static constexpr int each = shape::rows * pieces / 32; /* pieces that a lane copies of a stage */
    const Element *from;                                   /* of the K/V head: the next stage's first row */
    int chunk, row;                                        /* the stage's: its first row in the chunk */
    Element *ring;
    int slot;

    __device__ __forceinline__ void request(const fd_attn_decode &a, const split_work &w, const mix_work &m) {
        Element *to = ring + slot * (shape::rows * shape::width);
        const int cached = w.pos - chunk * CHUNK - row, t0 = m.lane / pieces, k0 = m.lane % pieces * piece;
        if (cached > 0 && a.head_dim % piece == 0) {
            const Element *own = from + t0 * w.stride + k0;
            const uint32_t own_to = fd_shared_address(to) + (uint32_t)m.lane * 16;
#pragma unroll
            for (int i = 0; i < each; i++) {
                const int t = i * 32 / pieces, k = i * 32 % pieces * piece;
                if (t0 + t < cached && k0 + k < a.head_dim) fd_cp_async16(own_to + i * 512, own + t * w.stride + k);
            }
        } else if (cached > 0) {
#pragma unroll 1
            for (int at = m.lane; at < shape::rows * shape::width; at += 32) {
                const int t = at / shape::width, k = at % shape::width;
                if (t < cached && k < a.head_dim) split_request_element(to + at, from + t * w.stride + k);
            }
        }
        fd_cp_async_commit_group();
        row += shape::rows;
        from += shape::rows * w.stride;
        if (row == CHUNK) row = 0, chunk += m.step, from += (int64_t)(m.step - 1) * CHUNK * w.stride;
        slot = slot + 1 < shape::stages ? slot + 1 : 0;
    }
};

/* Weights of the warp's heads at one position a lane; e^(score − largest) is loaded before they are needed. */
template <int SLOTS> struct mix_weights {
    const float *from;   /* e of the first head at the lane's position of a chunk */
    float *observe, *to; /* likewise; NULL: no one looks */
    float e[SLOTS], sum;
    int heads;

    __device__ __forceinline__ void begin(const fd_attn_decode &a, const split_work &w, int lane, float *weight) {
        const scratch_layout s = layout_of(&a);
        const int64_t at = (int64_t)w.head0 * a.n_ctx + lane;
        from = s.scores + at;
        observe = a.weights_out ? a.weights_out + at : NULL;
        to = weight + lane;
        heads = w.heads;
        sum = lane < w.heads ? __ldcg(s.sum + w.head0 + lane) : 1.0f;
    }
    __device__ __forceinline__ void load(const fd_attn_decode &a, int first, int lane, int pos) {
#pragma unroll
        for (int i = 0; i < SLOTS; i++)
            e[i] = i < heads && first + lane <= pos ? __ldcg(from + (int64_t)i * a.n_ctx + first) : 0.0f;
    }
    __device__ __forceinline__ void store(const fd_attn_decode &a, int first, int lane, int pos) const {
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            const float p = e[i] / __shfl_sync(0xffffffffu, sum, i);
            to[i * WEIGHTS_STRIDE] = p;
            if (observe && i < heads && first + lane <= pos) observe[(int64_t)i * a.n_ctx + first] = p;
        }
    }
};

/* What a lane mixes: HEADS heads' elements d … d + 3, and width / 2 further the next four. */
template <int GROUPS, int HEADS, class Element> struct mix_lane {
    using shape = warps_shape<GROUPS, HEADS, Element>;
    float acc[HEADS][shape::fours][4];
    int d, slot; /* the first element, the first head */

    __device__ __forceinline__ explicit mix_lane(int lane)
        : d(lane % shape::lanes * 4), slot(lane / shape::lanes * HEADS) {}
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int h = 0; h < HEADS; h++)
#pragma unroll
            for (int i = 0; i < shape::fours * 4; i++) acc[h][i / 4][i % 4] = 0.0f;
    }
    __device__ __forceinline__ void add(int h, int f, float weight, const float4 &value) {
        acc[h][f][0] = fmaf(weight, value.x, acc[h][f][0]);
        acc[h][f][1] = fmaf(weight, value.y, acc[h][f][1]);
        acc[h][f][2] = fmaf(weight, value.z, acc[h][f][2]);
        acc[h][f][3] = fmaf(weight, value.w, acc[h][f][3]);
    }
    /* Four rows of the ring; `weight` begins at the first one's. */
    __device__ __forceinline__ void add_four(const float *weight, const Element *rows) {
        float4 p[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++) p[h] = *(const float4 *)(weight + (slot + h) * WEIGHTS_STRIDE);
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int f = 0; f < shape::fours; f++) {
                const float4 value = fd_shared_cached4(rows + t * shape::width + f * 128 + d);
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    add(h, f, t == 0 ? p[h].x : t == 1 ? p[h].y : t == 2 ? p[h].z : p[h].w, value);
            }
    }
    __device__ __forceinline__ void add_one(const float *weight, const Element *row) {
#pragma unroll
        for (int f = 0; f < shape::fours; f++) {
            const float4 value = fd_shared_cached4(row + f * 128 + d);
#pragma unroll
            for (int h = 0; h < HEADS; h++) add(h, f, weight[(slot + h) * WEIGHTS_STRIDE], value);
        }
    }
    /* The newest value, of the K/V head. */
    __device__ __forceinline__ void add_newest(const fd_attn_decode &a, const float *weight, const float *newest) {
#pragma unroll
        for (int i = 0; i < shape::fours * 4; i++) {
            const int k = i / 4 * 128 + d + i % 4;
            const float value = k < a.head_dim ? fd_as_cached<Element>(__ldcg(newest + k)) : 0.0f;
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                acc[h][i / 4][i % 4] = fmaf(weight[(slot + h) * WEIGHTS_STRIDE], value, acc[h][i / 4][i % 4]);
        }
    }
    /* To the chunk's sums. What lies past a head's elements was mixed too, and is left. */
    __device__ __forceinline__ void store(const fd_attn_decode &a, const split_work &w, int chunk) const {
        const int64_t of_head = (int64_t)chunks_of(a.n_ctx) * a.head_dim;
        float *to = layout_of(&a).chunk_sums + (w.head0 + slot) * of_head + (int64_t)chunk * a.head_dim;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (slot + h >= w.heads) return;
#pragma unroll
            for (int f = 0; f < shape::fours; f++) {
                const int k = f * 128 + d;
                if (a.head_dim % 4 == 0 && k < a.head_dim)
                    *(float4 *)(to + h * of_head + k) =
                        make_float4(acc[h][f][0], acc[h][f][1], acc[h][f][2], acc[h][f][3]);
                else
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (k + i < a.head_dim) to[h * of_head + k + i] = acc[h][f][i];
            }
        }
    }
};

/* The grid's warps' chunks of the block's unit.
 *
 *   e, sum (scratch) ── weights of 32 positions (shared, the warp's) ──┐
 *   cached V ── ring (shared, the warp's) ─────────────────────────────┴── acc: 64 positions ── chunk_sums (scratch) */
template <int GROUPS, int HEADS, class Element>
__device__ __forceinline__ void mix_by_warps(const fd_attn_decode &a, const split_work &w) {
    using shape = warps_shape<GROUPS, HEADS, Element>;
    const mix_work m = mix_work_of(w);
    char *own = (char *)fd_shared_floats() + threadIdx.x / 32 * shape::of_warp;
    float *weight = (float *)own; /* [slots, WEIGHTS_STRIDE] */
    Element *ring = (Element *)(weight + shape::slots * WEIGHTS_STRIDE);
    const int64_t of_head = (int64_t)w.kv_head * a.head_dim;
    mix_reader<GROUPS, HEADS, Element> reader = {
        (const Element *)a.cache_v + of_head + (int64_t)m.chunk * CHUNK * w.stride, m.chunk, 0, ring, 0};
#pragma unroll 1
    for (int i = 0; i < shape::stages - 1; i++) reader.request(a, w, m);
    fd_pdl_wait();
    mix_weights<shape::slots> ahead;
    ahead.begin(a, w, m.lane, weight);
    ahead.load(a, m.chunk * CHUNK, m.lane, w.pos);
    mix_lane<GROUPS, HEADS, Element> mix(m.lane);
    int slot = 0;
#pragma unroll 1
    for (int chunk = m.chunk; chunk < w.n_chunk; chunk += m.step) {
        mix.clear();
#pragma unroll 1
        for (int first = chunk * CHUNK; first < (chunk + 1) * CHUNK; first += WEIGHTS_AT_ONCE) {
            const bool turns = first % CHUNK + WEIGHTS_AT_ONCE == CHUNK;
            __syncwarp(); /* everyone is through with the weights before these */
            ahead.store(a, first, m.lane, w.pos);
            ahead.load(a, turns ? (chunk + m.step) * CHUNK : first + WEIGHTS_AT_ONCE, m.lane, w.pos);
#pragma unroll 1
            for (int at = 0; at < WEIGHTS_AT_ONCE; at += shape::rows) {
                fd_cp_async_wait_group<shape::stages - 2>();
                __syncwarp(); /* the stage is there, and everyone is through with the one before it */
                reader.request(a, w, m);
                const Element *rows = ring + slot * (shape::rows * shape::width);
                const int cached = w.pos - (first + at);
                if (cached >= shape::rows) {
#pragma unroll 2
                    for (int t = 0; t < shape::rows; t += 4) mix.add_four(weight + at + t, rows + t * shape::width);
                } else {
#pragma unroll 1
                    for (int t = 0; t < cached; t++) mix.add_one(weight + at + t, rows + t * shape::width);
                    if (cached >= 0) mix.add_newest(a, weight + at + cached, a.v + of_head);
                }
                slot = slot + 1 < shape::stages ? slot + 1 : 0;
            }
        }
        mix.store(a, w, chunk);
    }
}

#endif
