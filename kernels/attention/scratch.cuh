/* The scratch that the kernels of one decode step's attention share, and how the last of several blocks is found. */
#ifndef FD_KERNELS_ATTENTION_SCRATCH_CUH
#define FD_KERNELS_ATTENTION_SCRATCH_CUH

#include "kernels/attention/attention.h"
#include "kernels/launch.cuh"

enum { CHUNK = FD_ATTENTION_BLOCK };

/* Exact attention's scratch, in floats. Every launch writes all that it reads. */
enum { SPLIT_MOST_BLOCKS = 256 };
struct scratch_layout {
    float *chunk_sums; /* [n_head, n_chunk, head_dim]; first, so that fours of elements are aligned */
    float *scores;     /* [n_head, n_ctx]; then e^(score − largest) */
    float *largest;    /* [n_head, SPLIT_MOST_BLOCKS]: each block's largest score */
    float *sum;        /* [n_head]: Σ e^(score − largest) */
};

static inline __host__ __device__ int32_t chunks_of(int32_t n_ctx) {
    return (n_ctx + CHUNK - 1) / CHUNK;
}

static inline __host__ __device__ scratch_layout layout_of(const fd_attn_decode *in) {
    scratch_layout s;
    s.chunk_sums = in->scratch;
    s.scores = s.chunk_sums + (int64_t)in->n_head * chunks_of(in->n_ctx) * in->head_dim;
    s.largest = s.scores + (int64_t)in->n_head * in->n_ctx;
    s.sum = s.largest + in->n_head * SPLIT_MOST_BLOCKS;
    return s;
}

/* Called by the whole block after its writes: true in the last of `active` blocks, where the others' writes are
 * visible. */
__device__ __forceinline__ bool arrive_last(unsigned *counter, unsigned active) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1u) == active - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

#endif
