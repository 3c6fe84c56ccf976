/* Attention of one position: a block a head does it all while positions are few; else four kernels: scores, softmax,
 * mix of chunks, and the chunks' sums.
 *
 *   split_scores: scores, largest ── softmax: e = e^(score − largest), Σ e ── split_mix: each chunk of 64 positions
 *                                                                                │
 *                                                                             add_chunks ── out
 *
 * Which block computes what does not show: a chunk's sum is one thread's, and chunks are added in order of positions.
 * Scores and mix read the cache, so they take all of the machine. */
#include "kernels/attention/attention.h"

#include "kernels/attention/split_kv.cuh"

enum {
    SOFTMAX_THREADS = 1024,
    SOFTMAX_TILE = 4096,   /* positions that a block takes at once */
    SOFTMAX_ALONE = 12288, /* that a block does by itself */
    SOFTMAX_PARTS = 8,     /* blocks a head, at most */
    ADD_WIDTH = 32,        /* elements of a head that a block adds up */
    ADD_TILE = 256,        /* chunks whose sums are in shared memory */
};

size_t fd_attn_decode_scratch(int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t n_ctx) {
    (void)n_head_kv;
    const size_t per_head = (size_t)n_ctx + (size_t)chunks_of(n_ctx) * (size_t)head_dim + SPLIT_MOST_BLOCKS + 2;
    return sizeof(float) * (size_t)n_head * per_head;
}

/* The thread's values of a tile that begins at `from`, of `n`; `none` past the last. */
struct softmax_values {
    static constexpr int each = SOFTMAX_TILE / SOFTMAX_THREADS;
    float of[each];

    __device__ __forceinline__ softmax_values(const float *from, int n, float none) {
#pragma unroll
        for (int i = 0; i < each; i++) {
            const int t = i * SOFTMAX_THREADS + (int)threadIdx.x;
            of[i] = t < n ? __ldcg(from + t) : none;
        }
    }
    __device__ __forceinline__ void store(float *to, int n) const {
#pragma unroll
        for (int i = 0; i < each; i++)
            if (i * SOFTMAX_THREADS + (int)threadIdx.x < n) to[i * SOFTMAX_THREADS + threadIdx.x] = of[i];
    }
    __device__ __forceinline__ void exponentiate(float most, int n) {
#pragma unroll
        for (int i = 0; i < each; i++)
            if (i * SOFTMAX_THREADS < n) of[i] = fd_exp32(of[i] - most);
    }
};

/* The largest score of a head, of which `members` blocks left theirs. */
__device__ __forceinline__ float largest_of(const float *largest, int members) {
    float most = -(float)INFINITY;
    for (int i = (int)threadIdx.x % 32; i < members; i += 32) most = fmaxf(most, __ldcg(largest + i));
    return fd_warp_max(most);
}

/* Thread j < 64 goes on with partial sum j of the contract over a tile in shared memory. */
__device__ __forceinline__ float add_tile(float sum, const float *tile, int n) {
    if ((int)threadIdx.x >= FD_PARTIALS) return sum;
    const int count = n < SOFTMAX_TILE ? n : SOFTMAX_TILE;
#pragma unroll 16
    for (int t = (int)threadIdx.x; t < count; t += FD_PARTIALS) sum = sum + tile[t];
    return sum;
}

/* The partial sums' tree; to thread 0. */
__device__ __forceinline__ float add_partials(float sum) {
    __shared__ float halves[2];
    if ((int)threadIdx.x >= FD_PARTIALS) return 0.0f;
    sum = fd_tree_lanes<32>(sum);
    if (threadIdx.x % 32 == 0) halves[threadIdx.x / 32] = sum;
    fd_bar_sync(1, FD_PARTIALS);
    return halves[0] + halves[1];
}

/* Σ e of a head by one block: while 64 threads add up a tile in shared memory, the others go on. MAKE: `e` holds scores
 * still. `tiles`: two. */
template <bool MAKE>
__device__ __forceinline__ float add_all(float *e, int n, const float *largest, int members, float *tiles) {
    float sum = 0.0f;
    softmax_values value(e, n, 0.0f);
    const float most = MAKE ? largest_of(largest, members) : 0.0f; /* it comes as late as the scores do */
    for (int first = 0, odd = 0; first < n; first += SOFTMAX_TILE, odd = 1 - odd) {
        float *tile = tiles + odd * SOFTMAX_TILE;
        if (MAKE) {
            value.exponentiate(most, n - first);
            value.store(e + first, n - first);
        }
        value.store(tile, n - first);
        __syncthreads();
        value = softmax_values(e + first + SOFTMAX_TILE, n - first - SOFTMAX_TILE, 0.0f);
        sum = add_tile(sum, tile, n - first);
    }
    return add_partials(sum);
}

/* Grid: parts of a head × heads × rows. A block has the whole head while positions are few; else the last of the parts
 * adds up what all of them made. `members`: blocks of the scores' kernel that had the head. */
