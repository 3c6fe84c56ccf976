/* How the kernels of attention after a long cache read it (kernels/attention/split_scores.cu,
 * kernels/attention/split_mix.cu): once, as fast as memory gives it.
 *
 * The work is chunks of 64 positions of a unit; a unit is a K/V head with the heads that share it, or some of them where
 * they are many. A block takes every so-many-th chunk of one unit, and its neighbours take the same chunks of the other
 * units: what lies side by side in memory is read at the same time, which DRAM wants. Rows come through a ring in shared
 * memory: while a block computes with one chunk, the next ones are on their way. The first ones are requested before the
 * wait for the previous kernel, because earlier steps wrote them. */
#ifndef FD_KERNELS_ATTENTION_SPLIT_KV_CUH
#define FD_KERNELS_ATTENTION_SPLIT_KV_CUH

#include "kernels/attention/decode.cuh"
#include "kernels/device.cuh"

/* Blocks a multiprocessor: what one waits for, the other hides. */
enum { SPLIT_BLOCKS = 2 };

template <int GROUPS> struct split_shape {
    static constexpr int width = 64 * GROUPS;
    static constexpr int most_heads = 16 / GROUPS; /* of a unit */
};
template <int GROUPS, class Element> struct split_ring {
    static constexpr int stage = CHUNK * split_shape<GROUPS>::width; /* elements of a stage, which holds a chunk */
    /* So that they and the rest stay below 99 KiB, and as many bytes are on their way in halves. */
    static constexpr int of_floats = GROUPS == 1   ? 5
                                     : GROUPS == 2 ? 3
                                                   : 1,
                         of_halves = GROUPS == 1   ? 9
                                     : GROUPS == 2 ? 5
                                                   : 3;
    static constexpr int stages = sizeof(Element) == sizeof(float) ? of_floats : of_halves;
    static constexpr size_t bytes = sizeof(Element) * stages * stage;
    static_assert(sizeof(Element) * stage >=
                      sizeof(float) * split_shape<GROUPS>::most_heads * split_shape<GROUPS>::width,
                  "a stage has room for the queries");
};

template <int GROUPS> static inline __host__ __device__ int split_units_of(const fd_attn_decode &a) {
    const int sharing = a.n_head / a.n_head_kv, most = split_shape<GROUPS>::most_heads;
    return a.n_head_kv * ((sharing + most - 1) / most);
}

/* What a block is to do. */
struct split_work {
    int pos, n_chunk;
    int kv_head, head0, heads; /* its unit's */
    bool first_of_kv_head;     /* units over one K/V head: the first of them */
    int chunk, step;           /* the block's first chunk, and from one to the next */
    int64_t stride;            /* elements from one cached row to the next */
};

template <int GROUPS> __device__ __forceinline__ split_work split_work_of(const fd_attn_decode &a) {
    constexpr int most = split_shape<GROUPS>::most_heads;
    const int units = split_units_of<GROUPS>(a), per_kv_head = units / a.n_head_kv, sharing = a.n_head / a.n_head_kv;
    const int unit = (int)blockIdx.x % units, skip = unit % per_kv_head * most;
    split_work w;
    w.pos = __ldcg(a.pos);
    w.n_chunk = chunks_of(w.pos + 1);
    w.kv_head = unit / per_kv_head;
    w.head0 = w.kv_head * sharing + skip;
    w.heads = sharing - skip < most ? sharing - skip : most;
    w.first_of_kv_head = skip == 0;
    w.chunk = (int)blockIdx.x / units;
    w.step = (int)gridDim.x / units;
    w.stride = (int64_t)a.n_head_kv * a.head_dim;
    return w;
}

__device__ __forceinline__ void split_request_element(float *to, const float *from) {
    fd_cp_async4(to, from, true);
}
__device__ __forceinline__ void split_request_element(uint16_t *to, const uint16_t *from) {
    *to = __ldcg(from); /* nothing copies so little by itself; the barrier before the stage is read shows it, too */
}
/* `rows` rows of heads that are no multiple of 16 bytes. */
template <class Element>
__device__ __noinline__ static void split_request_elements(const Element *from, int64_t stride, int rows, int head_dim,
                                                           int width, Element *to) {
    for (int i = (int)threadIdx.x; i < rows * width; i += DECODE_THREADS)
        if (i % width < head_dim) split_request_element(to + i, from + i / width * stride + i % width);
}

