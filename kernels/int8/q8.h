/* MATMUL in `q8act`: int8 activations times quantised weights, every output the sum that numerics/q8act.h fixes.
 *
 * One row goes through the matrix-vector kernel, which quantises it on the way in; several rows are quantised first
 * (q8_quantize) and multiplied by one of two matrix kernels (q8_matmul_few, q8_matmul). All give the same bits, on tensor cores. Weights are
 * packed as for `exact` (kernels/formats/pack.h). */
#ifndef FD_KERNELS_INT8_Q8_H
#define FD_KERNELS_INT8_Q8_H

#include "kernels/matmul/matmul.h"
#include "kernels/matvec/experts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True for the quantised types; weights of others are multiplied as in `exact`. */
bool fd_q8_can(uint32_t dtype);

/* The kernel for few tokens takes so many at most (kernels/int8/matmul_few.cu). */
enum { FD_Q8_FEW = 64 };

/* Rows of activations as blocks, in device memory. Of more than FD_Q8_FEW tokens each row lies by itself. Few lie in
 * panels of 256 columns, each in one piece (kernels/int8/panel.cuh). */
typedef struct fd_q8_rows {
    int8_t *q;      /* [tok_stride, row_bytes], row_bytes n_col rounded up to 256; or the panels */
    float *d, *sum; /* [row_bytes / 32, tok_stride]: scale and d·Σq of each block; NULL where there are panels */
    int64_t row_bytes;
    int32_t tok_stride; /* n_tok rounded up to 128; the rows past n_tok hold nothing */
    int32_t panel;      /* tokens of a panel: 8, 16, 32 or 64; 0: rows */
} fd_q8_rows;

/* Device memory for n_tok rows, and where its parts lie in `memory` (256-byte aligned). */
size_t fd_q8_rows_bytes(int64_t n_col, int32_t n_tok);
fd_q8_rows fd_q8_rows_at(void *memory, int64_t n_col, int32_t n_tok);

/* x [n_tok, n_col] to blocks; n_col is a multiple of 32. */
fd_code fd_launch_q8_quantize(const fd_launch_context *ctx, const float *x, int32_t n_tok, int64_t n_col,
                              const fd_q8_rows *to, fd_error *err);

/* out = W x + bias, of several matrices with one input. */
typedef struct fd_q8_matmul {
    fd_matmul product; /* its x is not read, */
    fd_q8_rows x;      /* but these, made of it */
    int32_t tile;      /* of rows: tokens a thread block takes: 32, 64 or 128; 0 chooses */
} fd_q8_matmul;
fd_code fd_launch_q8_matmul(const fd_launch_context *ctx, const fd_q8_matmul *in, fd_error *err);

/* The kernel that takes panels, by name (tests, benchmarks). `rows`: of weights, of a thread block, a multiple of 16; 0
 * chooses. */
fd_code fd_launch_q8_matmul_few(const fd_launch_context *ctx, const fd_q8_matmul *in, int32_t rows, fd_error *err);

/* How the matrix-vector product is laid over the device; no bit depends on it. */
typedef struct fd_q8_form {
    int32_t warps;   /* of a block, at most FD_MATVEC_WARPS; each follows eight rows at a time */
    int32_t blocks;  /* of a multiprocessor */
    int32_t stages;  /* of each warp's ring: 2 to 4 */
    int32_t split_k; /* warps that share eight rows: 1, or up to `warps` and one for each 256 columns */
} fd_q8_form;

/* As fd_launch_matvec, for one row (in->n_tok = 1) and quantised weights. `form` NULL chooses. */
fd_code fd_launch_q8_matvec(const fd_launch_context *ctx, const fd_matvec *in, const fd_q8_form *form, fd_error *err);

/* Whether that is faster than exact's product of one row (kernels/matvec/matvec.h) with n_row rows in all, as
 * measured. */
bool fd_q8_matvec_is_faster(const fd_launch_context *ctx, uint32_t dtype, int64_t n_row, int64_t n_col);

/* As fd_launch_expert_matmul, with quantised weights. */
fd_code fd_launch_q8_expert_matmul(const fd_launch_context *ctx, const fd_expert_matmul *in, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
