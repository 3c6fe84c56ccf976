/* A warp's ring that bulk copies fill (cp.async.bulk; sm_90): one lane requests each row of a stage, and the stage's
 * mbarrier completes when all have come. The lanes' own loads do not wait for the requests, as they do with cp.async,
 * and a stage costs next to no instructions. For types without a plane of scales: there a stage of a row would be two
 * short copies, and the lanes are faster. */
#ifndef FD_KERNELS_MATVEC_RING_BULK_CUH
#define FD_KERNELS_MATVEC_RING_BULK_CUH

#include "kernels/matvec/ring.cuh"
#include "kernels/pipeline.cuh"

enum { BULK_STAGES = 4, BULK_BARRIERS = FD_MATVEC_WARPS * BULK_STAGES };

/* As matvec_ring is used; `request` is called by whole warps. */
template <class Format, int P, int R> struct matvec_ring_bulk {
    using Stage = ring_stage<Format, P, R>;
    static_assert(Stage::scale_bytes == 0, "a row's stage is one piece");
    uint32_t stages, barriers; /* shared addresses: of lane r's row in stage 0; of the warp's barriers, one a stage */
    int stage;                 /* to be filled next */
    int task, unit;            /* the next stage */
    ring_tasks tasks;
    const uint8_t *row; /* lane r's */
    uint64_t policy;

    __device__ __forceinline__ void begin(const matvec_ring_args &a, const unsigned char *warp_stages) {
        __shared__ __align__(8) uint64_t of_block[BULK_BARRIERS];
        const int lane = (int)threadIdx.x % 32;
        barriers = fd_shared_address(of_block + threadIdx.x / 32 * BULK_STAGES);
        if (lane < a.n_stage) fd_mbarrier_init(barriers + (uint32_t)lane * 8, Stage::rows);
        __syncwarp();
        stages = fd_shared_address(warp_stages) + (uint32_t)(lane * Stage::row_bytes);
        stage = unit = 0;
        tasks = tasks_of(a);
        task = tasks.first;
        policy = fd_policy_evict_first();
    }

    /* `parity` of how often the ring has come round. */
    __device__ __forceinline__ void await(const matvec_ring_args &, int at, unsigned parity) {
        fd_mbarrier_wait(barriers + (uint32_t)at * 8, parity);
        __syncwarp();
    }

    /* One stage into the next stage, or nothing when there is none. */
    __device__ __forceinline__ void request(const matvec_ring_args &a) {
        const int lane = (int)threadIdx.x % 32, left = a.n_unit - unit;
        if (task >= tasks.end) return;
        if (lane < Stage::rows) {
            if (unit == 0) row = row_data(a.matvec, (int64_t)task * Stage::rows + lane);
            const uint32_t bytes = (uint32_t)((left < Stage::units ? left : Stage::units) * Stage::unit_bytes);
            const uint32_t barrier = barriers + (uint32_t)stage * 8;
            fd_mbarrier_arrive_expect_tx(barrier, bytes);
            fd_cp_async_bulk(stages + (uint32_t)(stage * Stage::bytes), row + (int64_t)unit * Stage::unit_bytes, bytes,
                             barrier, policy);
        }
        unit += Stage::units;
        if (unit >= a.n_unit) {
            unit = 0;
            task += tasks.step;
        }
        stage = stage + 1 == a.n_stage ? 0 : stage + 1;
    }
};

#endif