/* Requests one of the block's chunks after the other, cached rows only: nothing of a row from the position on is
 * written. A thread copies the same 16 bytes of every at_once-th row. */
template <int GROUPS, class Element> struct split_reader {
    using shape = split_ring<GROUPS, Element>;
    static constexpr int piece = 16 / sizeof(Element), width = split_shape<GROUPS>::width;
    static constexpr int pieces = width / piece, at_once = DECODE_THREADS / pieces;
    const Element *from; /* the next chunk's first row */
    int first;           /* its position */
    Element *ring;
    int slot;

    __device__ __forceinline__ split_reader(const fd_attn_decode &a, const split_work &w, const Element *cache,
                                            Element *ring_)
        : from(cache + (int64_t)w.kv_head * a.head_dim + (int64_t)w.chunk * CHUNK * w.stride), first(w.chunk * CHUNK),
          ring(ring_), slot(0) {}
    __device__ __forceinline__ void request(const fd_attn_decode &a, const split_work &w) {
        const int cached = w.pos - first, row = (int)threadIdx.x / pieces, k = (int)threadIdx.x % pieces * piece;
        const Element *own = from + row * w.stride + k;
        const int64_t next = at_once * w.stride;
        const uint32_t to = fd_shared_address(ring + slot * shape::stage) + threadIdx.x * 16;
        if (a.head_dim % piece != 0) {
            split_request_elements(from, w.stride, cached < CHUNK ? cached : CHUNK, a.head_dim, width,
                                   ring + slot * shape::stage);
        } else if (k < a.head_dim && cached >= CHUNK) {
#pragma unroll
            for (int i = 0; i < CHUNK / at_once; i++) fd_cp_async16(to + i * DECODE_THREADS * 16, own + i * next);
        } else if (k < a.head_dim) {
#pragma unroll 1
            for (int i = 0; i * at_once + row < cached; i++)
                fd_cp_async16(to + i * DECODE_THREADS * 16, own + i * next);
        }
        first += w.step * CHUNK;
        from += (int64_t)w.step * CHUNK * w.stride;
        slot = slot + 1 < shape::stages ? slot + 1 : 0;
    }
};

/* Calls compute(first position, rows in shared memory) for each of the block's chunks in order, after a barrier;
 * `begin`, once the first ones are requested, waits for the previous kernel; the ring's last stage is still free then. A
 * block may have no chunk at all. */
template <int GROUPS, class Element, class Begin, class Compute>
__device__ __forceinline__ void split_walk(const fd_attn_decode &a, const split_work &w, const Element *cache,
                                           Element *ring, Begin begin, Compute compute) {
    using shape = split_ring<GROUPS, Element>;
    split_reader<GROUPS, Element> reader(a, w, cache, ring);
    const int end = w.n_chunk * CHUNK;
#pragma unroll 1
    for (int i = 0; i < shape::stages - 1; i++) {
        if (reader.first < end) reader.request(a, w);
        fd_cp_async_commit_group();
    }
    begin();
    int slot = 0;
#pragma unroll 1
    for (int first = w.chunk * CHUNK; first < end; first += w.step * CHUNK) {
        if constexpr (shape::stages > 1) {
            fd_cp_async_wait_group<shape::stages - 2>();
            __syncthreads(); /* the chunk is there, and everyone is through with the one before it */
            if (reader.first < end) reader.request(a, w);
            fd_cp_async_commit_group();
        } else { /* the multiprocessor's other block computes meanwhile */
            __syncthreads();
            reader.request(a, w);
            fd_cp_async_wait_all();
            __syncthreads();
        }
        compute(first, ring + slot * shape::stage);
        slot = slot + 1 < shape::stages ? slot + 1 : 0;
    }
}

/* The kernels before and after the softmax (split_scores.cu, split_mix.cu), for grids of so many blocks a row, a multiple
 * of the units. */
fd_code fd_launch_split_scores(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned blocks, unsigned rows,
                               fd_error *err);
fd_code fd_launch_split_mix(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned blocks, unsigned rows,
                            fd_error *err);

#endif
