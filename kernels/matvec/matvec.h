/* Matrix-vector products: MATMUL of one row of x, or a few, with what the decode step fuses into it: the RMS norm
 * before, silu or the residual after. Every output is the contract's dot of 64 partial sums. All pointers are device
 * memory. */
#ifndef FD_KERNELS_MATVEC_MATVEC_H
#define FD_KERNELS_MATVEC_MATVEC_H

#include "kernels/formats/pack.h"
#include "kernels/gather/gather.h"
#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FD_MATVEC_PARTS = 3, FD_MATVEC_TOKENS = 8 };

/* One of the matrices that share an input. */
typedef struct fd_matvec_part {
    fd_device_matrix weight;
    const float *bias;     /* [n_row] or NULL */
    const float *residual; /* [n_tok, n_row], added after the bias; NULL: none */
    float *out;            /* [n_tok, n_row] */
    float *product;        /* [n_tok, n_row]: with the bias, before silu or the addition; NULL: not stored */
} fd_matvec_part;

typedef struct fd_matvec {
    const float *x;           /* [n_tok, n_col] */
    int32_t n_tok;            /* 1 … FD_MATVEC_TOKENS */
    const float *norm_weight; /* [n_col]: x is RMS-normed first; NULL: as it is */
    float norm_eps;
    float *norm_out; /* [n_col]: the normed x (n_tok = 1); NULL: not stored */
    int32_t n_part;  /* 1 … FD_MATVEC_PARTS, all of the same dtype and n_col */
    fd_matvec_part part[FD_MATVEC_PARTS];
    bool silu_pair; /* two parts of equal n_row: part[0].out = silu(part[0]) · part[1] */
    fd_send send;   /* of one result, part[0].out, of one row: it goes to the ranks' pages instead of there */
} fd_matvec;

/* How a matrix-vector product of one token row is laid over the device; no bit depends on it. `stages` = 0: the kernel
 * without rings, which takes any n_col; the rings want n_col % 64 == 0. */
typedef struct fd_matvec_form {
    int32_t partials; /* a lane holds: 8 (8 lanes a row) or 2 (32 lanes a row; rings only) */
    int32_t rows;     /* a lane follows: 1 or 2; silu_pair with 2 partials wants 2 */
    int32_t warps;    /* of a block, at most FD_MATVEC_WARPS */
    int32_t blocks;   /* of a multiprocessor */
    int32_t stages;   /* of each warp's ring: 2 to 4, or 0 */
    bool bulk;        /* bulk copies (TMA) fill the rings, not the lanes: 2 partials of floats; wants sm_90 */
} fd_matvec_form;
enum { FD_MATVEC_WARPS = 16, FD_MATVEC_STAGE_BYTES = 4608 /* at most */ };

/* `form` NULL: for one token row what fd_matvec_choose gives; several go through rings together
 * (kernels/matvec/tokens.cu) where they fit. Of a form with rings several rows take partials and rows alone; with one
 * without they run without. */
fd_code fd_launch_matvec(const fd_launch_context *ctx, const fd_matvec *in, const fd_matvec_form *form, fd_error *err);
fd_matvec_form fd_matvec_choose(const fd_launch_context *ctx, const fd_matvec *in);

/* True when x [n_tok, n_col] fits the shared memory of a matrix-vector block; norm weights count as another token. */
bool fd_matvec_fits(const fd_launch_context *ctx, int64_t n_col, int32_t n_tok);

#ifdef __cplusplus
}
#endif
#endif
