/* The tiled matrix product's stages of shared memory and how they are filled (matmul_tile.cu says why so). */
#ifndef FD_KERNELS_MATMUL_TILE_FILL_CUH
#define FD_KERNELS_MATMUL_TILE_FILL_CUH

#include "kernels/formats.cuh"
#include "kernels/pipeline.cuh"

enum {
    PAIR_ROWS = 12,
    PAIR_TOKENS = 16,
    OUTPUTS = PAIR_ROWS * PAIR_TOKENS,
    ROWS = 2 * PAIR_ROWS,
    TOKENS = 2 * PAIR_TOKENS,
    THREADS = 256,
    WARPS = THREADS / 32,
    GROUPS = 4,
    WIDTH = GROUPS * 64,
    STAGES = 3,
    STAGE = (ROWS + TOKENS) * WIDTH,
    ITEMS = ROWS * 16, /* see item */
    BAND = 16,         /* token tiles of a band */
    SHARED = STAGES * STAGE + 2 * 4 * OUTPUTS + 2 * STAGES + 2
};

struct tile_args {
    CUtensorMap x_map;
    const uint8_t *data;
    int64_t row_bytes, scale_offset, n_row;
    int n_col, n_tok, n_chunk, last_unit;
    unsigned n_tile, row_tiles, token_tiles;
    bool boxes; /* x_map is there */
    const float *bias, *x;
    float *out;
};

/* Tiles in order: bands of 512 tokens, within one all its token tiles of a tile of rows, then the next rows: blocks
 * that run together share rows of weights, which then come from memory once, and a band of x that stays in L2. */
struct tile_place {
    int64_t row0;
    int token0;
};

__device__ __forceinline__ tile_place place_of(const tile_args &a, unsigned tile) {
    const unsigned band = tile / (BAND * a.row_tiles), within = tile % (BAND * a.row_tiles);
    const unsigned left = a.token_tiles - band * BAND, width = left < BAND ? left : BAND;
    return {(int64_t)(within / width) * ROWS, (int)((band * BAND + within % width) * TOKENS)};
}

struct stage_ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1u;
    }
};

/* An item is 16 weights of a row: eight neighbours in each of two groups. A chunk has 24 rows × 2 pairs of groups ×
 * 8 lanes of them: a thread takes one, and the threads of the first four warps, one on each scheduler, a second one. */
template <class Format> struct item {
    static constexpr int n_unit = Format::groups == 1 ? 2 : 1;
    typename Format::unit units[n_unit];
};

/* The chunk that is filled next. */
struct fill_place {
    stage_ring at;
    unsigned tile;
    int chunk, token0;
    const uint8_t *row; /* of the thread's first item */
    uint32_t second;    /* bytes from there to the row of its second one */
};

__device__ __forceinline__ void fill_tile(const tile_args &a, unsigned tile, fill_place &f) {
    f.tile = tile;
    f.chunk = 0;
    if (tile >= a.n_tile) return;
    const tile_place place = place_of(a, tile);
    /* Past the last row the last one again: nobody keeps those products. */
    const int64_t last = a.n_row - 1, row = place.row0 + threadIdx.x / 16, further = row + 16;
    f.token0 = place.token0;
    f.row = a.data + (row < last ? row : last) * a.row_bytes;
    f.second = (uint32_t)((further < last ? further : last) - (row < last ? row : last)) * (uint32_t)a.row_bytes;
}

template <class Format>
__device__ __forceinline__ void load_items(const tile_args &a, const fill_place &f, item<Format> (&items)[2]) {
    if (f.tile >= a.n_tile) return;
    const int lane = (int)(threadIdx.x % 8), pair = (int)(threadIdx.x / 8 % 2);
    const int unit0 = f.chunk * (GROUPS / Format::groups) + pair * (2 / Format::groups);
    const fd_cursor from = Format::begin(f.row, a.scale_offset, lane);
#pragma unroll
    for (int u = 0; u < item<Format>::n_unit; u++) {
        const int at = unit0 + u < a.last_unit ? unit0 + u : a.last_unit; /* past it lies what nothing multiplies */
        items[0].units[u] = Format::template load<FD_READ_AGAIN>(from, at, lane);
        if (threadIdx.x < ITEMS - THREADS)
            items[1].units[u] =
                Format::template load<FD_READ_AGAIN>({from.own + f.second, from.shared + f.second}, at, lane);
    }
}

/* Where a thread's eight neighbours of a group go, in floats from the group's begin: quads 2·lane and 2·lane + 1 of 16,
 * with neighbours exchanged in the upper half so that the eight lanes of a row use all banks. */
struct swizzle {
    int low, high;
};
__device__ __forceinline__ int swizzled(int quad) {
    return quad ^ quad / 8;
}

template <class Format>
__device__ __forceinline__ void store_item(const item<Format> &from, swizzle to, uint32_t magic, float *ws) {
    const int lane = (int)(threadIdx.x % 8), pair = (int)(threadIdx.x / 8 % 2);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        float w[8];
        if (Format::groups == 1)
            Format::decode(from.units[g % item<Format>::n_unit], 0, lane, magic, w);
        else
            Format::decode(from.units[0], Format::groups == 2 ? g : pair * 2 + g, lane, magic, w);
        *(float4 *)(ws + to.low + g * 64) = make_float4(w[0], w[1], w[2], w[3]);
        *(float4 *)(ws + to.high + g * 64) = make_float4(w[4], w[5], w[6], w[7]);
    }
}

/* x whose rows are not whole quads. */
static __device__ __noinline__ void fill_x_plain(const float *x, int n_tok, int n_col, int token0, int k0, float *xs) {
    const int k = k0 + (int)threadIdx.x;
    for (int slot = 0; slot < TOKENS && k < n_col; slot++) {
        const int token = token0 + slot < n_tok ? token0 + slot : n_tok - 1;
        xs[slot * WIDTH + (int)threadIdx.x] = x[(int64_t)token * n_col + k];
    }
}

/* Fills the next chunk with what load_items fetched, and goes on to the one after it. */
template <class Format>
__device__ __forceinline__ void fill(const tile_args &a, const item<Format> (&items)[2], swizzle to, uint32_t magic,
                                     float *shared, uint32_t barriers, fill_place &f) {
    if (f.tile >= a.n_tile) return;
    float *ws = shared + f.at.stage * STAGE;
    const uint32_t barrier = barriers + f.at.stage * 8;
    if (!a.boxes) {
        fill_x_plain(a.x, a.n_tok, a.n_col, f.token0, f.chunk * WIDTH, ws + ROWS * WIDTH);
    } else if (threadIdx.x == THREADS - 1) {
        fd_phase_expect(barrier, TOKENS * WIDTH * sizeof(float));
        fd_copy_box(fd_shared_address(ws + ROWS * WIDTH), &a.x_map, f.chunk * WIDTH, f.token0, barrier);
    }
    store_item<Format>(items[0], to, magic, ws);
    if (threadIdx.x < ITEMS - THREADS) store_item<Format>(items[1], to, magic, ws + 16 * WIDTH);
    __syncwarp();
    if (threadIdx.x % 32 == 0) fd_phase_arrive(barrier);
    f.at.advance();
    if (++f.chunk == a.n_chunk) fill_tile(a, f.tile + gridDim.x, f);
}

#endif
