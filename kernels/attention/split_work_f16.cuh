/* How attention of one row over many positions is shared out (kernels/attention/split_kv_f16.cu): which queries, tiles of
 * positions and cached rows a block has, and what its threads keep together. */
#ifndef FD_KERNELS_ATTENTION_SPLIT_WORK_F16_CUH
#define FD_KERNELS_ATTENTION_SPLIT_WORK_F16_CUH

#include "kernels/attention/decode_f16.cuh"

enum { WARPS = 4, THREADS = WARPS * 32 };
enum { STEP = 16, TILE = WARPS * STEP }; /* positions that a warp takes at a time, and a block */
enum { HEADS = 8 };                      /* queries a block takes at most: the columns of a tensor core's product */
enum { MAX_SPLIT = 256 };                /* their factors fit where their sums were: WARPS · 64 floats a query */

/* How queries and positions are shared out. */
struct share {
    int sharing;   /* queries of a K/V head */
    int n_group;   /* of them, a block each */
    int n_split;   /* blocks of a group */
    int64_t width; /* floats of a head that a block stores: whole quads */
};

/* What blocks leave for the last of them, in a row's scratch. Counters come first, in a room of one size: layers of other shapes,
 * which use the same scratch, must leave them 0. */
enum { COUNTERS = 1024 };
struct partial_sums {
    unsigned *arrived; /* [n_head_kv, n_group]: blocks that have stored theirs */
    float *sums;       /* [n_head, n_split, width]: Σ e^(score − top)·v */
    float2 *tops;      /* [n_head, n_split]: top, and Σ e^(score − top) */
};
__device__ __forceinline__ partial_sums partial_sums_of(const fd_attn_f16 &a, const share &s) {
    float *sums = a.scratch + COUNTERS;
    return {(unsigned *)a.scratch, sums, (float2 *)(sums + (int64_t)a.n_head * s.n_split * s.width)};
}

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

/* Memory of the block but for the warps' stages; tiles as in kernels/attention/mma_f16.cuh. */
template <int WIDTH> struct block_shared {
    alignas(16) uint16_t query[2][HEADS * WIDTH]; /* queries after RoPE, and what rounding them to binary16 left */
    alignas(16) uint16_t newest[2][WIDTH];        /* the newest row of K and of V */
    float warp_top[WARPS][HEADS], warp_total[WARPS][HEADS];
    float top[HEADS], total[HEADS]; /* of all positions so far: largest score, Σ e^(score − top) */
};

#endif
