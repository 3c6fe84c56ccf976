/* Few rows: several warps share a task, each taking every n-th slice of its eight rows, and leave what the sums are made
 * of in shared memory: a block's a·s (both halves' where it has two) and its minimum. After each round of slices one of
 * them adds the round's to the sums, in order, while the others go on; the warps take turns. */
#ifndef FD_KERNELS_INT8_TEAM_CUH
#define FD_KERNELS_INT8_TEAM_CUH

#include "kernels/int8/finish.cuh"
#include "kernels/int8/rows.cuh"

/* A slice is four blocks of each parity, whatever the type. */
enum { Q8_TEAM_ELEMENTS = 256, Q8_TEAM_STEPS = 4, Q8_CHAINS = 2 * Q8_ROWS };

/* [step][kind][chain] of one slice: kinds are a·s and the minimum, or both halves' a·s; chain 8·parity + row. */
template <uint32_t DTYPE> struct q8_terms {
    using F = q8_format<DTYPE>;
    static constexpr int kinds = F::halves == 2 || F::minimum ? 2 : 1;
    float at[Q8_TEAM_STEPS][kinds][Q8_CHAINS];
};

template <uint32_t DTYPE> constexpr size_t q8_team_bytes(int warps) {
    return (size_t)warps * (2 * sizeof(q8_terms<DTYPE>) + sizeof(float) * Q8_CHAINS);
}

__device__ __forceinline__ void q8_team_sync(int team, int warps) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(warps * 32) : "memory");
}

/* The lane's: of kind t % 2. */
template <uint32_t DTYPE>
__device__ __forceinline__ void q8_leave_slice(const uint8_t *row, int unit, int n, const q8_lane_x &x,
                                               q8_terms<DTYPE> &to) {
    using F = q8_format<DTYPE>;
    using Slice = q8_slice<DTYPE, Q8_TEAM_ELEMENTS>;
    const int lane = (int)threadIdx.x % 32, kind = lane % 2, chain = x.parity * Q8_ROWS + lane / 4;
    const uint8_t *scales = row + Slice::units * F::unit_bytes + unit * F::scale_bytes % 16;
#pragma unroll
    for (int u = 0; u < Slice::units; u++) {
        if (u >= n) break;
        const q8_dots<DTYPE> dots =
            q8_dots_of<DTYPE, FD_READ_SHARED>(row + u * F::unit_bytes, scales + u * F::scale_bytes, unit + u, x);
#pragma unroll
        for (int j = 0; j < F::blocks; j++) {
            float own = fd_q8_times(dots.magic_s[j], F::scale(dots.head, x.parity, j, F::halves == 2 ? kind : 0));
            if (F::minimum) own = kind == 0 ? own : F::min(dots.head, x.parity, j);
            if (q8_terms<DTYPE>::kinds == 2)
                to.at[u * F::blocks + j][kind][chain] = own;
            else if (kind == 0)
                to.at[u * F::blocks + j][0][chain] = own;
        }
    }
}

/* Adds the blocks of slice number `slice` to the sum of chain lane % 16. */
template <uint32_t DTYPE>
__device__ __forceinline__ float q8_add_terms(const q8_terms<DTYPE> &terms, const q8_shared &x, int slice, int n_block,
                                              float acc) {
    using F = q8_format<DTYPE>;
    const int chain = (int)threadIdx.x % Q8_CHAINS, parity = chain / Q8_ROWS;
    const float4 d4 = *(const float4 *)(x.d + parity * x.per_parity + slice * Q8_TEAM_STEPS);
    const float4 sum4 = *(const float4 *)(x.sum + parity * x.per_parity + slice * Q8_TEAM_STEPS);
    const float d[4] = {d4.x, d4.y, d4.z, d4.w}, sum[4] = {sum4.x, sum4.y, sum4.z, sum4.w};
#pragma unroll
    for (int i = 0; i < Q8_TEAM_STEPS; i++) {
        float next = fmaf(terms.at[i][0][chain], d[i], acc);
        if (F::halves == 2) next = fmaf(terms.at[i][1][chain], d[i], next);
        if (F::minimum) next = fd_q8_subtract(next, terms.at[i][1][chain], sum[i]);
        acc = F::blocks == 4 || 2 * (slice * Q8_TEAM_STEPS + i) + parity < n_block ? next : acc;
    }
    return acc;
}

