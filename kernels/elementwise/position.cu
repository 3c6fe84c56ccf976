#include "kernels/elementwise/position.h"

#include "kernels/device.cuh"
#include "kernels/elementwise/embed.cuh"
#include "kernels/launch.cuh"
#include "numerics/contract.h"

/* A block a row: the table's row is dequantised into shared memory first. */
template <class Format>
__global__ void __launch_bounds__(128)
    add_position(const uint8_t *table, int64_t row_bytes, int64_t scale_offset, int64_t n_row, int64_t n_col,
                 const int32_t *pos0, const float *x, float *out) {
    float *table_row = fd_shared_floats();
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t at = *pos0 + (int64_t)blockIdx.x, first = (int64_t)blockIdx.x * n_col;
    if (at < n_row) fd_embed_row<Format>(table + at * row_bytes, scale_offset, n_col, table_row);
    __syncthreads();
    for (int64_t k = threadIdx.x; k < n_col; k += blockDim.x)
        out[first + k] = at < n_row ? x[first + k] + table_row[k] : nanf("");
}

fd_code fd_launch_add_position(const fd_launch_context *ctx, const fd_device_matrix *table, const float *x,
                               const int32_t *pos0, int32_t n_tok, float *out, fd_error *err) {
    if (n_tok < 1) return fd_fail(err, FD_ERR_INPUT, "kernel add_position: %d rows", n_tok);
    return fd_with_format(table->dtype, err, [&](auto format) {
        return fd_launch(ctx, "add_position", add_position<decltype(format)>, dim3((unsigned)n_tok), 128,
                         sizeof(float) * (size_t)table->n_col, err, (const uint8_t *)table->data, table->row_bytes,
                         table->scale_offset, table->n_row, table->n_col, pos0, x, out);
    });
}

struct sum_of {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct product_of {
    __device__ __forceinline__ float operator()(float a, float b) const { return a * b; }
};

template <class Op>
__global__ void __launch_bounds__(256) with_vector(Op op, const float *vector, const float *x, int64_t n, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t first = (int64_t)blockIdx.x * n;
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x) out[first + k] = op(x[first + k], vector[k]);
}

static fd_code check_vector(const char *name, int64_t n, int32_t n_tok, fd_error *err) {
    if (n_tok >= 1 && n >= 1) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "kernel %s: %d rows of %lld", name, n_tok, (long long)n);
}

fd_code fd_launch_add_vector(const fd_launch_context *ctx, const float *vector, const float *x, int64_t n,
                             int32_t n_tok, float *out, fd_error *err) {
    FD_TRY(check_vector("add_vector", n, n_tok, err));
    return fd_launch(ctx, "add_vector", with_vector<sum_of>, dim3((unsigned)n_tok), 256, 0, err, sum_of(), vector, x, n,
                     out);
}

fd_code fd_launch_mul_vector(const fd_launch_context *ctx, const float *vector, const float *x, int64_t n,
                             int32_t n_tok, float *out, fd_error *err) {
    FD_TRY(check_vector("mul_vector", n, n_tok, err));
    return fd_launch(ctx, "mul_vector", with_vector<product_of>, dim3((unsigned)n_tok), 256, 0, err, product_of(),
                     vector, x, n, out);
}

/* A block a head of a row; one thread makes the slope. */
__global__ void __launch_bounds__(256)
    attn_alibi(float max_bias, int32_t n_kv, const float *scores, const int32_t *pos0, float *out) {
    __shared__ float made;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t own = *pos0 + (int64_t)blockIdx.y;
    const int64_t first = ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * n_kv;
    if (threadIdx.x == 0) made = (float)fd_alibi_slope(max_bias, (int32_t)gridDim.x, (int32_t)blockIdx.x);
    __syncthreads();
    const float slope = made;
    for (int64_t t = threadIdx.x; t < n_kv; t += blockDim.x)
        out[first + t] = t > own ? 0.0f : fmaf(slope, (float)(t - own), scores[first + t]);
}

fd_code fd_launch_attn_alibi(const fd_launch_context *ctx, float max_bias, int32_t n_head, int32_t n_kv,
                             const float *scores, const int32_t *pos0, int32_t n_tok, float *out, fd_error *err) {
    if (n_tok < 1 || n_tok > 65535 || n_head < 1 || n_kv < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_alibi: %d rows, %d heads, %d positions", n_tok, n_head, n_kv);
    return fd_launch(ctx, "attn_alibi", attn_alibi, dim3((unsigned)n_head, (unsigned)n_tok), 256, 0, err, max_bias,
                     n_kv, scores, pos0, out);
}

/* A block a row; one thread makes the factor. */
__global__ void __launch_bounds__(256) attn_temperature(const __grid_constant__ fd_attn_temperature_rows in) {
    __shared__ float made;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t first = (int64_t)blockIdx.x * in.n;
    if (threadIdx.x == 0)
        made = (float)fd_attn_temperature(*in.pos0 + (int64_t)blockIdx.x + in.first, in.length, in.scale);
    __syncthreads();
    const float factor = made;
    for (int64_t k = threadIdx.x; k < in.n; k += blockDim.x) in.out[first + k] = in.x[first + k] * factor;
}

fd_code fd_launch_attn_temperature(const fd_launch_context *ctx, const fd_attn_temperature_rows *in, fd_error *err) {
    if (in->n_tok < 1 || in->n < 1 || in->length < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel attn_temperature: %d rows of %lld, length %d", in->n_tok,
                       (long long)in->n, in->length);
    return fd_launch(ctx, "attn_temperature", attn_temperature, dim3((unsigned)in->n_tok), 256, 0, err, *in);
}
