/* The few machine instructions that CUDA C++ has no words for, each behind a function. Before sm_90 there is no
 * dependent launch: its functions do nothing there, and no result depends on them. */
#ifndef FD_KERNELS_DEVICE_CUH
#define FD_KERNELS_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Programmatic dependent launch. A kernel calls fd_pdl_launch_dependents early, so that its successor may start as blocks of it
 * end, and every thread calls fd_pdl_wait before it touches memory that another kernel writes or reads: from there
 * on the predecessor, and so everything before it, is complete. Both do nothing in an ordinary launch. */
__device__ __forceinline__ void fd_pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void fd_pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The block's dynamic shared memory, 16-byte aligned. */
__device__ __forceinline__ float *fd_shared_floats() {
    extern __shared__ __align__(16) float fd_shared_storage[];
    return fd_shared_storage;
}

/* Where `at` lies in shared memory, worked out here: the compiler does it again at each access under a condition, and on
 * sm_90 that reads a special register every time. fd_load_shared16 reads 16 bytes there. */
__device__ __forceinline__ uint32_t fd_opaque_shared_address(const void *at) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(at);
    asm volatile("" : "+r"(address));
    return address;
}
__device__ __forceinline__ uint4 fd_load_shared16(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

/* binary16 to binary32, exact, subnormals kept. */
__device__ __forceinline__ float fd_half_to_float(uint16_t half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

/* Asks for it here: a load that the compiler may move would move behind fd_pdl_wait. */
__device__ __forceinline__ float4 fd_load_now(const float4 *from) {
    float4 value;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return value;
}

/* Copies 16 (or 4) bytes to shared memory without waiting; zeros instead when `valid` is false. `from` must be readable
 * only when valid. */
__device__ __forceinline__ void fd_cp_async16(float *to_shared, const float *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to_shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void fd_cp_async4(float *to_shared, const float *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to_shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 4 : 0)
                 : "memory");
}
/* Waits for the calling thread's copies; a barrier then shows them to the block. */
__device__ __forceinline__ void fd_cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* 16 bytes; `policy` says how long L2 keeps them. */
__device__ __forceinline__ void fd_cp_async16_hinted(uint32_t to, const void *from, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "l"(policy)
                 : "memory");
#else
    (void)policy;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
#endif
}
/* What the thread has asked for since the last call is one group; then waits until at most 1, 2 or 3 (`ahead`) of its
 * groups are under way. */
__device__ __forceinline__ void fd_cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void fd_cp_async_wait_group(int ahead) {
    if (ahead == 1)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (ahead == 2)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 3;" ::: "memory");
}
__device__ __forceinline__ uint64_t fd_policy_evict_first() {
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

#endif
