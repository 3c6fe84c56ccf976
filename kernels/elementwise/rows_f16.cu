#include "kernels/elementwise/rows_f16.h"

#include <cuda_fp16.h>

#include "kernels/device.cuh"
#include "kernels/elementwise/norm.cuh"
#include "kernels/approx_math.cuh"
#include "kernels/formats/formats.cuh"
#include "kernels/launch.cuh"
#include "kernels/tree.cuh"
#include "numerics/contract.h"

__device__ __forceinline__ void store(const fd_f16_out &out, int64_t at, float value) {
    if (out.half) out.half[at] = __half_as_ushort(__float2half_rn(value));
    if (out.real) out.real[at] = value;
}

/* Four elements from `at` on, a multiple of 4. */
__device__ __forceinline__ void store(const fd_f16_out &out, int64_t at, const float4 &x) {
    __half2 pair[2] = {__floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w)};
    if (out.half) *(uint2 *)(out.half + at) = *(const uint2 *)pair;
    if (out.real) *(float4 *)(out.real + at) = x;
}

/* A block norms a row: 256 partial sums, added within warps, then over warps. */
__global__ void __launch_bounds__(256)
    rms_norm_f16(const float *x, int64_t n, const float *weights, int n_weight_row, float eps, fd_f16_out out) {
    __shared__ float partial[8];
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const float *row = x + blockIdx.x * n, *weight = weights + (int64_t)((int)blockIdx.x % n_weight_row) * n;
    float sum = 0.0f;
    if (n % 4 == 0) {
        for (int64_t k = threadIdx.x * 4; k < n; k += 1024) {
            const float4 v = *(const float4 *)(row + k);
            sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
        }
    } else {
        for (int64_t k = threadIdx.x; k < n; k += 256) sum = fmaf(row[k], row[k], sum);
    }
    sum = fd_tree_lanes<32>(sum);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = fd_tree_lanes<8>(partial[threadIdx.x % 8]);
    const float r = 1.0f / sqrtf(sum / (float)n + eps);
    if (n % 4 == 0) {
        for (int64_t k = threadIdx.x * 4; k < n; k += 1024) {
            const float4 v = *(const float4 *)(row + k), w = *(const float4 *)(weight + k);
            store(out, blockIdx.x * n + k, fd_normed(v, r, w));
        }
        return;
    }
    for (int64_t k = threadIdx.x; k < n; k += 256) store(out, blockIdx.x * n + k, (row[k] * r) * weight[k]);
}

fd_code fd_launch_rms_norm_f16(const fd_launch_context *ctx, const fd_rms_norm *in, fd_f16_out out, fd_error *err) {
    if (in->n_tok < 1 || in->n < 1 || (!out.half && !out.real))
        return fd_fail(err, FD_ERR_INPUT, "kernel rms_norm_f16: %d rows of %lld", in->n_tok, (long long)in->n);
    return fd_launch(ctx, "rms_norm_f16", rms_norm_f16, dim3((unsigned)in->n_tok), 256, 0, err, in->x, in->n,
                     in->weight, in->n_weight_row > 1 ? in->n_weight_row : 1, in->eps, out);
}

/* gelu in its tanh form is g·σ(2v), v = √(2/π)·(g + 0.044715 g³). */
template <fd_gate_kind KIND> __device__ __forceinline__ float gated(float g, float u, float slope, float limit) {
    if (KIND == FD_GATE_SILU) return fd_approx_swish(g, 1.0f) * u;
    if (KIND == FD_GATE_GELU) return fd_approx_swish(g, 1.59576912f * fmaf(0.044715f, g * g, 1.0f)) * u;
    g = fd_at_most32(g, limit), u = fd_at_least32(fd_at_most32(u, limit), -limit);
    return fd_approx_swish(g, slope) * (u + 1.0f);
}

/* Four elements a thread; the last thread of an odd count one by one. */
template <fd_gate_kind KIND>
__global__ void __launch_bounds__(256)
    gate_f16(const float *gate, const float *up, float slope, float limit, int64_t n, fd_f16_out out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i + 4 > n) {
        for (int64_t k = i; k < n; k++) store(out, k, gated<KIND>(gate[k], up[k], slope, limit));
        return;
    }
    const float4 g = *(const float4 *)(gate + i), u = *(const float4 *)(up + i);
    store(out, i,
          make_float4(gated<KIND>(g.x, u.x, slope, limit), gated<KIND>(g.y, u.y, slope, limit),
                      gated<KIND>(g.z, u.z, slope, limit), gated<KIND>(g.w, u.w, slope, limit)));
}

