#include "kernels/launch.cuh"
#include "kernels/int8/q8.h"
#include "kernels/int8/block.cuh"
#include "kernels/int8/panel.cuh"
#include "kernels/matmul/few.cuh"

/* Eight elements of a token from column k on, and their block's scale and sum, which one of its four threads keeps. */
static __device__ __forceinline__ void keep_in_rows(const fd_q8_rows &to, int token, int k, const fd_q8_eighths &q) {
    *(uint2 *)(to.q + token * to.row_bytes + k) = make_uint2(q.low, q.high);
    if (k % 32 != 0) return;
    to.d[(int64_t)(k / 32) * to.tok_stride + token] = q.d;
    to.sum[(int64_t)(k / 32) * to.tok_stride + token] = q.sum;
}
static __device__ __forceinline__ void keep_in_panel(const fd_q8_rows &to, int token, int k, const fd_q8_eighths &q) {
    int8_t *tile = to.q + (int64_t)(k / Q8_PANEL_COLUMNS) * q8_panel_bytes(to.panel) + token / 8 * Q8_PANEL_TILE;
    const int of_tile = token % 8, at = k % Q8_PANEL_COLUMNS;
    *(uint2 *)(tile + of_tile * Q8_PANEL_TOKEN + at) = make_uint2(q.low, q.high);
    if (k % 32 != 0) return;
    float *scales = (float *)(tile + Q8_PANEL_SCALES) + (at / 32 * 4 + of_tile / 2) * 4 + of_tile % 2;
    scales[0] = q.d;
    scales[2] = q.sum;
}

/* Four threads a block of 32, eight elements each; blocks past n_col are zeros. */
__global__ void __launch_bounds__(256) q8_quantize(const float *x, int n_tok, int n_col, fd_q8_rows to) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int per_row = (int)(to.row_bytes / 8);
    const int64_t id = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int token = (int)(id / per_row), at = (int)(id % per_row), k = at * 8;
    if (token >= n_tok) return; /* whole groups of four: a row has a multiple of 32 threads */
    float v[8] = {};
    if (k < n_col) {
        const float4 *from = (const float4 *)(x + (int64_t)token * n_col + k);
        const float4 a = __ldg(from), b = __ldg(from + 1);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    }
    const fd_q8_eighths q = fd_q8_quarter_block(v);
    if (to.panel > 0)
        keep_in_panel(to, token, k, q);
    else
        keep_in_rows(to, token, k, q);
}

static int64_t padded(int64_t n_col) {
    return (n_col + 255) / 256 * 256;
}
/* Whole tiles of the matrix product, which reads, and does not use, the tokens past the last. */
static int32_t stride_of(int32_t n_tok) {
    return (n_tok + 127) / 128 * 128;
}

size_t fd_q8_rows_bytes(int64_t n_col, int32_t n_tok) {
    const size_t stride = (size_t)stride_of(n_tok), n = (size_t)padded(n_col);
    return stride * n + 2 * sizeof(float) * (n / 32) * stride;
}

fd_q8_rows fd_q8_rows_at(void *memory, int64_t n_col, int32_t n_tok) {
    fd_q8_rows rows = {};
    rows.row_bytes = padded(n_col);
    rows.tok_stride = stride_of(n_tok);
    rows.q = (int8_t *)memory;
    if (n_tok <= FD_Q8_FEW) {
        rows.panel = few_panel_of(n_tok);
        return rows;
    }
    rows.d = (float *)(rows.q + rows.tok_stride * rows.row_bytes);
    rows.sum = rows.d + rows.row_bytes / 32 * rows.tok_stride;
    return rows;
}

bool fd_q8_can(uint32_t dtype) {
    return dtype == FD_Q8_0 || dtype == FD_Q4_0 || dtype == FD_Q5_0 || dtype == FD_Q4_K || dtype == FD_Q6_K;
}

fd_code fd_launch_q8_quantize(const fd_launch_context *ctx, const float *x, int32_t n_tok, int64_t n_col,
                              const fd_q8_rows *to, fd_error *err) {
    if (n_tok < 1 || n_col < 32 || n_col % 32 != 0 || n_col > 1 << 30)
        return fd_fail(err, FD_ERR_INPUT, "kernel q8_quantize: %d rows of %lld, expected multiples of 32", n_tok,
                       (long long)n_col);
    const int64_t threads = n_tok * (to->row_bytes / 8);
    return fd_launch(ctx, "q8_quantize", q8_quantize, dim3(fd_blocks(threads, 256)), 256, 0, err, x, n_tok, (int)n_col,
                     *to);
}
