/* Matrix-vector: one pass over the weights for one token row, or two where kernels/matvec/tokens.cu takes none.
 *
 * 64 / P lanes read a row, lane l its partials P l … P l + P - 1 of every group of 64, so that loads are 4 to 16 bytes
 * and the tree is adds inside the lane, then shfl_xor. A lane follows R rows with the same x. A block keeps x in shared
 * memory (after RMS_NORM, when asked) and its warps walk over tiles of rows; the first weights are requested before the
 * previous kernel has ended. */
#include "kernels/matmul/matmul.h"

#include "kernels/formats/formats.cuh"
#include "kernels/launch.cuh"
#include "kernels/matvec/add.cuh"
#include "kernels/matvec/head.cuh"
#include "kernels/matvec/stage.cuh"
#include "kernels/tree.cuh"

/* A pointer that stays in its registers: from the lane itself, or the compiler would multiply it out before every load.
 */
__device__ __forceinline__ const uint8_t *fd_opaque_register(const uint8_t *pointer) {
    return (const uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)pointer, (int)threadIdx.x % 32);
}

/* Blocks of 256 threads that must fit a multiprocessor: their loads in flight hide the memory's latency. */
constexpr int blocks_at_least(int rows, int tokens) {
    return tokens > 1 ? 1 : rows > 1 ? 2 : 3;
}

/* Units of each row on their way: about 32 registers of loads. */
template <class Format, int R> struct in_flight {
    static constexpr int fit = 32 / (Format::words * R), units = fit < 2 ? 2 : fit > 16 ? 16 : fit;
};

