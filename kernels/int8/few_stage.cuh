/* The matrix product of q8act for few tokens: what a thread block keeps in shared memory, and the warps that fill it.
 *
 * A stage has 256 columns: of each row of weights whole units as they are packed and their window of the plane of
 * scales; a panel of activations; and a table of the scales and minima as floats. Two warps copy, four make the tables,
 * all others multiply. Each stage has three barriers:
 *
 *   copied ── what the copying warps requested has come ── made ── the table is there ── free ── it is multiplied */
#ifndef FD_KERNELS_INT8_FEW_STAGE_CUH
#define FD_KERNELS_INT8_FEW_STAGE_CUH

#include "kernels/int8/formats.cuh"
#include "kernels/int8/panel.cuh"
#include "kernels/matmul/few.cuh"
#include "kernels/pipeline.cuh"

namespace {

enum {
    FEW_COPIERS = 2,
    FEW_TABLERS = 4,
    FEW_HELPERS = FEW_COPIERS + FEW_TABLERS,
    FEW_BARRIERS = 3 * FEW_RING * (int)sizeof(uint64_t)
};

struct q8_few_args {
    tile_product product; /* its x is not read */
    const int8_t *x;      /* panels */
    int rows, tokens;     /* of a block */
    int n_block, n_stage; /* of a row */
    int n_ring, stage_bytes;
};

/* Of a block of a row: its scale and minimum, or its two scales, or its one. */
template <bool TWO> struct alignas(8) few_scale { float first, second; };
template <> struct few_scale<false> { float first; };

template <uint32_t DTYPE> struct few_stage {
    using F = q8_format<DTYPE>;
    using Scale = few_scale<F::minimum || F::halves == 2>;
    static constexpr int units = 4 / F::blocks;
    static constexpr int body = units * F::unit_bytes, window = (units * F::scale_bytes + 15) / 16 * 16;
    /* 16 past a multiple of 32: eight lanes that read 16 bytes each of rows r and r + 4 then meet all banks. */
    static constexpr int row_bytes = (body + window + 15) / 32 * 32 + 16;
    static_assert(row_bytes >= body + window, "a row and its scales");
    static __host__ __device__ constexpr int at_x(int rows) { return rows * row_bytes; }
    static __host__ __device__ constexpr int at_table(int rows, int tokens) {
        return at_x(rows) + q8_panel_bytes(tokens);
    }
    static __host__ __device__ constexpr int bytes(int rows, int tokens) {
        return at_table(rows, tokens) + Q8_PANEL_BLOCKS * rows * (int)sizeof(Scale);
    }
    /* Of the table: block `block` of row `row`, tiles of 16 rows by themselves. */
    static __device__ __forceinline__ int scale_at(int row, int block) {
        return (row / 16 * Q8_PANEL_BLOCKS + block) * 16 + row % 16;
    }
    /* Where in a row of stage number s the window's part for that stage begins. */
    static __device__ __forceinline__ int at_scales(int s) { return body + s * units * F::scale_bytes % 16; }
};

/* The row of eight that lanes 4g … 4g + 3 follow: lanes 0 to 7 have rows 0 and 4, and so on. */
__device__ __forceinline__ int few_row_of_lane(int g) {
    return g / 2 + 4 * (g % 2);
}

/* Shared addresses of the three barriers of each place of the ring. */
struct few_barriers {
    uint32_t copied, made, free;
    __device__ __forceinline__ few_barriers(const uint8_t *memory) {
        copied = fd_shared_address(memory);
        made = copied + FEW_RING * 8;
        free = made + FEW_RING * 8;
    }
    __device__ __forceinline__ void init(int n_ring, int n_warp) const {
        if ((int)threadIdx.x >= n_ring) return;
        const uint32_t at = threadIdx.x * 8;
        fd_mbarrier_init(copied + at, FEW_COPIERS * 32);
        fd_mbarrier_init(made + at, FEW_TABLERS * FD_WARP_ARRIVALS);
        fd_mbarrier_init(free + at, (unsigned)n_warp * FD_WARP_ARRIVALS);
    }
};

/* ---- the copying warps: eight lanes share a row of weights ---- */

template <uint32_t DTYPE> struct few_copier {
    using F = q8_format<DTYPE>;
    using Stage = few_stage<DTYPE>;
    enum { THREADS = FEW_COPIERS * 32 };

    const q8_few_args &a;
    const uint8_t *rows; /* the block's first */
    int n_row;           /* of the block that there are: what is made of the others is not stored */
    uint32_t stages;     /* shared address */
    int thread;

    /* Of stage number s the weights, into place `at` of the ring. */
    __device__ __forceinline__ void copy_weights(int s, int at) const {
        const int own = thread % 8 * 16, first = thread / 8, left = a.n_block - s * Q8_PANEL_BLOCKS;
        const int bytes = (left + 2 * F::blocks - 1) / (2 * F::blocks) * F::unit_bytes; /* to the row's end */
        const uint8_t *from = rows + first * a.product.row_bytes + s * Stage::body + own;
        const int64_t step = a.product.row_bytes * (THREADS / 8);
        const int64_t scales = a.product.scale_offset + (s * Stage::units * F::scale_bytes & ~15) - s * Stage::body;
        uint32_t to = stages + (uint32_t)(at * a.stage_bytes + first * Stage::row_bytes + own);
#pragma unroll 4
        for (int r = first; r < n_row; r += THREADS / 8) {
#pragma unroll
            for (int k = 0; k < Stage::body; k += 128)
                if (own + k < Stage::body && (Stage::units == 1 || own + k < bytes))
                    fd_cp_async16(to + (uint32_t)k, from + k);
            if (Stage::window > 0 && own == 0) fd_cp_async16(to + Stage::body, from + scales);
            from += step;
            to += THREADS / 8 * Stage::row_bytes;
        }
    }

    __device__ __forceinline__ void run(const few_barriers &barriers) const {
        few_fill(
            a.n_stage, a.n_ring, barriers.copied, barriers.free, [&](int s, int at) { copy_weights(s, at); },
            [&](int s, int at, uint32_t barrier) {
                const int bytes = q8_panel_bytes(a.tokens);
                few_copy_panel(stages + (uint32_t)(at * a.stage_bytes + Stage::at_x(a.rows)),
                               (const uint8_t *)a.x + (int64_t)s * bytes, bytes, barrier, thread, THREADS);
            });
    }
};

/* ---- the warps that make tables ---- */

template <uint32_t DTYPE>
__device__ __forceinline__ void few_make_table(const q8_few_args &a, uint8_t *stage, int s, int thread) {
    using F = q8_format<DTYPE>;
    using Stage = few_stage<DTYPE>;
    typename Stage::Scale *table = (typename Stage::Scale *)(stage + Stage::at_table(a.rows, a.tokens));
    const int parity = thread / 32 % 2; /* a warp's */
    for (int row = thread / 64 * 32 + thread % 32; row < a.rows; row += FEW_TABLERS * 16) {
        const uint8_t *at = stage + row * Stage::row_bytes, *scales = at + Stage::at_scales(s);
#pragma unroll
        for (int u = 0; u < Stage::units; u++) {
            uint32_t head[F::head_words];
            F::template load_head<FD_READ_SHARED>(at + u * F::unit_bytes, scales + u * F::scale_bytes, parity, head);
#pragma unroll
            for (int j = 0; j < F::blocks; j++) {
                typename Stage::Scale scale;
                scale.first = F::scale(head, parity, j, 0);
                if constexpr (F::halves == 2) scale.second = F::scale(head, parity, j, 1);
                if constexpr (F::minimum) scale.second = F::min(head, parity, j);
                table[Stage::scale_at(row, 2 * (u * F::blocks + j) + parity)] = scale;
            }
        }
    }
}
static_assert(FEW_TABLERS % 2 == 0, "as many warps for each parity");

template <uint32_t DTYPE>
__device__ __forceinline__ void few_make_tables(const q8_few_args &a, uint8_t *stages, const few_barriers &barriers,
                                                int thread) {
    few_place place;
    for (int s = 0; s < a.n_stage; s++) {
        fd_mbarrier_wait_asleep(barriers.copied + (uint32_t)place.at * 8, place.round);
        few_make_table<DTYPE>(a, stages + place.at * a.stage_bytes, s, thread);
        fd_mbarrier_arrive_warp(barriers.made + (uint32_t)place.at * 8, thread % 32 == 0);
        place.advance(a.n_ring);
    }
}

} // namespace

#endif
