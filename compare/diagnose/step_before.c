#include "compare/diagnose/step_before.h"

#include <stdio.h>
#include <string.h>

#include "compare/diagnose/later_steps.h"
#include "compare/hypothesis/parameters.h"

/* Two steps of one token, the first of which is right; -1: the finding is none such. */
static int32_t right_step_before(const fd_diagnose_options *ask, const float *z) {
    const fd_node_finding *f = ask->finding;
    const fd_trace_step *steps = fd_trace_steps(ask->trace);
    const int32_t step = fd_trace_step_of(ask->trace, ask->finding->pos);
    if (step < 1 || f->span_first == f->node || ask->n_without > 0) return -1;
    if (steps[step].n_pos != 1 || steps[step - 1].n_pos != 1) return -1;
    const float before = z[steps[step - 1].pos0];
    return before >= 0 && before <= 1 ? step - 1 : -1;
}

/* A row of the cache that its own step finds right may be lost after it. */
static bool may_come_later(const fd_hypothesis *h, int32_t pos) {
    return h->guess == FD_GUESS_CACHE && h->first >= pos;
}

/* What an op does, not which keys and rows of the cache attention reads. */
static bool is_of_op(const fd_hypothesis *h) {
    switch (h->guess) {
    case FD_GUESS_PARAMETER: return fd_parameters[h->which].op != FD_OP_KV_WRITE;
    case FD_GUESS_FAULT:
        return strcmp(fd_fault_at(h->fault)->family, "kv_cache") != 0 &&
               strcmp(fd_fault_at(h->fault)->located, "attn_weights") != 0;
    case FD_GUESS_FACTOR:
    case FD_GUESS_INPUT_FACTOR:
    case FD_GUESS_POSITION:
    case FD_GUESS_SCALING: return true;
    default: return false;
    }
}

/* That may change with the length: a table ends, a scaling begins, another kernel takes over. Of keys and rows the step before tells,
 * and so does a name that two rows at least must bear. */
static bool may_begin_late(const fd_hypothesis *h, const fd_explanation *e) {
    return e->n_departing >= 2 && h->since == 0 && is_of_op(h);
}

static void begin_at(int32_t pos, const char *which, fd_explanation *e) {
    for (int32_t k = 0; k < e->n_remaining && k < FD_MAX_REMAINING; k++) {
        char *to = e->remaining[k].summary, begins[80];
        const size_t n = (size_t)snprintf(begins, sizeof begins, "from position %d on%s: ", pos, which);
        if (strlen(to) + n >= sizeof e->remaining[k].summary) to[sizeof e->remaining[k].summary - n - 1] = 0;
        memmove(to + n, to, strlen(to) + 1);
        memcpy(to, begins, n);
        e->remaining[k].hypothesis.since = pos;
    }
}

/* A name that was found in the rows that depart alone, and that the row before them in their step, which is right, has not. */
static fd_code begins_inside_step(const fd_diagnose_options *ask, const float *z, const fd_explanation *e, bool *yes,
                                  fd_error *err) {
    const fd_hypothesis *h = &e->remaining[0].hypothesis;
    const fd_node_finding *f = ask->finding;
    const fd_trace_step *step = &fd_trace_steps(ask->trace)[fd_trace_step_of(ask->trace, f->pos)];
    const bool looks_ahead = h->guess == FD_GUESS_FAULT && fd_fault_at(h->fault)->whole_batch;
    *yes = false;
    if (!e->named || e->slope_rows > 0 || e->rows_alone == 0 || f->span_first == f->node || f->pos <= step->pos0)
        return FD_OK;
    if (!(z[f->pos - 1] >= 0 && z[f->pos - 1] <= 1) || looks_ahead || h->since > 0 || !is_of_op(h)) return FD_OK;
    fd_node_finding before = *f;
    fd_diagnose_options there = *ask;
    bool fits;
    before.pos = f->pos - 1;
    there.finding = &before;
    there.rows_alone = 1;
    there.right_too = there.as_it_is = true;
    FD_TRY(fd_diagnose_fits(&there, h, &fits, err));
    *yes = !fits;
    return FD_OK;
}

/* Each row that departs is the last of its step, as where a kernel leaves the last token out. */
static bool are_last_of_steps(const fd_trace *trace, const float *z, int32_t n_pos) {
    for (int32_t p = 0; p < n_pos; p++) {
        const fd_trace_step *step = &fd_trace_steps(trace)[fd_trace_step_of(trace, p)];
        if (!(z[p] <= 1) && p + 1 < step->pos0 + step->n_pos) return false;
    }
    return true;
}

fd_code fd_refute_by_step_before(const fd_diagnose_options *ask, const float *z, fd_explanation *e, fd_error *err) {
    fd_hypothesis refuted[FD_MOST_REFUTED];
    const int32_t step = right_step_before(ask, z);
    bool inside;
    FD_TRY(begins_inside_step(ask, z, e, &inside, err));
    if (inside)
        begin_at(ask->finding->pos,
                 are_last_of_steps(ask->trace, z, ask->n_pos) ? ", each row the last of its step" : "", e);
    for (int32_t n = 0; step >= 0 && e->named && e->slope_rows == 0; n++) {
        fd_diagnose_options there = *ask;
        fd_node_finding finding = *ask->finding;
        bool yes;
        finding.step = step;
        finding.pos = fd_trace_steps(ask->trace)[step].pos0;
        there.finding = &finding;
        there.right_too = there.as_it_is = true;
        FD_TRY(fd_diagnose_fits(&there, &e->remaining[0].hypothesis, &yes, err));
        if (yes || may_come_later(&e->remaining[0].hypothesis, finding.pos)) return FD_OK;
        const bool late = may_begin_late(&e->remaining[0].hypothesis, e);
        if (late) begin_at(ask->finding->pos, "", e);
        if (!late && n == FD_MOST_REFUTED) fd_take_name_away(finding.pos, e);
        if (late || n == FD_MOST_REFUTED) return FD_OK;
        refuted[n] = e->remaining[0].hypothesis;
        there = *ask;
        there.without = refuted;
        there.n_without = n + 1;
        FD_TRY(fd_diagnose(&there, e, err));
    }
    return FD_OK;
}
