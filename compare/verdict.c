#include "compare/verdict.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *fd_verdict_status_name(fd_verdict_status status) {
    static const char *const names[] = {"identical", "diverged", "incomplete", "noise", "check-dump"};
    return names[status];
}

const char *fd_step_kind_name(fd_step_kind kind) {
    return kind == FD_STEP_PREFILL ? "prefill" : kind == FD_STEP_DECODE ? "decode" : "verify";
}

const char *fd_equality_name(fd_equality equality) {
    return equality == FD_EQUAL ? "bit-identical" : equality == FD_UNEQUAL ? "differs" : "not recorded";
}

int fd_verdict_exit_status(const fd_verdict *verdict) {
    static const int exits[] = {
        [FD_IDENTICAL] = 0, [FD_DIVERGED] = 1, [FD_INCOMPLETE] = 3, [FD_NOISE] = 0, [FD_CHECK_DUMP] = 3};
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
    fd_measures_free(&verdict->measures);
}

static bool has_reason(const fd_verdict *verdict, fd_remark_kind kind) {
    for (int32_t i = 0; i < verdict->reasons.n && i < FD_MAX_REMARKS; i++)
        if (verdict->reasons.items[i].kind == kind) return true;
    return false;
}

/* Reasons that follow from what was counted. */
static void add_reasons(fd_verdict *verdict) {
    int32_t n_required = 0;
    for (int32_t i = 0; i < verdict->n_missing; i++) n_required += !verdict->missing[i].allowed;
    if (n_required && !has_reason(verdict, FD_REASON_NOT_SEEN))
        fd_verdict_reason(verdict, (fd_remark){FD_REASON_NOT_SEEN, .n = {n_required}});
    if (verdict->divergence.kind == FD_NO_DIVERGENCE && verdict->counts.n_compared == 0 && verdict->reasons.n == 0)
        fd_verdict_reason(verdict, (fd_remark){FD_REASON_NOTHING_COMPARED});
}

void fd_verdict_decide(fd_verdict *verdict) {
    const fd_verdict_weights *w = &verdict->weights;
    fd_divergence *d = &verdict->divergence;
    if (w->n_differ && d->kind == FD_NO_DIVERGENCE) {
        *d = (fd_divergence){.kind = FD_DIVERGED_WEIGHTS, .layer = -1};
        snprintf(d->node, sizeof d->node, "%.63s", w->node[0] ? w->node : w->name);
        sscanf(w->name, "blk.%d.", &d->layer);
    }
    add_reasons(verdict);
    verdict->status = d->kind != FD_NO_DIVERGENCE ? FD_DIVERGED
                      : verdict->dump.n           ? FD_CHECK_DUMP
                      : verdict->reasons.n        ? FD_INCOMPLETE
                      : verdict->replay.done      ? FD_NOISE
                                                  : FD_IDENTICAL;
}

static void append(fd_remarks *to, fd_remark remark) {
    if (to->n < FD_MAX_REMARKS) to->items[to->n] = remark;
    to->n++;
}

void fd_verdict_reason(fd_verdict *verdict, fd_remark reason) {
    append(&verdict->reasons, reason);
}

void fd_verdict_late_reason(fd_verdict *verdict, fd_remark reason) {
    if (verdict->status == FD_DIVERGED || verdict->status == FD_CHECK_DUMP) return;
    fd_verdict_reason(verdict, reason);
    verdict->status = FD_INCOMPLETE;
}

void fd_verdict_note(fd_verdict *verdict, fd_remark note) {
    append(&verdict->notes, note);
}

void fd_verdict_note_numerics(fd_verdict *verdict) {
    const fd_verdict_side *a = &verdict->ref, *b = &verdict->cand;
    if (a->numerics[0] && strcmp(a->numerics, b->numerics) == 0 && a->contract == b->contract) return;
    bool contracts = a->contract && b->contract && a->contract != b->contract;
    fd_verdict_note(verdict, (fd_remark){contracts ? FD_NOTE_CONTRACTS_DIFFER : FD_NOTE_NUMERICS_DIFFER});
}

void fd_verdict_side_of_trace(const fd_trace *trace, fd_verdict_side *out) {
    const fd_trace_info *info = fd_trace_get_info(trace);
    snprintf(out->label, sizeof out->label, "%s", fd_trace_path(trace));
    snprintf(out->producer, sizeof out->producer, "%s", info->producer);
    snprintf(out->backend, sizeof out->backend, "%s", info->backend);
    snprintf(out->numerics, sizeof out->numerics, "%s", info->numerics);
    snprintf(out->device, sizeof out->device, "%s", info->device);
    snprintf(out->fault, sizeof out->fault, "%s", info->fault);
    snprintf(out->model_name, sizeof out->model_name, "%s", info->model_name);
    snprintf(out->model_hash, sizeof out->model_hash, "%s", info->model_hash);
    snprintf(out->arch, sizeof out->arch, "%s", info->arch);
    out->contract = info->contract;
    out->n_pos = fd_trace_n_pos(trace);
    out->complete = info->complete;
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
