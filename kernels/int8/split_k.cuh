/* Split-K over warps, for few rows: a.split_k warps, a group, share a task, each taking every n-th chunk of its eight
 * rows. They store what the sums are made of in shared memory: a block's a·s (both halves' where it has two) and its
 * minimum. After each round of chunks one of them adds the round's terms to the sums, in order, while the others go on;
 * the warps of a group take this in turn. */
#ifndef FD_KERNELS_INT8_TEAM_CUH
#define FD_KERNELS_INT8_TEAM_CUH

#include "kernels/int8/ring.cuh"
#include "kernels/int8/rows.cuh"
#include "kernels/matvec/finish.cuh"

/* A chunk is four blocks of each parity, whatever the type. */
enum { Q8_SPLIT_ELEMENTS = 256, Q8_SPLIT_STEPS = 4, Q8_CHAINS = 2 * Q8_ROWS };

/* [step][kind][chain] of one chunk: kinds are a·s and the minimum, or both halves' a·s; chain 8·parity + row. */
template <uint32_t DTYPE> struct q8_terms {
    using F = q8_format<DTYPE>;
    static constexpr int kinds = F::halves == 2 || F::minimum ? 2 : 1;
    float at[Q8_SPLIT_STEPS][kinds][Q8_CHAINS];
};

template <uint32_t DTYPE> constexpr size_t q8_split_bytes(int warps) {
    return (size_t)warps * (2 * sizeof(q8_terms<DTYPE>) + sizeof(float) * Q8_CHAINS);
}

