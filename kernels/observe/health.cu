/* Entropy of attention and the best logits. */
#include "kernels/launch.cuh"
#include "kernels/observe/summary.cuh"
#include "kernels/observe/summary.h"

enum { WARPS = 4 };

/* A warp a head. */
__global__ void __launch_bounds__(WARPS * 32)
    attention_entropy(const fd_row_views views, int n_head, float *entropy, float *sink) {
    const fd_row_view view = views.table ? views.table[blockIdx.y] : views.one;
    const int row_at = (int)blockIdx.z, lane = (int)threadIdx.x % 32;
    const int head = (int)(blockIdx.x * WARPS + threadIdx.x / 32), n = views.pos0 + row_at + 1;
    if (head >= n_head) return;
    const float *p = (const float *)view.data + row_at * view.row_stride + head * view.run_stride;
    double total = 0.0;
    for (int block = 0; block < n; block += FD_SUM_BLOCK) {
        double partial[2] = {0.0, 0.0};
        for (int k = block + lane * 2; k < n && k < block + FD_SUM_BLOCK; k += 64) {
            partial[0] = partial[0] + fd_plogp((double)__ldcg(p + k));
            if (k + 1 < n) partial[1] = partial[1] + fd_plogp((double)__ldcg(p + k + 1));
        }
        total = total + fd_warp_tree64(partial);
    }
    if (lane != 0) return;
    const int64_t to = ((int64_t)blockIdx.y * gridDim.z + row_at) * n_head + head;
    entropy[to] = (float)(0.0 - total);
    sink[to] = __ldcg(p);
}

fd_code fd_launch_entropy(const fd_launch_context *ctx, const fd_row_views *views, int32_t n_head, float *entropy,
                          float *sink, fd_error *err) {
    if (views->n < 1 || views->n > 65535 || views->n_row < 1 || views->n_row > 65535 || n_head < 1 || views->pos0 < 0)
        return fd_fail(err, FD_ERR_INPUT, "kernel entropy: %d tensors of %d heads, %d rows from position %d", views->n,
                       n_head, views->n_row, views->pos0);
    const dim3 grid(fd_blocks(n_head, WARPS), (unsigned)views->n, (unsigned)views->n_row);
    return fd_launch(ctx, "attention_entropy", attention_entropy, grid, WARPS * 32, 0, err, *views, n_head, entropy,
                     sink);
}

/* ---- the best logits ---- */

/* Of one block of FD_SUM_BLOCK logits. */
struct top_part {
    uint64_t best[FD_TOP_K]; /* keys, largest first; 0: none */
    int64_t nan;             /* id of its first NaN; n_vocab: none */
    double share;            /* Σ e^(x − best of all) */
};

size_t fd_top_scratch(int64_t n_vocab, int32_t n_row) {
    return sizeof(top_part) * (size_t)((n_vocab + FD_SUM_BLOCK - 1) / FD_SUM_BLOCK) * (size_t)n_row;
}

/* Keys rise with the logit and, among equal ones (-0 and +0 are equal), fall with the id. Never 0, nor all ones. */
__device__ __forceinline__ uint64_t key_of(float x, uint32_t id) {
    const uint32_t bits = x == 0.0f ? 0u : fd_canonical32(x);
    const uint32_t rising = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)rising << 32 | (0xffffffffu - id);
}

__device__ __forceinline__ uint32_t id_of(uint64_t key) {
    return 0xffffffffu - (uint32_t)key;
}

template <typename T> __device__ __forceinline__ T warp_largest(T value) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, value, offset);
        value = other > value ? other : value;
    }
    return value;
}

