/* Matrix-vector of q8act: one pass over the weights for one row of activations. Weights come through rings in shared
 * memory (kernels/matvec_ring.cuh), a warp follows eight rows (kernels/q8_rows.cuh); every block quantises x for itself,
 * RMS-normed when asked, while its first weights are on their way. */
#include "kernels/launch.cuh"
#include "kernels/matvec_ring.cuh"
#include "kernels/q8.h"
#include "kernels/q8_rows.cuh"

enum { Q8_ROWS = 8, Q8_WARPS = FD_MATVEC_WARPS };

/* The rings' slices: two rows a lane for the eight lanes that copy them. */
template <uint32_t DTYPE> using q8_slice = ring_slice<fd_lane_format<DTYPE, 8>, 8, 2>;

/* Of a slice's `n` units, those of the row from `unit` on. */
template <uint32_t DTYPE, bool WHOLE>
__device__ __forceinline__ void q8_add_slice(const uint8_t *row, int unit, int n, const q8_lane_x &x, float &acc) {
    using F = q8_format<DTYPE>;
    using Slice = q8_slice<DTYPE>;
    const uint8_t *scales = row + Slice::units * F::unit_bytes + unit * F::scale_bytes % 16;
    constexpr int unroll = WHOLE ? Slice::units : 1;
#pragma unroll unroll
    for (int u = 0; u < (WHOLE ? Slice::units : n); u++)
        q8_add_unit<DTYPE, FD_READ_SHARED>(row + u * F::unit_bytes, scales + u * F::scale_bytes, unit + u, x, acc);
}

template <uint32_t DTYPE>
__global__ void __launch_bounds__(RING_THREADS, 1) q8_matvec(const __grid_constant__ matvec_ring_args s) {
    using F = q8_format<DTYPE>;
    using Slice = q8_slice<DTYPE>;
    static_assert(Slice::rows == Q8_ROWS && Slice::unit_bytes == F::unit_bytes && Slice::scale_bytes == F::scale_bytes,
                  "the rings bring what is read");
    const matvec_args &a = s.matvec;
    const q8_input in = {a.x, a.norm_weight, a.norm_eps, a.norm_out, a.n_col};
    unsigned char *shared = (unsigned char *)fd_shared_floats();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, t = lane % 4;
    const q8_shared staged = q8_shared_at(shared, a.n_col);
    unsigned char *slots = shared + q8_shared_bytes(a.n_col, a.norm_weight != nullptr) + warp * s.n_slot * Slice::bytes;

    fd_allow_next();
    matvec_ring<fd_lane_format<DTYPE, 8>, 8, 2> ring;
    ring.begin(s, slots);
    q8_eights held;
    if (a.norm_weight) q8_load_eights(a.norm_weight, a.n_col, (int)threadIdx.x, held);
    fd_wait_previous();
    q8_stage(in, staged, held);
    const q8_lane_x x = q8_lane_x_of(staged, a.n_col);

    const unsigned char *own = slots + lane / 4 * Slice::row_bytes;
    int slot = 0;
    for (int task = first_task(); task < s.n_task; task += task_step()) {
        /* A row's first lane finishes it; what it adds is on its way before the sum is there. */
        const int64_t at = (int64_t)task * Q8_ROWS + lane / 4;
        const bool finishes = t == 0 && at < a.n_row;
        bool adds_bias = false, adds_residual = false;
        float bias = 0.0f, residual = 0.0f, *out = nullptr, *product = nullptr;
        if (finishes) {
            int index;
            const int64_t own_row = row_of(a, at, &index);
            const matvec_part &part = part_of(a, index);
            out = part.out + own_row;
            if (part.product) product = part.product + own_row;
            adds_bias = part.bias, adds_residual = part.residual;
            if (adds_bias) bias = __ldg(part.bias + own_row);
            if (adds_residual) residual = __ldcg(part.residual + own_row);
        }

        float acc = 0.0f;
        for (int unit = 0; unit < s.n_unit; unit += Slice::units) {
            fd_copy_async_wait_but(s.n_slot - 1);
            __syncwarp();
            const unsigned char *slice = own + slot * Slice::bytes;
            if (unit + Slice::units <= s.n_unit)
                q8_add_slice<DTYPE, true>(slice, unit, Slice::units, x, acc);
            else
                q8_add_slice<DTYPE, false>(slice, unit, s.n_unit - unit, x, acc);
            __syncwarp();
            ring.request(s);
            slot = slot + 1 == s.n_slot ? 0 : slot + 1;
        }

        float y = q8_dot(acc);
        if (adds_bias) y = y + bias;
        if (product) *product = y;
        if (a.silu_pair) {
            const float up = __shfl_down_sync(0xffffffffu, y, 4); /* row 2i + 1 is that of the lanes beside it */
            if (finishes && at % 2 == 0) *out = fd_silu32(y) * up;
        } else if (finishes) {
            *out = adds_residual ? residual + y : y;
        }
    }
}

