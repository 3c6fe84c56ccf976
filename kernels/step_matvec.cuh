/* MATMULs of the persistent decode step: x to shared memory, then rows against what has streamed in. */
#ifndef FD_KERNELS_STEP_MATVEC_CUH
#define FD_KERNELS_STEP_MATVEC_CUH

#include "kernels/formats.cuh"
#include "kernels/matvec_add.cuh"
#include "kernels/matvec_stage.cuh"
#include "kernels/norm.cuh"
#include "kernels/step_stream.cuh"
#include "kernels/tree.cuh"

/* Norm weights wait in registers while the block waits for x: STEP_MAX_NORM columns at most. */
enum { STEP_NORM_QUADS = STEP_MAX_NORM / 4 / STEP_THREADS };
struct step_norm {
    float4 quad[STEP_NORM_QUADS];
};
__device__ __forceinline__ void step_load_norm(const step_matvec &m, step_norm &norm) {
#pragma unroll
    for (int i = 0; i < STEP_NORM_QUADS; i++) {
        const int quad = (int)threadIdx.x + i * STEP_THREADS;
        if (m.norm_weight && quad * 4 < m.n_col) norm.quad[i] = __ldg((const float4 *)m.norm_weight + quad);
    }
}

/* x, RMS-normed when asked, to shared memory, in the order that eight lanes a row want when `blocks`; n_col is a
 * multiple of 64. Ends with a barrier. */
__device__ __forceinline__ int step_quad_at(int quad, bool blocks) {
    return blocks ? quad_at<8>(quad) : quad;
}
__device__ __forceinline__ void step_stage_x(const step_matvec &m, bool blocks, const step_norm &norm, float *xs) {
    __shared__ float factor;
    float4 *quads = (float4 *)xs;
    const int n_quad = m.n_col / 4;
#pragma unroll 4
    for (int quad = (int)threadIdx.x; quad < n_quad; quad += STEP_THREADS)
        quads[step_quad_at(quad, blocks)] = __ldcg((const float4 *)m.x + quad);
    __syncthreads();
    if (!m.norm_weight) return;
    if (threadIdx.x < 32) {
        const int lane = (int)threadIdx.x;
        const float *pairs = xs + step_quad_at(lane / 2, blocks) * 4 + lane % 2 * 2;
        const float r =
            fd_inverse_rms(m.n_col, m.norm_eps, [&](int group) { return *(const float2 *)(pairs + group * 64); });
        if (lane == 0) factor = r;
    }
    __syncthreads();
    const float r = factor;
#pragma unroll
    for (int i = 0; i < STEP_NORM_QUADS; i++) {
        const int quad = (int)threadIdx.x + i * STEP_THREADS;
        if (quad >= n_quad) break;
        float4 &x = quads[step_quad_at(quad, blocks)];
        const float4 w = norm.quad[i];
        x = make_float4((x.x * r) * w.x, (x.y * r) * w.y, (x.z * r) * w.z, (x.w * r) * w.w);
    }
    __syncthreads();
}

/* Adds the products of `n` units, from unit `unit` of the row on, of the R rows a lane follows. */
template <uint32_t DTYPE, int P, int R>
__device__ __forceinline__ void step_add(const unsigned char *slot, const step_matvec &m, int unit, int n, int lane,
                                         uint32_t magic, const float *xs, float (&acc)[16]) {
    using Format = fd_lane_format<DTYPE, P>;
    constexpr int rows_at_once = P / 2 > 1 ? 4 : 1; /* of the warp: eight lanes a row, or all of them */
    constexpr step_slice slice = step_slice_of(DTYPE, rows_at_once * R);
    constexpr int stride = STEP_SLOT_BYTES / (rows_at_once * R);
    constexpr int unroll = Format::groups * R * P >= 32 ? 1 : Format::groups * R * P >= 8 ? 2 : 4;
    fd_cursor row[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        row[r] = Format::begin(slot + r * rows_at_once * stride, slice.units * slice.unit_bytes, lane);
        row[r].shared += unit * slice.scale_bytes % 16;
    }
#pragma unroll unroll
    for (int u = 0; u < n; u++) {
        typename Format::unit units[R];
#pragma unroll
        for (int r = 0; r < R; r++) units[r] = Format::template load<FD_READ_SHARED>(row[r], u, lane);
#pragma unroll
        for (int g = 0; g < Format::groups; g++) {
            const int group = (unit + u) * Format::groups + g;
            if (Format::groups == 2 && group * 64 >= m.n_col) break;
            lane_x<P> x;
            read_x(xs, group, lane, x);
#pragma unroll
            for (int r = 0; r < R; r++) {
                float w[P];
                Format::decode(units[r], g, lane, magic, w);
#pragma unroll
                for (int i = 0; i < P; i++) acc[r * P + i] = fmaf(w[i], x.value[i], acc[r * P + i]);
            }
        }
    }
}

