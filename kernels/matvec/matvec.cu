/* Matrix-vector: one pass over the weights for one token row, or two where kernels/matvec/tokens.cu takes none.
 *
 * 64 / P lanes read a row, lane l its partials P l … P l + P - 1 of every group of 64, so that loads are 4 to 16 bytes
 * and the tree is adds inside the lane, then shfl_xor. A lane follows R rows with the same x. A block keeps x in shared
 * memory (after RMS_NORM, when asked) and its warps walk over tiles of rows; the first weights are requested before the
 * previous kernel has ended. */
#include "kernels/matvec/matvec.h"

#include "kernels/formats/formats.cuh"
#include "kernels/launch.cuh"
#include "kernels/matvec/add.cuh"
#include "kernels/matvec/head.cuh"
#include "kernels/matvec/stage.cuh"
#include "kernels/tree.cuh"

/* Blocks of 256 threads that must fit a multiprocessor: their loads in flight hide the memory's latency. */
constexpr int blocks_at_least(int rows, int tokens) {
    return tokens > 1 ? 1 : rows > 1 ? 2 : 3;
}

/* The lane's rows of a tile and their units on their way, about 32 registers of loads: each unit is replaced, as soon
 * as it is used, by the one `depth` further on. */
template <class Format, int R> struct in_flight {
    static constexpr int fit = 32 / (Format::words * R), depth = fit < 2 ? 2 : fit > 16 ? 16 : fit;
    fd_cursor row[R];
    typename Format::unit units[depth][R];

    __device__ __forceinline__ void load(int u, int from, int lane) {
#pragma unroll
        for (int r = 0; r < R; r++) units[u][r] = Format::template load<FD_READ_ONCE>(row[r], from, lane);
    }
    __device__ __forceinline__ void advance(int n) {
#pragma unroll
        for (int r = 0; r < R; r++) Format::advance(row[r], n);
    }
};

/* A warp's tile of rows: 64 / P lanes read a row, a lane follows R rows for T token rows. Arrays are handed to its
 * functions: as members they would keep the compiler from seeing the other members as values. */
template <class Format, int P, int R, int T> struct row_tile {
    using Unit = typename Format::unit;
    using Flight = in_flight<Format, R>;
    using Head = matvec_head<Format, P, R>;
    static constexpr int lanes = 64 / P, rows = 32 / lanes * R, depth = Flight::depth;
    static constexpr bool fused = Format::fused && T == 1, may_have_head = T == 1 && Head::possible;

    const matvec_args &a;
    float *const xs;                /* x, then the norm's weights, then heads */
    const int lane, stride, n_unit; /* of its row; floats of a row of xs; whole units of a row of weights */
    const int64_t own;              /* the lane's first row of a tile */
    const uint32_t magic, fused_magic;
    Head head;

    __device__ __forceinline__ explicit row_tile(const matvec_args &args)
        : a(args), xs(fd_shared_floats()), lane((int)threadIdx.x % lanes), stride((args.n_col + 63) / 64 * 64),
          n_unit(args.n_col / (64 * Format::groups)), own((int)threadIdx.x % 32 / lanes * R), magic(fd_opaque_magic()),
          fused_magic(fused ? fd_opaque_magic(Format::fused_bits) : 0u), head{} {}

    template <bool TAIL = false>
    __device__ __forceinline__ void add(const Unit (&unit)[R], int at, float (&acc)[R][T][P]) const {
        add_unit<Format, P, R, T, TAIL, fused>(unit, at, lane, magic, fused_magic, xs, stride, a.n_col, acc);
    }

    /* The lane's rows of a tile, and their first units. */
    __device__ __forceinline__ void request(int64_t tile, Flight &of) const {
#pragma unroll
        for (int r = 0; r < R; r++)
            of.row[r] = Format::begin(fd_opaque_register(row_data(a, tile + own + r)), a.scale_offset, lane);
#pragma unroll
        for (int u = 0; u < depth; u++)
            if (u < n_unit) of.load(u, u, lane);
    }

    /* x, normed when asked; the wait for the previous kernel is in here. The head is requested after x. */
    __device__ __forceinline__ void stage(bool has_rows, const Flight &of) {
        if (may_have_head && a.head_units > 0 && has_rows)
            head.begin(a.head_units, (unsigned char *)(xs + (a.norm_weight ? 2 : 1) * stride));
        if (a.norm_weight) stage_norm_weight<P, T>(a, xs, stride);
        fd_send_begin(a.send);
        fd_pdl_wait();
        stage_x<P, T>(a, xs, stride, [&] {
            if (may_have_head && head.units > 0) head.request(of.row, depth);
        });
        if (a.norm_weight) norm_x<P, T>(a, xs, stride);
    }

    /* The units in registers and those of the head, in the first tile; returns how many that were. */
    __device__ __forceinline__ int add_head(Flight &of, float (&acc)[R][T][P]) {
        if constexpr (may_have_head) {
            if (head.units > 0) {
#pragma unroll
                for (int u = 0; u < depth; u++) {
                    add(of.units[u], u, acc);
                    of.load(u, depth + head.units + u, lane);
                }
                head.await();
                for (int u = 0; u < head.units; u++) {
                    Unit unit[R];
#pragma unroll
                    for (int r = 0; r < R; r++) unit[r] = head.unit(r, u, lane);
                    add(unit, depth + u, acc);
                }
                const int done = depth + head.units;
                of.advance(done);
                head.units = 0;
                return done;
            }
        }
        return 0;
    }

    /* All units from number `at` on, and what is left of the row after the whole ones. */
    __device__ __forceinline__ void add_rest(int at, Flight &of, float (&acc)[R][T][P]) const {
        for (; at + 2 * depth <= n_unit; at += depth) {
#pragma unroll
            for (int u = 0; u < depth; u++) {
                add(of.units[u], at + u, acc);
                of.load(u, depth + u, lane);
            }
            of.advance(depth);
        }
        for (; at < n_unit; at += depth) {
#pragma unroll
            for (int u = 0; u < depth; u++) {
                if (at + u >= n_unit) break;
                add(of.units[u], at + u, acc);
                if (at + u + depth < n_unit) of.load(u, depth + u, lane);
            }
            of.advance(depth);
        }
        if (n_unit * 64 * Format::groups < a.n_col) {
            of.load(0, n_unit - at, lane);
            add<true>(of.units[0], n_unit, acc);
        }
    }

    __device__ __forceinline__ void sum_up(int64_t tile, float (&acc)[R][T][P], float (&sum)[R][T]) const {
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int t = 0; t < T; t++) sum[r][t] = fd_tree_lanes<lanes>(fd_tree(acc[r][t]));
        if constexpr (fused) {
#pragma unroll
            for (int r = 0; r < R; r++)
                if (__any_sync(0xffffffffu, fd_is_ambiguous(sum[r][0]))) {
                    recompute_dot<Format, P>(a, tile + own + r, lane, magic, xs, acc[r][0]);
                    sum[r][0] = fd_tree_lanes<lanes>(fd_tree(acc[r][0]));
                }
        }
    }

    /* Bias, then silu(row 2i)·row 2i + 1, the residual, or the sum as it is. */
    __device__ __forceinline__ void write(int64_t tile, float (&sum)[R][T]) const {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int64_t at = tile + own + r;
            /* Row 2i + 1 of a pair is the lane's second, or that of the lanes next to it. */
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
            const int64_t of_part = row_of(a, at, &index);
            const matvec_part &part = part_of(a, index);
#pragma unroll
            for (int t = 0; t < T; t++) {
                const int64_t to = t * part.n_row + of_part;
                const bool writes = lane == (r * T + t) % lanes;
                if (part.bias) sum[r][t] = sum[r][t] + part.bias[of_part];
                if (part.product && writes) part.product[to] = sum[r][t];
                if (a.silu_pair) {
                    if (at % 2 == 0 && lane == 0) leave(part, to, fd_silu32(sum[r][t]) * other[t]);
                } else if (writes) {
                    if (part.residual) sum[r][t] = __ldcg(part.residual + to) + sum[r][t];
                    leave(part, to, sum[r][t]);
                }
            }
        }
    }
    __device__ __forceinline__ void leave(const matvec_part &part, int64_t to, float y) const {
        if (a.send.n_rank > 0)
            fd_send_element(a.send, to, y);
        else
            part.out[to] = y;
    }
};

