/* A warp's ring of stages of weights in shared memory, of eight rows side by side.
 *
 * As in kernels/matvec/ring.cuh a warp's lanes copy for themselves (cp.async, 16 bytes each) and meet at __syncwarp.
 * The first stage is requested before the previous kernel has ended, the others after x, which would otherwise wait for
 * them. Warps may share a task (split-K), each taking every n-th stage of its rows. */
#ifndef FD_KERNELS_INT8_RING_CUH
#define FD_KERNELS_INT8_RING_CUH

#include "kernels/matvec/stage.cuh"
#include "kernels/int8/formats.cuh"

enum { Q8_ROWS = 8, Q8_STAGES = 4 /* of a warp, at most */ };

struct q8_matvec_args : matvec_args {
    int n_task, n_unit, n_stage;
    int split_k; /* warps that share a task */
};

/* ELEMENTS of each row: whole units, then the part of the plane of scales that has theirs, in windows of 16 bytes. */
template <uint32_t DTYPE, int ELEMENTS> struct q8_ring_stage {
    using F = q8_format<DTYPE>;
    static constexpr int units = ELEMENTS / (64 * F::blocks);
    static constexpr int window = (units * F::scale_bytes + 15) / 16 * 16;
    static constexpr int row_bytes = units * F::unit_bytes + window, bytes = row_bytes * Q8_ROWS;
    static constexpr int copies = (units * F::unit_bytes + 127) / 128; /* a lane makes, a row */
    static_assert(units * F::scale_bytes % 16 == 0 || units * F::scale_bytes < 16, "scales do not straddle windows");
};

template <uint32_t DTYPE, int ELEMENTS> struct q8_ring {
    using F = q8_format<DTYPE>;
    using Stage = q8_ring_stage<DTYPE, ELEMENTS>;
    static constexpr int R = 2; /* rows that eight lanes copy */
    uint32_t stages;            /* shared address: the lane's 16 bytes of its first row in stage 0 */
    int stage;                  /* to be filled next */
    int task, task_step;        /* of the next stage */
    int unit, first_unit, step; /* likewise; units from one stage of the warp's to the next */
    const uint8_t *row[R];      /* of the task */
    uint64_t policy;

    __device__ __forceinline__ void begin(const q8_matvec_args &a, const unsigned char *memory, int first_task,
                                          int tasks_at_once, int member) {
        const int lane = (int)threadIdx.x % 32;
        stages = fd_shared_address(memory) + (uint32_t)(lane / 8 * R * Stage::row_bytes + lane % 8 * 16);
        stage = 0;
        task = first_task, task_step = tasks_at_once;
        unit = first_unit = member * Stage::units, step = a.split_k * Stage::units;
        policy = fd_policy_evict_first();
        request(a);
    }
    __device__ __forceinline__ void fill(const q8_matvec_args &a) {
        for (int i = 1; i < a.n_stage; i++) request(a);
    }

    /* Fills the next stage, or nothing when no weights are left; in any case a group of copies. */
    __device__ __forceinline__ void request(const q8_matvec_args &a) {
        if (task < a.n_task) {
            const int lane = (int)threadIdx.x % 32, own = lane % 8 * 16;
            if (unit == first_unit) {
#pragma unroll
                for (int r = 0; r < R; r++) row[r] = row_data(a, (int64_t)task * Q8_ROWS + lane / 8 * R + r) + own;
            }
            const int left = a.n_unit - unit, n = left < Stage::units ? left : Stage::units;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const uint32_t to = stages + (uint32_t)(stage * Stage::bytes + r * Stage::row_bytes);
                const uint8_t *from = row[r] + unit * F::unit_bytes;
#pragma unroll
                for (int i = 0; i < Stage::copies; i++)
                    if (own + i * 128 < n * F::unit_bytes)
                        fd_cp_async16_hinted(to + (uint32_t)(i * 128), from + i * 128, policy);
                if (F::scale_bytes > 0) {
                    const int begin = unit * F::scale_bytes & ~15, end = (unit + n) * F::scale_bytes;
                    if (own < end - begin)
                        fd_cp_async16_hinted(to + (uint32_t)(Stage::units * F::unit_bytes),
                                             row[r] + a.scale_offset + begin, policy);
                }
            }
            unit += step;
            if (unit >= a.n_unit) unit = first_unit, task += task_step;
        }
        fd_cp_async_commit_group();
        stage = stage + 1 == a.n_stage ? 0 : stage + 1;
    }
};

#endif
