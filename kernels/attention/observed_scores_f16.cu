/* The scores inside the fused kernels of binary16, which keep them in registers: computed once more for an observer. */
#include <cuda_fp16.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_f16.h"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "numerics/contract.h"

/* Grid: positions in 256 × heads × rows; a thread a position. */
__global__ void __launch_bounds__(256) attention_scores_f16(const fd_attn_f16 a, int n_kv, bool rounded, float *out) {
    __shared__ float query[FD_ATTENTION_MAX_HEAD_DIM];
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int head = (int)blockIdx.y, row = (int)blockIdx.z, pos = *a.pos0 + row;
    const int64_t row_head = (int64_t)row * a.n_head + head;
    for (int i = (int)threadIdx.x; i < a.head_dim; i += 256) {
        const float q = a.q[row_head * a.head_dim + i];
        query[i] = rounded ? __half2float(__float2half_rn(q)) : q;
    }
    __syncthreads();
    const int key = (int)(blockIdx.x * 256 + threadIdx.x);
    if (key >= n_kv) return;
    float score = -(float)INFINITY;
    if (key <= pos && (a.window == 0 || key > pos - a.window)) {
        const uint16_t *k = a.cache_k + ((int64_t)key * a.n_head_kv + head / (a.n_head / a.n_head_kv)) * a.head_dim;
        float dot = 0.0f;
        for (int i = 0; i < a.head_dim; i++) dot = fmaf(query[i], fd_half_to_float(k[i]), dot);
        score = dot * a.scale;
        if (a.softcap != 0.0f) score = fd_softcap32(score, a.softcap);
    }
    out[row_head * n_kv + key] = score;
}

fd_code fd_launch_attn_scores_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, int32_t n_kv, bool rounded,
                                  float *out, fd_error *err) {
    if (in->n_tok < 1 || in->n_tok > 65535 || n_kv < 1 || in->head_dim > FD_ATTENTION_MAX_HEAD_DIM)
        return fd_fail(err, FD_ERR_INPUT, "kernel attention_scores_f16: %d rows, %d positions", in->n_tok, n_kv);
    const dim3 grid(fd_blocks(n_kv, 256), (unsigned)in->n_head, (unsigned)in->n_tok);
    return fd_launch(ctx, "attention_scores_f16", attention_scores_f16, grid, 256, 0, err, *in, n_kv, rounded, out);
}
