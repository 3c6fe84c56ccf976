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

/* x to shared memory, RMS-normed when asked; quads of norm weights that a thread holds while it waits for x. Ends with
 * a barrier. */
enum { HELD_QUADS = 4 };
struct held_norm {
    float4 quad[HELD_QUADS];
};
__device__ __forceinline__ void hold_norm(const matvec_args &a, held_norm &held) {
#pragma unroll
    for (int i = 0; i < HELD_QUADS; i++) {
        const int quad = (int)(threadIdx.x + i * blockDim.x);
        if (a.norm_weight && quad * 4 < a.n_col) held.quad[i] = fd_load_now((const float4 *)a.norm_weight + quad);
    }
}

__device__ __forceinline__ float4 normed(const float4 x, float r, const float4 w) {
    return make_float4((x.x * r) * w.x, (x.y * r) * w.y, (x.z * r) * w.z, (x.w * r) * w.w);
}

/* `meanwhile` is called by all threads when the first quads of x have been asked for. */
template <int P, class Overlap>
__device__ __forceinline__ void stage_ring_x(const matvec_args &a, const held_norm &held, float *xs, Overlap overlap) {
    __shared__ float factor;
    float4 *quads = (float4 *)xs;
    const int n_quad = a.n_col / 4, threads = (int)blockDim.x;
    /* All asked for before the first is used: one at a time, each would cost the latency of L2. */
    enum { AT_ONCE = 4 };
    for (int base = 0; base == 0 || base < n_quad; base += AT_ONCE * threads) {
        const int first = base + (int)threadIdx.x;
        float4 value[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * threads < n_quad) value[i] = __ldcg((const float4 *)a.x + first + i * threads);
        if (base == 0) overlap();
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * threads < n_quad) quads[quad_at<P>(first + i * threads)] = value[i];
    }
    __syncthreads();
    if (!a.norm_weight) return;
    if (threadIdx.x < 32) {
        const int lane = (int)threadIdx.x;
        const float *pairs = xs + quad_at<P>(lane / 2) * 4 + lane % 2 * 2;
        const float r =
            fd_inverse_rms(a.n_col, a.norm_eps, [&](int group) { return *(const float2 *)(pairs + group * 64); });
        if (lane == 0) factor = r;
    }
    __syncthreads();
    const float r = factor;
#pragma unroll
    for (int i = 0; i < HELD_QUADS; i++) {
        const int quad = (int)(threadIdx.x + i * blockDim.x);
        if (quad < n_quad) quads[quad_at<P>(quad)] = normed(quads[quad_at<P>(quad)], r, held.quad[i]);
    }
    for (int quad = (int)(threadIdx.x + HELD_QUADS * blockDim.x); quad < n_quad; quad += (int)blockDim.x)
        quads[quad_at<P>(quad)] = normed(quads[quad_at<P>(quad)], r, __ldg((const float4 *)a.norm_weight + quad));
    __syncthreads();
    if (a.norm_out && blockIdx.x == 0)
        for (int quad = (int)threadIdx.x; quad < n_quad; quad += (int)blockDim.x)
            ((float4 *)a.norm_out)[quad] = quads[quad_at<P>(quad)];
}

/* What decoding wants of the warp's registers. */
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

template <int LANES, int P, int R> __device__ __forceinline__ void ring_sums(float (&acc)[R][P], float (&sum)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++) sum[r] = fd_tree_lanes<LANES>(fd_tree(acc[r]));
}

/* The row that a lane finishes: of a part, -1 where there is none, and what is added. As few registers as that, so that
 * attention's blocks fit beside those of the ring. */
struct ring_row {
    int part, own;
    float bias, residual;
};

