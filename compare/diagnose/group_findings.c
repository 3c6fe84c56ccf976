#include "compare/diagnose/group_findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/describe.h"

/* Explanations are asked for so many nodes that no known cause explains; each may cost as much as the first name. */
enum { MOST_ASKED = 12, MOST_CAUSES = 16 };

typedef struct group {
    fd_explain_fit fit; /* what it is, or may be; of FD_GUESS_NONE: nothing fits */
    bool named;
    int32_t rows_alone; /* as fd_explanation's */
    int32_t node;
    int32_t n_node;
    bool *layers; /* [n_layer]; in grouping.layers */
} group;

typedef struct grouping {
    const fd_diagnose_options *o;
    group groups[MOST_CAUSES];
    int32_t n, n_asked;
    bool *layers; /* [MOST_CAUSES, n_layer]; owned */
} grouping;

static void join(grouping *r, int32_t at, int32_t node) {
    int32_t layer = r->o->graph->nodes[node].layer;
    r->groups[at].n_node++;
    if (layer >= 0) r->groups[at].layers[layer] = true;
}

static void begin(grouping *r, const fd_explanation *e, int32_t node) {
    if (r->n == MOST_CAUSES) return;
    bool fits = e->n_remaining > 0 && e->remaining[0].z <= 1.0;
    r->groups[r->n] = (group){.fit = fits ? e->remaining[0] : (fd_explain_fit){.name = ""},
                              .named = e->named,
                              .rows_alone = e->rows_alone,
                              .node = node,
                              .layers = r->layers + (int64_t)r->n * r->o->graph->hparams.n_layer};
    join(r, r->n++, node);
}

/* Weights of keys that are hidden do not follow from what their scores hold, nor do sums of keys that are in no row of the trace. */
static bool shows_again(const grouping *r, const group *g, const fd_node *node) {
    const fd_hypothesis *h = &g->fit.hypothesis;
    const fd_op from = r->o->graph->nodes[g->node].op;
    const bool hidden = h->guess == FD_GUESS_KEYS || strcmp(g->fit.name, "other_window") == 0;
    const bool outside = h->guess == FD_GUESS_OWN && h->which == FD_OWN_ROW_FACTOR && h->other == FD_OUTSIDE;
    return (node->op == FD_OP_ATTN_SOFTMAX && from == FD_OP_ATTN_SCORES && hidden) ||
           (node->op == FD_OP_ATTN_MIX && from == FD_OP_ATTN_SOFTMAX && outside);
}

/* Which cause the node belongs to; a new one when none. */
static fd_code place(grouping *r, const fd_node_finding *finding, fd_error *err) {
    const fd_node *nodes = r->o->graph->nodes;
    fd_diagnose_options how = *r->o;
    how.finding = finding;
    how.table_alone = true; /* there may be many of them */
    for (int32_t i = 0; i < r->n; i++) {
        bool fits = false;
        how.rows_alone = r->groups[i].rows_alone;
        if (r->groups[i].fit.name[0]) FD_TRY(fd_diagnose_fits(&how, &r->groups[i].fit.hypothesis, &fits, err));
        if (fits || shows_again(r, &r->groups[i], &nodes[finding->node])) {
            join(r, i, finding->node);
            return FD_OK;
        }
    }
    fd_explanation own = {0};
    for (int32_t i = 0; i < r->n; i++)
        if (!r->groups[i].fit.name[0] &&
            strcmp(fd_fault_suffix(&nodes[r->groups[i].node]), fd_fault_suffix(&nodes[finding->node])) == 0) {
            join(r, i, finding->node);
            return FD_OK;
        }
    if (r->n_asked++ < MOST_ASKED) FD_TRY(fd_diagnose(&how, &own, err));
    begin(r, &own, finding->node);
    return FD_OK;
}

static void describe(const grouping *r, const group *g, fd_cause *out) {
    snprintf(out->name, sizeof out->name, "%s", g->named ? g->fit.name : "");
    snprintf(out->summary, sizeof out->summary, "%s", g->named ? g->fit.summary : "");
    snprintf(out->node, sizeof out->node, "%s", r->o->graph->nodes[g->node].name);
    out->n_node = g->n_node;
    fd_layers_text(g->layers, r->o->graph->hparams.n_layer, out->layers, sizeof out->layers);
}

/* "blk.2.attn_norm.weight": 2, and *suffix the rest; -1 outside the layers. */
static int32_t layer_of(const fd_weight *w, const char **suffix) {
    int32_t layer = -1;
    int n = 0;
    if (sscanf(w->name, "blk.%d.%n", &layer, &n) != 1 || n == 0) return -1;
    *suffix = w->name + n;
    return layer;
}

