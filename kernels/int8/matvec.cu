/* Matrix-vector of q8act: one pass over the weights for one row of activations. Weights come through rings in shared
 * memory (kernels/int8/ring.cuh), a warp follows eight rows (kernels/int8/rows.cuh), or some of their blocks where rows
 * are few (kernels/int8/split_k.cuh); every block quantises x for itself, RMS-normed when asked, while its first
 * weights are on their way. */
#include "kernels/launch.cuh"
#include "kernels/int8/q8.h"
#include "kernels/int8/split_k.cuh"

enum { Q8_WARPS = FD_MATVEC_WARPS };

/* Columns of a stage: about half a kilobyte of each row, so that memory is read in long pieces. */
template <uint32_t DTYPE> constexpr int q8_elements = DTYPE == FD_Q8_0 || DTYPE == FD_Q6_K ? 512 : 1024;

/* N units of a stage from its number `u` on, whose loads overlap; the stage's first is number `unit` of the row. */
template <uint32_t DTYPE, int N>
__device__ __forceinline__ void q8_add_units(const uint8_t *row, int unit, int u, const q8_lane_x &x, float &acc) {
    using F = q8_format<DTYPE>;
    using Stage = q8_ring_stage<DTYPE, q8_elements<DTYPE>>;
    const uint8_t *scales = row + Stage::units * F::unit_bytes + unit * F::scale_bytes % 16;
#pragma unroll
    for (int i = 0; i < N; i++)
        q8_add_unit<DTYPE, FD_READ_SHARED>(row + (u + i) * F::unit_bytes, scales + (u + i) * F::scale_bytes,
                                           unit + u + i, x, acc);
}

/* The first `n` units of a stage; `unit` is its first one's number in the row. */
template <uint32_t DTYPE>
__device__ __forceinline__ void q8_add_stage(const uint8_t *row, int unit, int n, const q8_lane_x &x, float &acc) {
    int u = 0;
#pragma unroll 1
    for (; u + 4 <= n; u += 4) q8_add_units<DTYPE, 4>(row, unit, u, x, acc);
    if (n & 2) q8_add_units<DTYPE, 2>(row, unit, u, x, acc), u += 2;
    if (n & 1) q8_add_units<DTYPE, 1>(row, unit, u, x, acc);
}

/* Tasks go to the warps of the grid in turn, block by block, then warp by warp: all multiprocessors read near each
 * other in memory, and none has more than one task more than another. */
template <uint32_t DTYPE>
__global__ void __launch_bounds__(Q8_WARPS * 32, 1) q8_matvec(const __grid_constant__ q8_matvec_args a) {
    using Stage = q8_ring_stage<DTYPE, q8_elements<DTYPE>>;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    unsigned char *shared = (unsigned char *)fd_shared_floats();
    const q8_shared staged = q8_shared_at(shared, a.n_col);
    unsigned char *stages =
        shared + q8_shared_bytes(a.n_col, a.norm_weight != nullptr) + warp * a.n_stage * Stage::bytes;
    const int first_task = warp * (int)gridDim.x + (int)blockIdx.x, at_once = (int)(blockDim.x / 32 * gridDim.x);

    fd_pdl_launch_dependents();
    q8_ring<DTYPE, q8_elements<DTYPE>> ring;
    ring.begin(a, stages, first_task, at_once, 0);
    q8_eights held;
    if (a.norm_weight) q8_load_eights(a.norm_weight, a.n_col, (int)threadIdx.x, held);
    row_finish finish;
    finish.begin(a, (int64_t)first_task * Q8_ROWS + lane / 4, lane % 4 == 0);
    fd_send_begin(a.send);
    fd_pdl_wait();
    q8_stage({a.x, a.norm_weight, a.norm_eps, a.norm_out, a.n_col}, staged, held, [&] { ring.fill(a); });
    const q8_lane_x x = q8_lane_x_of(staged, a.n_col);

    const unsigned char *own = stages + lane / 4 * Stage::row_bytes;
    int stage = 0;
    for (int task = first_task; task < a.n_task; task += at_once) {
        if (task != first_task) finish.begin(a, (int64_t)task * Q8_ROWS + lane / 4, lane % 4 == 0);
        finish.load_residual();
        float acc = 0.0f;
        for (int unit = 0; unit < a.n_unit; unit += Stage::units) {
            fd_cp_async_wait_group(a.n_stage - 1);
            __syncwarp();
            const unsigned char *weights = own + stage * Stage::bytes;
            const int left = a.n_unit - unit;
            q8_add_stage<DTYPE>(weights, unit, left < Stage::units ? left : Stage::units, x, acc);
            __syncwarp();
            ring.request(a);
            stage = stage + 1 == a.n_stage ? 0 : stage + 1;
        }
        finish.end(a, q8_dot(acc), lane / 4 % 2 == 0, 4);
    }
}

