/* Products of a weight's rows with vectors, and nothing else of an op: what a device computes for replay in the place of
 * the CPU. The order of every operation is fixed, so the bits do not depend on who computes:
 *
 *     exact   Σ w·x by fmaf in 64 partial sums (numerics/contract.h), all in binary32
 *     f64     the same 64 partial sums and their tree in binary64, each product rounded before it is added
 *     weigh   Σ |w|·x and Σ (w·w)·v in binary64, element k in partial sum k mod 8, the last n_col mod 8 elements one after
 *             the other in partial sum 0; then ((0+1)+(2+3))+((4+5)+(6+7))
 *
 * compare/products/ computes them on the CPU, in one process or several, engine/products/ on a GPU. */
#ifndef FD_EXEC_PRODUCTS_H
#define FD_EXEC_PRODUCTS_H

#include "exec/exec.h"

typedef struct fd_product {
    const fd_weight *weight;
    int64_t first_row, n_row; /* rows [first_row, first_row + n_row) of it */
    int64_t n_pos;            /* vectors of weight->n_col elements, one after the other */
} fd_product;

/* A device. Its functions may be called from any thread, but for `together`, and return when the result is in host
 * memory. */
typedef struct fd_products {
    /* Is the weight there, and the product large enough to be worth the way? */
    bool (*takes)(void *user, const fd_product *product);
    /* y [n_pos, n_row] of x [n_pos, n_col], without a bias: float for FD_NUMERICS_EXACT, double for FD_NUMERICS_F64. */
    fd_code (*multiply)(void *user, fd_numerics numerics, const fd_product *product, const void *x, void *y,
                        fd_error *err);
    /* size [n_pos, n_row] = Σ |w|·x and square [n_pos, n_row] = Σ (w·w)·v of x and v [n_pos, n_col]. */
    fd_code (*weigh)(void *user, const fd_product *product, const double *x, const double *v, double *size,
                     double *square, fd_error *err);
    void *user;
    /* Processes that share the work (compare/products/together.h). Results are the CPU's own and need no check. Calls
     * come from one thread at a time, in the same order in every process. */
    bool together;
} fd_products;

#endif
