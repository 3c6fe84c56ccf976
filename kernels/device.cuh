/* The few machine instructions that CUDA C++ has no words for, a function each. Before sm_90 there is no dependent
 * launch: its functions do nothing there, and no result depends on them. */
#ifndef FD_KERNELS_DEVICE_CUH
#define FD_KERNELS_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Programmatic dependent launch (griddepcontrol). A kernel calls fd_pdl_launch_dependents early, so that its successor
 * may start as its blocks end. Every thread calls fd_pdl_wait before it touches memory that another kernel writes or
 * reads: after that the predecessor, and so everything before it, is complete. Both do nothing in an ordinary
 * launch. */
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

__device__ __forceinline__ uint32_t fd_shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}
/* Opaque values: the compiler cannot see where they come from, so it keeps them in a register instead of computing them
 * again before every use. A shared address, which it would otherwise make anew at each access under a condition: on
 * sm_90 that reads a special register every time. An integer or a pointer that a lane exchanges with itself. */
__device__ __forceinline__ uint32_t fd_opaque_shared_address(const void *at) {
    uint32_t address = fd_shared_address(at);
    asm volatile("" : "+r"(address));
    return address;
}
__device__ __forceinline__ int fd_opaque_register(int value) {
    return __shfl_sync(0xffffffffu, value, (int)(threadIdx.x % 32));
}
__device__ __forceinline__ const uint8_t *fd_opaque_register(const uint8_t *pointer) {
    return (const uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)pointer, (int)threadIdx.x % 32);
}

/* Reads of 4, 8 and 16 bytes at a shared address, each where it stands: the compiler moves none of them. */
__device__ __forceinline__ float fd_load_shared4(uint32_t from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
    return x;
}
__device__ __forceinline__ float2 fd_load_shared8(uint32_t from) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from));
    return x;
}
__device__ __forceinline__ uint4 fd_load_shared16(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

/* Four 8 × 8 matrices of 16-bit elements (mma.sync fragments); lane l names row l % 8 of matrix l / 8. */
__device__ __forceinline__ void fd_ldmatrix(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ void fd_ldmatrix_transposed(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/* Barrier `id` (1 … 15; 0 is __syncthreads') of `threads` threads of the block. */
__device__ __forceinline__ void fd_bar_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* binary16 to binary32: exact, subnormals too. */
__device__ __forceinline__ float fd_half_to_float(uint16_t half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

/* Loads here: the compiler would move an ordinary load after fd_pdl_wait. */
__device__ __forceinline__ float4 fd_load_now(const float4 *from) {
    float4 value;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return value;
}

/* ---- cp.async: copies to shared memory for which the thread does not wait ---- */

/* 16, 8 or 4 bytes; zeros instead when `valid` is false. `from` must be readable only when valid. */
__device__ __forceinline__ void fd_cp_async16(void *to_shared, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(fd_shared_address(to_shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void fd_cp_async8(void *to_shared, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(fd_shared_address(to_shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 8 : 0)
                 : "memory");
}
__device__ __forceinline__ void fd_cp_async4(void *to_shared, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(fd_shared_address(to_shared)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 4 : 0)
                 : "memory");
}
/* 16 bytes to a shared address; `policy` says how long L2 keeps them. */
__device__ __forceinline__ void fd_cp_async16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}
__device__ __forceinline__ void fd_cp_async16_hinted(uint32_t to, const void *from, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "l"(policy)
                 : "memory");
#else
    (void)policy;
    fd_cp_async16(to, from);
#endif
}
__device__ __forceinline__ uint64_t fd_policy_evict_first() {
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

__device__ __forceinline__ uint64_t fd_policy_evict_last() {
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

/* What the thread has requested since the last call is one group. Waits return when at most LEFT of its groups, or 1, 2
 * or 3 (`left`), or none of its copies are under way; a barrier then shows the copies to the block. */
__device__ __forceinline__ void fd_cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void fd_cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
__device__ __forceinline__ void fd_cp_async_wait_group(int left) {
    if (left == 1)
        fd_cp_async_wait_group<1>();
    else if (left == 2)
        fd_cp_async_wait_group<2>();
    else
        fd_cp_async_wait_group<3>();
}
__device__ __forceinline__ void fd_cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif
