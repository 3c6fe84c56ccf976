#include "cli/run/first_nan.h"

#include <stdio.h>
#include <string.h>

#include "dumpers/store/trace.h"

static bool is_broken(const fd_trace *trace, int32_t node, int32_t pos) {
    const fd_trace_stats *stats = fd_trace_stats_at(trace, node, pos);
    return stats && (stats->n_nan > 0 || stats->n_pos_inf > 0);
}

static void append_place(const fd_trace *trace, int32_t step, int32_t node, int32_t pos, fd_error *err) {
    size_t n = strlen(err->message);
    snprintf(err->message + n, sizeof err->message - n,
             "; the first such element is in %s, step %d, position %d: look at it in %s",
             fd_trace_node_at(trace, node)->name, step, pos, fd_trace_path(trace));
}

void fd_cli_add_first_nan(const char *path, fd_error *err) {
    fd_trace *trace;
    fd_error unread = {0};
    if (fd_trace_open(path, &trace, &unread) != FD_OK) return;
    bool found = false;
    for (int32_t s = 0; s < fd_trace_n_step(trace) && !found; s++) {
        fd_trace_step step = fd_trace_steps(trace)[s];
        for (int32_t node = 0; node < fd_trace_n_node(trace) && !found; node++)
            for (int32_t pos = step.pos0; pos < step.pos0 + step.n_pos && !found; pos++)
                if ((found = is_broken(trace, node, pos))) append_place(trace, s, node, pos, err);
    }
    fd_trace_close(trace);
}
