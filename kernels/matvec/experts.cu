/* Plain kernels but for the product: a row of the router is short, and the time of a mixture goes into the experts'
 * matrices, of which eight lanes read a row. */
#include "kernels/matvec/experts.h"

#include "kernels/matvec/expert_matmul.cuh"
#include "kernels/formats/formats.cuh"
#include "kernels/launch.cuh"
#include "kernels/tree.cuh"
#include "numerics/contract.h"

enum { EXPERT_ROWS = 32 }; /* of a block: eight lanes a row */

/* Softmax of n elements by one warp, x may be out. */
__device__ __forceinline__ void softmax_row(const float *x, int64_t n, float *out) {
    const int lane = (int)threadIdx.x % 32;
    float max = -(float)INFINITY;
    for (int64_t i = lane; i < n; i += 32) max = fmaxf(max, x[i]);
    max = fd_warp_max(max);
    for (int64_t i = lane; i < n; i += 32) out[i] = fd_exp32(x[i] - max);
    __threadfence_block();
    __syncwarp();
    const float sum = fd_warp_sum(out, (int)n, lane);
    __syncwarp();
    for (int64_t i = lane; i < n; i += 32) out[i] = out[i] / sum;
}

__global__ void __launch_bounds__(32) softmax(const float *x, int64_t n, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    softmax_row(x + blockIdx.x * n, n, out + blockIdx.x * n);
}

__device__ __forceinline__ bool comes_before(const float *x, int64_t a, int64_t b) {
    if (x[a] > x[b]) return true;
    if (x[a] < x[b]) return false;
    const bool nan_a = x[a] != x[a], nan_b = x[b] != x[b];
    return nan_a != nan_b ? nan_b : a < b;
}

/* Which groups of a row may be chosen from, a bit each. */
__device__ __forceinline__ uint64_t open_groups(const float *x, const fd_top_k &in) {
    const int each = (int)(in.n / in.n_group);
    float sum[FD_TOP_K_MAX_GROUPS];
    uint64_t open = 0;
    for (int g = 0; g < in.n_group; g++) {
        const float *group = x + (int64_t)g * each;
        int best = 0, second = -1;
        for (int i = 1; i < each; i++)
            if (comes_before(group, i, best))
                second = best, best = i;
            else if (second < 0 || comes_before(group, i, second))
                second = i;
        sum[g] = group[best] + group[second];
    }
    for (int g = 0; g < in.n_group; g++) {
        int better = 0;
        for (int i = 0; i < in.n_group; i++) better += i != g && comes_before(sum, i, g);
        if (better < in.n_group_used) open |= (uint64_t)1 << g;
    }
    return open;
}

/* A thread a row: a selection by insertion. */
__global__ void __launch_bounds__(32) top_k(const __grid_constant__ fd_top_k in) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t row = (int64_t)blockIdx.x * 32 + threadIdx.x;
    if (row >= in.n_row) return;
    const float *x = in.x + row * in.n;
    const int64_t each = in.n_group > 0 ? in.n / in.n_group : in.n;
    const uint64_t open = in.n_group > 0 ? open_groups(x, in) : 1;
    float *id = in.ids + row * in.k;
    int kept = 0;
    for (int64_t i = 0; i < in.n; i++) {
        int at = kept;
        if (!(open >> (i / each) & 1)) continue;
        while (at > 0 && comes_before(x, i, (int64_t)id[at - 1])) at--;
        if (at == in.k) continue;
        if (kept < in.k) kept++;
        for (int m = kept - 1; m > at; m--) id[m] = id[m - 1];
        id[at] = (float)i;
    }
}

/* A warp a row. */
__global__ void __launch_bounds__(32)
    expert_weights(const float *rows, const float *ids, int64_t n, int32_t k, int gating, float scale, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const float *x = rows + blockIdx.x * n, *id = ids + (int64_t)blockIdx.x * k;
    float *w = out + (int64_t)blockIdx.x * k;
    const int lane = (int)threadIdx.x;
    for (int r = lane; r < k; r += 32) {
        const int64_t expert = fd_expert_id(id[r], n);
        w[r] = expert < 0 ? fd_from_bits32(0x7fc00000u) : x[expert];
    }
    __threadfence_block();
    __syncwarp();
    if (gating == FD_EXPERTS_SOFTMAX) softmax_row(w, k, w);
    if (gating == FD_EXPERTS_NORMALISED) {
        const float sum = fd_warp_sum(w, k, lane);
        __syncwarp();
        for (int r = lane; r < k; r += 32) w[r] = w[r] / sum;
    }
    if (scale != 1.0f)
        for (int r = lane; r < k; r += 32) w[r] = w[r] * scale;
}

