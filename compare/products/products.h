/* Products of weights for replay and its bounds (exec/products.h): on a device where it takes them, else on the CPU. The
 * bits are the same.
 *
 * A device is not believed blindly, for its fault would be taken for the candidate's: of each of its products the CPU
 * computes sixteen rows, too, other ones each time. A difference is FD_ERR_DEVICE. A result with a NaN, whose bits differ
 * between processors, is thrown away, and the CPU computes it. */
#ifndef FD_COMPARE_PRODUCTS_PRODUCTS_H
#define FD_COMPARE_PRODUCTS_PRODUCTS_H

#include "compare/products/memo.h"

/* A MATMUL with its bias, as `op` runs it. device NULL: `op` itself. */
fd_code fd_products_multiply(const fd_products *device, fd_op_fn op, fd_numerics numerics, const fd_op_args *args,
                             fd_error *err);

/* fd_products.weigh. device NULL: the CPU, which leaves out what the memo (NULL: none) knows. */
fd_code fd_products_weigh(const fd_products *device, fd_product_memo *memo, const fd_product *product, const double *x,
                          const double *v, double *size, double *square, fd_error *err);

/* How many threads may call `device` at once, as fd_jobs.most_threads has it. */
static inline int32_t fd_products_callers(const fd_products *device) {
    return device && device->together ? 1 : 0;
}

#endif
