#include "compare/explain/readers.h"

#include <stdlib.h>

static fd_code edits(const fd_trial *t, const fd_hypothesis *h, int32_t id, bool *yes, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    fd_faulty_node edited;
    FD_TRY(fd_hypothesis_edit(h, graph, &graph->nodes[id], &edited, yes, err));
    fd_faulty_node_free(&edited);
    return FD_OK;
}

static bool in_span(const fd_trial *t, int32_t id) {
    for (int32_t i = 0; i < t->n_span - 1; i++)
        if (t->span[i] == id) return true;
    return false;
}

/* `h` at the one unrecorded node of the span that it changes, so that an explanation of all additions is not asked at
 * others, too; *n: how many it changes. */
static fd_code inside_span(const fd_trial *t, const fd_hypothesis *h, fd_hypothesis *out, int32_t *n, fd_error *err) {
    *n = 0;
    *out = *h;
    for (int32_t i = 0; i < t->n_span - 1; i++) {
        bool yes;
        FD_TRY(edits(t, h, t->span[i], &yes, err));
        *n += yes;
        if (yes) out->node = t->span[i];
    }
    if (*n != 1) out->node = h->node;
    return FD_OK;
}

/* Of what the node is computed through, does the hypothesis change the same tensors, and no others? */
static fd_code shares(const fd_trial *t, const fd_hypothesis *h, int32_t id, int32_t *list, bool *yes, fd_error *err) {
    int32_t n = fd_evaluate_span(t->all.bench, id, list);
    *yes = false;
    for (int32_t i = 0; i < n; i++) {
        bool edited;
        FD_TRY(edits(t, h, list[i], &edited, err));
        if (edited && !in_span(t, list[i])) {
            *yes = false;
            return FD_OK;
        }
        *yes |= edited;
    }
    return FD_OK;
}

static fd_code fit_at(const fd_trial *t, const fd_hypothesis *h, int32_t id, const float *rows, fd_explain_fit *fit,
                      bool *known, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = &r->args.graph->nodes[id];
    fd_variant v, right = {0};
    FD_TRY(fd_evaluate(t->all.bench, h, id, true, &v, err));
    *known = v.state == FD_VARIANT_COMPUTED;
    fd_code code = *known && v.overridden ? fd_evaluate(t->all.bench, &fd_no_hypothesis, id, true, &right, err) : FD_OK;
    if (code == FD_OK && right.state == FD_VARIANT_COMPUTED && *known) fd_variant_widen(r, node, &v, &right);
    if (*known) *fit = fd_variant_fit(r, node, &v, rows);
    fd_variant_free(&right);
    fd_variant_free(&v);
    return code;
}

/* A number that is solved for fits somewhere, and of hundreds of explanations one gives a few choices of experts by chance: another
 * reader that departs must come nearer with it. */
static bool may_fit_by_chance(const fd_trial *t, const fd_hypothesis *h) {
    return h->guess == FD_GUESS_PARAMETER || t->all.request->args.node->op == FD_OP_TOP_K;
}
static bool comes_no_nearer(const fd_explain_fit *plain, const fd_explain_fit *own) {
    return fd_fit_clearly_beyond(own) && !(2 * own->z <= plain->z);
}

/* The node is as it should be, and would not be if the hypothesis were true; or it departs with it no less. */
static fd_code speaks_against(const fd_trial *t, const fd_hypothesis *h, int32_t id, bool *yes, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const float *rows = r->tensor(r->user, id);
    fd_explain_fit plain, own;
    bool known;
    *yes = false;
    FD_TRY(fit_at(t, &fd_no_hypothesis, id, rows, &plain, &known, err));
    if (!known || (!(plain.z <= 1.0) && !may_fit_by_chance(t, h))) return FD_OK;
    FD_TRY(fit_at(t, h, id, rows, &own, &known, err));
    *yes = known && (plain.z <= 1.0 ? fd_fit_clearly_beyond(&own) : comes_no_nearer(&plain, &own));
    return FD_OK;
}

static fd_code refuted(const fd_trial *t, const fd_hypothesis *h, int32_t *list, bool *yes, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    fd_hypothesis inside;
    int32_t n;
    *yes = false;
    FD_TRY(inside_span(t, h, &inside, &n, err));
    for (int32_t i = t->span[0]; n > 0 && i < r->args.graph->n_node && !*yes; i++) {
        const fd_node *node = &r->args.graph->nodes[i];
        if (node->layer > r->args.node->layer + 1) break;
        if (i == r->args.node->id || node->op == FD_OP_KV_WRITE || !r->tensor(r->user, i)) continue;
        bool shared;
        FD_TRY(shares(t, &inside, i, list, &shared, err));
        if (shared) FD_TRY(speaks_against(t, &inside, i, yes, err));
    }
    return FD_OK;
}

/* Is that node edited, or does it read one that is and was not recorded? */
static fd_code shows_edit(const fd_trial *t, const fd_hypothesis *h, int32_t id, bool *yes, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *nodes = r->args.graph->nodes;
    FD_TRY(edits(t, h, id, yes, err));
    for (int k = 0; k < FD_MAX_INPUTS && !*yes; k++) {
        const int32_t input = nodes[id].input[k];
        const bool unrecorded = input >= 0 && nodes[input].layer == nodes[id].layer && !r->tensor(r->user, input);
        if (unrecorded) FD_TRY(edits(t, h, input, yes, err));
    }
    return FD_OK;
}

/* Is the other node of a pair, recorded, not as the hypothesis has it? At one node alone it is no pair. */
static fd_code lacks_partner(const fd_trial *t, const fd_hypothesis *h, bool *yes, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *nodes = r->args.graph->nodes;
    const bool of_pair = h->guess == FD_GUESS_FAULT && fd_fault_at(h->fault)->pair;
    *yes = of_pair && h->node >= 0;
    if (!of_pair) return FD_OK;
    for (int32_t i = 0; i < r->args.graph->n_node && !*yes; i++) {
        bool edited, known;
        fd_explain_fit fit;
        if (nodes[i].layer != r->args.node->layer || i == r->args.node->id || !r->tensor(r->user, i)) continue;
        FD_TRY(shows_edit(t, h, i, &edited, err));
        if (edited) FD_TRY(fit_at(t, h, i, r->tensor(r->user, i), &fit, &known, err));
        *yes = edited && known && !(fit.z <= 1.0);
    }
    return FD_OK;
}

fd_code fd_refute_half_pairs(fd_trial *t, fd_error *err) {
    if (t->all.request->tau || !t->all.request->tensor) return FD_OK;
    for (int32_t i = 0; i < t->n;) {
        bool yes = false;
        if (fd_trial_is_fit(t, &t->contenders[i].fit)) FD_TRY(lacks_partner(t, &t->contenders[i].h, &yes, err));
        if (yes)
            fd_trial_drop(t, i);
        else
            i++;
    }
    return FD_OK;
}

fd_code fd_refute_by_readers(fd_trial *t, fd_error *err) {
    if (t->all.request->tau || !t->all.request->tensor || t->n_span < 2) return FD_OK;
    int32_t *list = malloc(sizeof *list * (size_t)t->all.request->args.graph->n_node);
    fd_code code = list ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    for (int32_t i = 0; i < t->n && code == FD_OK;) {
        fd_contender *c = &t->contenders[i];
        bool yes = false;
        if (!c->asked && fd_trial_is_fit(t, &c->fit)) code = refuted(t, &c->h, list, &yes, err);
        c->asked = true;
        if (yes)
            fd_trial_drop(t, i);
        else
            i++;
    }
    free(list);
    return code;
}
