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
#include "kernels/pipeline.cuh"

enum {
    SOFTMAX_THREADS = 256,
    SOFTMAX_TILE = 4096,       /* positions that a block takes at once */
    SOFTMAX_SMALL_TILE = 1024, /* the same of few positions */
    SOFTMAX_BLOCKS = 8,        /* of a cluster, at most: as many as every device of sm_90 takes */
    ADD_WIDTH = 32,            /* elements of a head that a block adds up */
    ADD_STAGE = 64,            /* chunks whose sums come to shared memory together */
    ADD_STAGES = 8,            /* so large that no block starts beside those of split_mix, which was 2 to 4 % slower */
};

size_t fd_attn_decode_scratch(int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t n_ctx) {
    (void)n_head_kv;
    const size_t per_head = (size_t)n_ctx + (size_t)chunks_of(n_ctx) * (size_t)head_dim + SPLIT_MOST_BLOCKS + 1;
    return (sizeof(float) * (size_t)n_head * per_head + 15) / 16 * 16; /* sequences' scratches lie side by side */
}

/* The thread's values of a tile that begins at `from`, of `n`; 0 past the last. */
struct softmax_values {
    static constexpr int each = SOFTMAX_TILE / SOFTMAX_THREADS;
    float of[each];

    __device__ __forceinline__ void load(const float *from, int n) {
#pragma unroll
        for (int i = 0; i < each; i++) {
            const int t = i * SOFTMAX_THREADS + (int)threadIdx.x;
            of[i] = t < n ? __ldcg(from + t) : 0.0f;
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

/* Thread j < 64 goes on with partial sum j of the contract over n values in shared memory. */
__device__ __forceinline__ float add_tile(float sum, const float *tile, int n) {
#pragma unroll 32
    for (int t = (int)threadIdx.x; t < n; t += FD_PARTIALS) sum = sum + tile[t];
    return sum;
}

/* Positions of a tile where n are all: small tiles are done sooner, but their sums go from block to block more often. */
__device__ __forceinline__ int softmax_tile(int n) {
    return n > 3 * SOFTMAX_TILE ? SOFTMAX_TILE : n > SOFTMAX_TILE ? 2 * SOFTMAX_SMALL_TILE : SOFTMAX_SMALL_TILE;
}

/* The partial sums' tree; to thread 0. */
__device__ __forceinline__ float add_partials(float sum) {
    __shared__ float halves[2];
    sum = fd_tree_lanes<32>(sum);
    if (threadIdx.x % 32 == 0) halves[threadIdx.x / 32] = sum;
    fd_bar_sync(1, FD_PARTIALS);
    return halves[0] + halves[1];
}

/* The 64 partial sums go from block to block of a cluster, in order of positions: a block that has added its tile stores
 * them where the next one waits for them, and may end. They come to a block again only after it has sent them on, so no
 * place is written too early. */
struct partials_relay {
    uint32_t place, barrier; /* shared addresses of thread j's partial and of the block's mbarrier */
    unsigned next, parity;   /* block that goes on; phase that is awaited */

    __device__ __forceinline__ void begin(const float *places, const uint64_t *mbarrier) {
        const unsigned n_block = gridDim.x;
        place = fd_shared_address(places + threadIdx.x % FD_PARTIALS), barrier = fd_shared_address(mbarrier);
        next = (fd_cluster_rank() + 1) % n_block, parity = 0;
        if (n_block == 1) return;
        if (threadIdx.x == 0) {
            fd_mbarrier_init(barrier, 1);
            fd_mbarrier_arrive_expect_tx(barrier, FD_PARTIALS * sizeof(float));
        }
        fd_cluster_sync();
    }
    /* Thread j < 64's partial, which it has itself where the cluster is one block. */
    __device__ __forceinline__ float receive(float own) {
        if (gridDim.x == 1) return own;
        fd_mbarrier_wait(barrier, parity);
        const float sum = fd_load_shared4(place);
        if (threadIdx.x == 0) fd_mbarrier_arrive_expect_tx(barrier, FD_PARTIALS * sizeof(float));
        parity ^= 1;
        return sum;
    }
    __device__ __forceinline__ void send(float sum) const {
        if (gridDim.x > 1) fd_store_async(fd_cluster_map(place, next), sum, fd_cluster_map(barrier, next));
    }
};

/* Grid: a cluster a head × heads × rows. A block makes e^(score − largest) of every so-many-th tile of its head; 64 of its
 * threads add them to the head's partial sums. `members`: blocks of the scores' kernel that had the head. */
__global__ void __launch_bounds__(SOFTMAX_THREADS)
    attention_split_softmax(const __grid_constant__ fd_attn_decode all, int members) {
    __shared__ float tile[SOFTMAX_TILE], places[FD_PARTIALS];
    __shared__ uint64_t mbarrier;
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const scratch_layout s = layout_of(&a);
    const int n = __ldcg(a.pos) + 1, head = (int)blockIdx.y, width = softmax_tile(n), step = (int)gridDim.x * width;
    const bool adds = (int)threadIdx.x < FD_PARTIALS;
    float *score = s.scores + (int64_t)head * a.n_ctx, sum = 0.0f;
    int first = (int)blockIdx.x * width;
    partials_relay relay;
    relay.begin(places, &mbarrier);
    if (first >= n) return;
    fd_pdl_wait();
    softmax_values value;
    int count = n - first < width ? n - first : width;
    value.load(score + first, count);
    const float most = largest_of(s.largest + head * SPLIT_MOST_BLOCKS, members);
    for (;;) {
        value.exponentiate(most, count);
        value.store(score + first, count);
        value.store(tile, count);
        __syncthreads();
        const int next = first + step, next_count = n - next < width ? n - next : width;
        value.load(score + next, next_count);
        if (adds && first > 0) sum = relay.receive(sum);
        if (adds) sum = add_tile(sum, tile, count);
        if (first + width >= n) break;
        if (adds) relay.send(sum);
        if (next >= n) return;
        first = next, count = next_count;
        __syncthreads(); /* everyone is through with the tile */
    }
    if (!adds) return;
    sum = add_partials(sum);
    if (threadIdx.x == 0) s.sum[head] = sum;
}

/* Grid: slices of a head × heads × rows. The chunks' sums come through a ring in shared memory, all at once where they are
 * few; each lane of a warp adds those of its element in order of positions. */
__global__ void __launch_bounds__(DECODE_THREADS) attention_add_chunks(const __grid_constant__ fd_attn_decode all) {
    float *ring = fd_shared_floats(); /* [ADD_STAGES][ADD_STAGE][ADD_WIDTH] */
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const int n_chunk = chunks_of(__ldcg(a.pos) + 1), head = (int)blockIdx.y, lane = (int)threadIdx.x % ADD_WIDTH;
    const int d = (int)blockIdx.x * ADD_WIDTH + lane, row = (int)threadIdx.x / ADD_WIDTH;
    const float *sums = layout_of(&a).chunk_sums + (int64_t)head * chunks_of(a.n_ctx) * a.head_dim + d;
    auto request = [&](int first) {
        float *stage = ring + first / ADD_STAGE % ADD_STAGES * (ADD_STAGE * ADD_WIDTH);
        if (d < a.head_dim)
            for (int i = row; i < ADD_STAGE && first + i < n_chunk; i += DECODE_THREADS / ADD_WIDTH)
                fd_cp_async4(stage + i * ADD_WIDTH + lane, sums + (int64_t)(first + i) * a.head_dim, true);
        fd_cp_async_commit_group();
    };
    float total = 0.0f;
    fd_send_begin(all.send);
    fd_pdl_wait();
    for (int i = 0; i < ADD_STAGES - 1; i++) request(i * ADD_STAGE);
    for (int first = 0; first < n_chunk; first += ADD_STAGE) {
        const int count = n_chunk - first < ADD_STAGE ? n_chunk - first : ADD_STAGE;
        fd_cp_async_wait_group<ADD_STAGES - 2>();
        __syncthreads(); /* the stage is there, and everyone is through with the one before it */
        request(first + (ADD_STAGES - 1) * ADD_STAGE);
        const float *stage = ring + first / ADD_STAGE % ADD_STAGES * (ADD_STAGE * ADD_WIDTH) + lane;
        if (threadIdx.x < ADD_WIDTH) {
#pragma unroll 32
            for (int i = 0; i < count; i++) total = total + stage[i * ADD_WIDTH];
        }
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

/* Blocks of the softmax for each head: a small tile of the longest context each, a power of two; one where rows are many and
 * fill the machine with heads. */
static unsigned softmax_blocks(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned rows) {
    unsigned blocks = 1;
    if (!ctx->has_clusters || rows > 4) return blocks;
    while (blocks < SOFTMAX_BLOCKS && (int)blocks * SOFTMAX_SMALL_TILE < in->n_ctx) blocks *= 2;
    return blocks;
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
    const unsigned cluster = softmax_blocks(ctx, in, rows);
    FD_TRY(fd_launch_split_scores(ctx, in, blocks, rows, err));
    FD_TRY(fd_launch_clusters(ctx, "attention_split_softmax", attention_split_softmax,
                              dim3(cluster, (unsigned)in->n_head, rows), cluster, SOFTMAX_THREADS, 0, err, *in,
                              (int)members));
    FD_TRY(fd_launch_split_mix(ctx, in, blocks, rows, err));
    return fd_launch(ctx, "attention_add_chunks", attention_add_chunks,
                     dim3(fd_blocks(in->head_dim, ADD_WIDTH), (unsigned)in->n_head, rows), DECODE_THREADS,
                     ADD_STAGES * ADD_STAGE * ADD_WIDTH * sizeof(float), err, *in);
}
