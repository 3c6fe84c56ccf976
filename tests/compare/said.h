/* What a verdict says, for assertions and their messages. Valid until the next call. */
#ifndef FD_TESTS_COMPARE_SAID_H
#define FD_TESTS_COMPARE_SAID_H

#include "compare/report/baseline.h"
#include "compare/report/remarks.h"
#include "compare/report/unnamed.h"

static inline const char *reason_of(const fd_verdict *v, int32_t i) {
    static char text[FD_REMARK_SIZE];
    return fd_reason_text(v, i, text);
}

static inline const char *note_of(const fd_verdict *v, int32_t i) {
    static char text[FD_REMARK_SIZE];
    return fd_note_text(v, i, text);
}

static inline const char *moved_of(const fd_verdict *v) {
    static char text[512];
    fd_baseline_text(v, text, sizeof text);
    return text;
}

static inline const char *unnamed_of(const fd_explanation *e) {
    static char text[FD_UNNAMED_SIZE];
    return fd_unnamed_text(e, text);
}

static inline const char *tells_apart_of(const fd_explanation *e) {
    static char text[FD_UNNAMED_SIZE];
    return fd_tells_apart_text(e, text);
}

static inline const char *weights_unnamed_of(const fd_verdict *v) {
    static char text[FD_UNNAMED_SIZE];
    return fd_weights_unnamed_text(&v->weights, text);
}

static inline const char *match_of(const fd_verdict *v) {
    static char text[FD_UNNAMED_SIZE];
    return fd_weights_match_text(&v->weights, text);
}

#endif