template <class Format, int P, int R, bool BULK>
__global__ void __launch_bounds__(RING_THREADS, 1) matvec_ring_kernel(const __grid_constant__ matvec_ring_args s) {
    using Stage = ring_stage<Format, P, R>;
    /* Of types in blocks x is asked for behind the first stage, so that it does not wait for all of them; with floats that
     * cost more than it gave (docs/performance-diary.md). */
    constexpr bool X_FIRST = Format::groups > 1;
    const matvec_args &a = s.matvec;
    unsigned char *shared = (unsigned char *)fd_shared_floats();
    const int warp = (int)threadIdx.x / 32, n_warp = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    const int row_lane = lane % Stage::lanes, row_group = lane / Stage::lanes;
    unsigned char *stages = shared + warp * s.n_stage * Stage::bytes;
    float *xs = (float *)(shared + n_warp * s.n_stage * Stage::bytes);

    fd_pdl_launch_dependents();
    std::conditional_t<BULK, matvec_ring_bulk<Format, P, R>, matvec_ring<Format, P, R>> ring;
    held_norm held;
    hold_norm(a, held);
    ring.begin(s, stages);
    const int asked = X_FIRST ? 1 : s.n_stage;
    for (int i = 0; i < asked; i++) ring.request(s);
    const ring_magic magic = {fd_opaque_magic(), Format::fused ? fd_opaque_magic(Format::fused_bits) : 0u};

    /* Lane r of a row's finishes row r of its own; what it adds is on its way before the sum is there, a weight before the
     * wait for the previous kernel, the residual right behind it. */
    const auto row_at = [&](int task) {
        const int64_t at = (int64_t)task * Stage::rows + row_group * R + row_lane;
        ring_row row = {0, -1, 0.0f, 0.0f};
        if (row_lane >= R || at >= a.n_row) return row;
        row.own = (int)row_of(a, at, &row.part);
        const float *bias = part_of(a, row.part).bias;
        if (bias) row.bias = __ldg(bias + row.own);
        return row;
    };
    const auto ask_residual = [&](ring_row &row) {
        const float *residual = part_of(a, row.part).residual;
        if (residual && row.own >= 0) row.residual = __ldcg(residual + row.own);
    };
    ring_row row = row_at(ring.tasks.first);
    fd_pdl_wait();
    ask_residual(row);
    stage_ring_x<P>(a, held, xs, [&] {
        for (int i = asked; i < s.n_stage; i++) ring.request(s);
    });

    const unsigned char *own = stages + row_group * R * Stage::row_bytes;
    int stage = 0;
    unsigned parity = 0;
    for (int task = ring.tasks.first; task < ring.tasks.end; task += ring.tasks.step) {
        if (task != ring.tasks.first) {
            row = row_at(task);
            ask_residual(row);
        }

        float acc[R][P] = {};
        for (int unit = 0; unit < s.n_unit; unit += Stage::units) {
            const int left = s.n_unit - unit, n = left < Stage::units ? left : Stage::units;
            ring.await(s, stage, parity);
            const unsigned char *weights = own + stage * Stage::bytes;
            if ((unit + Stage::units) * Format::groups * 64 <= a.n_col)
                add_stage<Format, P, R, true>(weights, unit, n, row_lane, magic, xs, a.n_col, acc);
            else
                add_stage<Format, P, R, false>(weights, unit, n, row_lane, magic, xs, a.n_col, acc);
            __syncwarp();
            ring.request(s);
            if (++stage == s.n_stage) {
                stage = 0;
                parity ^= 1;
            }
        }

        float sums[R];
        ring_sums<Stage::lanes>(acc, sums);
        if constexpr (Format::fused) {
            bool ambiguous = false;
#pragma unroll
            for (int r = 0; r < R; r++) ambiguous = ambiguous || !(fabsf(sums[r]) > 0.0f);
            if (__any_sync(0xffffffffu, ambiguous)) {
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const int64_t wanted = (int64_t)task * Stage::rows + row_group * R + r;
                    recompute_dot<Format, P>(a, wanted, row_lane, magic.plain, xs, acc[r]);
                }
                ring_sums<Stage::lanes>(acc, sums);
            }
        }
        float sum = R == 2 && row_lane == 1 ? sums[R - 1] : sums[0];
        const matvec_part &part = part_of(a, row.part);
        if (part.bias) sum = sum + row.bias;
        if (part.product && row.own >= 0) part.product[row.own] = sum;
        if (a.silu_pair) {
            /* Row 2i + 1 is the lane's second, or that of the lanes beside it. */
            const float up = __shfl_down_sync(0xffffffffu, sum, R == 2 ? 1 : Stage::lanes);
            if (row.own >= 0 && row_lane == 0 && row.part == 0) part.out[row.own] = fd_silu32(sum) * up;
        } else if (row.own >= 0) {
            part.out[row.own] = part.residual ? row.residual + sum : sum;
        }
    }
}