/* Where one weight is another layer's of the same name: *h asks whether all are. False: there is nothing to ask. */
static bool as_whole_layer(const fd_graph *graph, const fd_explanation *e, fd_hypothesis *h) {
    const fd_hypothesis *one = &e->remaining[0].hypothesis;
    const char *own_suffix = "", *suffix = "";
    if (!e->named || one->guess != FD_GUESS_WEIGHT || one->node < 0 || one->end) return false;
    const fd_node *node = &graph->nodes[one->node];
    const int32_t own = layer_of(&graph->weights[node->weight[one->which]], &own_suffix);
    const int32_t other = layer_of(&graph->weights[one->other], &suffix);
    *h = (fd_hypothesis){.guess = FD_GUESS_WEIGHT, .node = -1, .layer = own, .other = other};
    return own >= 0 && other >= 0 && own != other && strcmp(own_suffix, suffix) == 0;
}

/* Would the other layer's weights change this node? */
static bool has_others(const fd_graph *graph, const fd_node *node, const fd_hypothesis *whole) {
    for (int k = 0; k < FD_MAX_WEIGHTS && node->layer == whole->layer; k++) {
        const fd_weight *own = node->weight[k] < 0 ? NULL : &graph->weights[node->weight[k]];
        const char *suffix = "", *of = "";
        for (int32_t w = 0; own && layer_of(own, &suffix) >= 0 && w < graph->n_weight; w++) {
            const fd_weight *other = &graph->weights[w];
            const bool same_place = layer_of(other, &of) == whole->other && strcmp(of, suffix) == 0;
            if (same_place && other->bytes == own->bytes && memcmp(other->data, own->data, own->bytes) != 0)
                return true;
        }
    }
    return false;
}

/* A second weight of the layer that is the other layer's makes it the whole layer, where nothing else there is right by the layer's own:
 * the rest is asked with all others. */
static fd_code try_whole_layer(const fd_diagnose_options *options, const fd_attribution *attribution,
                               fd_explanation *first, fd_error *err) {
    const fd_graph *graph = options->graph;
    fd_diagnose_options how = *options;
    fd_hypothesis whole;
    bool fits = false;
    if (!as_whole_layer(graph, first, &whole)) return FD_OK;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (attribution->z[i] >= 0 && attribution->introduced[i].finding == FD_FOUND_NOTHING &&
            has_others(graph, &graph->nodes[i], &whole))
            return FD_OK;
    for (int32_t i = options->finding->node + 1; i < graph->n_node && !fits; i++) {
        how.finding = &attribution->introduced[i];
        if (graph->nodes[i].layer != whole.layer || how.finding->finding == FD_FOUND_NOTHING) continue;
        FD_TRY(fd_diagnose_fits(&how, &whole, &fits, err));
        if (!fits) return FD_OK;
    }
    if (!fits) return FD_OK;
    fd_explain_fit *fit = &first->remaining[0];
    fit->hypothesis = whole;
    snprintf(fit->name, sizeof fit->name, "%s", fd_hypothesis_name(&whole));
    fd_hypothesis_summary(&whole, graph, fit->summary, sizeof fit->summary);
    first->n_remaining = 1;
    return FD_OK;
}

fd_code fd_group_findings(const fd_diagnose_options *options, const fd_attribution *attribution, fd_explanation *first,
                          fd_causes *out, fd_error *err) {
    const fd_graph *graph = options->graph;
    *out = (fd_causes){0};
    grouping r = {.o = options,
                  .layers = calloc((size_t)MOST_CAUSES * (size_t)graph->hparams.n_layer, sizeof *r.layers)};
    if (!r.layers) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    fd_code code = try_whole_layer(options, attribution, first, err);
    begin(&r, first, options->finding->node);
    for (int32_t i = 0; i < graph->n_node && code == FD_OK; i++)
        if (i != options->finding->node && attribution->introduced[i].finding != FD_FOUND_NOTHING)
            code = place(&r, &attribution->introduced[i], err);
    if (code == FD_OK) {
        describe(&r, &r.groups[0], &out->first);
        out->n_also = r.n - 1;
        for (int32_t i = 0; i < out->n_also && i < FD_MAX_ALSO; i++) describe(&r, &r.groups[i + 1], &out->also[i]);
    }
    free(r.layers);
    return code;
}