__device__ __forceinline__ void step_add_slice(uint32_t dtype, const unsigned char *slot, const step_matvec &m,
                                               int unit, int n, int lane, uint32_t magic, const float *xs,
                                               float (&acc)[16]) {
#define STEP_CASE(DTYPE, P, FEW, MANY)                                                                                 \
    case DTYPE:                                                                                                        \
        m.task_rows == (P == 8 ? 4 : 1) ? step_add<DTYPE, P, FEW>(slot, m, unit, n, lane, magic, xs, acc)              \
                                        : step_add<DTYPE, P, MANY>(slot, m, unit, n, lane, magic, xs, acc);            \
        break;
    switch (dtype) {
        STEP_CASE(FD_F32, 2, 1, 4)
        STEP_CASE(FD_F16, 2, 1, 4)
        STEP_CASE(FD_BF16, 2, 1, 4)
        STEP_CASE(FD_Q8_0, 8, 1, 2)
        STEP_CASE(FD_Q4_0, 8, 1, 2)
        STEP_CASE(FD_Q4_K, 8, 1, 2)
        STEP_CASE(FD_Q6_K, 8, 1, 2)
    }
#undef STEP_CASE
}

/* Lane i gets the dot of the task's row i. */
__device__ __forceinline__ float step_dots(bool blocks, int lane, const float (&acc)[16]) {
    if (!blocks) {
        float sum[4];
#pragma unroll
        for (int r = 0; r < 4; r++) sum[r] = fd_tree_lanes<32>(acc[2 * r] + acc[2 * r + 1]);
        return lane == 0 ? sum[0] : lane == 1 ? sum[1] : lane == 2 ? sum[2] : sum[3];
    }
    float sum[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float partials[8];
#pragma unroll
        for (int i = 0; i < 8; i++) partials[i] = acc[8 * r + i];
        sum[r] = fd_tree_lanes<8>(fd_tree(partials));
        sum[r] = __shfl_sync(0xffffffffu, sum[r], lane % 4 * 8);
    }
    return lane < 4 ? sum[0] : sum[1];
}

/* The warp's tasks of one op. */
__device__ __forceinline__ void step_rows(const step_op &op, step_tasks &tasks, step_stream &s,
                                          const unsigned char *slots, const float *xs, int limit) {
    const step_matvec &m = op.matvec;
    const bool blocks = step_has_blocks(op.dtype);
    const int lane = (int)threadIdx.x % 32, row_lane = blocks ? lane % 8 : lane;
    const int n_unit = m.n_unit, slice_units = m.slice_units;
    const uint32_t magic = fd_magic();
    slots += (int)threadIdx.x / 32 * STEP_SLOTS * STEP_SLOT_BYTES +
             (blocks ? lane / 8 * (STEP_SLOT_BYTES >> step_shift(m.task_rows)) : 0);

    for (; tasks.task < tasks.n_task; tasks.task += STEP_WARPS) {
        /* Lane i finishes row i; bias and residual are on their way before the sums are. */
        const int at = tasks.row0 + tasks.task * m.task_rows + lane;
        const bool has_row = lane < m.task_rows && at < tasks.row_end;
        float bias = 0.0f, residual = 0.0f;
        const float *has_bias = nullptr, *has_residual = nullptr;
        float *out = nullptr;
        if (has_row) {
            int part;
            const int own = step_row_of(m, at, &part);
            out = m.part[part].out + own;
            has_bias = m.part[part].bias;
            has_residual = m.part[part].residual;
            if (has_bias) bias = __ldg(has_bias + own);
            if (has_residual) residual = __ldcg(has_residual + own);
        }

        float acc[16] = {};
        for (int unit = 0; unit < n_unit; unit += slice_units) {
            const unsigned slot = s.tail++ % STEP_SLOTS;
            const int left = n_unit - unit, n = left < slice_units ? left : slice_units;
            fd_barrier_wait(s.barriers + slot * 8, s.phases >> slot & 1);
            s.phases ^= 1u << slot;
            step_add_slice(op.dtype, slots + slot * STEP_SLOT_BYTES, m, unit, n, row_lane, magic, xs, acc);
            if (left > slice_units) {
                __syncwarp();
                step_fill(s, limit);
            }
        }

        float dot = step_dots(blocks, lane, acc);
        if (has_bias) dot = dot + bias;
        if (m.pair == 2) {
            const float up = __shfl_down_sync(0xffffffffu, dot, 1);
            if (has_row && lane % 2 == 0) *out = fd_silu32(dot) * up;
        } else if (has_row) {
            *out = has_residual ? residual + dot : dot;
        }
        /* The last slice's slot is filled again only now: others wait for what was just written. */
        __syncwarp();
        step_fill(s, limit);
    }
}

__device__ __forceinline__ void step_matvec_op(const step_op &op, const step_norm &norm, step_tasks &tasks,
                                               step_stream &s, const unsigned char *slots, float *xs, int limit) {
    if (!op.matvec.keep_x) step_stage_x(op.matvec, step_has_blocks(op.dtype), norm, xs);
    step_rows(op, tasks, s, slots, xs, limit);
}

#endif
