#include "compare/dump/misrecorded.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/describe.h"
#include "compare/diagnose/diagnose.h"
#include "compare/dump/held_values.h"

/* Without the tensor that was recorded wrongly its readers are as they should be, and so much nearer. Bounds alone do not say it:
 * they grow with every op that was not recorded, and a reader within them may be no nearer than before. */
#define NEARER 0.25

typedef struct search {
    const fd_attribution_options *o;
    bool *ignored;                    /* [n_node] */
    bool *readers, *reached, *layers; /* [n_node]: departed, and read what is ignored; [n_node], [n_layer]: scratch */
    bool *behind;               /* [n_node]: read what was recorded after a clamp, and must not depart without it */
    fd_attribution_options how; /* with what is ignored */
    double *left;               /* [2, n_node] Σ(c − ŷ)² of all rows: with what was recorded, and without it */
    double *sums;               /* [n_node] of these, what on_row adds to */
    fd_misrecorded *out;
} search;

static void add_row(void *user, const fd_attribution_row *row) {
    double *sum = &((search *)user)->sums[row->node->id];
    for (int64_t i = 0; i < row->stride; i++)
        if (isfinite(row->candidate[i]) && isfinite(row->replayed[i]))
            *sum += (row->candidate[i] - row->replayed[i]) * (row->candidate[i] - row->replayed[i]);
}

static bool departs(const fd_attribution *of, int32_t node) {
    return of->introduced[node].finding != FD_FOUND_NOTHING;
}

/* Scores in an order of their own give weights in that order: those were recorded as the scores were. */
static bool follows_in_kind(const search *s, const fd_attribution *of, int32_t node, int32_t reader) {
    const fd_node *nodes = s->o->graph->nodes;
    return nodes[node].over_kv && nodes[reader].over_kv && nodes[reader].layer == nodes[node].layer &&
           !departs(of, reader);
}

/* Nothing but the node is reached yet. */
static void reach_from(search *s, int32_t node) {
    memset(s->reached, 0, sizeof *s->reached * (size_t)s->o->graph->n_node);
    s->reached[node] = true;
}

static bool reads_reached(const search *s, int32_t node) {
    const fd_node *n = &s->o->graph->nodes[node];
    bool reads = false;
    for (int k = 0; k < FD_MAX_INPUTS; k++) reads |= n->input[k] >= 0 && s->reached[n->input[k]];
    return reads;
}

/* The first recorded reader that departs, directly or through tensors that were not recorded; -1: none. All of them are
 * marked in s->readers where `mark`, and what was recorded as the node was is ignored. */
static int32_t departing_reader(search *s, const fd_attribution *of, int32_t node, bool mark) {
    const fd_graph *graph = s->o->graph;
    int32_t first = -1;
    reach_from(s, node);
    for (int32_t i = node + 1; i < graph->n_node; i++) {
        const bool reads = reads_reached(s, i);
        bool recorded = !s->ignored[i] && fd_trace_has_data(s->o->cand, graph->nodes[i].name);
        bool in_kind = reads && recorded && follows_in_kind(s, of, node, i);
        s->reached[i] = reads && (!recorded || in_kind);
        if (in_kind && mark) s->ignored[i] = true;
        if (!reads || !recorded || !departs(of, i)) continue;
        s->readers[i] |= mark;
        if (first < 0) first = i;
    }
    return first;
}

/* All recorded values are within the limit. */
static fd_code is_within(const search *s, const fd_node *node, double limit, bool *yes, fd_error *err) {
    const int64_t size = fd_node_row_stride(node, s->o->n_pos);
    double *row = malloc(2 * sizeof *row * (size_t)size);
    fd_code code = row ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", node->name);
    *yes = code == FD_OK;
    for (int32_t pos = 0; pos < s->o->n_pos && *yes && code == FD_OK; pos++) {
        bool present = false;
        code = fd_held_row(s->o->cand, node, pos, row, &present, err);
        for (int64_t i = 0; present && i < size && code == FD_OK; i++) *yes &= fabs(row[i]) <= limit;
    }
    free(row);
    return code;
}

/* What a clamp gives stays as it is when it is clamped: nothing that reads it departs. The clamp that was not recorded, and whose
 * values stand there instead; -1: none. */
static fd_code clamp_after(const search *s, int32_t node, int32_t *clamp, fd_error *err) {
    const fd_graph *graph = s->o->graph;
    *clamp = -1;
    for (int32_t i = node + 1; i < graph->n_node && *clamp < 0; i++) {
        const fd_node *n = &graph->nodes[i];
        bool within = false;
        if (n->op != FD_OP_CLAMP || n->input[0] != node || fd_trace_has_data(s->o->cand, n->name)) continue;
        FD_TRY(is_within(s, &graph->nodes[node], (double)n->limit, &within, err));
        if (within) *clamp = i;
    }
    return FD_OK;
}

/* The first recorded tensor after it; all of them are marked where `mark`. */
static int32_t recorded_behind(search *s, int32_t node, bool mark) {
    const fd_graph *graph = s->o->graph;
    int32_t first = -1;
    reach_from(s, node);
    for (int32_t i = node + 1; i < graph->n_node; i++) {
        const bool reads = reads_reached(s, i);
        const bool recorded = fd_trace_has_data(s->o->cand, graph->nodes[i].name);
        s->reached[i] = reads && !recorded;
        if (!reads || !recorded) continue;
        s->behind[i] |= mark;
        if (first < 0) first = i;
    }
    return first;
}