__global__ void __launch_bounds__(SOFTMAX_THREADS)
    attention_split_softmax(const __grid_constant__ fd_attn_decode all, int members) {
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const scratch_layout s = layout_of(&a);
    const int n = __ldcg(a.pos) + 1, head = (int)blockIdx.y, part = (int)blockIdx.x;
    const int parts = n <= SOFTMAX_ALONE ? 1 : min((n + SOFTMAX_TILE - 1) / SOFTMAX_TILE, (int)gridDim.x);
    float *score = s.scores + (int64_t)head * a.n_ctx, *tiles = fd_shared_floats(), sum;
    const float *largest = s.largest + head * SPLIT_MOST_BLOCKS;
    if (part >= parts) return;
    fd_pdl_wait();
    if (parts == 1) {
        sum = add_all<true>(score, n, largest, members, tiles);
    } else {
        const int begin = (int)((int64_t)n * part / parts), end = (int)((int64_t)n * (part + 1) / parts);
        const float most = largest_of(largest, members);
        for (int first = begin; first < end; first += SOFTMAX_TILE) {
            softmax_values value(score + first, end - first, 0.0f);
            value.exponentiate(most, end - first);
            value.store(score + first, end - first);
        }
        if (!arrive_last(s.arrived + head, (unsigned)parts)) return;
        sum = add_all<false>(score, n, largest, members, tiles);
    }
    if (threadIdx.x == 0) s.sum[head] = sum;
}

/* Grid: slices of a head × heads × rows. The chunks' sums come to shared memory all at once; then each lane of a warp
 * adds those of its element in order of positions. */
__global__ void __launch_bounds__(DECODE_THREADS) attention_add_chunks(const __grid_constant__ fd_attn_decode all) {
    float *tile = fd_shared_floats(); /* [ADD_TILE][ADD_WIDTH] */
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const int n_chunk = chunks_of(__ldcg(a.pos) + 1), head = (int)blockIdx.y, lane = (int)threadIdx.x % ADD_WIDTH;
    const int d = (int)blockIdx.x * ADD_WIDTH + lane;
    const float *sums = layout_of(&a).chunk_sums + (int64_t)head * chunks_of(a.n_ctx) * a.head_dim + d;
    float total = 0.0f;
    fd_send_begin(all.send);
    fd_pdl_wait();
    for (int first = 0; first < n_chunk; first += ADD_TILE) {
        const int count = n_chunk - first < ADD_TILE ? n_chunk - first : ADD_TILE;
        if (d < a.head_dim)
            for (int i = (int)threadIdx.x / ADD_WIDTH; i < count; i += DECODE_THREADS / ADD_WIDTH)
                fd_cp_async4(tile + i * ADD_WIDTH + lane, sums + (int64_t)(first + i) * a.head_dim, true);
        fd_cp_async_wait_all();
        __syncthreads();
        if (threadIdx.x < ADD_WIDTH && d < a.head_dim) {
#pragma unroll 16
            for (int i = 0; i < count; i++) total = total + tile[i * ADD_WIDTH + lane];
        }
        __syncthreads();
    }
    if (threadIdx.x < ADD_WIDTH && d < a.head_dim) leave_mixed(all, a.out, (int64_t)head * a.head_dim + d, total);
}

/* Blocks of scores and mix for each row: as many for each unit as the multiprocessors take at once; where rows are many,
 * so few that all rows' make up four such grids. */
template <int GROUPS>
static unsigned split_blocks(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned rows) {
    const int64_t units = split_units_of<GROUPS>(*in), at_once = (int64_t)ctx->n_sm * SPLIT_BLOCKS;
    int64_t each = (rows > 4 ? at_once * 4 / rows : at_once) / units;
    if (each > SPLIT_MOST_BLOCKS) each = SPLIT_MOST_BLOCKS;
    if (each > chunks_of(in->n_ctx)) each = chunks_of(in->n_ctx);
    return (unsigned)(units * (each < 1 ? 1 : each));
}

fd_code fd_launch_attn_decode(const fd_launch_context *ctx, const fd_attn_decode *in, fd_error *err) {
    if (in->n_head < 1 || in->n_head_kv < 1 || in->n_head % in->n_head_kv != 0 || in->n_ctx < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_decode: %d heads over %d, context %d", in->n_head, in->n_head_kv,
                       in->n_ctx);
    const unsigned rows = in->n_seq > 1 ? (unsigned)in->n_seq : 1;
    if (rows > 65535 || (rows > 1 && !in->sequences))
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_decode: %u sequences%s", rows,
                       in->sequences ? "" : ", and nothing says which");
    if (in->short_context) return fd_launch_attn_single_block(ctx, in, err);
    unsigned blocks = 0, members = 0;
    FD_TRY(fd_with_groups(in->head_dim, err, [&](auto groups) {
        blocks = split_blocks<decltype(groups)::value>(ctx, in, rows);
        members = blocks / (unsigned)split_units_of<decltype(groups)::value>(*in);
        return FD_OK;
    }));
    FD_TRY(fd_launch_split_scores(ctx, in, blocks, rows, err));
    FD_TRY(fd_launch(ctx, "attention_split_softmax", attention_split_softmax,
                     dim3(SOFTMAX_PARTS, (unsigned)in->n_head, rows), SOFTMAX_THREADS, 2 * SOFTMAX_TILE * sizeof(float),
                     err, *in, (int)members));
    FD_TRY(fd_launch_split_mix(ctx, in, blocks, rows, err));
    return fd_launch(ctx, "attention_add_chunks", attention_add_chunks,
                     dim3(fd_blocks(in->head_dim, ADD_WIDTH), (unsigned)in->n_head, rows), DECODE_THREADS,
                     ADD_TILE * ADD_WIDTH * sizeof(float), err, *in);
}
