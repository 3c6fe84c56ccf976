/* Tiled matrix product for some token rows, and for devices before sm_90, in the order of the dot.
 *
 * A dot has 64 running sums, so an output takes 64 accumulators and a block of 65,536 registers holds about 512
 * outputs: 32 rows × 16 tokens, eight warps. Two warps share a 16 × 8 tile: lane l of the first follows partial l of
 * each of its 128 outputs, of the second partial 32 + l. Per group of 64 a warp reads 16 + 8 values from shared memory
 * for 128 fused multiply-adds. Weights are dequantised on their way into shared memory, which is filled one chunk
 * ahead. */
#include "kernels/matmul/matmul.h"

#include "kernels/formats/formats.cuh"
#include "kernels/launch.cuh"
#include "kernels/matmul/tile.cuh"

enum { ROWS = 32, TOKENS = 16, THREADS = 256, PAIR_ROWS = 16, PAIR_TOKENS = 8, OUTPUTS = PAIR_ROWS * PAIR_TOKENS };

/* Units a chunk has: four groups, so that a barrier comes every 512 fused multiply-adds. */
template <class Format> struct chunk_of {
    static constexpr int units = 4 / Format::groups, groups = 4, width = groups * 64;
};

/* What a thread copies of x into every chunk: WIDTH / 4 threads share a row, a thread takes the same columns of
 * several. */
template <int WIDTH> struct x_share {
    static constexpr int per_row = WIDTH / 4, rows_at_once = THREADS / per_row, rows = TOKENS / rows_at_once;
    const float *from; /* its quad of its first row, in chunk 0 */
    int k;             /* that quad's column in chunk 0 */
    bool valid[rows];
};

template <int WIDTH> __device__ __forceinline__ x_share<WIDTH> share_of_x(const tile_product &a, int token0) {
    x_share<WIDTH> share;
    const int token = token0 + (int)threadIdx.x / x_share<WIDTH>::per_row;
    share.k = (int)threadIdx.x % x_share<WIDTH>::per_row * 4;
    share.from = a.x + (int64_t)token * a.n_col + share.k;
#pragma unroll
    for (int i = 0; i < x_share<WIDTH>::rows; i++) share.valid[i] = token + i * x_share<WIDTH>::rows_at_once < a.n_tok;
    return share;
}

/* x of TOKENS rows at the chunk that begins at column k0; zero past the edges, where it takes part in nothing. */
template <int WIDTH>
__device__ __forceinline__ void copy_x(const tile_product &a, const x_share<WIDTH> &share, int k0, float *xs) {
    const int64_t step = (int64_t)x_share<WIDTH>::rows_at_once * a.n_col;
#pragma unroll
    for (int i = 0; i < x_share<WIDTH>::rows; i++) {
        float *to = xs + ((int)threadIdx.x + i * THREADS) * 4;
        const float *from = share.from + i * step + k0;
        if (a.n_col % 4 == 0) {
            const bool valid = share.valid[i] && share.k + k0 < a.n_col;
            fd_cp_async16(to, valid ? from : a.x, valid);
        } else {
            for (int j = 0; j < 4; j++) {
                const bool valid = share.valid[i] && share.k + k0 + j < a.n_col;
                fd_cp_async4(to + j, valid ? from + j : a.x, valid);
            }
        }
    }
}

/* A thread owns a lane's share of one row: eight neighbouring weights of every group. */
template <class Format>
__device__ __forceinline__ void load_w(const tile_product &a, const fd_cursor &row, int chunk, int lane,
                                       typename Format::unit (&units)[chunk_of<Format>::units]) {
    constexpr int per_chunk = chunk_of<Format>::units, unit_width = 64 * Format::groups;
    const int last = (a.n_col - 1) / unit_width;
#pragma unroll
    for (int u = 0; u < per_chunk; u++) {
        const int at = chunk * per_chunk + u;
        units[u] = Format::template load<FD_READ_AGAIN>(row, at < last ? at : last, lane);
    }
}

template <class Format>
__device__ __forceinline__ void store_w(const typename Format::unit (&units)[chunk_of<Format>::units], int own_row,
                                        int lane, uint32_t magic, float *ws) {
#pragma unroll
    for (int u = 0; u < chunk_of<Format>::units; u++)
#pragma unroll
        for (int g = 0; g < Format::groups; g++) {
            float w[8];
            Format::decode(units[u], g, lane, magic, w);
            float4 *to = (float4 *)(ws + own_row * chunk_of<Format>::width + (u * Format::groups + g) * 64 + lane * 8);
            to[0] = make_float4(w[0], w[1], w[2], w[3]);
            to[1] = make_float4(w[4], w[5], w[6], w[7]);
        }
}