/* ---- launching ---- */

template <uint32_t DTYPE>
static size_t shared_bytes(const q8_matvec_args &a, const fd_q8_form &form, int64_t of_block) {
    const size_t x = q8_shared_bytes(a.n_col, a.norm_weight != nullptr);
    if (form.split_k > 1) {
        const int workers = form.warps / form.split_k * form.split_k;
        return x + q8_split_bytes<DTYPE>(workers) +
               (size_t)(workers * form.stages) * q8_ring_stage<DTYPE, Q8_SPLIT_ELEMENTS>::bytes;
    }
    const size_t rings = (size_t)(of_block < form.warps ? of_block : form.warps); /* other warps have nothing to copy */
    return x + rings * (size_t)form.stages * q8_ring_stage<DTYPE, q8_elements<DTYPE>>::bytes;
}

/* As measured (docs/performance-diary.md). A block's only task is shared by all of its warps, where its rows are long.
 * Else as many warps as give each the same number of tasks, one more or less, and all of them where a round is enough:
 * they quantise x together. Rings as deep as fits, but where a block has tasks enough to keep memory busy with two
 * stages a warp: x waits for what is requested before it. */
template <uint32_t DTYPE> static fd_q8_form choose(const fd_launch_context *ctx, const q8_matvec_args &a) {
    const int64_t of_block = (a.n_task + ctx->n_sm - 1) / ctx->n_sm, rounds = (of_block + Q8_WARPS - 1) / Q8_WARPS;
    const int64_t chunks = (a.n_col + Q8_SPLIT_ELEMENTS - 1) / Q8_SPLIT_ELEMENTS;
    fd_q8_form form = {Q8_WARPS, 1, Q8_STAGES, 1};
    if (of_block == 1 && chunks >= Q8_WARPS / 2) form.split_k = chunks < Q8_WARPS ? (int32_t)chunks : (int32_t)Q8_WARPS;
    if ((DTYPE == FD_Q4_K && of_block >= 5) || (DTYPE == FD_Q8_0 && of_block >= 8)) form.stages = 2;
    if (rounds > 1) form.warps = (int32_t)((of_block + rounds - 1) / rounds);
    while (form.stages > 2 && shared_bytes<DTYPE>(a, form, of_block) > ctx->max_shared) form.stages--;
    while (form.warps > 1 && shared_bytes<DTYPE>(a, form, of_block) > ctx->max_shared) {
        form.warps--;
        if (form.split_k > form.warps) form.split_k = form.warps;
    }
    return form;
}

/* As measured (bench/matvec_gpu TYPE beside), by rows a multiprocessor and columns. Below 2048 columns quantising x
 * takes longer than int8 saves. Beyond that Q4_K, whose scales and minima cost exact most, gains everywhere; Q8_0 where
 * exact's rows go through rings; Q6_K and Q5_0 where they are long or many. */
