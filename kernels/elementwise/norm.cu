#include "kernels/elementwise/norm.h"

#include "kernels/elementwise/activation.h"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/elementwise/norm.cuh"

/* Rows that fit the shared memory every kernel may have. */
enum { STAGED_COLUMNS = 8192, QUADS = 4 };

static bool staged_takes(int64_t n) {
    return n % 4 == 0 && n <= STAGED_COLUMNS;
}

/* A block norms a row, which it copies to shared memory, with zeros up to a whole group of 64; its first warp sums.
 * With an addend the row is x + addend, which is stored in `sum`. */
__global__ void __launch_bounds__(256) rms_norm_staged(const float *x, const float *addend, int n, const float *weights,
                                                       int n_weight_row, float eps, float *sum, float *out) {
    __shared__ float factor;
    float *staged = fd_shared_floats();
    float4 *const quads = (float4 *)staged;
    const int64_t row = (int64_t)blockIdx.x * n / 4;
    const float *weight = weights + (int64_t)((int)blockIdx.x % n_weight_row) * n;
    const int n_quad = n / 4, first = (int)threadIdx.x;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    if (first < 16 && n_quad + first < (n + 63) / 64 * 16) quads[n_quad + first] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int at = first; at < n_quad; at += QUADS * 256) {
        float4 a[QUADS], b[QUADS]; /* all loads are issued before the first is used */
#pragma unroll
        for (int i = 0; i < QUADS; i++)
            if (at + i * 256 < n_quad) a[i] = __ldcg((const float4 *)x + row + at + i * 256);
#pragma unroll
        for (int i = 0; i < QUADS; i++)
            if (addend && at + i * 256 < n_quad) b[i] = __ldcg((const float4 *)addend + row + at + i * 256);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            if (at + i * 256 >= n_quad) break;
            if (addend) {
                a[i] = make_float4(a[i].x + b[i].x, a[i].y + b[i].y, a[i].z + b[i].z, a[i].w + b[i].w);
                ((float4 *)sum)[row + at + i * 256] = a[i];
            }
            quads[at + i * 256] = a[i];
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const float *pairs = staged + 2 * threadIdx.x;
        const float r = fd_inverse_rms(n, eps, [&](int group) { return *(const float2 *)(pairs + group * 64); });
        if (threadIdx.x == 0) factor = r;
    }
    __syncthreads();
    const float r = factor;
    for (int at = first; at < n_quad; at += 256) {
        const float4 v = quads[at], w = __ldg((const float4 *)weight + at);
        ((float4 *)out)[row + at] = fd_normed(v, r, w);
    }
}

/* Rows of any length. */
__global__ void __launch_bounds__(256)
    rms_norm(const float *x, int64_t n, const float *weights, int n_weight_row, float eps, float *out) {
    __shared__ float factor;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const float *row = x + blockIdx.x * n, *weight = weights + (int64_t)((int)blockIdx.x % n_weight_row) * n;
    if (threadIdx.x < 32) {
        const float r = fd_inverse_rms((int)n, eps, [&](int group) {
            const int64_t k = (int64_t)group * 64 + 2 * threadIdx.x;
            return make_float2(k < n ? row[k] : 0.0f, k + 1 < n ? row[k + 1] : 0.0f);
        });
        if (threadIdx.x == 0) factor = r;
    }
    __syncthreads();
    const float r = factor;
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x) out[blockIdx.x * n + k] = (row[k] * r) * weight[k];
}

/* A warp a row; lane l has partials 2l and 2l + 1. Σx² is never -0: zeros past the row's end leave it as it is. */
__global__ void __launch_bounds__(32) l2_norm(const float *x, int64_t n, float eps, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const float *row = x + blockIdx.x * n;
    float partial[2] = {0.0f, 0.0f};
    for (int64_t k = 2 * threadIdx.x; k < n; k += 64) {
        const float second = k + 1 < n ? row[k + 1] : 0.0f;
        partial[0] = fmaf(row[k], row[k], partial[0]);
        partial[1] = fmaf(second, second, partial[1]);
    }
    const float r = 1.0f / sqrtf(fd_tree_lanes<32>(fd_tree(partial)) + eps);
    for (int64_t k = threadIdx.x; k < n; k += 32) out[blockIdx.x * n + k] = row[k] * r;
}

static int weight_rows(const fd_rms_norm *in) {
    return in->n_weight_row > 1 ? in->n_weight_row : 1;
}

static fd_code launch_staged(const fd_launch_context *ctx, const fd_rms_norm *in, const float *addend, float *sum,
                             float *out, fd_error *err) {
    return fd_launch(ctx, "rms_norm_staged", rms_norm_staged, dim3((unsigned)in->n_tok), 256,
                     sizeof(float) * (size_t)((in->n + 63) / 64 * 64), err, in->x, addend, (int)in->n, in->weight,
                     weight_rows(in), in->eps, sum, out);
}

static fd_code check(const fd_rms_norm *in, fd_error *err) {
    if (in->n_tok >= 1 && in->n >= 1 && in->n <= 1 << 30) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "kernel rms_norm: %d rows of %lld", in->n_tok, (long long)in->n);
}

fd_code fd_launch_rms_norm(const fd_launch_context *ctx, const fd_rms_norm *in, float *out, fd_error *err) {
    FD_TRY(check(in, err));
    if (staged_takes(in->n)) return launch_staged(ctx, in, nullptr, nullptr, out, err);
    return fd_launch(ctx, "rms_norm", rms_norm, dim3((unsigned)in->n_tok), 256, 0, err, in->x, in->n, in->weight,
                     weight_rows(in), in->eps, out);
}

fd_code fd_launch_l2_norm(const fd_launch_context *ctx, const fd_rms_norm *in, float *out, fd_error *err) {
    FD_TRY(check(in, err));
    return fd_launch(ctx, "l2_norm", l2_norm, dim3((unsigned)in->n_tok), 32, 0, err, in->x, in->n, in->eps, out);
}

fd_code fd_launch_add_rms_norm(const fd_launch_context *ctx, const fd_rms_norm *in, const float *addend, float *sum,
                               float *out, fd_error *err) {
    FD_TRY(check(in, err));
    if (staged_takes(in->n)) return launch_staged(ctx, in, addend, sum, out, err);
    FD_TRY(fd_launch_add(ctx, in->x, addend, in->n_tok * in->n, sum, err));
    fd_rms_norm of_sum = *in;
    of_sum.x = sum;
    return fd_launch_rms_norm(ctx, &of_sum, out, err);
}
