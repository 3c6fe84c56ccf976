/* Layers with a state: CONV, TOKEN_SHIFT, SSM_SCAN, GATED_DELTA, WKV7. Each reads the rows that a cache holds from
 * position 0 on. All pointers are device memory. */
#ifndef FD_KERNELS_RECURRENT_RECURRENT_H
#define FD_KERNELS_RECURRENT_RECURRENT_H

#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FD_RECURRENT_MAX_STATE = 256 }; /* elements of an item's state */

/* The rows that an op computes, and the cache that it reads. */
typedef struct fd_recurrent_rows {
    const float *cache;  /* [*pos0 + n_tok, width of the op's cache] */
    const int32_t *pos0; /* position of the first row */
    int32_t n_tok;
    float *out; /* [n_tok, width] */
} fd_recurrent_rows;

/* States after the last row of the pass before, so that this one need not begin at position 0. An item whose state has
 * not taken in exactly *pos0 rows begins there all the same. Both NULL: none is kept. */
typedef struct fd_kept_state {
    float *state;      /* [n_item · n_state], in the order of the op's kernel */
    int32_t *position; /* [n_item]: rows that the item's state has taken in; 0 at first */
} fd_kept_state;

/* out[r][i] = Σ_j w[i][j] · cache[p − (n_tap − 1) + j][i], p = *pos0 + r, then the bias. */
typedef struct fd_conv {
    fd_recurrent_rows rows;
    const float *weight, *bias; /* [n, n_tap]; [n] or NULL */
    int64_t n;
    int32_t n_tap;
} fd_conv;
fd_code fd_launch_conv(const fd_launch_context *ctx, const fd_conv *in, fd_error *err);

/* out[r][i] = fma(cache[p − 1][i] − cache[p][i], w[i], cache[p][i]); before position 0 there is 0. */
fd_code fd_launch_token_shift(const fd_launch_context *ctx, const fd_recurrent_rows *rows, const float *weight,
                              int64_t n, fd_error *err);

/* A row of the cache: dt [n_head], x [n_head, n_dim], B [n_group, n_state]. Items are channels: n_head · n_dim. */
typedef struct fd_ssm_scan {
    fd_recurrent_rows rows;
    const float *c;     /* [n_tok, n_group, n_state] */
    const float *a, *d; /* [n_head, n_state] (a_each) or [n_head]; [n_head] */
    bool a_each;
    int32_t n_head, n_dim, n_group, n_state;
    fd_kept_state kept;
} fd_ssm_scan;
fd_code fd_launch_ssm_scan(const fd_launch_context *ctx, const fd_ssm_scan *in, fd_error *err);

/* A row of the cache, for each key head: `each` decays, `each` betas, k [n_state], v [each, n_dim]. Items are elements
 * of value heads: n_key · each · n_dim. */
typedef struct fd_gated_delta {
    fd_recurrent_rows rows;
    const float *q; /* [n_tok, n_key, n_state] */
    int32_t n_key, each, n_dim, n_state;
    float scale;
    fd_kept_state kept;
} fd_gated_delta;
fd_code fd_launch_gated_delta(const fd_launch_context *ctx, const fd_gated_delta *in, fd_error *err);

/* A row of the cache, for each head: w, k, v, a, b [n_state] each. Items are elements of v: n_head · n_state. */
typedef struct fd_wkv7 {
    fd_recurrent_rows rows;
    const float *r; /* [n_tok, n_head, n_state] */
    int32_t n_head, n_state;
    fd_kept_state kept;
} fd_wkv7;
fd_code fd_launch_wkv7(const fd_launch_context *ctx, const fd_wkv7 *in, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
