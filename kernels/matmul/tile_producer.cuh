/* The tiled matrix product's stages of shared memory, and the producer warps that fill them
 * (kernels/matmul/tile.cu). */
#ifndef FD_KERNELS_MATMUL_TILE_FILL_CUH
#define FD_KERNELS_MATMUL_TILE_FILL_CUH

#include "kernels/formats/formats.cuh"
#include "kernels/matmul/tile.cuh"
#include "kernels/pipeline.cuh"

enum {
    PAIR_ROWS = 10,
    PAIR_TOKENS = 16,
    OUTPUTS = PAIR_ROWS * PAIR_TOKENS,
    ROWS = 2 * PAIR_ROWS,
    TOKENS = 2 * PAIR_TOKENS,
    CONSUMERS = 256,
    PRODUCERS = 128,
    THREADS = CONSUMERS + PRODUCERS,
    WEIGHT_WARPS = 3, /* producers of weights; the fourth produces x */
    GROUPS = 4,
    WIDTH = GROUPS * 64,
    STAGES = 3,
    GROUP = (ROWS + TOKENS) * 64, /* floats of a group: weights, then x */
    STAGE = GROUPS * GROUP,
    BAND = 16, /* token tiles of a band */
    SHARED = STAGES * STAGE + 2 * 4 * OUTPUTS + 2 * 2 * STAGES
};

struct tile_args : tile_product {
    CUtensorMap x_map;
    int n_chunk, last_unit;
    unsigned n_tile, row_tiles, token_tiles; /* row_tiles: of all parts */
    bool boxes;                              /* x_map is there */
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
    unsigned rows = within / width;
    const tile_part *part = fd_tile_part(a, &rows);
    return {part, (int64_t)rows * ROWS, (int)((band * BAND + within % width) * TOKENS)};
}

struct stage_ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1u;
    }
};

/* A lane loads its weights, eight neighbours of a group in each of two rows, in fragments of a few groups: eight
 * registers a row at most, as two fragments have to fit. */
template <class Format> struct fragment {
    static constexpr int n_unit = Format::groups == 1 && Format::words <= 4 ? 2 : 1, groups = n_unit * Format::groups;
    static constexpr int of_chunk = GROUPS / groups;
    typename Format::unit units[2][n_unit];
};

/* Two rows' units on their way: the place of the next one, and how many there are from it on. */
template <class Format> struct weight_rows {
    fd_cursor first, second;
    int left;

    /* The fragment that begins `SKIP` units on. Past the last unit the old one stays: nothing multiplies it. */
    template <int SKIP> __device__ __forceinline__ void load(fragment<Format> &to) const {
        const int lane = (int)(threadIdx.x % 8);
#pragma unroll
        for (int u = 0; u < fragment<Format>::n_unit; u++)
            if (SKIP + u < left) {
                to.units[0][u] = Format::template load<FD_READ_AGAIN>(first, SKIP + u, lane);
                to.units[1][u] = Format::template load<FD_READ_AGAIN>(second, SKIP + u, lane);
            }
    }
    template <int N> __device__ __forceinline__ void advance() {
        Format::advance(first, N);
        Format::advance(second, N);
        left -= N;
    }
};

/* A group lies in shared memory as weights [pair of rows][partial][second row, first row], then x [token][partial]. A
 * quad is two partials of a pair of rows; within eight quads they are permuted so that the eight lanes of an item's row
 * use all banks. */
__device__ __forceinline__ int swizzled(int quad) {
    return quad ^ quad / 8;
}

/* `to`: where the fragment's first group of these rows lies. */
template <class Format>
__device__ __forceinline__ void store_fragment(const fragment<Format> &from, uint32_t magic, float *to) {
    const int lane = (int)(threadIdx.x % 8);
#pragma unroll
    for (int g = 0; g < fragment<Format>::groups; g++) {
        float first[8], second[8];
        Format::decode(from.units[0][g / Format::groups], g % Format::groups, lane, magic, first);
        Format::decode(from.units[1][g / Format::groups], g % Format::groups, lane, magic, second);
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(float4 *)(to + g * GROUP + swizzled(lane * 4 + j) * 4) =
                make_float4(second[2 * j], first[2 * j], second[2 * j + 1], first[2 * j + 1]);
    }
}

/* Three warps produce weights, eight lanes a pair of rows. While one fragment is dequantised, the next one's words are
 * on their way, the next tile's too. */
