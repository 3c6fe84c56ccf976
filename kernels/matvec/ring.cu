/* Matrix-vector for one token row, weights through rings in shared memory (kernels/matvec/ring.cuh).
 *
 * 64 / P lanes read a row, lane l its partials P l … P l + P - 1 of every group of 64, and follow R rows with the same
 * x. Rows come in tasks of as many as a warp follows at once. */
#include "kernels/matvec/ring.cuh"

#include <type_traits>

#include "kernels/formats/pair.cuh"
#include "kernels/launch.cuh"
#include "kernels/matvec/add.cuh"
#include "kernels/matvec/ring_bulk.cuh"
#include "kernels/tree.cuh"

/* Quads of norm weights that a thread loads into registers while it waits for x. */
enum { NORM_QUADS = 4 };
struct norm_registers {
    float4 quad[NORM_QUADS];
};
__device__ __forceinline__ void load_norm(const matvec_args &a, norm_registers &weights) {
#pragma unroll
    for (int i = 0; i < NORM_QUADS; i++) {
        const int quad = (int)(threadIdx.x + i * blockDim.x);
        if (a.norm_weight && quad * 4 < a.n_col) weights.quad[i] = fd_load_now((const float4 *)a.norm_weight + quad);
    }
}

/* x to shared memory, RMS-normed when asked; ends with a barrier. All threads call `overlap` after the first quads of x
 * have been requested. */
template <int P, class Overlap>
__device__ __forceinline__ void stage_ring_x(const matvec_args &a, const norm_registers &weights, float *xs,
                                             Overlap overlap) {
    __shared__ float factor;
    float4 *quads = (float4 *)xs;
    const int n_quad = a.n_col / 4;
    stage_row<P, true>(
        a.x, a.n_col, quads, n_quad, [](const float4 *from) { return __ldcg(from); }, overlap);
    __syncthreads();
    if (!a.norm_weight) return;
    if (threadIdx.x < 32) {
        const float r = staged_inverse_rms<P>(a, xs);
        if (threadIdx.x == 0) factor = r;
    }
    __syncthreads();
    const float r = factor;
#pragma unroll
    for (int i = 0; i < NORM_QUADS; i++) {
        const int quad = (int)(threadIdx.x + i * blockDim.x);
        if (quad < n_quad) quads[quad_at<P>(quad)] = fd_normed(quads[quad_at<P>(quad)], r, weights.quad[i]);
    }
    for (int quad = (int)(threadIdx.x + NORM_QUADS * blockDim.x); quad < n_quad; quad += (int)blockDim.x)
        quads[quad_at<P>(quad)] = fd_normed(quads[quad_at<P>(quad)], r, __ldg((const float4 *)a.norm_weight + quad));
    __syncthreads();
    if (a.norm_out && blockIdx.x == 0)
        for (int quad = (int)threadIdx.x; quad < n_quad; quad += (int)blockDim.x)
            ((float4 *)a.norm_out)[quad] = quads[quad_at<P>(quad)];
}

/* What decoding keeps in the warp's registers. */
struct ring_magic {
    uint32_t plain, fused;
};

/* Adds the products of one unit, the row's number `unit`; when it is not known to be WHOLE, without the groups past
 * n_col. */
template <class Format, int P, int R, bool WHOLE, bool FUSED>
__device__ __forceinline__ void add_ring_unit(const typename Format::unit (&units)[R], int unit, int row_lane,
                                              ring_magic magic, const float *xs, int n_col, float (&acc)[R][P]) {
#pragma unroll
    for (int g = 0; g < Format::groups; g++) {
        const int group = unit * Format::groups + g;
        if (!WHOLE && group * 64 >= n_col) return;
        lane_x<P> x;
        read_x(xs, group, row_lane, x);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float w[P];
            if constexpr (FUSED)
                Format::decode_fused(units[r], g, row_lane, magic.plain, magic.fused, w);
            else
                Format::decode(units[r], g, row_lane, magic.plain, w);
#pragma unroll
            for (int i = 0; i < P; i++) acc[r][i] = fmaf(w[i], x.value[i], acc[r][i]);
        }
    }
}

/* Those of a stage: of `n` units, those of the row from `unit` on, that lie at `stage`. */
template <class Format, int P, int R, bool WHOLE>
__device__ __forceinline__ void add_stage(const unsigned char *weights, int unit, int n, int row_lane, ring_magic magic,
                                          const float *xs, int n_col, float (&acc)[R][P]) {
    using Stage = ring_stage<Format, P, R>;
    constexpr int per_unit = Format::groups * P * R, unroll = !WHOLE || per_unit >= 64 ? 1 : 64 / per_unit;
    fd_cursor row[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        row[r] = Format::begin(weights + r * Stage::row_bytes, Stage::units * Stage::unit_bytes, row_lane);
        row[r].shared += unit * Stage::scale_bytes % 16;
    }
#pragma unroll unroll
    for (int u = 0; u < (WHOLE ? Stage::units : n); u++) {
        typename Format::unit units[R];
#pragma unroll
        for (int r = 0; r < R; r++) units[r] = Format::template load<FD_READ_SHARED>(row[r], u, row_lane);
        add_ring_unit<Format, P, R, WHOLE, Format::fused>(units, unit + u, row_lane, magic, xs, n_col, acc);
    }
}

