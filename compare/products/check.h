/* Which rows of a device's product the CPU computes, too, and what it says where they differ. */
#ifndef FD_COMPARE_PRODUCTS_CHECK_H
#define FD_COMPARE_PRODUCTS_CHECK_H

#include "exec/products.h"

enum { FD_CHECK_GROUPS = 4, FD_CHECK_ROWS = 4 };

/* Up to FD_CHECK_ROWS neighbouring rows of a quarter of the product's, which quarter `group` says and where in it the bits
 * of x, the first vector; n_row 0: the product has so few rows that there is none. */
fd_product fd_check_sample(const fd_product *product, const void *x, int group);

/* The sample's rows [n_pos, sample->n_row] as the CPU has them against those of the device's [n_pos, product->n_row];
 * elements of `real` bytes. FD_ERR_DEVICE names the first whose bits differ. */
fd_code fd_check_rows(const fd_product *product, const fd_product *sample, size_t real, const void *by_device,
                      const void *by_cpu, fd_error *err);

/* Is there a NaN among n elements of `real` bytes, floats or doubles? */
bool fd_check_any_nan(const void *elements, int64_t n, size_t real);

#endif