/* Two lanes have read each of the sums. */
__device__ __forceinline__ void leave_sums(float *sums, int lane, float acc) {
    __syncwarp();
    if (lane < Q8_CHAINS) sums[lane] = acc;
}

/* Grid: blocks of as many teams as a.team lets it have, and warps that help to quantise x. */
template <uint32_t DTYPE>
__global__ void __launch_bounds__(FD_MATVEC_WARPS * 32, 1) q8_matvec_team(const __grid_constant__ q8_matvec_args a) {
    using Slice = q8_slice<DTYPE, Q8_TEAM_ELEMENTS>;
    using Terms = q8_terms<DTYPE>;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_team = (int)blockDim.x / 32 / a.team;
    const int team = warp / a.team, member = warp % a.team, n_worker = n_team * a.team;
    unsigned char *shared = (unsigned char *)fd_shared_floats();
    const q8_shared staged = q8_shared_at(shared, a.n_col);
    Terms *all_terms = (Terms *)(shared + q8_shared_bytes(a.n_col, a.norm_weight != nullptr));
    Terms *terms = all_terms + 2 * team * a.team; /* [2][a.team] */
    float *sums = (float *)(all_terms + 2 * n_worker) + team * Q8_CHAINS;
    unsigned char *slots = (unsigned char *)((float *)(all_terms + 2 * n_worker) + n_worker * Q8_CHAINS) +
                           warp * a.n_slot * Slice::bytes;
    const int first_task = team * (int)gridDim.x + (int)blockIdx.x, at_once = n_team * (int)gridDim.x;

    fd_allow_next();
    q8_ring<DTYPE, Q8_TEAM_ELEMENTS> ring;
    if (warp < n_worker) ring.begin(a, slots, first_task, at_once, member);
    q8_eights held;
    if (a.norm_weight) q8_load_eights(a.norm_weight, a.n_col, (int)threadIdx.x, held);
    fd_wait_previous();
    q8_stage({a.x, a.norm_weight, a.norm_eps, a.norm_out, a.n_col}, staged, held, [&] {
        if (warp < n_worker) ring.fill(a);
    });
    if (warp >= n_worker) return;
    const q8_lane_x x = q8_lane_x_of(staged, a.n_col);

    const int n_slice = (a.n_unit + Slice::units - 1) / Slice::units, n_round = (n_slice + a.team - 1) / a.team;
    int slot = 0, turn = 0; /* turn: rounds of all tasks so far */
    for (int task = first_task; task < a.n_task; task += at_once) {
        const bool is_last = (turn + n_round - 1) % a.team == member; /* adds the last round's */
        q8_finish finish;
        finish.begin(a, (int64_t)task * Q8_ROWS + lane, is_last && lane < Q8_ROWS);
        finish.load_residual();
        for (int round = 0; round < n_round; round++, turn++) {
            const int slice = round * a.team + member, unit = slice * Slice::units;
            Terms *buffer = terms + turn % 2 * a.team;
            if (slice < n_slice) {
                fd_copy_async_wait_but(a.n_slot - 1);
                __syncwarp();
                q8_leave_slice<DTYPE>(slots + slot * Slice::bytes + lane / 4 * Slice::row_bytes, unit, a.n_unit - unit, x,
                                      buffer[member]);
                __syncwarp();
                ring.request(a);
                slot = slot + 1 == a.n_slot ? 0 : slot + 1;
            }
            q8_team_sync(team, a.team); /* the buffer's terms are there, and the other one's have been added */
            if (turn % a.team != member) continue;
            float acc = round == 0 ? 0.0f : sums[lane % Q8_CHAINS];
            for (int i = 0; i < a.team && round * a.team + i < n_slice; i++)
                acc = q8_add_terms<DTYPE>(buffer[i], staged, round * a.team + i, x.n_block, acc);
            if (round == n_round - 1) /* partial 0 + partial 1, in lanes 0 to 7 */
                finish.end(a, acc + __shfl_down_sync(0xffffffffu, acc, Q8_ROWS), 1);
            else
                leave_sums(sums, lane, acc);
        }
    }
}

#endif
