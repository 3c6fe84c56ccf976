/* The scratch that blocks of one decode step's attention share, and how the last of them is found. */
#ifndef FD_KERNELS_ATTENTION_SCRATCH_CUH
#define FD_KERNELS_ATTENTION_SCRATCH_CUH

#include "kernels/attention.h"
#include "kernels/launch.cuh"

enum { CHUNK = FD_ATTENTION_BLOCK };

/* The scratch, in floats: scores, chunk sums of the mix, then the counters of arrivals (0 between launches). */
struct scratch_layout {
    float *scores;     /* [n_head, n_ctx] */
    float *chunk_sums; /* [n_head, n_chunk, head_dim] */
    unsigned *arrived; /* [n_head] */
};

static inline __host__ __device__ int32_t chunks_of(int32_t n_ctx) {
    return (n_ctx + CHUNK - 1) / CHUNK;
}

static inline __host__ __device__ scratch_layout layout_of(const fd_attn_decode *in) {
    scratch_layout s;
    s.scores = in->scratch;
    s.chunk_sums = s.scores + (int64_t)in->n_head * in->n_ctx;
    s.arrived = (unsigned *)(s.chunk_sums + (int64_t)in->n_head * chunks_of(in->n_ctx) * in->head_dim);
    return s;
}

/* Dynamic shared memory that an attention kernel near the beginning asks for. Where heads together are wide, the product
 * behind it has long rings, and on a multiprocessor that one of its blocks shares, q, k and v wait behind the ring's first
 * fill (docs/performance.md). So no ring shares it. Narrow heads go with short products, whose rings would keep this kernel
 * from starting early. */
static inline size_t fd_near_shared(const fd_queue *queue, int32_t n_head, int32_t head_dim, int32_t rows) {
    enum { WIDE = 12 }; /* elements of all heads, a multiprocessor */
    const bool wide = (int64_t)n_head * head_dim >= (int64_t)WIDE * queue->n_sm;
    return wide && (int64_t)n_head * rows <= queue->n_sm ? fd_shared_alone(queue) : 0;
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
