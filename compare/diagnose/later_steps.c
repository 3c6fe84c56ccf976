#include "compare/diagnose/later_steps.h"

#include "compare/diagnose/asked_rows.h"
#include "compare/explain/forms.h"

enum { N_ASKED = 3 }; /* the next step that departs, the first that decodes, the last */

static int32_t own_step(const fd_diagnose_options *ask) {
    return fd_trace_step_of(ask->trace, ask->finding->pos);
}

static int32_t own_step_begins(const fd_diagnose_options *ask) {
    return fd_trace_steps(ask->trace)[own_step(ask)].pos0;
}

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

/* The finding as that step shows it. */
static fd_node_finding at_step(const fd_diagnose_options *ask, int32_t step, const float *z, int32_t n_pos) {
    fd_node_finding finding = *ask->finding;
    finding.step = step;
    int32_t pos = departs_at(&fd_trace_steps(ask->trace)[step], z, n_pos);
    finding.pos = pos >= 0 ? pos : fd_trace_steps(ask->trace)[step].pos0;
    return finding;
}

/* Rows of that step which depart one after another, from the finding's on. */
static int32_t rows_together(const fd_diagnose_options *ask, const float *z, int32_t n_pos) {
    const fd_trace_step *step = &fd_trace_steps(ask->trace)[own_step(ask)];
    int32_t n = 0;
    while (ask->finding->pos + n < step->pos0 + step->n_pos && ask->finding->pos + n < n_pos &&
           !(z[ask->finding->pos + n] <= 1))
        n++;
    return n;
}

/* A name that is true of some rows alone has to be true of all that depart there. */
static fd_code gives(const fd_diagnose_options *ask, const fd_explanation *e, const float *z, int32_t n_pos, bool *yes,
                     fd_error *err) {
    fd_diagnose_options how = *ask;
    const int32_t rows[] = {e->rows_alone > 0 ? rows_together(ask, z, n_pos) : 0, fd_rest_of_step(ask)};
    *yes = false;
    for (int i = 0; i < 2 && !*yes && (i == 0 || (rows[0] > 0 && rows[0] < rows[1])); i++) {
        how.rows_alone = rows[i];
        for (int32_t k = 0; k < e->n_remaining && k < FD_MAX_REMAINING && !*yes; k++)
            FD_TRY(fd_diagnose_fits(&how, &e->remaining[k].hypothesis, yes, err));
    }
    return FD_OK;
}

fd_code fd_refute_by_later_steps(const fd_diagnose_options *ask, const float *z, int32_t n_pos, fd_explanation *e,
                                 fd_error *err) {
    bool holds[FD_MAX_REMAINING];
    int32_t steps[N_ASKED], n = e->n_remaining < FD_MAX_REMAINING ? e->n_remaining : FD_MAX_REMAINING, n_left = 0;
    if (!e->named || n < 2) return FD_OK;
    choose_steps(ask->trace, own_step(ask), z, n_pos, steps);
    int32_t next = own_step(ask) + 1;
    bool right = steps[0] < 0; /* no later step departs: what would make it depart goes */
    if (right && next < fd_trace_n_step(ask->trace) && fd_trace_steps(ask->trace)[next].pos0 < n_pos) steps[0] = next;
    for (int32_t k = 0; k < n; k++) {
        holds[k] = true;
        for (int i = 0; i < N_ASKED && holds[k]; i++) {
            if (steps[i] < 0 || (i > 0 && steps[i] == steps[i - 1])) continue;
            fd_node_finding finding = at_step(ask, steps[i], z, n_pos);
            fd_diagnose_options there = *ask;
            there.finding = &finding;
            there.right_too = right;
            there.rows_alone = e->rows_alone;
            there.as_it_is = true;
            there.whole_run = ask->finding->span_first != ask->finding->node;
            there.whole_from = own_step_begins(ask);
            FD_TRY(fd_diagnose_fits(&there, &e->remaining[k].hypothesis, &holds[k], err));
        }
        n_left += holds[k];
    }
    if (n_left == 0 || n_left == n) return FD_OK; /* of none, or of all: fd_where_name_ends says which */
    e->n_remaining = 0;
    for (int32_t k = 0; k < n; k++)
        if (holds[k]) e->remaining[e->n_remaining++] = e->remaining[k];
    if (e->n_remaining == 1) e->tells_apart = FD_TELLS_NOTHING;
    fd_name_forms(e, ask->graph);
    return FD_OK;
}

