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
    SOFTMAX_THREADS = 512,
    SOFTMAX_PARTS = 4,    /* blocks a head */
    SOFTMAX_LEAST = 1024, /* positions of each */
    SOFTMAX_TILE = 4096,  /* positions whose e^x are in shared memory; there are two tiles */
    ADD_WIDTH = 32,       /* elements of a head that a block adds up */
    ADD_TILE = 256,       /* chunks whose sums are in shared memory */
};

size_t fd_attn_decode_scratch(int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t n_ctx) {
    (void)n_head_kv;
    const size_t per_head = (size_t)n_ctx + (size_t)chunks_of(n_ctx) * (size_t)head_dim + SPLIT_MOST_BLOCKS + 2;
    return sizeof(float) * (size_t)n_head * per_head;
}

/* Scores `begin` … `end` - 1 of a head to e^(score − largest); `members` blocks left their largest. */
__device__ __forceinline__ void exponentiate(float *score, int begin, int end, const float *largest, int members) {
    float most = -(float)INFINITY;
    for (int i = (int)threadIdx.x % 32; i < members; i += 32) most = fmaxf(most, __ldcg(largest + i));
    most = fd_warp_max(most);
#pragma unroll 4
    for (int t = begin + (int)threadIdx.x; t < end; t += SOFTMAX_THREADS) score[t] = fd_exp32(__ldcg(score + t) - most);
}

/* Σ e in the contract's order by one block: thread j < 64 follows partial sum j over a tile in shared memory, while all
 * load the next. Thread 0 gets the sum. */
__device__ __forceinline__ float sum_of(const float *e, int n, float *tiles) {
    constexpr int each = SOFTMAX_TILE / SOFTMAX_THREADS;
    __shared__ float halves[2];
    const int own = (int)threadIdx.x;
    float sum = 0.0f;
    for (int tile = 0, odd = 0; tile - SOFTMAX_TILE < n; tile += SOFTMAX_TILE, odd = 1 - odd) {
        float *now = tiles + odd * SOFTMAX_TILE, value[each];
        const float *before = tiles + (1 - odd) * SOFTMAX_TILE;
#pragma unroll
        for (int i = 0; i < each; i++) {
            const int t = tile + i * SOFTMAX_THREADS + own;
            value[i] = t < n ? __ldcg(e + t) : 0.0f;
        }
        if (own < FD_PARTIALS && tile > 0) {
            const int left = n - (tile - SOFTMAX_TILE), count = left < SOFTMAX_TILE ? left : SOFTMAX_TILE;
#pragma unroll 16
            for (int t = own; t < count; t += FD_PARTIALS) sum = sum + before[t];
        }
#pragma unroll
        for (int i = 0; i < each; i++) now[i * SOFTMAX_THREADS + own] = value[i];
        __syncthreads();
    }
    if (own < FD_PARTIALS) {
        sum = fd_tree_lanes<32>(sum);
        if (own % 32 == 0) halves[own / 32] = sum;
    }
    __syncthreads();
    return halves[0] + halves[1];
}

/* Grid: parts of a head × heads × rows. The last of a head's blocks adds up what all of them made. `members`: blocks of
 * the scores' kernel that had the head. */
__global__ void __launch_bounds__(SOFTMAX_THREADS)
    attention_split_softmax(const __grid_constant__ fd_attn_decode all, int members) {
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const scratch_layout s = layout_of(&a);
    const int n = __ldcg(a.pos) + 1, head = (int)blockIdx.y, part = (int)blockIdx.x;
    const int wanted = (n + SOFTMAX_LEAST - 1) / SOFTMAX_LEAST, parts = min(wanted, (int)gridDim.x);
    float *score = s.scores + (int64_t)head * a.n_ctx;
    fd_pdl_wait();
    if (part >= parts) return;
    exponentiate(score, (int)((int64_t)n * part / parts), (int)((int64_t)n * (part + 1) / parts),
                 s.largest + head * SPLIT_MOST_BLOCKS, members);
    if (!arrive_last(s.arrived + head, (unsigned)parts)) return;
    const float sum = sum_of(score, n, fd_shared_floats());
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
    if (threadIdx.x < ADD_WIDTH && d < a.head_dim) a.out[(int64_t)head * a.head_dim + d] = total;
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
