#include "compare/verdict.h"

#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *fd_verdict_status_name(fd_verdict_status status) {
    static const char *const names[] = {"identical", "diverged", "incomplete", "noise"};
    return names[status];
}

const char *fd_step_kind_name(fd_step_kind kind) {
    return kind == FD_STEP_PREFILL ? "prefill" : kind == FD_STEP_DECODE ? "decode" : "verify";
}

const char *fd_equality_name(fd_equality equality) {
    return equality == FD_EQUAL ? "bit-identical" : equality == FD_UNEQUAL ? "differs" : "not recorded";
}

int fd_verdict_exit_status(const fd_verdict *verdict) {
    static const int exits[] = {[FD_IDENTICAL] = 0, [FD_DIVERGED] = 1, [FD_INCOMPLETE] = 3, [FD_NOISE] = 0};
    return exits[verdict->status];
}

void fd_verdict_free(fd_verdict *verdict) {
    free(verdict->missing);
    verdict->missing = NULL;
    verdict->n_missing = 0;
    free(verdict->map.cells);
    free(verdict->map.by_pos);
    free(verdict->map.by_head);
    verdict->map = (fd_verdict_map){0};
}

void fd_verdict_decide(fd_verdict *verdict) {
    int32_t n_required = 0;
    for (int32_t i = 0; i < verdict->n_missing; i++) n_required += !verdict->missing[i].allowed;
    if (n_required)
        fd_verdict_reason(verdict, "%d tensor%s could not be looked at", n_required, n_required == 1 ? "" : "s");
    if (verdict->divergence.kind != FD_NO_DIVERGENCE) {
        verdict->status = FD_DIVERGED;
        return;
    }
    if (verdict->n_compared == 0 && verdict->n_reason == 0) fd_verdict_reason(verdict, "nothing to compare");
    verdict->status = verdict->n_reason ? FD_INCOMPLETE : FD_IDENTICAL;
}

static void append(char lines[][FD_REASON_SIZE], int32_t *n, const char *format, va_list args) {
    if (*n < FD_MAX_REASONS) vsnprintf(lines[*n], FD_REASON_SIZE, format, args);
    (*n)++;
}

void fd_verdict_reason(fd_verdict *verdict, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append(verdict->reasons, &verdict->n_reason, format, args);
    va_end(args);
}

void fd_verdict_note(fd_verdict *verdict, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append(verdict->notes, &verdict->n_note, format, args);
    va_end(args);
}

fd_code fd_verdict_missing(fd_verdict *verdict, const char *name, fd_missing_why why, int32_t n_pos, bool allowed,
                           fd_error *err) {
    for (int32_t i = 0; i < verdict->n_missing; i++) {
        fd_missing *old = &verdict->missing[i];
        if (old->why == why && strcmp(old->name, name) == 0) {
            old->n_pos += n_pos;
            return FD_OK;
        }
    }
    fd_missing *grown = realloc(verdict->missing, sizeof *grown * (size_t)(verdict->n_missing + 1));
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "list of missing tensors: out of memory");
    verdict->missing = grown;
    fd_missing *item = &grown[verdict->n_missing++];
    *item = (fd_missing){.why = why, .n_pos = n_pos, .allowed = allowed};
    snprintf(item->name, sizeof item->name, "%s", name);
    return FD_OK;
}

bool fd_name_matches(const char *const *globs, int32_t n, const char *name) {
    for (int32_t i = 0; i < n; i++)
        if (fnmatch(globs[i], name, 0) == 0) return true;
    return false;
}
