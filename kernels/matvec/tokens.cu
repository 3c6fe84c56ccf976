/* Matrix-vector for 2, 4 or 8 token rows at once, weights through rings in shared memory (kernels/matvec/ring.cuh):
 * they are read once, each dequantised once, for all the rows.
 *
 * 64 / P lanes follow R rows of weights, lane l their partials P l … P l + P - 1 of every group of 64, for T token rows
 * of x in shared memory (kernels/matvec/tokens_x.cuh). With P = 2 a warp has two rows; with P = 8 it has eight, or four,
 * and a lane turns eight weights at once to floats. A token row gets the bits it gets alone. */
#include "kernels/matvec/ring.cuh"

#include "kernels/formats/pair.cuh"
#include "kernels/launch.cuh"
#include "kernels/matvec/add.cuh"
#include "kernels/matvec/finish.cuh"
#include "kernels/matvec/tokens_x.cuh"
#include "kernels/tree.cuh"

struct tokens_args {
    matvec_ring_args ring;
    int n_tok;       /* ≤ T; the sums of the rows past it are dropped */
    int chunk_units; /* units of weights that a chunk of x goes with; 0: x is there as a whole. P = 8 */
};

/* Where a warp's lanes stand: those of one row are `groups` apart, so that neighbours read the same x. */
template <int P, int R, int T> struct token_lanes {
    static constexpr int of_row = 64 / P, groups = P / 2, rows = groups * R, sums = R * T;
    /* Sums that a lane has after the tree: one, or those of its two rows. Sum v is token v / R of row v % R. */
    static constexpr int kept = sums > of_row ? sums / of_row : 1, n_keeper = sums / kept;
    static constexpr int bits = n_keeper == 4 ? 2 : n_keeper == 8 ? 3 : 4; /* of a keeper's number */
    static_assert(1 << bits == n_keeper && kept <= R, "a lane's sums are of one token");
    /* Lanes from a sum to the same of the next row. */
    static constexpr int next_row = R == 1 ? 1 : n_keeper / 2 * groups;
    int in_row, group; /* lane of its row; its rows are R group … of a task's */

    __device__ __forceinline__ token_lanes()
        : in_row((int)threadIdx.x % 32 / groups), group((int)threadIdx.x % groups) {}
    __device__ __forceinline__ int sum_of() const { return fd_bit_reverse<bits>(in_row % n_keeper) * kept; }
};

/* How a lane turns weights to floats: its number in its row, and the magics of kernels/formats/parts.cuh. */
struct token_decoder {
    int lane;
    uint32_t magic, fused_magic;
};

/* One unit of the lane's rows, number `at` of them, of whose groups `n_group` are in the row. */
template <class Format, int P, int R, int T, bool FUSED, class X>
__device__ __forceinline__ void add_tokens_unit(const typename Format::unit (&units)[R], int at, int n_group,
                                                const token_decoder &by, const X &xs, float (&acc)[R][T][P]) {
#pragma unroll
    for (int g = 0; g < Format::groups; g++) {
        /* Types in blocks of 256 have whole units, as n_col is whole groups. */
        if (Format::groups == 2 && g == 1 && n_group == 1) break;
        float w[R][P];
#pragma unroll
        for (int r = 0; r < R; r++) {
            if constexpr (FUSED)
                Format::decode_fused(units[r], g, by.lane, by.magic, by.fused_magic, w[r]);
            else
                Format::decode(units[r], g, by.lane, by.magic, w[r]);
            xs.order(w[r]);
        }
#pragma unroll
        for (int t = 0; t < T; t++) {
            lane_x<P> x;
            xs.read(t, (at - xs.unit) * Format::groups + g, by.lane, x);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int i = 0; i < P; i++) acc[r][t][i] = fmaf(w[r][i], x.value[i], acc[r][t][i]);
        }
    }
}

/* A stage's `n` units, those of the lane's rows from `unit` on; a row has `n_group` groups. */
template <class Format, int P, int R, int T, bool FUSED, class X>
__device__ __forceinline__ void add_tokens(const unsigned char *weights, int unit, int n, int n_group,
                                           const token_decoder &by, const X &xs, float (&acc)[R][T][P]) {
    using Stage = ring_stage<Format, P, R>;
    constexpr int unroll = P == 8 || Format::groups >= 4 ? 1 : 2;
    fd_cursor row[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        row[r] = Format::begin(weights + r * Stage::row_bytes, Stage::units * Stage::unit_bytes, by.lane);
        row[r].shared += unit * Stage::scale_bytes % 16;
    }
#pragma unroll unroll
    for (int u = 0; u < n; u++) {
        typename Format::unit units[R];
#pragma unroll
        for (int r = 0; r < R; r++) units[r] = Format::template load<FD_READ_SHARED>(row[r], u, by.lane);
        add_tokens_unit<Format, P, R, T, FUSED>(units, unit + u, n_group - (unit + u) * Format::groups, by, xs, acc);
    }
}

