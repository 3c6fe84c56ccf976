#include "compare/explain/which_alone.h"

#include <stdio.h>
#include <string.h>

static bool is_of_qkv(const fd_node *node) {
    const char *suffix = fd_fault_suffix(node);
    return strncmp(suffix, "attn_", 5) == 0 && suffix[5] && strchr("qkv", suffix[5]) &&
           (suffix[6] == '\0' || suffix[6] == '_');
}

static fd_code fit_at(const fd_trial *t, const fd_hypothesis *h, const fd_node *node, const float *rows,
                      fd_explain_fit *fit, bool *known, fd_error *err) {
    fd_variant v;
    FD_TRY(fd_evaluate(t->all.bench, h, node->id, true, &v, err));
    *known = v.state == FD_VARIANT_COMPUTED;
    if (*known) *fit = fd_variant_fit(t->all.request, node, &v, rows);
    fd_variant_free(&v);
    return FD_OK;
}

/* The node, or what is made of it alone, its norm or RoPE, where that was recorded; NULL. */
static const fd_node *recorded_form(const fd_trial *t, const fd_node *node) {
    const fd_explain_request *r = t->all.request;
    const fd_graph *graph = r->args.graph;
    while (r->tensor && !r->tensor(r->user, node->id)) {
        int32_t next = node->id + 1;
        while (next < graph->n_node && (graph->nodes[next].input[0] != node->id || graph->nodes[next].input[1] >= 0 ||
                                        graph->nodes[next].op == FD_OP_KV_WRITE || !is_of_qkv(&graph->nodes[next])))
            next++;
        if (next == graph->n_node) return NULL;
        node = &graph->nodes[next];
    }
    return node;
}

/* Recorded as it should be, and it would not be if the fault were here, too. */
static fd_code is_right(const fd_trial *t, const fd_hypothesis *h, const fd_node *own_node, bool *yes, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = recorded_form(t, own_node);
    const float *rows = node && r->tensor ? r->tensor(r->user, node->id) : NULL;
    fd_explain_fit plain, own;
    bool known = false, tried = false;
    *yes = false;
    if (!rows || node->op == FD_OP_KV_WRITE || node->id == r->args.node->id) return FD_OK;
    FD_TRY(fit_at(t, &fd_no_hypothesis, node, rows, &plain, &known, err));
    if (known && plain.z <= 1.0) FD_TRY(fit_at(t, h, node, rows, &own, &tried, err));
    *yes = tried && fd_fit_clearly_beyond(&own);
    return FD_OK;
}

fd_code fd_say_which_alone(fd_trial *t, fd_explain_fit *fit, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    const fd_hypothesis *h = &fit->hypothesis;
    char names[96] = "";
    int32_t n_right = 0;
    if (h->guess != FD_GUESS_FAULT || h->node >= 0 || t->all.request->tau) return FD_OK;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        fd_faulty_node edited;
        bool yes = false, right;
        if (node->layer != t->all.request->args.node->layer || !is_of_qkv(node)) continue;
        FD_TRY(fd_hypothesis_edit(h, graph, node, &edited, &yes, err));
        fd_faulty_node_free(&edited);
        if (!yes) continue;
        FD_TRY(is_right(t, h, node, &right, err));
        const size_t at = strlen(names);
        n_right += right;
        if (!right) snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", fd_fault_suffix(node));
    }
    const size_t at = strlen(fit->summary);
    if (n_right > 0 && names[0]) snprintf(fit->summary + at, sizeof fit->summary - at, " (%s alone)", names);
    return FD_OK;
}
