/* Steps of a host program that traces, and what its file must hold: for Criterion's tests and for plain programs. */
#ifndef FD_TESTS_TRACER_STEPS_H
#define FD_TESTS_TRACER_STEPS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/client/firstdiff_trace.h"
#include "dumpers/store/trace.h"

/* In plain programs. */
#define CHECK(holds, ...)                                                                                              \
    do {                                                                                                               \
        if (holds) break;                                                                                              \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                                \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fprintf(stderr, "\n");                                                                                         \
        exit(1);                                                                                                       \
    } while (0)

enum { WIDTH = 700, N_TENSOR = 20 };

/* One step of n ≤ 16 tokens: `data` [n, WIDTH] as each of N_TENSOR tensors. Not 0: the trace is off. */
static inline int put_step(fd_tracer *tracer, const float *data, int32_t n) {
    static const int32_t tokens[16];
    int failed = fd_tracer_step(tracer, tokens, n);
    for (int i = 0; i < N_TENSOR; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.l_out", i);
        failed |= fd_tracer_put_f32(tracer, name, data, n, WIDTH);
    }
    return failed;
}

static inline bool check_row(const fd_trace *trace, const float *data, int tensor, int32_t pos, char why[1200]) {
    char name[32];
    float row[WIDTH];
    fd_error err = {0};
    snprintf(name, sizeof name, "blk.%d.l_out", tensor);
    int32_t node = fd_trace_find(trace, name);
    if (node < 0 || fd_trace_read(trace, node, pos, row, NULL, &err) != FD_OK) {
        snprintf(why, 1200, "%s[%d]: %s", name, pos, node < 0 ? "not there" : err.message);
        return false;
    }
    fd_fingerprint print = fd_fingerprint_f32(row, WIDTH);
    const fd_fingerprint *recorded = fd_trace_fingerprint(trace, node, pos);
    if (recorded && memcmp(&print, recorded, sizeof print) == 0 && memcmp(row, data, sizeof row) == 0) return true;
    snprintf(why, 1200, "%s[%d]: other elements than were put", name, pos);
    return false;
}

/* Whether the file opens, has between `least` and `most` positions, and each holds `data`'s first row; `why` if not. */
static inline bool holds_steps(const char *path, const float *data, int32_t least, int32_t most, bool complete,
                               char why[1200]) {
    fd_trace *trace;
    fd_error err = {0};
    if (fd_trace_open(path, &trace, &err) != FD_OK) {
        snprintf(why, 1200, "%s", err.message);
        return false;
    }
    int32_t n_pos = fd_trace_n_pos(trace);
    bool ok = n_pos >= least && n_pos <= most && fd_trace_get_info(trace)->complete == complete;
    if (!ok)
        snprintf(why, 1200, "%d positions, %s; expected %d to %d, %s", n_pos,
                 fd_trace_get_info(trace)->complete ? "complete" : "incomplete", least, most,
                 complete ? "complete" : "incomplete");
    for (int i = 0; ok && i < N_TENSOR; i++)
        for (int32_t pos = 0; ok && pos < n_pos; pos++) ok = check_row(trace, data, i, pos, why);
    fd_trace_close(trace);
    return ok;
}

#endif