/* The row's dots; ambiguous ones are computed again, those of a warp together. */
template <class Format, int P, int R>
__device__ __forceinline__ void ring_sums(const matvec_args &a, int64_t first_row, int row_lane, ring_magic magic,
                                          const float *xs, float (&acc)[R][P], float (&sum)[R]) {
    constexpr int lanes = 64 / P;
#pragma unroll
    for (int r = 0; r < R; r++) sum[r] = fd_tree_lanes<lanes>(fd_tree(acc[r]));
    if constexpr (Format::fused) {
        bool ambiguous = false;
#pragma unroll
        for (int r = 0; r < R; r++) ambiguous = ambiguous || fd_is_ambiguous(sum[r]);
        if (!__any_sync(0xffffffffu, ambiguous)) return;
#pragma unroll
        for (int r = 0; r < R; r++) recompute_dot<Format, P>(a, first_row + r, row_lane, magic.plain, xs, acc[r]);
#pragma unroll
        for (int r = 0; r < R; r++) sum[r] = fd_tree_lanes<lanes>(fd_tree(acc[r]));
    }
}

/* The row that a lane finishes: of a part, -1 where there is none, and what is added. Fewer registers than row_finish
 * (kernels/matvec/finish.cuh), so that attention's blocks fit next to those of the ring. */
struct ring_row {
    int part, own;
    float bias, residual;

    /* The bias is loaded before the wait for the previous kernel, the residual right after it: both are on their way
     * before the sum is there. */
    __device__ __forceinline__ void begin(const matvec_args &a, int64_t at, bool finishes) {
        part = 0, own = -1, bias = 0.0f, residual = 0.0f;
        if (!finishes || at >= a.n_row) return;
        own = (int)row_of(a, at, &part);
        const float *from = part_of(a, part).bias;
        if (from) bias = __ldg(from + own);
    }
    __device__ __forceinline__ void load_residual(const matvec_args &a) {
        const float *from = part_of(a, part).residual;
        if (from && own >= 0) residual = __ldcg(from + own);
    }
    /* `apart`: lanes from row 2i of a pair to row 2i + 1. */
    __device__ __forceinline__ void end(const matvec_args &a, float sum, int row_lane, int apart) const {
        const matvec_part &of = part_of(a, part);
        if (of.bias) sum = sum + bias;
        if (of.product && own >= 0) of.product[own] = sum;
        if (a.silu_pair) {
            const float up = __shfl_down_sync(0xffffffffu, sum, apart);
            if (own >= 0 && row_lane == 0 && part == 0) leave(a, fd_silu32(sum) * up);
        } else if (own >= 0) {
            leave(a, of.residual ? residual + sum : sum);
        }
    }
    __device__ __forceinline__ void leave(const matvec_args &a, float y) const {
        if (a.send.n_rank > 0)
            fd_send_element(a.send, own, y);
        else
            part_of(a, part).out[own] = y;
    }
};

/* Each warp for itself:
 *
 *   W ── cp.async, or bulk copies ── ring of stages, shared ──┐        (requested before the wait: W is constant)
 *   x ── stage_ring_x: RMS norm ── xs, shared by the block ───┴─ add_stage ── acc[R][P] ── next stage ▲
 *                                                                  │ end of a task's rows
 *                                                              ring_sums ── ring_row: bias, silu pair, residual ──
 * out */
