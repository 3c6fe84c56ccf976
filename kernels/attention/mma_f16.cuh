/* Tiles of binary16 in shared memory and the tensor cores' m16n8k16 (PTX ISA, mma.sync and ldmatrix).
 *
 * A tile has rows of WIDTH elements, a power of two from 64 on, without padding: of each eight chunks of 16 bytes, row
 * r keeps chunk c at c xor (r mod 8), so that the eight rows an ldmatrix reads lie in different banks. */
#ifndef FD_KERNELS_ATTENTION_MMA_F16_CUH
#define FD_KERNELS_ATTENTION_MMA_F16_CUH

#include <cuda_fp16.h>

#include "kernels/device.cuh"

/* Element index of chunk `chunk` of row `row`. */
template <int WIDTH> __device__ __forceinline__ int fd_tile_at(int row, int chunk) {
    return row * WIDTH + (chunk ^ (row & 7)) * 8;
}

__device__ __forceinline__ uint32_t fd_half_pair(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* c += a·b. Lane l holds rows l / 4 and l / 4 + 8 of a and c, columns 2 (l mod 4) and the next (of a: and those 8
 * on). */
__device__ __forceinline__ void fd_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
