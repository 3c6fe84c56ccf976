/* Matrix products on tensor cores by cuBLAS (its cublasLt), which is loaded when the first fast engine is made: exact
 * runs and machines without it do without. One handle a stream, a workspace of its own: the same product of the same
 * shape has the same bits, run after run. On several GPUs each multiplies some rows of a matrix with the algorithm that
 * cuBLAS chooses for the whole: an algorithm says how the columns are summed, so a row's bits are those it has on one. */
#ifndef FD_ENGINE_CUBLAS_H
#define FD_ENGINE_CUBLAS_H

#include "engine/memory.h"

typedef struct fd_cublas fd_cublas;

enum { FD_CUBLAS_WORKSPACE = 32 << 20 }; /* bytes; what cuBLAS asks for on sm_90 */

/* FD_ERR_DEVICE: no libcublasLt of this CUDA version (the loader's own words), or cuBLAS failed (its own). */
fd_code fd_cublas_open(cudaStream_t stream, fd_cublas **out, fd_error *err);
void fd_cublas_close(fd_cublas *cublas); /* NULL is fine */

/* out [n_tok, n_row] = W x, or out + W x with `add`: binary16 factors, sums in binary32. weight [n_row, n_col] with
 * `stride` elements a row, x [n_tok, n_col]. All device. */
typedef struct fd_cublas_product {
    const uint16_t *weight, *x;
    int64_t stride, n_row, n_col;
    int64_t n_row_whole; /* of the matrix that these rows are a part of; n_row: they are all of it */
    int32_t n_tok;
    bool add;
    float *out;
} fd_cublas_product;
fd_code fd_cublas_multiply(fd_cublas *cublas, const fd_cublas_product *in, fd_error *err);

#endif