template <class Format, int P, int R, int T>
__global__ void __launch_bounds__(256, blocks_at_least(R, T)) matvec(const __grid_constant__ matvec_args a) {
    constexpr int lanes = 64 / P;
    constexpr int depth = in_flight<Format, R>::units;
    using Unit = typename Format::unit;

    float *xs = fd_shared_floats();
    const int lane = (int)threadIdx.x % lanes;
    const int stride = (a.n_col + 63) / 64 * 64;
    const int n_unit = a.n_col / (64 * Format::groups); /* whole ones */
    constexpr int warp_rows = 32 / lanes * R;
    const int64_t first_row = (int)threadIdx.x % 32 / lanes * R;
    /* Warps of the grid take tiles of rows in turn, block by block, then warp by warp: no multiprocessor has more than
     * one more than another. */
    const int64_t first = ((int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x) * warp_rows;
    const int64_t step = (int64_t)(blockDim.x / 32) * gridDim.x * warp_rows;
    constexpr bool FUSED = Format::fused && T == 1;
    const uint32_t magic = fd_opaque_magic(), fused_magic = FUSED ? fd_opaque_magic(Format::fused_bits) : 0u;
    using Head = matvec_head<Format, P, R>;
    constexpr bool HEAD = T == 1 && Head::possible;
    Head head = {};
    bool staged = false;

    fd_pdl_launch_dependents();
    for (int64_t tile = first; tile < a.n_row || !staged; tile += step) {
        fd_cursor row[R];
        Unit units[depth][R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            /* Lanes past the last row read it again and store nothing: all 32 take part in the exchanges. */
            const int64_t at = tile + first_row + r < a.n_row ? tile + first_row + r : a.n_row - 1;
            int part;
            const int64_t own = row_of(a, at, &part);
            row[r] = Format::begin(fd_opaque_register(part_of(a, part).data + own * a.row_bytes), a.scale_offset, lane);
        }
#pragma unroll
        for (int u = 0; u < depth; u++)
            if (u < n_unit)
#pragma unroll
                for (int r = 0; r < R; r++) units[u][r] = Format::template load<FD_READ_ONCE>(row[r], u, lane);

        if (!staged) {
            if (HEAD && a.head_units > 0 && tile < a.n_row)
                head.begin(a.head_units, (unsigned char *)(xs + (a.norm_weight ? 2 : 1) * stride));
            if (a.norm_weight) stage_norm_weight<P, T>(a, xs, stride);
            fd_pdl_wait();
            stage_x<P, T>(a, xs, stride, [&] {
                if (HEAD && head.units > 0) head.request(row, depth);
            });
            if (a.norm_weight) norm_x<P, T>(a, xs, stride);
            staged = true;
            if (tile >= a.n_row) break;
        }

        /* Each unit is replaced, as soon as it is used, by the one `depth` further on. */
        float acc[R][T][P] = {};
        int at = 0;
        if (HEAD && head.units > 0) {
#pragma unroll
            for (int u = 0; u < depth; u++) {
                add_unit<Format, P, R, T, false, FUSED>(units[u], u, lane, magic, fused_magic, xs, stride, a.n_col,
                                                        acc);
#pragma unroll
                for (int r = 0; r < R; r++)
                    units[u][r] = Format::template load<FD_READ_ONCE>(row[r], depth + head.units + u, lane);
            }
            head.await();
            for (int u = 0; u < head.units; u++) {
                Unit own[R];
#pragma unroll
                for (int r = 0; r < R; r++) own[r] = head.unit(r, u, lane);
                add_unit<Format, P, R, T, false, FUSED>(own, depth + u, lane, magic, fused_magic, xs, stride, a.n_col,
                                                        acc);
            }
            at = depth + head.units;
#pragma unroll
            for (int r = 0; r < R; r++) Format::advance(row[r], at);
            head.units = 0;
        }
        for (; at + 2 * depth <= n_unit; at += depth) {
#pragma unroll
            for (int u = 0; u < depth; u++) {
                add_unit<Format, P, R, T, false, FUSED>(units[u], at + u, lane, magic, fused_magic, xs, stride, a.n_col,
                                                        acc);
#pragma unroll
                for (int r = 0; r < R; r++) units[u][r] = Format::template load<FD_READ_ONCE>(row[r], depth + u, lane);
            }
#pragma unroll
            for (int r = 0; r < R; r++) Format::advance(row[r], depth);
        }
        for (; at < n_unit; at += depth) {
#pragma unroll
            for (int u = 0; u < depth; u++) {
                if (at + u >= n_unit) break;
                add_unit<Format, P, R, T, false, FUSED>(units[u], at + u, lane, magic, fused_magic, xs, stride, a.n_col,
                                                        acc);
                if (at + u + depth < n_unit)
#pragma unroll
                    for (int r = 0; r < R; r++)
                        units[u][r] = Format::template load<FD_READ_ONCE>(row[r], depth + u, lane);
            }
#pragma unroll
            for (int r = 0; r < R; r++) Format::advance(row[r], depth);
        }
        if (n_unit * 64 * Format::groups < a.n_col) {
#pragma unroll
            for (int r = 0; r < R; r++) units[0][r] = Format::template load<FD_READ_ONCE>(row[r], n_unit - at, lane);
            add_unit<Format, P, R, T, true, FUSED>(units[0], n_unit, lane, magic, fused_magic, xs, stride, a.n_col,
                                                   acc);
        }

        float sum[R][T];
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int t = 0; t < T; t++) sum[r][t] = fd_tree_lanes<lanes>(fd_tree(acc[r][t]));
        if constexpr (FUSED) {
#pragma unroll
            for (int r = 0; r < R; r++)
                if (__any_sync(0xffffffffu, fd_is_ambiguous(sum[r][0]))) {
                    recompute_dot<Format, P>(a, tile + first_row + r, lane, magic, xs, acc[r][0]);
                    sum[r][0] = fd_tree_lanes<lanes>(fd_tree(acc[r][0]));
                }
        }

#pragma unroll
        for (int r = 0; r < R; r++) {
            const int64_t at = tile + first_row + r;
            /* Row 2i + 1 of a pair is the lane's second, or that of the lanes beside it. */
            float other[T] = {};
            if (a.silu_pair) {
#pragma unroll
                for (int t = 0; t < T; t++) {
                    other[t] = R == 2 ? sum[R - 1][t] : sum[0][t];
                    if (a.part[1].bias && at < a.n_row) other[t] = other[t] + a.part[1].bias[at >> 1];
                    if (R == 1) other[t] = __shfl_down_sync(0xffffffffu, other[t], lanes);
                }
            }
            if (at >= a.n_row) continue;
            int index;
            const int64_t own = row_of(a, at, &index);
            const matvec_part &part = part_of(a, index);
#pragma unroll
            for (int t = 0; t < T; t++) {
                if (part.bias) sum[r][t] = sum[r][t] + part.bias[own];
                if (part.product && lane == (r * T + t) % lanes) part.product[t * part.n_row + own] = sum[r][t];
                if (a.silu_pair) {
                    if (at % 2 == 0 && lane == 0) part.out[t * part.n_row + own] = fd_silu32(sum[r][t]) * other[t];
                } else if (lane == (r * T + t) % lanes) {
                    if (part.residual) sum[r][t] = __ldcg(part.residual + t * part.n_row + own) + sum[r][t];
                    part.out[t * part.n_row + own] = sum[r][t];
                }
            }
        }
    }
}

