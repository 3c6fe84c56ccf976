/* A mixture of experts, op by op: SOFTMAX, TOP_K, EXPERT_WEIGHTS, EXPERT_MATMUL, EXPERT_SUM. Ids of experts are reals,
 * as the trace holds them; one that names no expert makes NaN. All pointers are device memory. */
#ifndef FD_KERNELS_MATVEC_EXPERTS_H
#define FD_KERNELS_MATVEC_EXPERTS_H

#include "kernels/formats/pack.h"
#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out = softmax of each row; x, out [n_row, n]; `out` may be `x`. */
fd_code fd_launch_softmax(const fd_launch_context *ctx, const float *x, int64_t n_row, int64_t n, float *out,
                          fd_error *err);

enum { FD_TOP_K_MAX_GROUPS = 64 };

/* ids of the k largest of each row, largest first; of equal ones the lower first, NaN last. k ≤ n. In groups: of the
 * elements of the n_group_used groups alone whose two largest elements have the largest sums. */
typedef struct fd_top_k {
    const float *x; /* [n_row, n] */
    int64_t n_row, n;
    int32_t k;
    int32_t n_group, n_group_used; /* of n / n_group ≥ 2 elements each; 0: no groups */
    float *ids;                    /* [n_row, k] */
} fd_top_k;
fd_code fd_launch_top_k(const fd_launch_context *ctx, const fd_top_k *in, fd_error *err);

typedef enum fd_expert_gating { FD_EXPERTS_GATHER, FD_EXPERTS_NORMALISED, FD_EXPERTS_SOFTMAX } fd_expert_gating;

/* The elements of x that ids name: as they are, divided by their sum, or their softmax; times `scale` unless it is
 * 1. */
typedef struct fd_expert_weights {
    const float *x;   /* [n_row, n] */
    const float *ids; /* [n_row, k] */
    int64_t n_row, n;
    int32_t k;
    fd_expert_gating gating;
    float scale;
    float *out; /* [n_row, k] */
} fd_expert_weights;
fd_code fd_launch_expert_weights(const fd_launch_context *ctx, const fd_expert_weights *in, fd_error *err);

typedef struct fd_expert_matmul {
    fd_device_matrix weight; /* [n_expert · n_out, n_col] */
    const float *bias;       /* [n_expert, n_out] or NULL */
    int64_t n_out;
    const float *x;   /* [n_row, n_col], or [n_row, k, n_col] with x_each */
    bool x_each;      /* each rank has its own x */
    const float *ids; /* [n_row, k]; NULL: rank r takes matrix r (HEAD_MATMUL) */
    int64_t n_row;
    int32_t k;
    float *out; /* [n_row, k, n_out] */
} fd_expert_matmul;

fd_code fd_launch_expert_matmul(const fd_launch_context *ctx, const fd_expert_matmul *in, fd_error *err);

/* out = Σ over ranks of w · x, acc = fma(w, x, acc) in order of rank. */
typedef struct fd_expert_sum {
    const float *x; /* [n_row, k, n] */
    const float *w; /* [n_row, k] */
    int64_t n_row, n;
    int32_t k;
    float *out; /* [n_row, n] */
} fd_expert_sum;
fd_code fd_launch_expert_sum(const fd_launch_context *ctx, const fd_expert_sum *in, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
