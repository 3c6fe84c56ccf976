/* SLICE, CONCAT, MUL: what is done with each head by itself. All pointers are device memory. */
#ifndef FD_KERNELS_ELEMENTWISE_HEADS_H
#define FD_KERNELS_ELEMENTWISE_HEADS_H

#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out [n_head, n] = elements first … first + n − 1 of x [n_head, n_in]; heads of all rows together. */
typedef struct fd_slice {
    const float *x;
    int64_t n_head, n_in, n, first;
    float *out;
} fd_slice;
fd_code fd_launch_slice(const fd_launch_context *ctx, const fd_slice *in, fd_error *err);

/* out [n_tok, n_head, n_a + n_b] = each head of a [n_tok, n_head, n_a], then that of b [n_tok, n_head_b, n_b], whose
 * only head (n_head_b 1) serves all. */
typedef struct fd_concat {
    const float *a, *b;
    int64_t n_tok, n_head, n_head_b, n_a, n_b;
    float *out;
} fd_concat;
fd_code fd_launch_concat(const fd_launch_context *ctx, const fd_concat *in, fd_error *err);

/* out [n] = a[i] · b[i / each]. */
fd_code fd_launch_mul(const fd_launch_context *ctx, const float *a, const float *b, int64_t n, int64_t each, float *out,
                      fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
