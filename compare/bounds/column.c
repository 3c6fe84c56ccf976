#include "compare/bounds/column.h"

#include <math.h>
#include <stdlib.h>

#include "model/weight_rows.h"

fd_code fd_column_along(const fd_weight *w, const double *off, int32_t *column, double *share, fd_error *err) {
    const size_t n = (size_t)w->n_col;
    float *row = malloc(sizeof *row * n);
    double *along = calloc(2 * n, sizeof *along), *squares = along ? along + n : NULL, all = 0, best = 0;
    const bool there = row && along;
    *column = -1;
    for (int64_t r = 0; r < w->n_row && there; r++) {
        fd_weight_row(w, r, row);
        all += off[r] * off[r];
        for (size_t c = 0; c < n; c++) {
            along[c] += off[r] * (double)row[c];
            squares[c] += (double)row[c] * (double)row[c];
        }
    }
    for (size_t c = 0; c < n && there; c++) {
        const double own = along[c] * along[c] / (squares[c] * all); /* NaN is no better */
        if (squares[c] * all > 0 && own > best) best = own, *column = (int32_t)c;
    }
    if (share) *share = best;
    free(row);
    free(along);
    return there ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "a column of %s: out of memory", w->name);
}

float *fd_column_of(const fd_weight *weight, int32_t column) {
    float *of = malloc(sizeof *of * (size_t)(weight->n_row + weight->n_col)), *row = of ? of + weight->n_row : NULL;
    for (int64_t r = 0; of && r < weight->n_row; r++) {
        fd_weight_row(weight, r, row);
        of[r] = row[column];
    }
    return of;
}
