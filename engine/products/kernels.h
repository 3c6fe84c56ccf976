/* Products with rows in binary32, in device memory: sums in binary64 in the order of exec/products.h. */
#ifndef FD_ENGINE_PRODUCTS_KERNELS_H
#define FD_ENGINE_PRODUCTS_KERNELS_H

#include "kernels/formats/pack.h"
#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements from one row of binary32 to the next, and from one vector to the next: n_col, and zeros up to whole units. */
int64_t fd_f32_row_stride(const fd_device_matrix *matrix);

/* out [n_row, fd_f32_row_stride] */
fd_code fd_launch_dequantise_f32(const fd_launch_context *ctx, const fd_device_matrix *matrix, float *out,
                                 fd_error *err);

typedef struct fd_product_rows {
    const float *w;  /* [n_row, stride] */
    const double *x; /* [n_pos, stride] */
    int64_t n_row, n_col, stride;
    int64_t n_pos;
    int64_t y_stride; /* from one position's results to the next's */
} fd_product_rows;

/* y [n_pos, y_stride] = Σ w·x */
fd_code fd_launch_multiply_f64(const fd_launch_context *ctx, const fd_product_rows *in, double *y, fd_error *err);

/* size = Σ |w|·x, square = Σ (w·w)·v of v [n_pos, stride]; both as y */
fd_code fd_launch_weigh(const fd_launch_context *ctx, const fd_product_rows *in, const double *v, double *size,
                        double *square, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
