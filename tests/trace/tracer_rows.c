#include "tracer_rows.h"

#include <criterion/criterion.h>
#include <stdlib.h>

float value_of(int64_t pos, int64_t i) {
    return (float)((pos * 31 + i * 7) % 61) - 30;
}

float *rows_of(int64_t first, int64_t n, int64_t width) {
    float *rows = malloc((size_t)(n * width) * sizeof *rows);
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < width; i++) rows[r * width + i] = value_of(first + r, i);
    return rows;
}

void close_well(fd_tracer *tracer) {
    char message[1024];
    int failed = fd_tracer_close(tracer, message, sizeof message);
    cr_assert_eq(failed, 0, "%s", message);
    cr_assert_str_eq(message, "");
}

void check_row(const fd_trace *trace, const char *name, int32_t pos, int64_t n) {
    fd_error err = {0};
    double *row = malloc((size_t)n * sizeof *row);
    int32_t node = fd_trace_find(trace, name);
    cr_assert_geq(node, 0, "no %s", name);
    cr_assert_eq(fd_trace_elements(fd_trace_node_at(trace, node), pos), n, "%s", name);
    cr_assert_eq(fd_trace_read(trace, node, pos, NULL, row, &err), FD_OK, "%s", err.message);
    for (int64_t i = 0; i < n; i++)
        cr_assert_eq(row[i], (double)value_of(pos, i), "%s[%d, %lld]: %g", name, pos, (long long)i, row[i]);
    free(row);
}