/* A lane's sums, and those that are ambiguous once more, where x is there as a whole. */
template <class Format, int P, int R, int T, bool FUSED>
__device__ __forceinline__ void token_sums(const tokens_args &s, int64_t first_row, const token_lanes<P, R, T> &lanes,
                                           uint32_t magic, const float *xs, float (&acc)[R][T][P],
                                           float (&sums)[R * T]) {
    using Lanes = token_lanes<P, R, T>;
    const matvec_args &a = s.ring.matvec;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int t = 0; t < T; t++) sums[t * R + r] = fd_tree(acc[r][t]);
    fd_tree_scatter<R * T, Lanes::of_row, Lanes::groups>(sums, (int)threadIdx.x % 32);
    if constexpr (FUSED) {
        static_assert(Lanes::kept == 1 && Lanes::groups == 1, "the warp computes a dot of its rows again together");
        const int own = lanes.sum_of();
        if (!__any_sync(0xffffffffu, own / R < s.n_tok && fd_is_ambiguous(sums[0]))) return;
#pragma unroll 1
        for (int v = 0; v < R * s.n_tok; v++) {
            float again[P];
            recompute_dot<Format, P>(a, first_row + v % R, lanes.in_row, magic, xs + v / R * a.n_col, again);
            const float sum = fd_tree_lanes<32>(fd_tree(again));
            if (v == own) sums[0] = sum;
        }
    }
}

/* What becomes of a lane's sums. With P = 2 it is known and asked for before the dots are there; with P = 8 the sums
 * take too many registers. */
template <int P, int R, int T> struct tokens_finish {
    using Lanes = token_lanes<P, R, T>;
    row_finish of[Lanes::kept];

    __device__ __forceinline__ void begin(const tokens_args &s, const Lanes &lanes, int task) {
        const int first = lanes.sum_of(), token = first / R;
        const int64_t row = (int64_t)task * Lanes::rows + lanes.group * R + first % R;
        const bool finishes = lanes.in_row < Lanes::n_keeper && token < s.n_tok;
#pragma unroll
        for (int i = 0; i < Lanes::kept; i++) {
            of[i].begin(s.ring.matvec, row + i, finishes, token);
            of[i].load_residual();
        }
    }
    __device__ __forceinline__ void end(const matvec_args &a, const Lanes &lanes, const float (&sums)[R * T]) const {
        if constexpr (Lanes::kept == 1)
            of[0].end(a, sums[0], (lanes.group * R + lanes.sum_of() % R) % 2 == 0, Lanes::next_row);
        else
            row_finish::end_both(a, of, {sums[0], sums[1]});
    }
};

/* A warp's tasks, n_round of them or fewer. */
template <class Format, int P, int R, int T, class X>
__device__ __forceinline__ void token_tasks(const tokens_args &s, int n_round, matvec_ring<Format, P, R> &ring,
                                            const unsigned char *stages, const token_decoder &by, X x) {
    using Stage = ring_stage<Format, P, R>;
    constexpr bool fused = Format::fused && P == 2;
    const matvec_args &a = s.ring.matvec;
    const token_lanes<P, R, T> lanes;
    int stage = 0;
    for (int round = 0; round < n_round; round++) {
        const int task = ring.tasks.first + round * ring.tasks.step;
        const bool mine = task < ring.tasks.end; /* the others meet at the chunks' barriers */
        if (!mine && !X::in_chunks) break;
        tokens_finish<P, R, T> finish;
        if (P == 2) finish.begin(s, lanes, task);
        float acc[R][T][P] = {}, sums[R * T];
        for (int unit = 0; unit < s.ring.n_unit; unit += Stage::units) {
            const int left = s.ring.n_unit - unit;
            ring.await(s.ring, stage, 0);
            x.reach(a, s.n_tok, unit);
            if (mine)
                add_tokens<Format, P, R, T, fused>(stages + stage * Stage::bytes + lanes.group * R * Stage::row_bytes,
                                                   unit, left < Stage::units ? left : Stage::units, a.n_col / 64, by, x,
                                                   acc);
            __syncwarp();
            ring.request(s.ring);
            stage = stage + 1 == TOKENS_STAGES ? 0 : stage + 1;
        }
        if (!mine) continue;
        if (P == 8) finish.begin(s, lanes, task);
        token_sums<Format, P, R, T, fused>(s, (int64_t)task * token_lanes<P, R, T>::rows, lanes, by.magic, x.now, acc,
                                           sums);
        finish.end(a, lanes, sums);
    }
}

