/* The last row of a tensor that a trace has: of a run of which some steps alone were recorded, not the last position's. */
#ifndef FD_COMPARE_DUMP_LAST_ROW_H
#define FD_COMPARE_DUMP_LAST_ROW_H

#include "dumpers/store/trace.h"

/* Reads it into x, which has room for the elements of the last position. *there: false where no position has one. */
fd_code fd_read_last_row(const fd_trace *trace, int32_t at, float *x, bool *there, fd_error *err);

#endif