/* Stores the lane's terms of a chunk, those of kind t % 2. */
template <uint32_t DTYPE>
__device__ __forceinline__ void q8_store_terms(const uint8_t *row, int unit, int n, const q8_lane_x &x,
                                               q8_terms<DTYPE> &to) {
    using F = q8_format<DTYPE>;
    using Stage = q8_ring_stage<DTYPE, Q8_SPLIT_ELEMENTS>;
    const int lane = (int)threadIdx.x % 32, kind = lane % 2, chain = x.parity * Q8_ROWS + lane / 4;
    const uint8_t *scales = row + Stage::units * F::unit_bytes + unit * F::scale_bytes % 16;
#pragma unroll
    for (int u = 0; u < Stage::units; u++) {
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

/* Adds the blocks of chunk number `chunk` to the sum of chain lane % 16. */
template <uint32_t DTYPE>
__device__ __forceinline__ float q8_add_terms(const q8_terms<DTYPE> &terms, const q8_shared &x, int chunk, int n_block,
                                              float acc) {
    using F = q8_format<DTYPE>;
    const int chain = (int)threadIdx.x % Q8_CHAINS, parity = chain / Q8_ROWS;
    const float4 d4 = *(const float4 *)(x.d + parity * x.per_parity + chunk * Q8_SPLIT_STEPS);
    const float4 sum4 = *(const float4 *)(x.sum + parity * x.per_parity + chunk * Q8_SPLIT_STEPS);
    const float d[4] = {d4.x, d4.y, d4.z, d4.w}, sum[4] = {sum4.x, sum4.y, sum4.z, sum4.w};
#pragma unroll
    for (int i = 0; i < Q8_SPLIT_STEPS; i++) {
        float next = fmaf(terms.at[i][0][chain], d[i], acc);
        if (F::halves == 2) next = fmaf(terms.at[i][1][chain], d[i], next);
        if (F::minimum) next = fd_q8_subtract(next, terms.at[i][1][chain], sum[i]);
        acc = F::blocks == 4 || 2 * (chunk * Q8_SPLIT_STEPS + i) + parity < n_block ? next : acc;
    }
    return acc;
}

/* Two lanes have read each of the sums. */
__device__ __forceinline__ void store_sums(float *sums, int lane, float acc) {
    __syncwarp();
    if (lane < Q8_CHAINS) sums[lane] = acc;
}

/* Grid: blocks of as many groups as a.split_k allows; the other warps help to quantise x.
 *
 *   W ── cp.async ── each warp's ring ──┐
 *   x ── q8_stage: int8 blocks ─────────┴─ q8_store_terms: a·s of the warp's chunk ── terms[2][split_k], shared
 *                                              round by round, one warp: q8_add_terms ── sums, shared ── finish ──
 * out */
template <uint32_t DTYPE>
__global__ void __launch_bounds__(FD_MATVEC_WARPS * 32, 1) q8_matvec_split_k(const __grid_constant__ q8_matvec_args a) {
    using Stage = q8_ring_stage<DTYPE, Q8_SPLIT_ELEMENTS>;
    using Terms = q8_terms<DTYPE>;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_group = (int)blockDim.x / 32 / a.split_k;
    const int group = warp / a.split_k, member = warp % a.split_k, n_worker = n_group * a.split_k;
    unsigned char *shared = (unsigned char *)fd_shared_floats();
    const q8_shared staged = q8_shared_at(shared, a.n_col);
    Terms *all_terms = (Terms *)(shared + q8_shared_bytes(a.n_col, a.norm_weight != nullptr));
    Terms *terms = all_terms + 2 * group * a.split_k; /* [2][a.split_k] */
    float *sums = (float *)(all_terms + 2 * n_worker) + group * Q8_CHAINS;
    unsigned char *stages =
        (unsigned char *)((float *)(all_terms + 2 * n_worker) + n_worker * Q8_CHAINS) + warp * a.n_stage * Stage::bytes;
    const int first_task = group * (int)gridDim.x + (int)blockIdx.x, at_once = n_group * (int)gridDim.x;

    fd_pdl_launch_dependents();
    q8_ring<DTYPE, Q8_SPLIT_ELEMENTS> ring;
    if (warp < n_worker) ring.begin(a, stages, first_task, at_once, member);
    q8_eights held;
    if (a.norm_weight) q8_load_eights(a.norm_weight, a.n_col, (int)threadIdx.x, held);
    fd_send_begin(a.send);
    fd_pdl_wait();
    q8_stage({a.x, a.norm_weight, a.norm_eps, a.norm_out, a.n_col}, staged, held, [&] {
        if (warp < n_worker) ring.fill(a);
    });
    if (warp >= n_worker) return;
    const q8_lane_x x = q8_lane_x_of(staged, a.n_col);

    const int n_chunk = (a.n_unit + Stage::units - 1) / Stage::units, n_round = (n_chunk + a.split_k - 1) / a.split_k;
    int stage = 0, rounds = 0; /* of all tasks so far */
    for (int task = first_task; task < a.n_task; task += at_once) {
        const bool is_last = (rounds + n_round - 1) % a.split_k == member; /* adds the last round's */
        row_finish finish;
        finish.begin(a, (int64_t)task * Q8_ROWS + lane, is_last && lane < Q8_ROWS);
        finish.load_residual();
        for (int round = 0; round < n_round; round++, rounds++) {
            const int chunk = round * a.split_k + member, unit = chunk * Stage::units;
            Terms *buffer = terms + rounds % 2 * a.split_k;
            if (chunk < n_chunk) {
                fd_cp_async_wait_group(a.n_stage - 1);
                __syncwarp();
                q8_store_terms<DTYPE>(stages + stage * Stage::bytes + lane / 4 * Stage::row_bytes, unit,
                                      a.n_unit - unit, x, buffer[member]);
                __syncwarp();
                ring.request(a);
                stage = stage + 1 == a.n_stage ? 0 : stage + 1;
            }
            /* The buffer's terms are there, and the other buffer's have been added. */
            fd_bar_sync(group + 1, a.split_k * 32);
            if (rounds % a.split_k != member) continue;
            float acc = round == 0 ? 0.0f : sums[lane % Q8_CHAINS];
            for (int i = 0; i < a.split_k && round * a.split_k + i < n_chunk; i++)
                acc = q8_add_terms<DTYPE>(buffer[i], staged, round * a.split_k + i, x.n_block, acc);
            if (round == n_round - 1) /* partial 0 + partial 1, in lanes 0 to 7 */
                finish.end(a, acc + __shfl_down_sync(0xffffffffu, acc, Q8_ROWS), lane % 2 == 0, 1);
            else
                store_sums(sums, lane, acc);
        }
    }
}

#endif
