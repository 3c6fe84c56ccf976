/* A warp's ring whose slices the copy engine brings (cp.async.bulk; sm_90): for each row of a slice one lane asks, and a
 * slot's barrier tells when all have come. The lanes' own loads do not queue behind the requests, as they do behind
 * cp.async, and a slice costs next to no instructions. For types without a plane of scales: there a slice of a row would
 * be two short copies, and the lanes are faster. */
#ifndef FD_KERNELS_MATVEC_RING_BULK_CUH
#define FD_KERNELS_MATVEC_RING_BULK_CUH

#include "kernels/matvec/ring.cuh"
#include "kernels/pipeline.cuh"

enum { BULK_SLOTS = 4, BULK_BARRIERS = FD_MATVEC_WARPS * BULK_SLOTS };

/* As matvec_ring is used; `request` is called by whole warps. */
template <class Format, int P, int R> struct matvec_ring_bulk {
    using Slice = ring_slice<Format, P, R>;
    static_assert(Slice::scale_bytes == 0, "a row's slice is one piece");
    uint32_t slots, barriers; /* shared addresses: of lane r's row in slot 0; of the warp's barriers, one a slot */
    int slot;                 /* to be filled next */
    int task, unit;           /* the next slice */
    ring_tasks tasks;
    const uint8_t *row;       /* lane r's */
    uint64_t policy;

    __device__ __forceinline__ void begin(const matvec_ring_args &a, const unsigned char *warp_slots) {
        __shared__ __align__(8) uint64_t of_block[BULK_BARRIERS];
        const int lane = (int)threadIdx.x % 32;
        barriers = fd_shared_address(of_block + threadIdx.x / 32 * BULK_SLOTS);
        if (lane < a.n_slot) fd_phase_init(barriers + (uint32_t)lane * 8, Slice::rows);
        __syncwarp();
        slots = fd_shared_address(warp_slots) + (uint32_t)(lane * Slice::row_bytes);
        slot = unit = 0;
        tasks = tasks_of(a);
        task = tasks.first;
        policy = fd_policy_evict_first();
    }

    /* `parity` of how often the ring has come round. */
    __device__ __forceinline__ void await(const matvec_ring_args &, int at, unsigned parity) {
        fd_phase_wait(barriers + (uint32_t)at * 8, parity);
        __syncwarp();
    }

    /* One slice into the next slot, or nothing when there is none. */
    __device__ __forceinline__ void request(const matvec_ring_args &a) {
        const int lane = (int)threadIdx.x % 32, left = a.n_unit - unit;
        if (task >= tasks.end) return;
        if (lane < Slice::rows) {
            if (unit == 0) {
                /* A row past the last one is the last again; nothing is stored for it. */
                const int64_t last = a.matvec.n_row - 1, wanted = (int64_t)task * Slice::rows + lane;
                int part;
                const int64_t at = row_of(a.matvec, wanted < last ? wanted : last, &part);
                row = part_of(a.matvec, part).data + at * a.matvec.row_bytes;
            }
            const uint32_t bytes = (uint32_t)((left < Slice::units ? left : Slice::units) * Slice::unit_bytes);
            const uint32_t barrier = barriers + (uint32_t)slot * 8;
            fd_phase_arrive_expect(barrier, bytes);
            fd_copy_bulk_once(slots + (uint32_t)(slot * Slice::bytes), row + (int64_t)unit * Slice::unit_bytes, bytes,
                              barrier, policy);
        }
        unit += Slice::units;
        if (unit >= a.n_unit) {
            unit = 0;
            task += tasks.step;
        }
        slot = slot + 1 == a.n_slot ? 0 : slot + 1;
    }
};

#endif
