/* mbarriers (sm_80), TMA and bulk copies, and setmaxnreg (sm_90; before it the functions do nothing, and no kernel that
 * calls them is launched). Producers and consumers hand stages of shared memory to each other with them.
 *
 * An mbarrier counts arrivals and the bytes of copies; its phase ends when all have come. Phases are told apart by
 * their parity: a fresh barrier is in phase 0, so the first wait is for parity 0. Addresses are shared ones. */
#ifndef FD_KERNELS_PIPELINE_CUH
#define FD_KERNELS_PIPELINE_CUH

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/device.cuh"

__device__ __forceinline__ void fd_mbarrier_init(uint32_t barrier, unsigned arrivals) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* bulk copies see it too */
#endif
}
__device__ __forceinline__ void fd_mbarrier_arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#elif __CUDA_ARCH__ >= 800
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
#endif
}
/* An arrival of the thread, once all copies that it has requested by cp.async have come; one of those that init
 * counts. */
__device__ __forceinline__ void fd_mbarrier_arrive_after_copies(uint32_t barrier) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
/* A warp's arrival: its lanes meet, then one arrives for all. compute-sanitizer's racecheck orders only what the
 * arriving thread itself has done, so in a build for it (FD_RACECHECK, docs/performance.md) every lane arrives. */
#ifdef FD_RACECHECK
constexpr unsigned FD_WARP_ARRIVALS = 32;
#else
constexpr unsigned FD_WARP_ARRIVALS = 1;
#endif
__device__ __forceinline__ void fd_mbarrier_arrive_warp(uint32_t barrier, bool first_lane) {
    __syncwarp();
    if (first_lane || FD_WARP_ARRIVALS > 1) fd_mbarrier_arrive(barrier);
}
/* The current phase waits for `bytes` more from copies. */
__device__ __forceinline__ void fd_mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
/* The same, and one arrival. */
__device__ __forceinline__ void fd_mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void fd_mbarrier_wait(uint32_t barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra through;\n"
                 "bra again;\n"
                 "through:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#elif __CUDA_ARCH__ >= 800
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@done bra through;\n"
                 "bra again;\n"
                 "through:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}

/* The same for a phase that is not expected soon: the warp sleeps, so that its asking takes no other warp's turns. */
__device__ __forceinline__ void fd_mbarrier_wait_asleep(uint32_t barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
                 "@done bra through;\n"
                 "bra again;\n"
                 "through:\n"
                 "}" ::"r"(barrier),
                 "r"(parity), "r"(1000000) /* nanoseconds */
                 : "memory");
#else
    fd_mbarrier_wait(barrier, parity);
#endif
}

/* One thread requests the map's box whose first element is `column` of `row`. Elements past the edges are zero and
 * count as copied. */
__device__ __forceinline__ void fd_tma_load_2d(uint32_t to, const CUtensorMap *map, int column, int row,
                                               uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
#endif
}

/* One thread requests `bytes` consecutive bytes; both addresses and `bytes` are multiples of 16. `policy` says how long
 * L2 keeps them. */
__device__ __forceinline__ void fd_cp_async_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier,
                                                 uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
#endif
}

/* ---- clusters: blocks that reach each other's shared memory ---- */

__device__ __forceinline__ unsigned fd_cluster_rank() {
    unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}
/* All threads of the cluster meet; what they wrote before is visible after. */
__device__ __forceinline__ void fd_cluster_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/* Where block `rank` of the cluster has what this block has at shared address `at`; for fd_store_async alone. */
__device__ __forceinline__ uint32_t fd_cluster_map(uint32_t at, unsigned rank) {
    uint32_t there = at;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
#endif
    return there;
}
/* Stores to a block of the cluster, and counts four bytes at its mbarrier. */
__device__ __forceinline__ void fd_store_async(uint32_t to, float value, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                 "r"(__float_as_uint(value)), "r"(barrier)
                 : "memory");
#endif
}

/* Registers that each thread of this warpgroup (four warps) has from here on (sm_90a). */
template <int REGISTERS> __device__ __forceinline__ void fd_setmaxnreg_inc() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}
template <int REGISTERS> __device__ __forceinline__ void fd_setmaxnreg_dec() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}

#endif
