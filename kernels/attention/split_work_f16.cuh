/* How attention of one row over many positions is shared out (kernels/attention/split_kv_f16.cu): which queries, tiles of
 * positions and cached rows a block has, and what its threads keep together. */
#ifndef FD_KERNELS_ATTENTION_SPLIT_WORK_F16_CUH
#define FD_KERNELS_ATTENTION_SPLIT_WORK_F16_CUH

#include "kernels/attention/decode_f16.cuh"

enum { TILE = 64, THREADS = 256, WARPS = THREADS / 32 };
enum { HEADS = 4 };       /* queries a block takes at most */
enum { MAX_SPLIT = 512 }; /* their factors fit where their sums were: WARPS · 64 floats a query */

/* How queries and positions are shared out. */
struct share {
    int sharing;     /* queries of a K/V head */
    int n_group;     /* of them, a block each */
    int n_split;     /* blocks of a group */
    int64_t partial; /* floats that a block stores for a query: maximum, sum, and the head */
};

/* The row's part of everything; rows come K/V head by K/V head in the grid's third dimension. */
__device__ __forceinline__ fd_attn_f16 row_of(const fd_attn_f16 &all, int row) {
    fd_attn_f16 a = all;
    if (!all.sequences) return a;
    const int64_t width_q = (int64_t)a.n_head * a.head_dim, width = (int64_t)a.n_head_kv * a.head_dim;
    const int64_t cache = all.cache_stride * __ldcg(all.sequences + row);
    a.q += row * width_q;
    a.k += a.k ? row * width : 0;
    a.v += a.v ? row * width : 0;
    a.out.half += a.out.half ? row * width_q : 0;
    a.out.real += a.out.real ? row * width_q : 0;
    a.pos0 += row;
    a.cache_k += cache;
    a.cache_v += cache;
    a.scratch += row * all.scratch_stride;
    return a;
}

/* A block's part of the work: some queries of a K/V head over some tiles of positions. */
struct block_work {
    int pos, first, cached;  /* the row's position; the first one it sees; rows that the caches hold already */
    int group, head0, heads; /* of the K/V head's queries; the block's queries */
    int split, active;       /* its number among the blocks that share these queries' positions */
    int begin, end;          /* its tiles */
    int64_t stride, of_head; /* elements from one cached row to the next; of the K/V head within a row */
};

/* `begin` and `end` follow in tiles_of: blocks without tiles return before that. */
__device__ __forceinline__ block_work work_of(const fd_attn_f16 &a, const share &s) {
    const int kv_head = (int)blockIdx.z % a.n_head_kv;
    block_work w;
    w.pos = __ldcg(a.pos0), w.group = (int)blockIdx.y, w.split = (int)blockIdx.x;
    w.cached = a.k ? w.pos : w.pos + 1;
    w.first = fd_first_seen(a, w.pos);
    const int n_tile = w.pos / TILE + 1 - w.first / TILE;
    w.active = n_tile < s.n_split ? n_tile : s.n_split;
    w.head0 = kv_head * s.sharing + w.group * HEADS;
    w.heads = s.sharing - w.group * HEADS < HEADS ? s.sharing - w.group * HEADS : HEADS;
    w.stride = (int64_t)a.n_head_kv * a.head_dim, w.of_head = (int64_t)kv_head * a.head_dim;
    return w;
}

__device__ __forceinline__ void tiles_of(block_work &w) {
    const int first_tile = w.first / TILE, n_tile = w.pos / TILE + 1 - first_tile;
    w.begin = first_tile + (int)((int64_t)n_tile * w.split / w.active);
    w.end = first_tile + (int)((int64_t)n_tile * (w.split + 1) / w.active);
}

/* LANES lanes share a cached row, eight elements each; a thread holds its share of ROUNDS rows of a tile. */
template <int LANES> struct layout {
    static constexpr int width = LANES * 8, at_once = THREADS / LANES, rounds = TILE / at_once;
    static __device__ __forceinline__ int lane() { return (int)threadIdx.x % LANES; }
    /* The position within a tile of the thread's row number r. */
    static __device__ __forceinline__ int row(int r) { return r * at_once + (int)threadIdx.x / LANES; }
};

template <int LANES> struct block_shared {
    alignas(16) uint16_t newest[2][LANES * 8]; /* the newest row of K and of V */
    float score[HEADS][TILE];                  /* then e^(score − top) */
    float top[HEADS], total[HEADS];            /* the running maximum and sum */
    float factor[HEADS];                       /* what earlier sums are multiplied by */
};

#endif