/* A warp a block of logits: ten times the largest key below the last. */
__global__ void __launch_bounds__(WARPS * 32)
    top_blocks(const float *logits, int64_t n_vocab, int n_part, top_part *parts) {
    const int at = (int)(blockIdx.x * WARPS + threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    if (at >= n_part) return;
    const float *x = logits + blockIdx.y * n_vocab;
    top_part *out = parts + (int64_t)blockIdx.y * n_part + at;
    uint64_t keys[FD_SUM_BLOCK / 32];
    int64_t nan = n_vocab;
#pragma unroll
    for (int i = 0; i < FD_SUM_BLOCK / 32; i++) {
        const int64_t id = (int64_t)at * FD_SUM_BLOCK + i * 32 + lane;
        const float value = id < n_vocab ? __ldcg(x + id) : 0.0f;
        keys[i] = id < n_vocab ? key_of(value, (uint32_t)id) : 0;
        if (value != value && id < nan) nan = id;
    }
    nan = -warp_largest(-nan);
    uint64_t last = ~(uint64_t)0;
    for (int k = 0; k < FD_TOP_K; k++) {
        uint64_t best = 0;
#pragma unroll
        for (int i = 0; i < FD_SUM_BLOCK / 32; i++)
            if (keys[i] < last && keys[i] > best) best = keys[i];
        best = warp_largest(best);
        if (lane == 0) out->best[k] = best;
        last = best;
    }
    if (lane == 0) out->nan = nan;
}

__device__ __forceinline__ uint64_t best_of(const top_part *parts, int n_part, int lane) {
    uint64_t best = 0;
    for (int i = lane; i < n_part; i += 32) best = parts[i].best[0] > best ? parts[i].best[0] : best;
    return warp_largest(best);
}

/* A warp a block of logits. */
__global__ void __launch_bounds__(WARPS * 32)
    top_shares(const float *logits, int64_t n_vocab, int n_part, top_part *parts) {
    const int at = (int)(blockIdx.x * WARPS + threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    if (at >= n_part) return;
    const float *x = logits + blockIdx.y * n_vocab;
    top_part *row = parts + (int64_t)blockIdx.y * n_part;
    const double best = (double)x[id_of(best_of(row, n_part, lane))];
    double partial[2] = {0.0, 0.0};
#pragma unroll 4
    for (int i = 0; i < FD_SUM_BLOCK / 64; i++) {
        const int64_t k = (int64_t)at * FD_SUM_BLOCK + i * 64 + lane * 2;
        if (k < n_vocab) partial[0] = partial[0] + fd_share64((double)__ldcg(x + k) - best);
        if (k + 1 < n_vocab) partial[1] = partial[1] + fd_share64((double)__ldcg(x + k + 1) - best);
    }
    const double sum = fd_warp_tree64(partial);
    if (lane == 0) row[at].share = sum;
}

/* A warp a row of logits. */
__global__ void __launch_bounds__(32)
    top_rows(const float *logits, int64_t n_vocab, int n_part, const top_part *parts, fd_top_logits *top) {
    const int lane = (int)threadIdx.x;
    const float *x = logits + blockIdx.x * n_vocab, none = fd_from_bits32(0x7fc00000u);
    const top_part *row = parts + (int64_t)blockIdx.x * n_part;
    int64_t nan = n_vocab;
    for (int i = lane; i < n_part; i += 32) nan = row[i].nan < nan ? row[i].nan : nan;
    nan = -warp_largest(-nan);
    fd_top_logits found;
    uint64_t last = ~(uint64_t)0;
    for (int k = 0; k < FD_TOP_K; k++) {
        uint64_t best = 0;
        for (int i = lane; i < n_part * FD_TOP_K; i += 32) {
            const uint64_t key = row[i / FD_TOP_K].best[i % FD_TOP_K];
            if (key < last && key > best) best = key;
        }
        best = nan < n_vocab ? 0 : warp_largest(best);
        found.logit[k] = best ? x[id_of(best)] : none;
        found.id[k] = best ? (int32_t)id_of(best) : -1;
        last = best;
    }
    double sum = 0.0;
    for (int first = 0; first < n_part; first += 32) {
        const double own = first + lane < n_part ? row[first + lane].share : 0.0;
        for (int i = 0; i < 32 && first + i < n_part; i++) sum = sum + __shfl_sync(0xffffffffu, own, i);
    }
    const bool finite = found.id[0] >= 0 && fabsf(found.logit[0]) < (float)INFINITY;
    found.probability = finite ? (float)(1.0 / sum) : none;
    found.range =
        found.id[FD_TOP_K - 1] >= 0 ? (float)((double)found.logit[0] - (double)found.logit[FD_TOP_K - 1]) : none;
    if (nan < n_vocab) found.id[0] = (int32_t)nan;
    if (lane == 0) top[blockIdx.x] = found;
}

fd_code fd_launch_top_logits(const fd_launch_context *ctx, const float *logits, int64_t n_vocab, int32_t n_row,
                             void *scratch, fd_top_logits *top, fd_error *err) {
    if (n_vocab < 1 || n_vocab > INT32_MAX || n_row < 1 || n_row > 65535)
        return fd_fail(err, FD_ERR_INPUT, "kernel top_logits: %d rows of %lld", n_row, (long long)n_vocab);
    const int n_part = (int)((n_vocab + FD_SUM_BLOCK - 1) / FD_SUM_BLOCK);
    const dim3 grid(fd_blocks(n_part, WARPS), (unsigned)n_row);
    top_part *parts = (top_part *)scratch;
    FD_TRY(fd_launch(ctx, "top_blocks", top_blocks, grid, WARPS * 32, 0, err, logits, n_vocab, n_part, parts));
    FD_TRY(fd_launch(ctx, "top_shares", top_shares, grid, WARPS * 32, 0, err, logits, n_vocab, n_part, parts));
    return fd_launch(ctx, "top_rows", top_rows, dim3((unsigned)n_row), 32, 0, err, logits, n_vocab, n_part,
                     (const top_part *)parts, top);
}