template <class Format>
__device__ __forceinline__ void produce_w(const tile_args &a, float *shared, uint32_t full, uint32_t empty) {
    constexpr int of_chunk = fragment<Format>::of_chunk, n_unit = fragment<Format>::n_unit;
    const uint32_t magic = fd_opaque_magic();
    const int rows = (int)(threadIdx.x - CONSUMERS) / 8, lane = (int)(threadIdx.x % 8);
    const bool own = rows < ROWS / 2;
    stage_ring at;
    const auto store = [&](const fragment<Format> &from, int part) {
        if (part == 0) fd_mbarrier_wait(empty + at.stage * 8, at.parity ^ 1u);
        if (own)
            store_fragment<Format>(from, magic,
                                   shared + at.stage * STAGE + part * fragment<Format>::groups * GROUP + rows * 2 * 64);
        if (part < of_chunk - 1) return;
        fd_mbarrier_arrive_warp(full + at.stage * 8, threadIdx.x % 32 == 0);
        at.advance();
    };
    /* A tile's units from the first one on; none when there is no such tile. */
    const auto rows_of = [&](unsigned tile) -> weight_rows<Format> {
        const bool there = own && tile < a.n_tile;
        /* Past the last row the last one again: those products are dropped. */
        const tile_place place = place_of(a, there ? tile : 0);
        const int64_t last = place.part->n_row - 1, row = place.row0 + rows * 2;
        const uint8_t *first = place.part->data + (row < last ? row : last) * a.row_bytes;
        const uint8_t *second = first + (row < last ? a.row_bytes : 0);
        return {Format::begin(first, a.scale_offset, lane), Format::begin(second, a.scale_offset, lane),
                there ? a.last_unit + 1 : 0};
    };

    fragment<Format> even = {}, odd = {};
    weight_rows<Format> from = rows_of(blockIdx.x);
    from.template load<0>(even);
    if (of_chunk > 1) from.template load<n_unit>(odd);
    for (unsigned tile = blockIdx.x; tile < a.n_tile; tile += gridDim.x) {
        const unsigned next = tile + gridDim.x;
        if constexpr (of_chunk == 1) { /* in one place, as it is long */
#pragma unroll 1
            for (int chunk = 1; chunk <= a.n_chunk; chunk++) {
                from.template advance<n_unit>();
                if (chunk == a.n_chunk) from = rows_of(next);
                from.template load<0>(odd);
                store(even, 0);
                even = odd;
            }
        } else {
#pragma unroll 1
            for (int p = 0; p < a.n_chunk * of_chunk; p += 2) {
                from.template advance<2 * n_unit>();
                if (p + 2 == a.n_chunk * of_chunk) from = rows_of(next);
                store(even, p % of_chunk);
                from.template load<0>(even);
                store(odd, (p + 1) % of_chunk);
                from.template load<n_unit>(odd);
            }
        }
    }
}

/* x whose rows are not whole quads. */
static __device__ __noinline__ void produce_x_plain(const float *x, int n_tok, int n_col, int token0, int k0,
                                                    float *xs) {
    for (int row = 0; row < TOKENS; row++) {
        const int token = token0 + row < n_tok ? token0 + row : n_tok - 1;
        for (int k = (int)(threadIdx.x % 32); k < WIDTH && k0 + k < n_col; k += 32)
            xs[k / 64 * GROUP + row * 64 + k % 64] = x[(int64_t)token * n_col + k0 + k];
    }
}

/* The fourth warp produces x. */
static __device__ __forceinline__ void produce_x(const tile_args &a, float *shared, uint32_t full, uint32_t empty) {
    stage_ring at;
    for (unsigned tile = blockIdx.x; tile < a.n_tile; tile += gridDim.x) {
        const int token0 = place_of(a, tile).token0;
        for (int chunk = 0; chunk < a.n_chunk; chunk++) {
            fd_mbarrier_wait(empty + at.stage * 8, at.parity ^ 1u);
            float *xs = shared + at.stage * STAGE + ROWS * 64;
            const uint32_t barrier = full + at.stage * 8;
            if (!a.boxes) produce_x_plain(a.x, a.n_tok, a.n_col, token0, chunk * WIDTH, xs);
            if (a.boxes && threadIdx.x % 32 == 0) {
                fd_mbarrier_expect_tx(barrier, TOKENS * WIDTH * sizeof(float));
#pragma unroll
                for (int g = 0; g < GROUPS; g++)
                    fd_tma_load_2d(fd_shared_address(xs + g * GROUP), &a.x_map, chunk * WIDTH + g * 64, token0,
                                   barrier);
            }
            fd_mbarrier_arrive_warp(barrier, threadIdx.x % 32 == 0);
            at.advance();
        }
    }
}

#endif
