/* A product's row that departs by one element of its input departs along that element's column of the weight. */
#ifndef FD_COMPARE_BOUNDS_COLUMN_H
#define FD_COMPARE_BOUNDS_COLUMN_H

#include "model/graph.h"

/* The column along which off [weight->n_row] lies most nearly, -1 where off or the weight is 0 or not finite, and *share (NULL: not asked)
 * of Σ off² that lies along it. */
fd_code fd_column_along(const fd_weight *weight, const double *off, int32_t *column, double *share, fd_error *err);

/* A column [weight->n_row], malloc'ed; NULL: out of memory. */
float *fd_column_of(const fd_weight *weight, int32_t column);

#endif