template <class Format, int P, int R, bool BULK>
__global__ void __launch_bounds__(RING_THREADS, 1) matvec_ring_kernel(const __grid_constant__ matvec_ring_args s) {
    using Stage = ring_stage<Format, P, R>;
    /* Types in blocks request x after the first stage, so that it does not wait for all of them; with floats that cost
     * more than it gave (docs/performance-diary.md). */
    constexpr bool X_FIRST = Format::groups > 1;
    const matvec_args &a = s.matvec;
    unsigned char *shared = (unsigned char *)fd_shared_floats();
    const int warp = (int)threadIdx.x / 32, n_warp = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    const int row_lane = lane % Stage::lanes, row_group = lane / Stage::lanes;
    unsigned char *stages = shared + warp * s.n_stage * Stage::bytes;
    float *xs = (float *)(shared + n_warp * s.n_stage * Stage::bytes);

    fd_pdl_launch_dependents();
    std::conditional_t<BULK, matvec_ring_bulk<Format, P, R>, matvec_ring<Format, P, R>> ring;
    norm_registers weights;
    load_norm(a, weights);
    ring.begin(s, stages);
    const int requested = X_FIRST ? 1 : s.n_stage;
    for (int i = 0; i < requested; i++) ring.request(s);
    const ring_magic magic = {fd_opaque_magic(), Format::fused ? fd_opaque_magic(Format::fused_bits) : 0u};
    const auto first_row = [&](int task) { return (int64_t)task * Stage::rows + row_group * R; };
    ring_row row; /* lane r of a row's lanes finishes row r of theirs */
    row.begin(a, first_row(ring.tasks.first) + row_lane, row_lane < R);
    fd_send_begin(a.send);
    fd_pdl_wait();
    row.load_residual(a);
    stage_ring_x<P>(a, weights, xs, [&] {
        for (int i = requested; i < s.n_stage; i++) ring.request(s);
    });

    const unsigned char *own = stages + row_group * R * Stage::row_bytes;
    int stage = 0;
    unsigned parity = 0;
    for (int task = ring.tasks.first; task < ring.tasks.end; task += ring.tasks.step) {
        if (task != ring.tasks.first) {
            row.begin(a, first_row(task) + row_lane, row_lane < R);
            row.load_residual(a);
        }
        float acc[R][P] = {}, sums[R];
        for (int unit = 0; unit < s.n_unit; unit += Stage::units) {
            const int left = s.n_unit - unit, n = left < Stage::units ? left : Stage::units;
            ring.await(s, stage, parity);
            const unsigned char *at = own + stage * Stage::bytes;
            if ((unit + Stage::units) * Format::groups * 64 <= a.n_col)
                add_stage<Format, P, R, true>(at, unit, n, row_lane, magic, xs, a.n_col, acc);
            else
                add_stage<Format, P, R, false>(at, unit, n, row_lane, magic, xs, a.n_col, acc);
            __syncwarp();
            ring.request(s);
            if (++stage == s.n_stage) {
                stage = 0;
                parity ^= 1;
            }
        }
        ring_sums<Format, P, R>(a, first_row(task), row_lane, magic, xs, acc, sums);
        row.end(a, R == 2 && row_lane == 1 ? sums[R - 1] : sums[0], row_lane, R == 2 ? 1 : Stage::lanes);
    }
}

/* With rows of so many columns a block has neighbouring ones; with 896 they go round the grid
 * (docs/performance-diary.md). */
enum { IN_BLOCK_COLUMNS = 2048 };

template <class Format, int P, int R, bool BULK>
static fd_code launch(const fd_launch_context *ctx, const matvec_args &args, const fd_matvec_form *form,
                      fd_error *err) {
    using Stage = ring_stage<Format, P, R>;
    auto kernel = matvec_ring_kernel<Format, P, R, BULK>;
    matvec_ring_args s = {args, 0, 0, form->stages, 0, 0};
    const int64_t n_task = (args.n_row + Stage::rows - 1) / Stage::rows, most = (int64_t)ctx->n_sm * form->blocks;
    const int64_t blocks = n_task < most ? n_task : most;
    s.n_task = (int32_t)n_task;
    if (args.n_col >= IN_BLOCK_COLUMNS) s.each = (int32_t)(n_task / blocks), s.more = (int32_t)(n_task % blocks);
    s.n_unit = Format::units_of(args.n_col);

    const int64_t busy = (n_task + blocks - 1) / blocks;
    const int warps = busy < form->warps ? (int)busy : form->warps;
    const size_t rings = (size_t)warps * (size_t)form->stages * Stage::bytes;
    const size_t shared = fd_shared_of_one_each(ctx, form->blocks == 1 && blocks == ctx->n_sm,
                                                rings + sizeof(float) * (size_t)args.n_col);
    return fd_launch(ctx, "matvec_ring", kernel, dim3((unsigned)blocks), warps * 32, shared, err, s);
}

template <class Format, int P, bool BULK>
static fd_code launch_rows(const fd_launch_context *ctx, const matvec_args &args, const fd_matvec_form *form,
                           fd_error *err) {
    return form->rows == 2 ? launch<Format, P, 2, BULK>(ctx, args, form, err)
                           : launch<Format, P, 1, BULK>(ctx, args, form, err);
}

fd_code fd_launch_matvec_ring(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &args,
                              const fd_matvec_form *form, fd_error *err) {
    if (form->partials == 8)
        return fd_with_format<8>(
            dtype, err, [&](auto format) { return launch_rows<decltype(format), 8, false>(ctx, args, form, err); });
    return fd_with_format<2>(dtype, err, [&](auto format) {
        using Format = decltype(format);
        if constexpr (Format::shared_step == 0) /* floats */
            if (form->bulk) return launch_rows<Format, 2, true>(ctx, args, form, err);
        return launch_rows<Format, 2, false>(ctx, args, form, err);
    });
}