/* Grid: rows of the expert's matrix × (row, rank). */
template <class Format>
__global__ void __launch_bounds__(256) expert_matmul(const __grid_constant__ fd_expert_matmul a) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t item = blockIdx.y, wanted = (int64_t)blockIdx.x * EXPERT_ROWS + threadIdx.x / 8;
    const int64_t o = wanted < a.n_out ? wanted : a.n_out - 1, n_col = a.weight.n_col;
    const int64_t expert = fd_expert_of_item(a, item);
    const float *x = a.x + (a.x_each ? item : item / a.k) * n_col;
    const int lane = (int)threadIdx.x % 8, n_unit = Format::units_of(n_col);
    const uint32_t magic = fd_opaque_magic();
    const uint8_t *row =
        (const uint8_t *)a.weight.data + ((expert < 0 ? 0 : expert) * a.n_out + o) * a.weight.row_bytes;
    const fd_cursor cursor = Format::begin(row, a.weight.scale_offset, lane);
    float acc[8] = {};
    for (int at = 0; at < n_unit; at++) {
        const typename Format::unit unit = Format::template load<FD_READ_ONCE>(cursor, at, lane);
#pragma unroll
        for (int group = 0; group < Format::groups; group++) {
            float w[8];
            Format::decode(unit, group, lane, magic, w);
            const int64_t k = (int64_t)(at * Format::groups + group) * 64 + lane * 8;
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (k + i < n_col) acc[i] = fmaf(w[i], x[k + i], acc[i]);
        }
    }
    float sum = fd_tree_lanes<8>(fd_tree(acc));
    if (lane != 0 || wanted >= a.n_out) return;
    if (a.bias && expert >= 0) sum = sum + a.bias[expert * a.n_out + o];
    a.out[item * a.n_out + o] = expert < 0 ? fd_from_bits32(0x7fc00000u) : sum;
}

__global__ void __launch_bounds__(256)
    expert_sum(const float *x, const float *w, int64_t n_row, int64_t n, int32_t k, float *out) {
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; item < n_row * n; item += step) {
        const int64_t row = item / n, i = item % n;
        float acc = 0.0f;
        for (int r = 0; r < k; r++) acc = fmaf(w[row * k + r], x[(row * k + r) * n + i], acc);
        out[item] = acc;
    }
}

/* ---- launchers ---- */

static fd_code check(const char *name, int64_t n_row, int64_t n, int32_t k, fd_error *err) {
    if (n_row < 1 || n_row > INT32_MAX || n < 1 || n > INT32_MAX || k < 1 || k > INT32_MAX / 2)
        return fd_fail(err, FD_ERR_INPUT, "kernel %s: %lld rows of %lld, %d chosen", name, (long long)n_row,
                       (long long)n, k);
    return FD_OK;
}

fd_code fd_launch_softmax(const fd_launch_context *ctx, const float *x, int64_t n_row, int64_t n, float *out,
                          fd_error *err) {
    FD_TRY(check("softmax", n_row, n, 1, err));
    return fd_launch(ctx, "softmax", softmax, dim3((unsigned)n_row), 32, 0, err, x, n, out);
}

fd_code fd_launch_top_k(const fd_launch_context *ctx, const fd_top_k *in, fd_error *err) {
    FD_TRY(check("top_k", in->n_row, in->n, in->k, err));
    if (in->k > in->n) return fd_fail(err, FD_ERR_INPUT, "kernel top_k: %d of %lld", in->k, (long long)in->n);
    if (in->n_group > 0 && (in->n_group > FD_TOP_K_MAX_GROUPS || in->n % in->n_group != 0 || in->n < 2 * in->n_group))
        return fd_fail(err, FD_ERR_INPUT, "kernel top_k: %lld elements in %d groups", (long long)in->n, in->n_group);
    return fd_launch(ctx, "top_k", top_k, dim3(fd_blocks(in->n_row, 32)), 32, 0, err, *in);
}

fd_code fd_launch_expert_weights(const fd_launch_context *ctx, const fd_expert_weights *in, fd_error *err) {
    FD_TRY(check("expert_weights", in->n_row, in->n, in->k, err));
    return fd_launch(ctx, "expert_weights", expert_weights, dim3((unsigned)in->n_row), 32, 0, err, in->x, in->ids,
                     in->n, in->k, (int)in->gating, in->scale, in->out);
}

fd_code fd_launch_expert_matmul(const fd_launch_context *ctx, const fd_expert_matmul *in, fd_error *err) {
    FD_TRY(fd_expert_matmul_check(in, err));
    return fd_with_format(in->weight.dtype, err, [&](auto format) {
        return fd_expert_matmul_parts(in, [&](const fd_expert_matmul &part, unsigned n_item) {
            const dim3 grid(fd_blocks(in->n_out, EXPERT_ROWS), n_item);
            return fd_launch(ctx, "expert_matmul", expert_matmul<decltype(format)>, grid, 256, 0, err, part);
        });
    });
}

fd_code fd_launch_expert_sum(const fd_launch_context *ctx, const fd_expert_sum *in, fd_error *err) {
    FD_TRY(check("expert_sum", in->n_row, in->n, in->k, err));
    const unsigned most = (unsigned)ctx->n_sm * 8, wanted = fd_blocks(in->n_row * in->n, 256);
    return fd_launch(ctx, "expert_sum", expert_sum, dim3(wanted < most ? wanted : most), 256, 0, err, in->x, in->w,
                     in->n_row, in->n, in->k, in->out);
}