/* What reads it and tells that it was recorded wrongly; -1: nothing does. */
static fd_code telling_reader(search *s, const fd_attribution *of, int32_t node, bool mark, int32_t *reader,
                              fd_error *err) {
    int32_t clamp;
    *reader = departing_reader(s, of, node, mark);
    if (*reader >= 0) return FD_OK;
    FD_TRY(clamp_after(s, node, &clamp, err));
    if (clamp >= 0) *reader = recorded_behind(s, node, mark);
    return FD_OK;
}

static fd_code describe(const search *s, const fd_attribution *of, fd_misrecorded_kind *kind, fd_error *err) {
    fd_diagnose_options ask = fd_diagnose_question(s->o, of);
    fd_explanation e = {0};
    FD_TRY(fd_held_alike(s->o, &of->first, kind->holds, err));
    bool in_order = false;
    if (!kind->holds[0]) FD_TRY(fd_held_in_other_order(s->o, &of->first, &in_order, err));
    if (in_order) {
        snprintf(kind->summary, sizeof kind->summary, "its values, with the keys in another order");
        return FD_OK;
    }
    if (!kind->holds[0]) FD_TRY(fd_diagnose(&ask, &e, err));
    if (e.named) snprintf(kind->summary, sizeof kind->summary, "%s", e.remaining[0].summary);
    return FD_OK;
}

/* ---- which tensors ---- */

/* Ignores the kind of tensor that departs first. *more: it may have been recorded wrongly. */
static fd_code ignore_first(search *s, const fd_attribution *of, bool *more, fd_error *err) {
    const fd_graph *graph = s->o->graph;
    const fd_node *nodes = graph->nodes;
    fd_misrecorded_kind kind = {0};
    int32_t reader, told;
    FD_TRY(telling_reader(s, of, of->first.node, false, &reader, err));
    *more = reader >= 0 && s->out->n < FD_MAX_MISRECORDED;
    if (!*more) return FD_OK;
    memset(s->layers, 0, sizeof *s->layers * (size_t)graph->hparams.n_layer);
    for (int32_t i = 0; i < graph->n_node; i++) {
        bool same = strcmp(fd_fault_suffix(&nodes[i]), fd_fault_suffix(&nodes[of->first.node])) == 0;
        if (!departs(of, i) || !same) continue;
        FD_TRY(telling_reader(s, of, i, true, &told, err));
        if (told < 0) continue;
        s->ignored[i] = true;
        kind.n_node++;
        if (nodes[i].layer >= 0) s->layers[nodes[i].layer] = true;
    }
    snprintf(kind.node, sizeof kind.node, "%s", nodes[of->first.node].name);
    snprintf(kind.reader, sizeof kind.reader, "%s", nodes[reader].name);
    fd_layers_text(s->layers, graph->hparams.n_layer, kind.layers, sizeof kind.layers);
    FD_TRY(describe(s, of, &kind, err));
    s->out->kinds[s->out->n++] = kind;
    return FD_OK;
}

/* Those that departed follow from what the ignored tensors should be. */
static bool readers_follow(const search *s, const fd_attribution *of) {
    const int32_t n_node = s->o->graph->n_node;
    for (int32_t i = 0; i < n_node; i++) {
        if (s->behind[i] && !s->ignored[i] && departs(of, i)) return false;
        if (!s->readers[i] || s->ignored[i]) continue;
        if (departs(of, i) || of->finding[i] == FD_FOUND_NOTHING) return false;
        if (!(s->left[n_node + i] <= NEARER * s->left[i])) return false;
    }
    return true;
}

/* What is left of every node, with s->ignored as it is. */
static fd_code attribute(search *s, double *left, fd_attribution *of, fd_error *err) {
    memset(left, 0, sizeof *left * (size_t)s->o->graph->n_node);
    s->sums = left;
    return fd_attribute_errors(&s->how, of, err);
}

/* Until nothing departs, or what departs first is followed by its readers. */
static fd_code ignore_all(search *s, const fd_attribution *found, bool *follow, fd_error *err) {
    fd_attribution of = *found, all = {0};
    bool more = true, own = false;
    fd_code code = attribute(s, s->left, &all, err);
    fd_attribution_free(&all);
    while (code == FD_OK && of.found && more) {
        code = ignore_first(s, &of, &more, err);
        if (code != FD_OK || !more) break;
        if (own) fd_attribution_free(&of);
        code = attribute(s, s->left + s->o->graph->n_node, &of, err);
        own = true;
    }
    *follow = code == FD_OK && own && readers_follow(s, &of);
    if (own) fd_attribution_free(&of);
    return code;
}

fd_code fd_find_misrecorded(const fd_attribution_options *options, const fd_attribution *found, bool *ignored,
                            fd_misrecorded *out, fd_error *err) {
    size_t n_node = (size_t)options->graph->n_node, n_layer = (size_t)options->graph->hparams.n_layer;
    bool follow = false, *marks = calloc(3 * n_node + n_layer, sizeof *marks);
    search s = {.o = options, .ignored = ignored, .how = *options, .out = out};
    *out = (fd_misrecorded){0};
    memset(ignored, 0, sizeof *ignored * n_node);
    s.left = malloc(2 * n_node * sizeof *s.left);
    if (!marks || !s.left) {
        free(marks);
        free(s.left);
        return fd_fail(err, FD_ERR_MEMORY, "searching recorded tensors: out of memory");
    }
    s.readers = marks;
    s.reached = marks + n_node;
    s.behind = marks + 2 * n_node;
    s.layers = marks + 3 * n_node;
    s.how.ignored = ignored;
    s.how.on_row = add_row;
    s.how.user = &s;
    s.how.progress = NULL;
    fd_code code = ignore_all(&s, found, &follow, err);
    free(marks);
    free(s.left);
    if (follow) return code;
    memset(ignored, 0, sizeof *ignored * n_node);
    *out = (fd_misrecorded){0};
    return code;
}
