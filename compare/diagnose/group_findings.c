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
                              .node = node,
                              .layers = r->layers + (int64_t)r->n * r->o->graph->hparams.n_layer};
    join(r, r->n++, node);
}

/* Which cause the node belongs to; a new one when none. */
static fd_code place(grouping *r, const fd_node_finding *finding, fd_error *err) {
    const fd_node *nodes = r->o->graph->nodes;
    fd_diagnose_options how = *r->o;
    how.finding = finding;
    how.table_alone = true; /* there may be many of them */
    for (int32_t i = 0; i < r->n; i++) {
        bool fits = false;
        if (r->groups[i].fit.name[0]) FD_TRY(fd_diagnose_fits(&how, &r->groups[i].fit.hypothesis, &fits, err));
        if (fits) {
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

fd_code fd_group_findings(const fd_diagnose_options *options, const fd_attribution *attribution,
                          const fd_explanation *first, fd_causes *out, fd_error *err) {
    const fd_graph *graph = options->graph;
    *out = (fd_causes){0};
    grouping r = {.o = options,
                  .layers = calloc((size_t)MOST_CAUSES * (size_t)graph->hparams.n_layer, sizeof *r.layers)};
    if (!r.layers) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    begin(&r, first, options->finding->node);
    fd_code code = FD_OK;
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
