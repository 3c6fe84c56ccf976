/* The rows of a device's product that the CPU computes, too. */
#ifndef FD_COMPARE_PRODUCTS_CHECK_H
#define FD_COMPARE_PRODUCTS_CHECK_H

#include "exec/products.h"

enum { FD_CHECK_ROWS = 16 };

typedef struct fd_check_sample {
    fd_weight weight;           /* these rows alone: a copy of their bytes; owned */
    int64_t row[FD_CHECK_ROWS]; /* which of the product's each is */
} fd_check_sample;

/* A row of each sixteenth of the product's; the bits of x, the first vector, say which. All rows where there are fewer. */
fd_code fd_check_sample_make(const fd_product *product, const void *x, fd_check_sample *out, fd_error *err);
void fd_check_sample_free(fd_check_sample *sample); /* frees what it owns, not the struct */

/* The sample's results [n_pos, sample->weight.n_row] as the CPU has them against the device's [n_pos, product->n_row];
 * elements of `real` bytes. FD_ERR_DEVICE names the first whose bits differ. */
fd_code fd_check_rows(const fd_product *product, const fd_check_sample *sample, size_t real, const void *by_device,
                      const void *by_cpu, fd_error *err);

/* Is there a NaN among n elements of `real` bytes, floats or doubles? */
bool fd_check_any_nan(const void *elements, int64_t n, size_t real);

#endif
