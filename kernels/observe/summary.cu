/* Fingerprints and statistics: a warp takes blocks of FD_SUM_BLOCK elements, lane l partial sums 2l and 2l + 1 of each;
 * then a warp a row joins its blocks in rising order. */
#include "kernels/observe/summary.h"

#include "kernels/attention/cached.cuh"
#include "kernels/launch.cuh"
#include "kernels/observe/summary.cuh"

enum { WARPS = 8, WIDE = 4 /* CUDA blocks a row: many rows are short, and a long one's warps take several blocks */ };

/* Of one block of a row. */
struct block_part {
    fd_fingerprint print;
    double sum, squares;
    float min, max;
    int32_t n_finite, n_nan, n_pos_inf, n_neg_inf, n_zero, unused;
};

size_t fd_summary_scratch(int64_t n_block, int32_t n_row) {
    return sizeof(block_part) * (size_t)n_block * (size_t)n_row;
}

/* Elements k and k + 1 of the row of n that begins at element `first`, 0 past its end; `run`: elements of each run, 0
 * where a row has no runs. */
__device__ __forceinline__ float2 pair_at(const fd_row_view &view, int64_t first, uint32_t run, uint32_t k,
                                          uint32_t n) {
    const float *row = (const float *)view.data + first;
    float2 pair = make_float2(0.0f, 0.0f);
    if (view.halves) {
        const uint16_t *halves = (const uint16_t *)view.data + first;
        if (k < n) pair.x = fd_load_cached(halves + k);
        if (k + 1 < n) pair.y = fd_load_cached(halves + k + 1);
    } else if (run) {
        if (k < n) pair.x = __ldcg(row + k / run * view.run_stride + k % run);
        if (k + 1 < n) pair.y = __ldcg(row + (k + 1) / run * view.run_stride + (k + 1) % run);
    } else if (k + 1 < n && (uint64_t)row % 8 == 0) {
        pair = __ldcg((const float2 *)(row + k));
    } else {
        if (k < n) pair.x = __ldcg(row + k);
        if (k + 1 < n) pair.y = __ldcg(row + k + 1);
    }
    return pair;
}

__device__ __forceinline__ double count(float x, block_part &part) {
    if (fabsf(x) < (float)INFINITY) {
        part.min = fminf(part.min, x);
        part.max = fmaxf(part.max, x);
        part.n_finite++;
        part.n_zero += x == 0.0f;
        return (double)x;
    }
    part.n_nan += x != x;
    part.n_pos_inf += x == (float)INFINITY;
    part.n_neg_inf += x == -(float)INFINITY;
    return 0.0;
}

template <bool STATS>
__global__ void __launch_bounds__(WARPS * 32) summary_blocks(const fd_row_views views, bool copy, block_part *parts) {
    const int pos0 = views.pos0;
    const fd_row_view view = views.table ? views.table[blockIdx.y] : views.one;
    const int row_at = (int)blockIdx.z, lane = (int)threadIdx.x % 32;
    const uint32_t run = view.n_run > 0 ? (uint32_t)(pos0 + row_at + 1) : 0;
    const uint32_t n = view.n_run > 0 ? run * (uint32_t)view.n_run : (uint32_t)view.n;
    const int64_t first = (view.by_position ? pos0 + row_at : row_at) * view.row_stride;
    block_part *out = parts + row_at * views.n_block + view.first;
    float *to = copy && row_at == 0 ? view.copy : nullptr;

    for (uint32_t block = blockIdx.x * WARPS + threadIdx.x / 32; block * FD_SUM_BLOCK < n; block += WIDE * WARPS) {
        block_part part = {{0, 0}, 0.0, 0.0, (float)INFINITY, -(float)INFINITY, 0, 0, 0, 0, 0, 0};
        double sum[2] = {0.0, 0.0}, squares[2] = {0.0, 0.0};
#pragma unroll 4
        for (int i = 0; i < FD_SUM_BLOCK / 64; i++) {
            const uint32_t k = block * FD_SUM_BLOCK + (uint32_t)(i * 64 + lane * 2);
            if (k >= n) continue;
            const float2 pair = pair_at(view, first, run, k, n);
            const uint64_t low = fd_canonical32(pair.x), high = k + 1 < n ? fd_canonical32(pair.y) : 0;
            fd_fingerprint_add(&part.print, k / 2, low | high << 32);
            if (to) to[k] = pair.x;
            if (to && k + 1 < n) to[k + 1] = pair.y;
            if (!STATS) continue;
            const double x = count(pair.x, part);
            sum[0] = sum[0] + x;
            squares[0] = squares[0] + x * x;
            if (k + 1 >= n) continue;
            const double y = count(pair.y, part);
            sum[1] = sum[1] + y;
            squares[1] = squares[1] + y * y;
        }
        part.print.lo = fd_warp_total(part.print.lo);
        part.print.hi = fd_warp_total(part.print.hi);
        if (STATS) {
            part.sum = fd_warp_tree64(sum);
            part.squares = fd_warp_tree64(squares);
            part.min = -fd_warp_max(-part.min);
            part.max = fd_warp_max(part.max);
            part.n_finite = fd_warp_total(part.n_finite);
            part.n_nan = fd_warp_total(part.n_nan);
            part.n_pos_inf = fd_warp_total(part.n_pos_inf);
            part.n_neg_inf = fd_warp_total(part.n_neg_inf);
            part.n_zero = fd_warp_total(part.n_zero);
        }
        if (lane == 0) out[block] = part;
    }
}

