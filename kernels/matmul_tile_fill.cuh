/* The tiled matrix product's stages of shared memory and how they are filled (matmul_tile.cu says why so). */
#ifndef FD_KERNELS_MATMUL_TILE_FILL_CUH
#define FD_KERNELS_MATMUL_TILE_FILL_CUH

#include "kernels/formats.cuh"
#include "kernels/matmul.h"
#include "kernels/pipeline.cuh"

enum {
    PAIR_ROWS = 10,
    PAIR_TOKENS = 16,
    OUTPUTS = PAIR_ROWS * PAIR_TOKENS,
    ROWS = 2 * PAIR_ROWS,
    TOKENS = 2 * PAIR_TOKENS,
    READERS = 256,
    FILLERS = 128,
    THREADS = READERS + FILLERS,
    FILL_WARPS = 3, /* that bring weights; the fourth brings x */
    GROUPS = 4,
    WIDTH = GROUPS * 64,
    STAGES = 3,
    STAGE = (ROWS + TOKENS) * WIDTH,
    BAND = 16, /* token tiles of a band */
    SHARED = STAGES * STAGE + 2 * 4 * OUTPUTS + 2 * 2 * STAGES
};

/* One of the matrices that share x. */
struct tile_part {
    const uint8_t *data;
    int64_t n_row;
    unsigned row_tiles;
    const float *bias;
    float *out;
};

struct tile_args {
    CUtensorMap x_map;
    int64_t row_bytes, scale_offset;
    int n_col, n_tok, n_chunk, last_unit;
    unsigned n_tile, row_tiles, token_tiles; /* row_tiles: of all parts */
    bool boxes; /* x_map is there */
    const float *x;
    tile_part part[FD_MATMUL_PARTS];
};

/* Tiles in order: bands of 512 tokens, within one all its token tiles of a tile of rows, then the next rows: blocks
 * that run together share rows of weights, which then come from memory once, and a band of x that stays in L2. */
struct tile_place {
    const tile_part *part;
    int64_t row0; /* of the part */
    int token0;
};

__device__ __forceinline__ tile_place place_of(const tile_args &a, unsigned tile) {
    const unsigned band = tile / (BAND * a.row_tiles), within = tile % (BAND * a.row_tiles);
    const unsigned left = a.token_tiles - band * BAND, width = left < BAND ? left : BAND;
    const tile_part *part = a.part;
    unsigned rows = within / width;
    for (; rows >= part->row_tiles; part++) rows -= part->row_tiles;
    return {part, (int64_t)rows * ROWS, (int)((band * BAND + within % width) * TOKENS)};
}

struct stage_ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1u;
    }
};

/* An item is 32 weights: eight neighbours in each of two groups, of two rows. */
template <class Format> struct item {
    static constexpr int n_unit = Format::groups == 1 ? 2 : 1;
    typename Format::unit units[2][n_unit];
};

/* `row`: the first one; `second`: bytes from there to the other; `group`: the first of the item's two in the row. */
template <class Format>
__device__ __forceinline__ void load_item(const tile_args &a, const uint8_t *row, uint32_t second, int group,
                                          item<Format> &to) {
    const int lane = (int)(threadIdx.x % 8), unit0 = group / Format::groups;
    const fd_cursor from = Format::begin(row, a.scale_offset, lane);
#pragma unroll
    for (int u = 0; u < item<Format>::n_unit; u++) {
        const int at = unit0 + u < a.last_unit ? unit0 + u : a.last_unit; /* past it lies what nothing multiplies */
        to.units[0][u] = Format::template load<FD_READ_AGAIN>(from, at, lane);
        to.units[1][u] = Format::template load<FD_READ_AGAIN>({from.own + second, from.shared + second}, at, lane);
    }
}

/* Weights lie in shared memory as [pair of rows][group][partial][second row, first row]. A quad is two partials of a
 * group; within eight quads they are permuted so that the eight lanes of an item's row use all banks. */
__device__ __forceinline__ int swizzled(int quad) {
    return quad ^ quad / 8;
}