/* Units of a head: as many as registers hold, where as many blocks still run at once and each row has as many more. */
template <class Format, int P, int R>
static int head_units(const fd_launch_context *ctx, const matvec_args &args, int warps, int at_once, size_t shared) {
    using Head = matvec_head<Format, P, R>;
    constexpr int units = in_flight<Format, R>::units;
    enum { KEPT = 2048 }; /* what CUDA and the kernel's own arrays take of a block's share */
    const int64_t room = (int64_t)(ctx->max_shared + 1024) / (at_once > 0 ? at_once : 1) - KEPT - (int64_t)shared;
    const bool fits = room >= (int64_t)warps * units * Head::rows * Format::own_step;
    return Head::possible && ctx->has_clusters && fits && args.n_col / (64 * Format::groups) >= 3 * units ? units : 0;
}

template <class Format, int P, int R, int T>
static fd_code launch(const fd_launch_context *ctx, matvec_args args, fd_error *err) {
    constexpr int lanes = 64 / P, rows_per_warp = 32 / lanes * R;
    const int64_t n_warp = (args.n_row + rows_per_warp - 1) / rows_per_warp;
    /* The largest block that still gives every multiprocessor one. */
    int warps = 8;
    while (warps > 2 && n_warp < (int64_t)ctx->n_sm * warps) warps /= 2;
    size_t shared = sizeof(float) * (T + (args.norm_weight != nullptr)) * (size_t)((args.n_col + 63) / 64 * 64);

    int at_once = 0;
    FD_TRY(fd_allow_shared(ctx, "matvec", matvec<Format, P, R, T>, shared, err));
    FD_TRY(fd_cuda_check(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, matvec<Format, P, R, T>, warps * 32, shared), "matvec",
        err));
    /* As many blocks as run at once, though they may be more than there are rows for: with fewer, those that start while
     * the kernel before still runs would be put several on one multiprocessor and none on another. */
    const int64_t most = (int64_t)ctx->n_sm * (at_once > 0 ? at_once : 1);
    const int64_t blocks = n_warp < most ? n_warp : most;

    if (T == 1) args.head_units = head_units<Format, P, R>(ctx, args, warps, at_once, shared);
    shared += (size_t)args.head_units * (size_t)(warps * rows_per_warp * Format::own_step);
    return fd_launch(ctx, "matvec", matvec<Format, P, R, T>, dim3((unsigned)blocks), warps * 32, shared, err, args);
}

template <uint32_t DTYPE>
static fd_code launch_dtype(const fd_launch_context *ctx, const matvec_args &args, int n_tok, int rows, fd_error *err) {
    using Eight = fd_lane_format<DTYPE, 8>;
    if (n_tok == 2) return launch<Eight, 8, 1, 2>(ctx, args, err);
    return rows == 2 ? launch<Eight, 8, 2, 1>(ctx, args, err) : launch<Eight, 8, 1, 1>(ctx, args, err);
}

fd_code fd_launch_matvec_plain(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &args, int n_tok,
                               int rows, fd_error *err) {
    switch (dtype) {
    case FD_F32: return launch_dtype<FD_F32>(ctx, args, n_tok, rows, err);
    case FD_F16: return launch_dtype<FD_F16>(ctx, args, n_tok, rows, err);
    case FD_BF16: return launch_dtype<FD_BF16>(ctx, args, n_tok, rows, err);
    case FD_Q8_0: return launch_dtype<FD_Q8_0>(ctx, args, n_tok, rows, err);
    case FD_Q5_0: return launch_dtype<FD_Q5_0>(ctx, args, n_tok, rows, err);
    case FD_Q4_0: return launch_dtype<FD_Q4_0>(ctx, args, n_tok, rows, err);
    case FD_Q4_K: return launch_dtype<FD_Q4_K>(ctx, args, n_tok, rows, err);
    case FD_Q6_K: return launch_dtype<FD_Q6_K>(ctx, args, n_tok, rows, err);
    default: return fd_fail(err, FD_ERR_UNSUPPORTED, "weight type %u: no kernel reads it", (unsigned)dtype);
    }
}