void fd_take_name_away(int32_t first_pos, fd_explanation *e) {
    e->named = false;
    e->why = FD_UNNAMED_FEW_ROWS;
    e->tells_apart = FD_TELLS_NOTHING;
    e->first_pos = first_pos;
}

/* Of all positions: a value that lies near by chance refutes nothing. */
enum { MANY_RIGHT = 16 };

void fd_refute_by_right_rows(const float *z, int32_t n_pos, fd_explanation *e) {
    const fd_hypothesis *h = &e->remaining[0].hypothesis;
    int32_t n = 0, n_right = 0, first = -1;
    if (!e->named || h->guess != FD_GUESS_OWN || h->which != FD_OWN_ELEMENTS) return;
    for (int32_t p = 0; p < n_pos; p++) {
        n += z[p] >= 0;
        n_right += z[p] >= 0 && z[p] <= 1;
        if (first < 0 && z[p] >= 0 && z[p] <= 1) first = p;
    }
    if (n_right == 0 || MANY_RIGHT * n_right < n) return;
    fd_take_name_away(first, e);
}

/* Later steps can be asked: what they read of earlier ones is recorded, or comes from the same layer, or of the first, which the
 * embedding feeds. */
static bool may_ask_later(const fd_diagnose_options *ask) {
    const fd_node *nodes = ask->graph->nodes;
    const fd_node_finding *f = ask->finding;
    const int32_t from = nodes[f->span_first].layer, to = nodes[f->node].layer;
    return f->span_first == f->node || from == to || (from < 0 && to == 0);
}

fd_code fd_where_name_ends(const fd_diagnose_options *ask, const fd_explanation *e, const float *z, int32_t n_pos,
                           fd_node_finding *out, fd_error *err) {
    const fd_node_finding *first = ask->finding;
    int32_t steps[N_ASKED];
    *out = (fd_node_finding){0};
    if (!e->named || e->slope_rows > 0 || !may_ask_later(ask)) return FD_OK;
    choose_steps(ask->trace, own_step(ask), z, n_pos, steps);
    for (int i = 0; i < N_ASKED; i++) {
        fd_diagnose_options there = *ask;
        bool yes;
        if (steps[i] < 0 || (i > 0 && steps[i] == steps[i - 1])) continue;
        fd_node_finding finding = at_step(ask, steps[i], z, n_pos);
        there.finding = &finding;
        there.as_it_is = true;
        there.whole_run = first->span_first != first->node;
        there.whole_from = own_step_begins(ask); /* steps before it do not depart */
        FD_TRY(gives(&there, e, z, n_pos, &yes, err));
        if (yes) continue;
        *out = finding;
        return FD_OK;
    }
    return FD_OK;
}

/* Another name than `refuted`, which does not hold `there`; *yes: one that does. */
static fd_code explain_without(const fd_diagnose_options *ask, const fd_diagnose_options *there,
                               const fd_explanation *refuted, const float *z, int32_t n_pos, fd_explanation *out,
                               bool *yes, fd_error *err) {
    fd_hypothesis without[FD_MOST_REFUTED];
    fd_diagnose_options how = *ask;
    *yes = false;
    *out = *refuted;
    for (how.n_without = 0; how.n_without < FD_MOST_REFUTED && out->named && !*yes;) {
        without[how.n_without++] = out->remaining[0].hypothesis;
        how.without = without;
        FD_TRY(fd_diagnose(&how, out, err));
        if (out->named) FD_TRY(gives(there, out, z, n_pos, yes, err));
    }
    return FD_OK;
}

