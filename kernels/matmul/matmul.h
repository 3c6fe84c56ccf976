/* MATMUL: y = W x (+ bias), every output the contract's dot of 64 partial sums.
 *
 * The kernels give the same bits: matrix-vector for one row (and a few rows: weights are read once for up to eight),
 * tiled for many. */
#ifndef FD_KERNELS_MATMUL_MATMUL_H
#define FD_KERNELS_MATMUL_MATMUL_H

#include "kernels/matvec/matvec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Up to so many rows the matrix-vector kernel is the faster one, though it takes more (docs/performance-diary.md). */
enum { FD_MATMUL_VECTORS = 8 };

enum { FD_MATMUL_PARTS = FD_MATVEC_PARTS };

/* One of the matrices that share an input. */
typedef struct fd_matmul_part {
    fd_device_matrix weight;
    const float *bias; /* device, [n_row] or NULL */
    float *out;        /* device, [n_tok, n_row] = W x + bias */
} fd_matmul_part;

typedef struct fd_matmul {
    const float *x; /* device, [n_tok, n_col] */
    int32_t n_tok;  /* ≥ 1 */
    int32_t n_part; /* 1 … FD_MATMUL_PARTS, all of the same dtype and n_col */
    fd_matmul_part part[FD_MATMUL_PARTS];
} fd_matmul;

static inline fd_matmul fd_matmul_of(const fd_device_matrix *weight, const float *bias, const float *x, int32_t n_tok,
                                     float *out) {
    fd_matmul one = {x, n_tok, 1, {{*weight, bias, out}}};
    return one;
}

/* Chooses the kernel. */
fd_code fd_launch_matmul(const fd_launch_context *ctx, const fd_matmul *in, fd_error *err);

/* ---- the tiled kernels by name (tests, benchmarks) ---- */

/* The large one's tiles have 32 token rows, and it needs sm_90; the small one's have 16. The first function chooses:
 * small up to 16 rows and on other devices. */
fd_code fd_launch_matmul_tile(const fd_launch_context *ctx, const fd_matmul *in, fd_error *err);
fd_code fd_launch_matmul_tile_large(const fd_launch_context *ctx, const fd_matmul *in, fd_error *err);
fd_code fd_launch_matmul_tile_small(const fd_launch_context *ctx, const fd_matmul *in, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
