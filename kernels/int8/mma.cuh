/* Integer dots of whole blocks on tensor cores. */
#ifndef FD_KERNELS_INT8_MMA_CUH
#define FD_KERNELS_INT8_MMA_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "numerics/q8act.h"

/* s = Σ w·x + magic for 16 rows by 8 columns: thread 4g + t has rows g, g + 8 and columns 2t, 2t + 1. It gives words of
 * rows g, g + 8, then the other words of both, and those of column g. */
__device__ __forceinline__ void q8_mma(int (&s)[4], const uint32_t (&w)[4], uint32_t low, uint32_t high) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(s[0]), "=r"(s[1]), "=r"(s[2]), "=r"(s[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(low), "r"(high), "r"(FD_Q8_MAGIC_BITS));
}

/* The same of half a block. */
__device__ __forceinline__ void q8_mma_half(int (&s)[4], uint32_t w0, uint32_t w1, uint32_t x) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(s[0]), "=r"(s[1]), "=r"(s[2]), "=r"(s[3])
        : "r"(w0), "r"(w1), "r"(x), "r"(FD_Q8_MAGIC_BITS));
}

#endif
