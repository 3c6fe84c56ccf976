#include "compare/explain/forms.h"

#include <stdio.h>
#include <string.h>

bool fd_is_other_form(const fd_explain_fit *best, const fd_explain_fit *other) {
    const fd_hypothesis *x = &best->hypothesis, *y = &other->hypothesis;
    if (x->guess != FD_GUESS_FAULT || y->guess != FD_GUESS_FAULT) return false;
    const char *form = fd_fault_at(x->fault)->form_of, *its = fd_fault_at(y->fault)->form_of;
    return form && its && strcmp(form, its) == 0 && x->node == y->node && x->layer == y->layer;
}

void fd_name_harm(const fd_verdict_extent *where, fd_explanation *e) {
    fd_explain_fit *first = &e->remaining[0];
    const bool fault = e->named && first->hypothesis.guess == FD_GUESS_FAULT;
    const bool before = where->first > 0 && where->n_beyond < where->n_judged;
    if (!fault || !before || !fd_fault_at(first->hypothesis.fault)->all_alike) return;
    const char *summary = fd_fault_at(first->hypothesis.fault)->summary;
    snprintf(first->summary, sizeof first->summary, "%.*s, but not before position %d: those rows do not fit to these",
             (int)strcspn(summary, ":"), summary, where->first);
}

void fd_name_forms(fd_explanation *e, const fd_graph *graph) {
    fd_explain_fit *first = &e->remaining[0];
    if (!e->forms || !e->named) return;
    e->forms = e->n_remaining > 1;
    if (!e->forms) {
        fd_hypothesis_summary(&first->hypothesis, graph, first->summary, sizeof first->summary);
        return;
    }
    size_t at =
        (size_t)snprintf(first->summary, sizeof first->summary,
                         "%s, in a form that rounding does not tell: ", fd_fault_at(first->hypothesis.fault)->form_of);
    for (int32_t i = 0; i < e->n_remaining && i < FD_MAX_REMAINING && at < sizeof first->summary; i++)
        at += (size_t)snprintf(first->summary + at, sizeof first->summary - at, "%s%s", i ? ", " : "",
                               e->remaining[i].name);
}
