#include "compare/diagnose/twins.h"

#include <stdio.h>
#include <string.h>

#include "compare/diagnose/asked_rows.h"

/* Scores depend on the difference of two positions: the last one first, it has the other sign, and so it has where RoPE rotates the
 * other way round. Rows of K, once they are recorded, say which. */
static bool twin_of(const fd_hypothesis *h, const fd_trace *trace, fd_hypothesis *out) {
    const bool sign = h->guess == FD_GUESS_FAULT && strcmp(fd_fault_at(h->fault)->name, "rope_sign") == 0;
    const int32_t prompt = fd_prompt_length(trace);
    *out = *h;
    out->guess = FD_GUESS_POSITION;
    out->fault = 0;
    out->which = FD_POSITION_REVERSED;
    out->n = prompt > 0 ? fd_trace_steps(trace)[0].n_pos : 0;
    out->first = prompt;
    return sign && prompt > 1;
}

fd_code fd_add_twin(const fd_diagnose_options *ask, fd_explanation *e, fd_error *err) {
    const bool through = ask->finding->span_first != ask->finding->node;
    fd_diagnose_options how = *ask;
    fd_hypothesis twin;
    bool fits = false;
    how.as_it_is = true;
    how.rows_alone = e->rows_alone;
    if (!e->named || e->n_remaining >= FD_MAX_REMAINING || e->slope_rows > 0 || !through) return FD_OK;
    for (int32_t k = 0; k < e->n_remaining && !fits; k++)
        if (twin_of(&e->remaining[k].hypothesis, ask->trace, &twin)) FD_TRY(fd_diagnose_fits(&how, &twin, &fits, err));
    if (!fits) return FD_OK;
    fd_explain_fit *beside = &e->remaining[e->n_remaining++];
    *beside = e->remaining[0];
    beside->hypothesis = twin;
    snprintf(beside->name, sizeof beside->name, "%s", fd_hypothesis_name(&twin));
    fd_hypothesis_summary(&twin, ask->graph, beside->summary, sizeof beside->summary);
    return FD_OK;
}
