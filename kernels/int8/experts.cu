/* EXPERT_MATMUL of q8act: the rows that each position's chosen experts have, times its activations. A block quantises
 * the row of x for itself; a warp follows eight rows of weights (kernels/int8/rows.cuh), read straight from device
 * memory. */
#include "kernels/matvec/expert_matmul.cuh"
#include "kernels/launch.cuh"
#include "kernels/int8/q8.h"
#include "kernels/int8/rows.cuh"

enum { EXPERT_WARPS = 8, EXPERT_ROWS = EXPERT_WARPS * 8 }; /* of a block */

/* Grid: rows of the expert's matrix × (row, rank). */
template <uint32_t DTYPE>
__global__ void __launch_bounds__(EXPERT_WARPS * 32) q8_expert_matmul(const __grid_constant__ fd_expert_matmul a) {
    using F = q8_format<DTYPE>;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t item = blockIdx.y, n_col = a.weight.n_col;
    const q8_input in = {a.x + (a.x_each ? item : item / a.k) * n_col, nullptr, 0.0f, nullptr, (int)n_col};
    const q8_shared staged = q8_shared_at(fd_shared_floats(), in.n_col);
    q8_eights unused;
    q8_stage(in, staged, unused, [] {});
    const q8_lane_x x = q8_lane_x_of(staged, in.n_col);

    const int64_t wanted = (int64_t)blockIdx.x * EXPERT_ROWS + threadIdx.x / 4;
    const int64_t o = wanted < a.n_out ? wanted : a.n_out - 1; /* lanes past the last row read it again */
    const int64_t expert = fd_expert_of_item(a, item);
    const uint8_t *row =
        (const uint8_t *)a.weight.data + ((expert < 0 ? 0 : expert) * a.n_out + o) * a.weight.row_bytes;
    const uint8_t *scales = row + a.weight.scale_offset;
    const int n_unit = (x.n_block + 2 * F::blocks - 1) / (2 * F::blocks);
    float acc = 0.0f;
#pragma unroll 4
    for (int at = 0; at < n_unit; at++)
        q8_add_unit<DTYPE, FD_READ_ONCE>(row + at * F::unit_bytes, scales + at * F::scale_bytes, at, x, acc);
    float y = q8_dot(acc);
    if (threadIdx.x % 4 != 0 || wanted >= a.n_out) return;
    if (a.bias && expert >= 0) y = y + a.bias[expert * a.n_out + o];
    a.out[item * a.n_out + o] = expert < 0 ? fd_from_bits32(0x7fc00000u) : y;
}

fd_code fd_launch_q8_expert_matmul(const fd_launch_context *ctx, const fd_expert_matmul *in, fd_error *err) {
    FD_TRY(fd_expert_matmul_check(in, err));
    if (in->weight.n_col < 32 || in->weight.n_col % 32 != 0 || in->weight.n_col > (1 << 24))
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_expert_matmul: %lld columns, expected a multiple of 32",
                       (long long)in->weight.n_col);
    const size_t shared = q8_shared_bytes((int)in->weight.n_col, false);
    return q8_with_type(in->weight.dtype, err, [&](auto type) {
        return fd_expert_matmul_parts(in, [&](const fd_expert_matmul &part, unsigned n_item) {
            const dim3 grid(fd_blocks(in->n_out, EXPERT_ROWS), n_item);
            return fd_launch(ctx, "q8_expert_matmul", q8_expert_matmul<decltype(type)::value>, grid, EXPERT_WARPS * 32,
                             shared, err, part);
        });
    });
}
