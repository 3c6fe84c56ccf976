/* Rows that tests put through libfirstdiff_trace: each element a function of its position and place, so that what
 * was read back is known without keeping it. */
#ifndef FD_TESTS_TRACE_TRACER_ROWS_H
#define FD_TESTS_TRACE_TRACER_ROWS_H

#include "dumpers/client/firstdiff_trace.h"
#include "dumpers/store/trace.h"

float value_of(int64_t pos, int64_t i); /* element i of row `pos`: exact in every element type */

/* Rows `first` to `first` + n, [n, width]; freed by the caller. */
float *rows_of(int64_t first, int64_t n, int64_t width);

/* Closes the tracer; fails the test when something went wrong. */
void close_well(fd_tracer *tracer);

/* The trace holds row `pos` of n elements; fails the test otherwise. */
void check_row(const fd_trace *trace, const char *name, int32_t pos, int64_t n);

#endif
