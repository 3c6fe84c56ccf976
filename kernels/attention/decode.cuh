/* What the kernels of a decode step's attention share (kernels/attention/single_block.cu,
 * kernels/attention/split_kv.cu). */
#ifndef FD_KERNELS_ATTENTION_DECODE_CUH
#define FD_KERNELS_ATTENTION_DECODE_CUH

#include "kernels/attention/cached.cuh"
#include "kernels/attention/dot.cuh"
#include "kernels/attention/scratch.cuh"
#include "kernels/elementwise/rope.cuh"
#include "kernels/gather/page.cuh"

/* Near the beginning (kernels/attention/single_block.cu). */
fd_code fd_launch_attn_single_block(const fd_launch_context *ctx, const fd_attn_decode *in, fd_error *err);

enum { DECODE_THREADS = 256, DECODE_WARPS = DECODE_THREADS / 32 };

/* The row's part of everything; rows are the grid's third dimension. Read before the wait, as positions are. */
__device__ __forceinline__ fd_attn_decode row_of(const fd_attn_decode &all) {
    fd_attn_decode a = all;
    if (!all.sequences) return a;
    const int64_t row = blockIdx.z, width_q = (int64_t)a.n_head * a.head_dim, width = (int64_t)a.n_head_kv * a.head_dim;
    const int64_t cache = all.cache_stride * __ldcg(all.sequences + row) * (all.halves ? 2 : 4);
    a.q += row * width_q;
    a.k += row * width;
    a.v += row * width;
    a.out += row * width_q;
    a.pos += row;
    a.cache_k = (char *)a.cache_k + cache;
    a.cache_v = (char *)a.cache_v + cache;
    a.scratch += row * all.scratch_stride;
    return a;
}

/* Element `at` of the mix: to the row's `out`, or to all ranks. */
__device__ __forceinline__ void leave_mixed(const fd_attn_decode &all, float *out, int64_t at, float mixed) {
    if (all.send.n_rank > 0)
        fd_send_element(all.send, at, mixed);
    else
        out[at] = mixed;
}

#endif