/* With rows of so many columns a block has neighbouring ones; with 896 they go round the grid (docs/performance-diary.md). */
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
    s.n_unit = (args.n_col + 64 * Format::groups - 1) / (64 * Format::groups);

    const int64_t busy = (n_task + blocks - 1) / blocks;
    const int warps = busy < form->warps ? (int)busy : form->warps;
    size_t shared = (size_t)warps * (size_t)form->stages * Stage::bytes + sizeof(float) * (size_t)args.n_col;
    /* A block a multiprocessor: it asks for more than half of the shared memory, or where the kernel before leaves room
     * unevenly several blocks would share one multiprocessor while another has none. */
    const size_t alone = fd_shared_alone(ctx);
    if (form->blocks == 1 && blocks == ctx->n_sm && shared < alone) shared = alone;
    return fd_launch(ctx, "matvec_ring", kernel, dim3((unsigned)blocks), warps * 32, shared, err, s);
}

template <uint32_t DTYPE>
static fd_code launch_dtype(const fd_launch_context *ctx, const matvec_args &args, const fd_matvec_form *form,
                            fd_error *err) {
    using Two = fd_lane_format<DTYPE, 2>;
    using Eight = fd_lane_format<DTYPE, 8>;
    if constexpr (DTYPE == FD_F32 || DTYPE == FD_F16 || DTYPE == FD_BF16)
        if (form->bulk)
            return form->rows == 2 ? launch<Two, 2, 2, true>(ctx, args, form, err)
                                   : launch<Two, 2, 1, true>(ctx, args, form, err);
    if (form->partials == 2)
        return form->rows == 2 ? launch<Two, 2, 2, false>(ctx, args, form, err)
                               : launch<Two, 2, 1, false>(ctx, args, form, err);
    return form->rows == 2 ? launch<Eight, 8, 2, false>(ctx, args, form, err)
                           : launch<Eight, 8, 1, false>(ctx, args, form, err);
}

fd_code fd_launch_matvec_ring(const fd_launch_context *ctx, uint32_t dtype, const matvec_args &args,
                              const fd_matvec_form *form, fd_error *err) {
    switch (dtype) {
    case FD_F32: return launch_dtype<FD_F32>(ctx, args, form, err);
    case FD_F16: return launch_dtype<FD_F16>(ctx, args, form, err);
    case FD_BF16: return launch_dtype<FD_BF16>(ctx, args, form, err);
    case FD_Q8_0: return launch_dtype<FD_Q8_0>(ctx, args, form, err);
    case FD_Q4_0: return launch_dtype<FD_Q4_0>(ctx, args, form, err);
    case FD_Q5_0: return launch_dtype<FD_Q5_0>(ctx, args, form, err);
    case FD_Q4_K: return launch_dtype<FD_Q4_K>(ctx, args, form, err);
    case FD_Q6_K: return launch_dtype<FD_Q6_K>(ctx, args, form, err);
    default: return fd_fail(err, FD_ERR_UNSUPPORTED, "weight type %u: no kernel reads it", (unsigned)dtype);
    }
}