/* `half`: of its chunk; `to`: where the chunk's first group of these rows lies. */
template <class Format>
__device__ __forceinline__ void store_item(const item<Format> &from, uint32_t magic, int half, float *to) {
    const int lane = (int)(threadIdx.x % 8);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        const int unit = g % item<Format>::n_unit;
        const int group = Format::groups == 1 ? 0 : Format::groups == 2 ? g : half * 2 + g;
        float first[8], second[8];
        Format::decode(from.units[0][unit], group, lane, magic, first);
        Format::decode(from.units[1][unit], group, lane, magic, second);
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(float4 *)(to + (half * 2 + g) * 128 + swizzled(lane * 4 + j) * 4) =
                make_float4(second[2 * j], first[2 * j], second[2 * j + 1], first[2 * j + 1]);
    }
}

/* Three warps bring weights, eight lanes a pair of rows. While one half of a chunk is dequantised, the other's words are
 * on their way. */
template <class Format>
__device__ __forceinline__ void fill_w(const tile_args &a, float *shared, uint32_t full, uint32_t empty) {
    const uint32_t magic = fd_magic();
    const unsigned rows = (threadIdx.x - READERS) / 8;
    const bool own = rows < ROWS / 2;
    stage_ring at;
    for (unsigned tile = blockIdx.x; tile < a.n_tile; tile += gridDim.x) {
        /* Past the last row the last one again: nobody keeps those products. */
        const tile_place place = place_of(a, tile);
        const int64_t last = place.part->n_row - 1, row = place.row0 + rows * 2;
        const uint8_t *first = place.part->data + (row < last ? row : last) * a.row_bytes;
        const uint32_t second = row < last ? (uint32_t)a.row_bytes : 0;
        item<Format> low, high;
        load_item<Format>(a, first, second, 0, low);
#pragma unroll 1
        for (int chunk = 0; chunk < a.n_chunk; chunk++) {
            load_item<Format>(a, first, second, chunk * GROUPS + 2, high);
            fd_phase_wait(empty + at.stage * 8, at.parity ^ 1u);
            float *to = shared + at.stage * STAGE + rows * 2 * WIDTH;
            if (own) store_item<Format>(low, magic, 0, to);
            load_item<Format>(a, first, second, (chunk + 1) * GROUPS, low);
            if (own) store_item<Format>(high, magic, 1, to);
            __syncwarp();
            if (threadIdx.x % 32 == 0) fd_phase_arrive(full + at.stage * 8);
            at.advance();
        }
    }
}

/* x whose rows are not whole quads. */
static __device__ __noinline__ void fill_x_plain(const float *x, int n_tok, int n_col, int token0, int k0, float *xs) {
    for (int slot = 0; slot < TOKENS; slot++) {
        const int token = token0 + slot < n_tok ? token0 + slot : n_tok - 1;
        for (int k = (int)(threadIdx.x % 32); k < WIDTH && k0 + k < n_col; k += 32)
            xs[slot * WIDTH + k] = x[(int64_t)token * n_col + k0 + k];
    }
}

/* The fourth warp brings x. */
static __device__ __forceinline__ void fill_x(const tile_args &a, float *shared, uint32_t full, uint32_t empty) {
    stage_ring at;
    for (unsigned tile = blockIdx.x; tile < a.n_tile; tile += gridDim.x) {
        const int token0 = place_of(a, tile).token0;
        for (int chunk = 0; chunk < a.n_chunk; chunk++) {
            fd_phase_wait(empty + at.stage * 8, at.parity ^ 1u);
            float *xs = shared + at.stage * STAGE + ROWS * WIDTH;
            const uint32_t barrier = full + at.stage * 8;
            if (!a.boxes) fill_x_plain(a.x, a.n_tok, a.n_col, token0, chunk * WIDTH, xs);
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                if (a.boxes) {
                    fd_phase_expect(barrier, TOKENS * WIDTH * sizeof(float));
                    fd_copy_box(fd_shared_address(xs), &a.x_map, chunk * WIDTH, token0, barrier);
                }
                fd_phase_arrive(barrier);
            }
            at.advance();
        }
    }
}

#endif
