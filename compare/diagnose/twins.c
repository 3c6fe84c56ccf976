#include "compare/diagnose/twins.h"

#include <stdio.h>
#include <string.h>

#include "compare/diagnose/asked_rows.h"
#include "compare/hypothesis/parameters.h"

/* Scores depend on the difference of two positions. The last one first, it has the other sign, as where RoPE rotates the other way
 * round; in a step whose rows all have one position it is 0, whichever that is. */
static const struct {
    const char *fault;
    fd_position_rule rule;
    int32_t other;
} twins[] = {{"rope_sign", FD_POSITION_REVERSED, 0},
             {"rope_position_zero", FD_POSITION_OF_STEP, 0},
             {"rope_position_zero", FD_POSITION_OF_STEP, 1}};
enum { N_TWIN = sizeof twins / sizeof *twins };

static bool twin_of(const fd_hypothesis *h, const fd_trace *trace, int k, fd_hypothesis *out) {
    const int32_t prompt = fd_prompt_length(trace);
    *out = *h;
    out->guess = FD_GUESS_POSITION;
    out->fault = 0;
    out->which = twins[k].rule;
    out->other = twins[k].other;
    out->n = prompt > 0 ? fd_trace_steps(trace)[0].n_pos : 0;
    out->first = prompt;
    return prompt > 1 && h->guess == FD_GUESS_FAULT && strcmp(fd_fault_at(h->fault)->name, twins[k].fault) == 0;
}

/* In the span; -1: there is none. */
static int32_t inside(const fd_diagnose_options *ask, const char *suffix) {
    for (int32_t i = ask->finding->span_first; i < ask->finding->node; i++)
        if (strcmp(fd_fault_suffix(&ask->graph->nodes[i]), suffix) == 0) return i;
    return -1;
}

/* Q turned on by n positions is K turned back by n: the scores are the same. */
static bool other_side_of(const fd_hypothesis *h, const fd_diagnose_options *ask, fd_hypothesis *out) {
    static const char *const sides[] = {"attn_q_rope", "attn_k_rope"};
    const bool offset = h->guess == FD_GUESS_POSITION && h->which == FD_POSITION_OFFSET && h->node >= 0;
    const char *fault = h->guess == FD_GUESS_FAULT ? fd_fault_at(h->fault)->name : "";
    for (int side = 0; side < 2; side++) {
        const bool further = strcmp(fault, side ? "rope_k_one_further" : "rope_q_one_further") == 0;
        const bool here = offset && strcmp(fd_fault_suffix(&ask->graph->nodes[h->node]), sides[side]) == 0;
        const int32_t other = further || here ? inside(ask, sides[1 - side]) : -1;
        if (other < 0) continue;
        *out = (fd_hypothesis){.guess = FD_GUESS_POSITION,
                               .node = other,
                               .layer = FD_ANY_LAYER,
                               .which = FD_POSITION_OFFSET,
                               .n = here ? -h->n : -1};
        if (h->node < 0) *out = fd_hypothesis_everywhere(out, ask->graph);
        if (h->node < 0) out->layer = h->layer;
        return true;
    }
    return false;
}

/* Turned twice is turned by twice the position, wherever it is seen. */
static bool doubled(const fd_hypothesis *h, const fd_graph *graph, fd_hypothesis *out) {
    if (h->guess != FD_GUESS_FAULT || strcmp(fd_fault_at(h->fault)->name, "rope_twice") != 0) return false;
    *out = *h;
    out->guess = FD_GUESS_PARAMETER;
    out->fault = out->which = 0;
    while (strcmp(fd_parameters[out->which].name, "other_rope_factor") != 0) out->which++;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ROPE && (h->node < 0 || h->node == i)) {
            const double file = fd_parameter_of(&fd_parameters[out->which], &graph->nodes[i]);
            out->value = file > 0 ? file / 2 : 0.5;
            return true;
        }
    return false;
}

/* What an FFN gives without its norm is next to nothing where the stream is small, as in a first layer: as if it were not added. */
static bool not_normed(const fd_hypothesis *h, const fd_diagnose_options *ask, fd_hypothesis *out) {
    const int32_t norm = inside(ask, "ffn_norm");
    if (h->guess != FD_GUESS_FAULT || strcmp(fd_fault_at(h->fault)->name, "down_missing") != 0 || norm < 0)
        return false;
    *out = *h;
    out->fault = fd_fault_find("norm_missing");
    out->node = norm;
    return true;
}

/* Number k of the kinds of twins. What was not recorded, RoPE's results or the FFN's, tells the first ones apart. */
static bool kind_of_twin(const fd_diagnose_options *ask, int k, const fd_hypothesis *h, fd_hypothesis *out) {
    const bool through = ask->finding->span_first != ask->finding->node;
    if (k < N_TWIN) return through && twin_of(h, ask->trace, k, out);
    if (k == N_TWIN) return through && other_side_of(h, ask, out);
    return k == N_TWIN + 1 ? through && not_normed(h, ask, out) : doubled(h, ask->graph, out);
}

static void add(const fd_diagnose_options *ask, const fd_hypothesis *twin, fd_explanation *e) {
    fd_explain_fit *beside = &e->remaining[e->n_remaining++];
    *beside = e->remaining[0];
    beside->hypothesis = *twin;
    snprintf(beside->at, sizeof beside->at, "%s", twin->node >= 0 ? ask->graph->nodes[twin->node].name : "");
    snprintf(beside->name, sizeof beside->name, "%s", fd_hypothesis_name(twin));
    fd_hypothesis_summary(twin, ask->graph, beside->summary, sizeof beside->summary);
}

fd_code fd_add_twins(const fd_diagnose_options *ask, fd_explanation *e, fd_error *err) {
    const int32_t n = e->n_remaining;
    fd_diagnose_options how = *ask;
    how.as_it_is = true;
    how.rows_alone = e->rows_alone;
    if (!e->named || e->slope_rows > 0) return FD_OK;
    for (int k = 0; k < N_TWIN + 3; k++)
        for (int32_t i = 0; i < n && i < FD_MAX_REMAINING; i++) {
            const fd_hypothesis *h = &e->remaining[i].hypothesis;
            fd_hypothesis twin;
            bool fits = false;
            if (!kind_of_twin(ask, k, h, &twin)) continue;
            FD_TRY(fd_diagnose_fits(&how, &twin, &fits, err));
            if (fits && e->n_remaining < FD_MAX_REMAINING) add(ask, &twin, e);
        }
    return FD_OK;
}