template <class Format, int P, int R, int T>
__global__ void __launch_bounds__(tokens_warps(P) * 32, 1) matvec_tokens(const __grid_constant__ tokens_args s) {
    using Stage = ring_stage<Format, P, R>;
    constexpr bool fused = Format::fused && P == 2;
    const matvec_args &a = s.ring.matvec;
    unsigned char *shared = (unsigned char *)fd_shared_floats();
    const int warp = (int)threadIdx.x / 32, n_warp = (int)blockDim.x / 32, in_row = token_lanes<P, R, T>().in_row;
    unsigned char *stages = shared + warp * TOKENS_STAGES * Stage::bytes;
    float *xs = (float *)(shared + n_warp * TOKENS_STAGES * Stage::bytes);

    fd_pdl_launch_dependents();
    matvec_ring<Format, P, R> ring;
    ring.begin(s.ring, stages);
    for (int i = 0; i < TOKENS_STAGES; i++) ring.request(s.ring);
    const token_decoder by = {in_row, fd_opaque_magic(), fused ? fd_opaque_magic(Format::fused_bits) : 0u};
    const int n_round = (s.ring.n_task + n_warp * (int)gridDim.x - 1) / (n_warp * (int)gridDim.x);
    fd_pdl_wait();
    if constexpr (P == 8) {
        __shared__ uint64_t copied;
        if (s.chunk_units > 0) {
            token_tasks<Format, P, R, T>(s, n_round, ring, stages, by,
                                         x_chunks<T>(a, s.n_tok, s.chunk_units, s.chunk_units * Format::groups * 64,
                                                     n_round, in_row, xs, &copied));
            return;
        }
    }
    stage_tokens<P, T>(a, s.n_tok, xs);
    token_tasks<Format, P, R, T>(s, n_round, ring, stages, by, x_whole<P, T>{xs, a.n_col});
}

/* The largest chunks of equal length of which two fit beside the rings, in stages of weights. */
template <class Format, int P, int R>
static int chunk_stages(const fd_launch_context *ctx, int n_unit, int tokens, int warps) {
    using Stage = ring_stage<Format, P, R>;
    const int64_t left = (int64_t)ctx->max_shared - 1024 - warps * TOKENS_STAGES * Stage::bytes;
    const int64_t stage = (int64_t)sizeof(float) * 2 * tokens * Stage::units * Format::groups * 64;
    const int most = (int)(left / stage), n_stage = (n_unit + Stage::units - 1) / Stage::units;
    const int n_chunk = (n_stage + most - 1) / most;
    return (n_stage + n_chunk - 1) / n_chunk;
}

template <class Format, int P, int R, int T>
static fd_code launch(const fd_launch_context *ctx, const matvec_args &args, int n_tok, const tokens_form &form,
                      fd_error *err) {
    using Stage = ring_stage<Format, P, R>;
    constexpr int rows = token_lanes<P, R, T>::rows;
    const int64_t n_task = (args.n_row + rows - 1) / rows, blocks = n_task < ctx->n_sm ? n_task : ctx->n_sm;
    const int64_t busy = (n_task + blocks - 1) / blocks;
    const int warps = busy < form.warps ? (int)busy : form.warps;
    tokens_args s = {{args, 0, 0, TOKENS_STAGES, 0, 0}, n_tok, 0};
    s.ring.n_task = (int32_t)n_task;
    s.ring.n_unit = Format::units_of(args.n_col);
    int64_t columns = args.n_col + 1;
    if (form.in_chunks) {
        s.chunk_units = chunk_stages<Format, P, R>(ctx, s.ring.n_unit, T, warps) * Stage::units;
        columns = (int64_t)2 * s.chunk_units * Format::groups * 64;
    }
    const size_t shared = (size_t)warps * TOKENS_STAGES * Stage::bytes + sizeof(float) * T * (size_t)columns;
    return fd_launch(ctx, "matvec_tokens", matvec_tokens<Format, P, R, T>, dim3((unsigned)blocks), warps * 32, shared,
                     err, s);
}

/* Two token rows are half of four where a lane holds eight partials. */
template <int P, int R>
static fd_code launch_rows(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &args, int n_tok,
                           const tokens_form &form, fd_error *err) {
    constexpr int least = P == 8 ? 4 : 2;
    return fd_with_format<P>(dtype, err, [&](auto format) {
        using Format = decltype(format);
        if (form.tokens == 8) return launch<Format, P, R, 8>(ctx, args, n_tok, form, err);
        return form.tokens == 4 ? launch<Format, P, R, 4>(ctx, args, n_tok, form, err)
                                : launch<Format, P, R, least>(ctx, args, n_tok, form, err);
    });
}

fd_code fd_launch_matvec_tokens(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &whole, int n_tok,
                                const tokens_form &form, fd_error *err) {
    const auto launch_these = form.partials == 2 ? launch_rows<2, 2>
                              : form.rows == 2   ? launch_rows<8, 2>
                                                 : launch_rows<8, 1>;
    for (int done = 0; done < n_tok; done += form.tokens) {
        const int n = n_tok - done < form.tokens ? n_tok - done : form.tokens;
        matvec_args args = whole;
        args.x = whole.x + (int64_t)done * whole.n_col;
        for (matvec_part &part : args.part) {
            const int64_t skip = done * part.n_row;
            part.out = part.out ? part.out + skip : nullptr;
            part.residual = part.residual ? part.residual + skip : nullptr;
            part.product = part.product ? part.product + skip : nullptr;
        }
        FD_TRY(launch_these(ctx, dtype, args, n, form, err));
    }
    return FD_OK;
}
