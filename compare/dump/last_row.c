#include "compare/dump/last_row.h"

fd_code fd_read_last_row(const fd_trace *trace, int32_t at, float *x, bool *there, fd_error *err) {
    fd_code code = FD_ERR_INCOMPLETE;
    fd_error why = {0};
    for (int32_t pos = fd_trace_n_pos(trace) - 1; pos >= 0 && code == FD_ERR_INCOMPLETE; pos--)
        code = fd_trace_read(trace, at, pos, x, NULL, &why);
    *there = code == FD_OK;
    if (code == FD_OK || code == FD_ERR_INCOMPLETE) return FD_OK;
    *err = why;
    return code;
}
