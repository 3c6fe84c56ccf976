#include "compare/diagnose/later_steps.h"

enum { N_ASKED = 3 }; /* the next step that departs, the first that decodes, the last */

/* The first position of a step that departs; -1. */
static int32_t departs_at(const fd_trace_step *step, const float *z, int32_t n_pos) {
    for (int32_t p = step->pos0; p < step->pos0 + step->n_pos && p < n_pos; p++)
        if (!(z[p] <= 1)) return p;
    return -1;
}

/* Steps to ask about, in order; -1: none. */
static void choose_steps(const fd_trace *trace, int32_t after, const float *z, int32_t n_pos, int32_t to[N_ASKED]) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    to[0] = to[1] = to[2] = -1;
    for (int32_t s = after + 1; s < fd_trace_n_step(trace); s++) {
        if (departs_at(&steps[s], z, n_pos) < 0) continue;
        if (to[0] < 0) to[0] = s;
        if (to[1] < 0 && steps[s].n_pos == 1) to[1] = s;
        to[2] = s;
    }
}

static fd_code gives(const fd_diagnose_options *ask, const fd_explanation *e, bool *yes, fd_error *err) {
    *yes = false;
    for (int32_t k = 0; k < e->n_remaining && k < FD_MAX_REMAINING && !*yes; k++)
        FD_TRY(fd_diagnose_fits(ask, &e->remaining[k].hypothesis, yes, err));
    return FD_OK;
}

fd_code fd_where_name_ends(const fd_diagnose_options *ask, const fd_explanation *e, const float *z, int32_t n_pos,
                           fd_node_finding *out, fd_error *err) {
    const fd_node_finding *first = ask->finding;
    int32_t steps[N_ASKED];
    *out = (fd_node_finding){0};
    if (!e->named || first->span_first != first->node) return FD_OK;
    choose_steps(ask->trace, first->step, z, n_pos, steps);
    for (int i = 0; i < N_ASKED; i++) {
        fd_diagnose_options there = *ask;
        fd_node_finding finding = *first;
        bool yes;
        if (steps[i] < 0 || (i > 0 && steps[i] == steps[i - 1])) continue;
        finding.step = steps[i];
        finding.pos = departs_at(&fd_trace_steps(ask->trace)[steps[i]], z, n_pos);
        there.finding = &finding;
        FD_TRY(gives(&there, e, &yes, err));
        if (yes) continue;
        *out = finding;
        return FD_OK;
    }
    return FD_OK;
}
