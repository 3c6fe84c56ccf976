/* What the blocks of a sampling cluster share, and how they sum over all their candidates
 * (kernels/sampling/sample.cu). */
#ifndef FD_KERNELS_SAMPLING_CLUSTER_CUH
#define FD_KERNELS_SAMPLING_CLUSTER_CUH

#include <cooperative_groups.h>

#include "kernels/device.cuh"
#include "numerics/sampling.h"

enum {
    BLOCKS = 8, /* of a cluster: as many as every device of sm_90 takes */
    THREADS = 512,
    WARPS = THREADS / 32,
    DIGITS = 256,
    LEVELS = 9, /* the coarse digit, then the eight bytes of the order */
};

/* What candidates of one digit hold. Weights in pieces of 16 bits: a block has fewer than 2^16 logits, so a piece's sum
 * fits 32 bits, whose additions shared memory does by itself. */
struct digit_sums {
    unsigned count[DIGITS];
    unsigned weight[3][DIGITS];
};

struct sample_shared {
    digit_sums digits[2]; /* this level's, and the one being cleared */
    unsigned long long warp[WARPS];
    unsigned long long block; /* this block's value, which the others read */
    unsigned long long all;   /* the cluster's value */
    uint64_t before;          /* held by candidates that are better than all of the cut's digit */
    int digit, alone;
};

/* A block's share of the logits. */
struct slice {
    float *logits; /* shared: penalised, [n] */
    int first, n;  /* ids of this block */
    float best;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
namespace cg = cooperative_groups;

__device__ __forceinline__ unsigned long long larger(unsigned long long a, unsigned long long b) {
    return a > b ? a : b;
}

/* The maximum, or the sum, over the cluster; the same in every thread. */
template <bool SUM>
__device__ unsigned long long over_cluster(cg::cluster_group &cluster, sample_shared &s, unsigned long long value) {
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, value, step);
        value = SUM ? value + other : larger(value, other);
    }
    if (threadIdx.x % 32 == 0) s.warp[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) value = SUM ? value + s.warp[w] : larger(value, s.warp[w]);
        s.block = value;
    }
    cluster.sync();
    if (threadIdx.x == 0) {
        unsigned long long all = 0;
        for (unsigned b = 0; b < BLOCKS; b++) {
            const unsigned long long one = *cluster.map_shared_rank(&s.block, b);
            all = SUM ? all + one : larger(all, one);
        }
        s.all = all;
    }
    cluster.sync(); /* no block writes s.block while another reads it */
    return s.all;
}
#endif

#endif