bool fd_q8_matvec_is_faster(const fd_launch_context *ctx, uint32_t dtype, int64_t n_row, int64_t n_col) {
    enum { FEW = 12, SOME = 50, MANY = 80, MEDIUM = 2048, LONG = 4096 };
    const int64_t rows = n_row / ctx->n_sm;
    if (n_col < MEDIUM) return false;
    switch (dtype) {
    case FD_Q4_K: return true;
    case FD_Q8_0: return rows >= FEW && rows < SOME;
    case FD_Q5_0: return rows >= (n_col >= LONG ? FEW : MANY);
    case FD_Q6_K: return rows >= FEW && n_col >= LONG;
    default: return false;
    }
}

template <uint32_t DTYPE>
static fd_code launch(const fd_launch_context *ctx, q8_matvec_args a, const fd_q8_form *wanted, fd_error *err) {
    a.n_task = (int)((a.n_row + Q8_ROWS - 1) / Q8_ROWS);
    a.n_unit = (a.n_col / 32 + 2 * q8_format<DTYPE>::blocks - 1) / (2 * q8_format<DTYPE>::blocks);
    const fd_q8_form form = wanted ? *wanted : choose<DTYPE>(ctx, a);
    const int64_t most = (int64_t)ctx->n_sm * form.blocks, blocks = a.n_task < most ? a.n_task : most;
    a.n_stage = form.stages;
    a.split_k = form.split_k;
    const size_t shared = fd_shared_of_one_each(ctx, form.blocks == 1 && blocks == ctx->n_sm,
                                                shared_bytes<DTYPE>(a, form, (a.n_task + blocks - 1) / blocks));
    return fd_launch(ctx, "q8_matvec", form.split_k > 1 ? q8_matvec_split_k<DTYPE> : q8_matvec<DTYPE>,
                     dim3((unsigned)blocks), form.warps * 32, shared, err, a);
}

static fd_code check(const fd_matvec *in, const fd_q8_form *form, fd_error *err) {
    const fd_device_matrix *first = &in->part[0].weight;
    if (in->n_part < 1 || in->n_part > FD_MATVEC_PARTS || in->n_tok != 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matvec: %d parts, %d rows, expected one row", in->n_part,
                       in->n_tok);
    const int64_t chunks = (first->n_col + Q8_SPLIT_ELEMENTS - 1) / Q8_SPLIT_ELEMENTS;
    if (form &&
        (form->warps < 1 || form->warps > Q8_WARPS || form->blocks < 1 || form->stages < 2 ||
         form->stages > Q8_STAGES || form->split_k < 1 || form->split_k > form->warps || form->split_k > chunks))
        return fd_fail(err, FD_ERR_INPUT,
                       "kernel q8_matvec: no form of %d warps in groups of %d, %d blocks, %d stages for %lld columns",
                       form->warps, form->split_k, form->blocks, form->stages, (long long)first->n_col);
    if (in->silu_pair && (in->n_part != 2 || first->n_row != in->part[1].weight.n_row))
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matvec: silu takes two parts of equal rows");
    for (int i = 0; i < in->n_part; i++) {
        const fd_device_matrix *w = &in->part[i].weight;
        if (!fd_q8_can(w->dtype) || w->dtype != first->dtype || w->n_col != first->n_col || w->n_row < 1 ||
            w->n_row > (1 << 29) || w->n_col < 1 || w->n_col % 32 != 0 || w->n_col > (1 << 24))
            return fd_fail(err, FD_ERR_INPUT,
                           "kernel q8_matvec: part %d is [%lld, %lld] of type %u, part 0 has %lld columns of type %u",
                           i, (long long)w->n_row, (long long)w->n_col, (unsigned)w->dtype, (long long)first->n_col,
                           (unsigned)first->dtype);
    }
    return FD_OK;
}

fd_code fd_launch_q8_matvec(const fd_launch_context *ctx, const fd_matvec *in, const fd_q8_form *form, fd_error *err) {
    FD_TRY(check(in, form, err));
    q8_matvec_args args = {};
    static_cast<matvec_args &>(args) = matvec_args_of(in);
    return q8_with_type(in->part[0].weight.dtype, err,
                        [&](auto type) { return launch<decltype(type)::value>(ctx, args, form, err); });
}
