#include "compare/diagnose/name_rest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Explanations are asked for so many nodes that no known cause explains; each may cost as much as the first name. */
enum { MOST_ASKED = 12, MOST_CAUSES = 16 };

typedef struct cause {
    int32_t fault; /* what it is, or may be; -1: nothing fits */
    bool named;
    int32_t node;
    int32_t n_node;
    bool *layers; /* [n_layer]; in rest.layers */
} cause;

typedef struct rest {
    const fd_name_options *o;
    cause causes[MOST_CAUSES];
    int32_t n, n_asked;
    bool *layers; /* [MOST_CAUSES, n_layer]; owned */
} rest;

static const char *suffix_of(const fd_node *node) {
    const char *dot = node->layer < 0 ? NULL : strchr(node->name, '.');
    dot = dot ? strchr(dot + 1, '.') : NULL;
    return dot ? dot + 1 : node->name;
}

static void join(rest *r, int32_t at, int32_t node) {
    int32_t layer = r->o->graph->nodes[node].layer;
    r->causes[at].n_node++;
    if (layer >= 0) r->causes[at].layers[layer] = true;
}

static void begin(rest *r, const fd_explanation *e, int32_t node) {
    if (r->n == MOST_CAUSES) return;
    bool fits = e->n_remaining > 0 && e->remaining[0].z <= 1.0;
    r->causes[r->n] = (cause){.fault = fits ? fd_fault_find(e->remaining[0].fault->name) : -1,
                              .named = e->named,
                              .node = node,
                              .layers = r->layers + (int64_t)r->n * r->o->graph->hparams.n_layer};
    join(r, r->n++, node);
}

/* Which cause the node belongs to; a new one when none. */
static fd_code place(rest *r, const fd_node_finding *finding, fd_error *err) {
    const fd_node *nodes = r->o->graph->nodes;
    fd_name_options how = *r->o;
    how.finding = finding;
    for (int32_t i = 0; i < r->n; i++) {
        bool fits = false;
        if (r->causes[i].fault >= 0) FD_TRY(fd_name_fits(&how, r->causes[i].fault, &fits, err));
        if (fits) {
            join(r, i, finding->node);
            return FD_OK;
        }
    }
    fd_explanation own = {0};
    for (int32_t i = 0; i < r->n; i++)
        if (r->causes[i].fault < 0 &&
            strcmp(suffix_of(&nodes[r->causes[i].node]), suffix_of(&nodes[finding->node])) == 0) {
            join(r, i, finding->node);
            return FD_OK;
        }
    if (r->n_asked++ < MOST_ASKED) FD_TRY(fd_name_finding(&how, &own, err));
    begin(r, &own, finding->node);
    return FD_OK;
}

/* "0…5, 7" */
static void layers_text(const bool *layers, int32_t n, char *to, size_t size) {
    size_t at = 0;
    to[0] = '\0';
    for (int32_t i = 0; i < n; i++) {
        int32_t last = i;
        if (!layers[i]) continue;
        while (last + 1 < n && layers[last + 1]) last++;
        if (at + 16 > size) {
            snprintf(to + at, size - at, ", …");
            return;
        }
        at += (size_t)snprintf(to + at, size - at, last > i ? "%s%d…%d" : "%s%d", at ? ", " : "", i, last);
        i = last;
    }
}

static void describe(const rest *r, const cause *c, fd_same_cause *out) {
    out->fault = c->named ? fd_fault_at(c->fault) : NULL;
    snprintf(out->node, sizeof out->node, "%s", r->o->graph->nodes[c->node].name);
    out->n_node = c->n_node;
    layers_text(c->layers, r->o->graph->hparams.n_layer, out->layers, sizeof out->layers);
}

fd_code fd_name_rest(const fd_name_options *options, const fd_judgement *judgement, const fd_explanation *first,
                     fd_rest *out, fd_error *err) {
    const fd_graph *graph = options->graph;
    *out = (fd_rest){0};
    rest r = {.o = options, .layers = calloc((size_t)MOST_CAUSES * (size_t)graph->hparams.n_layer, sizeof *r.layers)};
    if (!r.layers) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    begin(&r, first, options->finding->node);
    fd_code code = FD_OK;
    for (int32_t i = 0; i < graph->n_node && code == FD_OK; i++)
        if (i != options->finding->node && judgement->introduced[i].finding != FD_FOUND_NOTHING)
            code = place(&r, &judgement->introduced[i], err);
    if (code == FD_OK) {
        describe(&r, &r.causes[0], &out->same);
        out->n_also = r.n - 1;
        for (int32_t i = 0; i < out->n_also && i < FD_MAX_ALSO; i++) describe(&r, &r.causes[i + 1], &out->also[i]);
    }
    free(r.layers);
    return code;
}