/* One group: this lane's partial of all outputs of the pair's tile. */
template <int WIDTH>
__device__ __forceinline__ void add_group(const float *ws, const float *xs, float (&acc)[PAIR_ROWS][PAIR_TOKENS]) {
    float w[PAIR_ROWS], x[PAIR_TOKENS];
#pragma unroll
    for (int t = 0; t < PAIR_TOKENS; t++) x[t] = xs[t * WIDTH];
#pragma unroll
    for (int r = 0; r < PAIR_ROWS; r++) w[r] = ws[r * WIDTH];
#pragma unroll
    for (int r = 0; r < PAIR_ROWS; r++)
#pragma unroll
        for (int t = 0; t < PAIR_TOKENS; t++) acc[r][t] = fmaf(w[r], x[t], acc[r][t]);
}

template <class Format>
__global__ void __launch_bounds__(THREADS, 1) matmul_tile_small(const __grid_constant__ tile_product a) {
    constexpr int width = chunk_of<Format>::width, stage = (ROWS + TOKENS) * width;
    float *shared = fd_shared_floats();
    fd_pdl_launch_dependents();
    fd_pdl_wait();

    const int token0 = (int)blockIdx.x * TOKENS;
    unsigned row_tile = blockIdx.y;
    const tile_part *part = fd_tile_part(a, &row_tile);
    const int64_t row0 = (int64_t)row_tile * ROWS;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int half = warp % 2, pair = warp / 2, pair_row = pair / 2 * PAIR_ROWS, pair_token = pair % 2 * PAIR_TOKENS;
    const int partial = half * 32 + lane;

    const int fill_row = (int)threadIdx.x / 8, fill_lane = (int)threadIdx.x % 8;
    const int64_t clamped = row0 + fill_row < part->n_row ? row0 + fill_row : part->n_row - 1;
    const fd_cursor row = Format::begin(part->data + clamped * a.row_bytes, a.scale_offset, fill_lane);
    const uint32_t magic = fd_opaque_magic();

    typename Format::unit units[chunk_of<Format>::units];
    float acc[PAIR_ROWS][PAIR_TOKENS] = {};
    const int n_chunk = (a.n_col + width - 1) / width;

    const x_share<width> share = share_of_x<width>(a, token0);
    copy_x<width>(a, share, 0, shared + ROWS * width);
    load_w<Format>(a, row, 0, fill_lane, units);
    store_w<Format>(units, fill_row, fill_lane, magic, shared);
    fd_cp_async_wait_all();
    __syncthreads();

    for (int chunk = 0; chunk < n_chunk; chunk++) {
        const float *now = shared + chunk % 2 * stage;
        float *next = shared + (chunk + 1) % 2 * stage;
        const bool more = chunk + 1 < n_chunk;
        if (more) {
            copy_x<width>(a, share, (chunk + 1) * width, next + ROWS * width);
            load_w<Format>(a, row, chunk + 1, fill_lane, units);
        }
        const float *ws = now + pair_row * width + partial, *xs = now + (ROWS + pair_token) * width + partial;
        if ((chunk + 1) * width <= a.n_col) {
#pragma unroll
            for (int g = 0; g < chunk_of<Format>::groups; g++) add_group<width>(ws + g * 64, xs + g * 64, acc);
        } else {
            for (int g = 0; g < chunk_of<Format>::groups; g++)
                if (chunk * width + g * 64 + partial < a.n_col) add_group<width>(ws + g * 64, xs + g * 64, acc);
        }
        if (more) store_w<Format>(units, fill_row, fill_lane, magic, next);
        fd_cp_async_wait_all();
        __syncthreads();
    }

    fd_tile_add_up<OUTPUTS / 32>(
        half, shared + pair * OUTPUTS,
        [&](int q, int i) { return acc[(q * 32 + i) / PAIR_TOKENS][(q * 32 + i) % PAIR_TOKENS]; },
        [] { __syncthreads(); },
        [&](int q, int i, float total) {
            fd_tile_store(a, *part, row0 + pair_row + (q * 32 + i) / PAIR_TOKENS,
                          token0 + pair_token + (q * 32 + i) % PAIR_TOKENS, total);
        });
}

fd_code fd_launch_matmul_tile_small(const fd_launch_context *ctx, const fd_matmul *in, fd_error *err) {
    int64_t row_tiles;
    tile_product args = {};
    FD_TRY(fd_tile_product(in, "matmul_tile_small", ROWS, &args, &row_tiles, err));
    if (row_tiles > 65535)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "kernel matmul_tile_small: %lld tiles of %d rows", (long long)row_tiles,
                       (int)ROWS);
    /* Token tiles first: blocks that run together share rows of weights, which then come from memory once. */
    const dim3 grid(fd_blocks(in->n_tok, TOKENS), (unsigned)row_tiles);
    return fd_with_format(in->part[0].weight.dtype, err, [&](auto format) {
        using Format = decltype(format);
        const size_t shared = sizeof(float) * 2 * (ROWS + TOKENS) * chunk_of<Format>::width;
        return fd_launch(ctx, "matmul_tile_small", matmul_tile_small<Format>, grid, THREADS, shared, err, args);
    });
}