fd_code fd_prefer_what_holds_later(const fd_diagnose_options *ask, const float *z, int32_t n_pos, fd_explanation *e,
                                   fd_error *err) {
    fd_node_finding finding;
    fd_diagnose_options there = *ask;
    fd_explanation other;
    bool yes = false;
    FD_TRY(fd_where_name_ends(ask, e, z, n_pos, &finding, err));
    if (finding.finding == FD_FOUND_NOTHING) return FD_OK;
    there.finding = &finding;
    FD_TRY(fd_diagnose(&there, &other, err));
    there.finding = ask->finding;
    there.as_it_is = true;
    const fd_hypothesis *h = &other.remaining[0].hypothesis;
    const bool fitted = other.named && h->guess == FD_GUESS_CACHE && h->which == FD_CACHE_UNKNOWN; /* gives anything */
    if (other.named && !fitted) FD_TRY(gives(&there, &other, z, n_pos, &yes, err));
    if (yes) *e = other;
    if (yes || ask->finding->span_first == ask->finding->node) return FD_OK;
    /* what later steps read of this one's unrecorded rows has the bug: another name may hold for both */
    there.finding = &finding;
    there.whole_run = true;
    there.whole_from = own_step_begins(ask);
    FD_TRY(explain_without(ask, &there, e, z, n_pos, &other, &yes, err));
    if (yes && !fd_hypothesis_fits_cache(&other.remaining[0].hypothesis)) *e = other;
    return FD_OK;
}

/* Of a first step with one or two rows that depart, many things are true. */
enum { FEW_ROWS = 2 };

static int32_t rows_departing(const fd_trace_step *step, const float *z, int32_t n_pos) {
    int32_t n = 0;
    for (int32_t p = step->pos0; p < step->pos0 + step->n_pos && p < n_pos; p++) n += !(z[p] <= 1);
    return n;
}

/* The later step with most rows that depart; -1: none. */
static int32_t fullest_step(const fd_diagnose_options *ask, const float *z, int32_t n_pos) {
    int32_t best = -1, most = 0;
    for (int32_t s = own_step(ask) + 1; s < fd_trace_n_step(ask->trace); s++) {
        int32_t n = rows_departing(&fd_trace_steps(ask->trace)[s], z, n_pos);
        if (n > most) best = s, most = n;
    }
    return best;
}

/* Position 15 of 16 is 0 modulo 15. So must those after it be, or it was that row alone. */
static bool folds_positions(const fd_explanation *e) {
    const fd_hypothesis *h = &e->remaining[0].hypothesis;
    return h->guess == FD_GUESS_POSITION && (h->which == FD_POSITION_MODULO || h->which == FD_POSITION_AT_MOST);
}

fd_code fd_doubt_few_rows(const fd_diagnose_options *ask, const float *z, int32_t n_pos, fd_explanation *e,
                          fd_error *err) {
    int32_t later = fullest_step(ask, z, n_pos), next = own_step(ask) + 1;
    const bool right = later < 0;
    fd_explanation other;
    bool yes;
    bool few = e->n_departing > 0 && e->n_departing <= FEW_ROWS; /* by the bounds; 0: found by what is left */
    if (!e->named || e->slope_rows > 0 || !few || ask->finding->n_odd > 0 || !may_ask_later(ask)) return FD_OK;
    if (right && folds_positions(e) && next < fd_trace_n_step(ask->trace)) later = next;
    if (later < 0 || fd_trace_steps(ask->trace)[later].pos0 >= n_pos) return FD_OK;
    fd_node_finding finding = at_step(ask, later, z, n_pos);
    fd_diagnose_options there = *ask;
    there.finding = &finding;
    there.whole_run = true;
    there.whole_from = own_step_begins(ask);
    there.right_too = right;
    there.as_it_is = true;
    FD_TRY(gives(&there, e, z, n_pos, &yes, err));
    if (yes) return FD_OK;
    fd_diagnose_options alone = there, first = *ask;
    alone.whole_run = false;
    first.as_it_is = true;
    other.named = false;
    if (!right) FD_TRY(fd_diagnose(&alone, &other, err));
    if (other.named) FD_TRY(gives(&first, &other, z, n_pos, &yes, err));
    if (!yes) FD_TRY(explain_without(ask, &there, e, z, n_pos, &other, &yes, err));
    if (yes) {
        *e = other;
        return FD_OK;
    }
    fd_take_name_away(finding.pos, e);
    return FD_OK;
}