/* ---- launching ---- */

/* As many warps as give each the same number of tasks, one more or less; a block of few tasks has more than it needs for
 * them, which quantise x. Rings as deep as fits: few warps, which is few rows, want the more bytes on their way each. */
static fd_q8_form choose(const fd_queue *queue, int64_t n_task, size_t slot, size_t x) {
    const int64_t of_block = (n_task + queue->n_sm - 1) / queue->n_sm, rounds = (of_block + Q8_WARPS - 1) / Q8_WARPS;
    fd_q8_form form = {rounds > 1 ? (int32_t)((of_block + rounds - 1) / rounds) : Q8_WARPS, 1, 4};
    const size_t rings = (size_t)(of_block < form.warps ? of_block : form.warps);
    while (form.slots > 2 && rings * (size_t)form.slots * slot + x > queue->max_shared) form.slots--;
    while (form.warps > 1 && (size_t)(of_block < form.warps ? of_block : form.warps) * (size_t)form.slots * slot + x >
                                 queue->max_shared)
        form.warps--;
    return form;
}

template <uint32_t DTYPE>
static fd_code launch(const fd_queue *queue, const matvec_args &args, const fd_q8_form *wanted, fd_error *err) {
    const int64_t n_task = (args.n_row + Q8_ROWS - 1) / Q8_ROWS;
    const size_t slot = q8_slice<DTYPE>::bytes, x = q8_shared_bytes(args.n_col, args.norm_weight != nullptr);
    const fd_q8_form form = wanted ? *wanted : choose(queue, n_task, slot, x);
    const int64_t most = (int64_t)queue->n_sm * form.blocks, blocks = n_task < most ? n_task : most;
    const int64_t of_block = (n_task + blocks - 1) / blocks;
    const size_t rings = (size_t)(of_block < form.warps ? of_block : form.warps);
    matvec_ring_args s = {args, (int32_t)n_task, 0, form.slots};
    s.n_unit = (int32_t)((args.n_col / 32 + 2 * q8_format<DTYPE>::blocks - 1) / (2 * q8_format<DTYPE>::blocks));
    size_t shared = rings * (size_t)form.slots * slot + x;
    /* A block a multiprocessor: it asks for more than half of the shared memory, or where the kernel before leaves room
     * unevenly several blocks would share one multiprocessor while another has none. */
    const size_t half = queue->max_shared / 2 + 1024;
    if (form.blocks == 1 && blocks == queue->n_sm && shared < half) shared = half;
    return fd_launch(queue, "q8_matvec", q8_matvec<DTYPE>, dim3((unsigned)blocks), form.warps * 32, shared, err, s);
}

static fd_code check(const fd_matvec *in, const fd_q8_form *form, fd_error *err) {
    const fd_device_matrix *first = &in->part[0].weight;
    if (in->n_part < 1 || in->n_part > FD_MATVEC_PARTS || in->n_tok != 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matvec: %d parts, %d rows, expected one row", in->n_part,
                       in->n_tok);
    if (form && (form->warps < 1 || form->warps > Q8_WARPS || form->blocks < 1 || form->slots < 2 || form->slots > 4))
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_matvec: no form of %d warps, %d blocks, %d slots", form->warps,
                       form->blocks, form->slots);
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

fd_code fd_launch_q8_matvec(const fd_queue *queue, const fd_matvec *in, const fd_q8_form *form, fd_error *err) {
    FD_TRY(check(in, form, err));
    const fd_device_matrix *first = &in->part[0].weight;
    matvec_args args = {};
    args.n_col = (int)first->n_col;
    args.row_bytes = first->row_bytes;
    args.scale_offset = first->scale_offset;
    args.x = in->x;
    args.norm_weight = in->norm_weight;
    args.norm_eps = in->norm_eps;
    args.norm_out = in->norm_out;
    args.silu_pair = in->silu_pair;
    for (int i = 0; i < in->n_part; i++) {
        const fd_matvec_part *part = &in->part[i];
        args.part[i] = {(const uint8_t *)part->weight.data, part->bias,    part->residual,
                        part->out,                         part->product, part->weight.n_row};
        args.n_row += part->weight.n_row;
    }
    return q8_with_type(first->dtype, err,
                        [&](auto type) { return launch<decltype(type)::value>(queue, args, form, err); });
}