fd_code fd_launch_gate_f16(const fd_launch_context *ctx, const fd_gate *in, fd_f16_out out, fd_error *err) {
    if (in->n < 1 || (!out.half && !out.real))
        return fd_fail(err, FD_ERR_INPUT, "kernel gate_f16: %lld elements", (long long)in->n);
    void (*kernel)(const float *, const float *, float, float, int64_t, fd_f16_out) =
        in->kind == FD_GATE_SILU   ? gate_f16<FD_GATE_SILU>
        : in->kind == FD_GATE_GELU ? gate_f16<FD_GATE_GELU>
                                   : gate_f16<FD_GATE_SWIGLU_CLAMP>;
    return fd_launch(ctx, "gate_f16", kernel, dim3(fd_blocks(in->n, 1024)), 256, 0, err, in->gate, in->up, in->slope,
                     in->limit, in->n, out);
}

__global__ void __launch_bounds__(256) to_f16(const float *x, int64_t n, uint16_t *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __half_as_ushort(__float2half_rn(x[i]));
}

fd_code fd_launch_to_f16(const fd_launch_context *ctx, const float *x, int64_t n, uint16_t *out, fd_error *err) {
    if (n < 1) return fd_fail(err, FD_ERR_INPUT, "kernel to_f16: %lld elements", (long long)n);
    return fd_launch(ctx, "to_f16", to_f16, dim3(fd_blocks(n, 256)), 256, 0, err, x, n, out);
}

__global__ void __launch_bounds__(256) from_f16(const uint16_t *x, int64_t n, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fd_half_to_float(x[i]);
}

fd_code fd_launch_from_f16(const fd_launch_context *ctx, const uint16_t *x, int64_t n, float *out, fd_error *err) {
    if (n < 1) return fd_fail(err, FD_ERR_INPUT, "kernel from_f16: %lld elements", (long long)n);
    return fd_launch(ctx, "from_f16", from_f16, dim3(fd_blocks(n, 256)), 256, 0, err, x, n, out);
}

__global__ void __launch_bounds__(256) repeat_bias(const float *bias, int64_t n_row, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n_row) out[(int64_t)blockIdx.y * n_row + i] = bias[i];
}

fd_code fd_launch_repeat_bias(const fd_launch_context *ctx, const float *bias, int32_t n_tok, int64_t n_row, float *out,
                              fd_error *err) {
    if (n_tok < 1 || n_tok > 65535 || n_row < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel repeat_bias: %d rows of %lld", n_tok, (long long)n_row);
    return fd_launch(ctx, "repeat_bias", repeat_bias, dim3(fd_blocks(n_row, 256), (unsigned)n_tok), 256, 0, err, bias,
                     n_row, out);
}

/* ---- weights ---- */

int64_t fd_f16_row_stride(const fd_device_matrix *matrix) {
    const int64_t unit = fd_pack_unit(matrix->dtype);
    return (matrix->n_col + unit - 1) / unit * unit;
}

/* A thread decodes one lane's share of one unit: 16 bytes a group. Past n_col it writes what the row's padding holds,
 * which is never read. */
template <class Format>
__global__ void __launch_bounds__(256) dequantise_f16(const uint8_t *data, int64_t row_bytes, int64_t scale_offset,
                                                      int64_t n_share, int32_t n_unit, uint16_t *out) {
    const uint32_t magic = fd_opaque_magic();
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t share = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (share >= n_share) return;
    const int lane = (int)(share % 8);
    const int64_t row = share / 8 / n_unit;
    const int unit_at = (int)(share / 8 % n_unit);
    const fd_cursor cursor = Format::begin(data + row * row_bytes, scale_offset, lane);
    const typename Format::unit unit = Format::template load<FD_READ_ONCE>(cursor, unit_at, lane);
    uint4 *to = (uint4 *)(out + (row * n_unit + unit_at) * (Format::groups * 64) + lane * 8);
#pragma unroll
    for (int group = 0; group < Format::groups; group++) {
        float w[8];
        Format::decode(unit, group, lane, magic, w);
        __half2 pair[4];
#pragma unroll
        for (int i = 0; i < 4; i++) pair[i] = __floats2half2_rn(w[2 * i], w[2 * i + 1]);
        to[group * 8] = *(const uint4 *)pair;
    }
}

fd_code fd_launch_dequantise_f16(const fd_launch_context *ctx, const fd_device_matrix *matrix, uint16_t *out,
                                 fd_error *err) {
    return fd_with_format(matrix->dtype, err, [&](auto format) {
        using Format = decltype(format);
        const int32_t n_unit = (int32_t)(fd_f16_row_stride(matrix) / (64 * Format::groups));
        const int64_t n_share = matrix->n_row * n_unit * 8;
        return fd_launch(ctx, "dequantise_f16", dequantise_f16<Format>, dim3(fd_blocks(n_share, 256)), 256, 0, err,
                         (const uint8_t *)matrix->data, matrix->row_bytes, matrix->scale_offset, n_share, n_unit, out);
    });
}