/* Warps of the grid take tiles of rows in turn, block by block, then warp by warp: no multiprocessor has more than one
 * more than another.
 *
 *   W ── request ── units[depth] in registers ──┐                                (before the wait: W is constant)
 *   W ── head: bulk copies ── shared ───────────┤
 *   x ── stage ── RMS norm ── xs, shared ───────┴─ add_head, add_rest ── acc[R][T][P]
 *                                                     sum_up: tree over P, then over the row's lanes
 *                                                     write: bias, silu pair or residual ── out */
template <class Format, int P, int R, int T>
__global__ void __launch_bounds__(256, blocks_at_least(R, T)) matvec(const __grid_constant__ matvec_args a) {
    using Tile = row_tile<Format, P, R, T>;
    const int64_t first = ((int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x) * Tile::rows;
    const int64_t step = (int64_t)(blockDim.x / 32) * gridDim.x * Tile::rows;
    Tile w(a);
    bool staged = false;
    fd_pdl_launch_dependents();
    for (int64_t tile = first; tile < a.n_row || !staged; tile += step) {
        in_flight<Format, R> of;
        w.request(tile, of);
        if (!staged) {
            w.stage(tile < a.n_row, of);
            staged = true;
            if (tile >= a.n_row) break;
        }
        float acc[R][T][P] = {}, sum[R][T];
        const int at = w.add_head(of, acc);
        w.add_rest(at, of, acc);
        w.sum_up(tile, acc, sum);
        w.write(tile, sum);
    }
}

/* Units of a head: as many as registers hold, where as many blocks still run at once and each row has as many more. */
template <class Format, int P, int R>
static int head_units(const fd_launch_context *ctx, const matvec_args &args, int warps, int at_once, size_t shared) {
    using Head = matvec_head<Format, P, R>;
    constexpr int units = in_flight<Format, R>::depth;
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
    /* As many blocks as run at once, though they may be more than there are rows for: with fewer, those that start
     * while the kernel before still runs would be put several on one multiprocessor and none on another. */
    const int64_t most = (int64_t)ctx->n_sm * (at_once > 0 ? at_once : 1);
    const int64_t blocks = n_warp < most ? n_warp : most;

    if (T == 1) args.head_units = head_units<Format, P, R>(ctx, args, warps, at_once, shared);
    shared += (size_t)args.head_units * (size_t)(warps * rows_per_warp * Format::own_step);
    return fd_launch(ctx, "matvec", matvec<Format, P, R, T>, dim3((unsigned)blocks), warps * 32, shared, err, args);
}

fd_code fd_launch_matvec_plain(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &args, int n_tok,
                               int rows, fd_error *err) {
    return fd_with_format(dtype, err, [&](auto format) {
        using Format = decltype(format);
        if (n_tok == 2) return launch<Format, 8, 1, 2>(ctx, args, err);
        return rows == 2 ? launch<Format, 8, 2, 1>(ctx, args, err) : launch<Format, 8, 1, 1>(ctx, args, err);
    });
}
