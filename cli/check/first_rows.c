#include "cli/check/first_rows.h"

#include <stdlib.h>

enum { MOST_ROWS = 4 };

fd_code fd_cli_sum_first_rows(const fd_import_plan *plan, const fd_import_match *match, const fd_trace *ref,
                              int32_t node, fd_cli_row_sums *out, fd_error *err) {
    const int64_t width = fd_trace_elements(fd_trace_node_at(ref, node), 0);
    fd_import_rows rows;
    *out = (fd_cli_row_sums){0};
    FD_TRY(fd_import_rows_open(plan, match, &rows, err));
    double *y = malloc(sizeof *y * (size_t)(width + 1));
    fd_code code = y ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", match->node);
    for (int32_t pos = rows.first; pos < rows.first + rows.n && pos < rows.first + MOST_ROWS && code == FD_OK; pos++) {
        int rank;
        int64_t shape[FD_ARRAY_MAX_RANK], n = 1;
        const double *x;
        if (!fd_import_rows_has(&rows, pos)) continue;
        code = fd_import_rows_read(&rows, pos, &rank, shape, &x, err);
        for (int i = 0; i < rank && code == FD_OK; i++) n *= shape[i];
        if (code == FD_OK && n == width) code = fd_trace_read(ref, node, pos, NULL, y, err);
        for (int64_t i = 0; i < n && n == width && code == FD_OK; i++)
            out->xy += x[i] * y[i], out->xx += x[i] * x[i], out->yy += y[i] * y[i];
    }
    free(y);
    fd_import_rows_close(&rows);
    return code;
}