/* Block: a warp; lane l holds every 32nd block of the row, and sums take them in turn. */
template <bool STATS>
__global__ void __launch_bounds__(32)
    summary_rows(const fd_row_views views, const block_part *parts, fd_fingerprint *prints, fd_stats *stats) {
    const fd_row_view view = views.table ? views.table[blockIdx.x] : views.one;
    const int row_at = (int)blockIdx.y, lane = (int)threadIdx.x;
    const int64_t to = (int64_t)blockIdx.x * gridDim.y + row_at;
    const uint32_t n = view.n_run > 0 ? (uint32_t)(views.pos0 + row_at + 1) * (uint32_t)view.n_run : (uint32_t)view.n;
    const int have = (int)((n + FD_SUM_BLOCK - 1) / FD_SUM_BLOCK);
    const block_part *in = parts + row_at * views.n_block + view.first;
    fd_fingerprint print = {0, 0};
    fd_tally tally = fd_tally_none();
    double sum = 0.0, squares = 0.0;
    for (int first = 0; first < have; first += 32) {
        block_part part = {};
        if (first + lane < have) {
            part = in[first + lane];
            print.lo += part.print.lo;
            print.hi += part.print.hi;
            if (STATS) {
                tally.min = fmin(tally.min, (double)part.min);
                tally.max = fmax(tally.max, (double)part.max);
                tally.n_finite += part.n_finite;
                tally.n_nan += part.n_nan;
                tally.n_pos_inf += part.n_pos_inf;
                tally.n_neg_inf += part.n_neg_inf;
                tally.n_zero += part.n_zero;
            }
        }
        if constexpr (STATS)
            for (int i = 0; i < 32 && first + i < have; i++) {
                sum = sum + __shfl_sync(0xffffffffu, part.sum, i);
                squares = squares + __shfl_sync(0xffffffffu, part.squares, i);
            }
    }
    print.lo = fd_warp_total(print.lo);
    print.hi = fd_warp_total(print.hi);
    if (lane == 0) prints[to] = fd_fingerprint_end(print, n);
    if constexpr (STATS) {
        for (int offset = 1; offset < 32; offset *= 2) {
            tally.min = fmin(tally.min, __shfl_xor_sync(0xffffffffu, tally.min, offset));
            tally.max = fmax(tally.max, __shfl_xor_sync(0xffffffffu, tally.max, offset));
        }
        tally.n_finite = fd_warp_total(tally.n_finite);
        tally.n_nan = fd_warp_total(tally.n_nan);
        tally.n_pos_inf = fd_warp_total(tally.n_pos_inf);
        tally.n_neg_inf = fd_warp_total(tally.n_neg_inf);
        tally.n_zero = fd_warp_total(tally.n_zero);
        if (lane == 0) stats[to] = fd_tally_end(&tally, sum, squares);
    }
}

template <bool STATS>
static fd_code launch(const fd_launch_context *ctx, const fd_row_views *views, bool copy, block_part *parts,
                      fd_fingerprint *prints, fd_stats *stats, fd_error *err) {
    const unsigned n = (unsigned)views->n, rows = (unsigned)views->n_row;
    FD_TRY(fd_launch(ctx, "summary_blocks", summary_blocks<STATS>, dim3(WIDE, n, rows), WARPS * 32, 0, err, *views,
                     copy, parts));
    return fd_launch(ctx, "summary_rows", summary_rows<STATS>, dim3(n, rows), 32, 0, err, *views,
                     (const block_part *)parts, prints, stats);
}

fd_code fd_launch_summary(const fd_launch_context *ctx, const fd_row_views *views, bool copy, void *scratch,
                          fd_fingerprint *prints, fd_stats *stats, fd_error *err) {
    if (views->n < 1 || views->n > 65535 || views->n_row < 1 || views->n_row > 65535 || views->pos0 < 0)
        return fd_fail(err, FD_ERR_INPUT, "kernel summary: %d tensors, %d rows from position %d", views->n,
                       views->n_row, views->pos0);
    block_part *parts = (block_part *)scratch;
    return stats ? launch<true>(ctx, views, copy, parts, prints, stats, err)
                 : launch<false>(ctx, views, copy, parts, prints, stats, err);
}
