/* Which fault of the table reads a model's bytes so that the hashes of the trace come out? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/weights/internal.h"

/* What `fault` makes of the weight. Loader and dequantise faults are written for matrix products: a weight that
 * another op reads is shown to them as a product's, so that a table or a norm which was read short is explained by
 * the same rows. out->weight[0] is then the weight; out->owner is NULL where the fault leaves it alone. */
static fd_code apply(const fd_graph *graph, const fd_weight_difference *d, int32_t fault, fd_faulty_node *out,
                     fd_error *err) {
    fd_node product = graph->nodes[d->node];
    product.op = FD_OP_MATMUL;
    product.weight[0] = product.weight[d->slot];
    product.weight[1] = -1;
    FD_TRY(fd_fault_edit_node(fault, graph, &product, out, err));
    if (!out->owner && graph->nodes[d->node].op == FD_OP_EXPERT_MATMUL) { /* of experts' matrices alone */
        product.op = FD_OP_EXPERT_MATMUL;
        FD_TRY(fd_fault_edit_node(fault, graph, &product, out, err));
    }
    if (!out->replaced && out->node.weight[0] == product.weight[0]) fd_faulty_node_free(out);
    return FD_OK;
}

/* Has the weight every hash? The first one that is not the model's is asked first: it tells most faults apart. */
static fd_code has_hashes(const fd_weight *weight, const fd_weight_difference *d, bool *yes, fd_error *err) {
    const fd_weight_rows *loaded = d->loaded;
    *yes = false;
    if (weight->n_row != loaded->n_row || (loaded->n_col && weight->n_col != loaded->n_col)) return FD_OK;
    for (int64_t i = 0; i < loaded->n_hash; i++) {
        uint64_t hash;
        if (i < d->expected.n_hash && d->expected.hashes[i] == loaded->hashes[i]) continue;
        FD_TRY(fd_weight_hash_at(weight, loaded->rows_per_hash, i, &hash, err));
        if (hash != loaded->hashes[i]) return FD_OK;
        break;
    }
    fd_weight_rows all;
    FD_TRY(fd_weight_hash(weight, loaded->rows_per_hash, &all, err));
    *yes = fd_weight_rows_equal(loaded, &all);
    fd_weight_rows_free(&all);
    return FD_OK;
}

/* Does the fault give this difference? Then *out holds what it reads. */
static fd_code explains(const fd_graph *graph, const fd_weight_difference *d, int32_t fault, bool *yes,
                        fd_faulty_node *out, fd_error *err) {
    *yes = false;
    FD_TRY(apply(graph, d, fault, out, err));
    if (!out->owner) return FD_OK;
    fd_code code = has_hashes(&out->weight[0], d, yes, err);
    if (code != FD_OK || !*yes) fd_faulty_node_free(out);
    return code;
}

/* ---- which of several ---- */

typedef struct contender {
    int32_t fault, n_explained;
} contender;

static fd_code count_explained(const fd_graph *graph, const fd_weight_differences *list, contender *c, fd_error *err) {
    for (int32_t i = 0; i < list->n; i++) {
        bool yes;
        fd_faulty_node read;
        FD_TRY(explains(graph, &list->items[i], c->fault, &yes, &read, err));
        fd_faulty_node_free(&read);
        c->n_explained += yes;
    }
    return FD_OK;
}

static bool differs_at(const fd_weight_differences *list, int32_t node) {
    for (int32_t i = 0; i < list->n; i++)
        if (list->items[i].node == node) return true;
    return false;
}

/* Nodes of the first difference's layer that the fault would change too, but which hold the model's weight: the more of
 * them, the worse the explanation. */
static fd_code count_contradictions(const fd_graph *graph, const fd_weight_differences *list, int32_t fault, int32_t *n,
                                    fd_error *err) {
    int32_t layer = graph->nodes[list->items[0].node].layer;
    *n = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->layer != layer || node->op != FD_OP_MATMUL || differs_at(list, i)) continue;
        fd_weight_difference d = {.node = i};
        fd_faulty_node read;
        bool same_bytes = false;
        FD_TRY(apply(graph, &d, fault, &read, err));
        if (!read.owner) continue;
        fd_weight_rows was, is = {0};
        fd_code code = fd_weight_hash(&graph->weights[node->weight[0]], 1, &was, err);
        if (code == FD_OK) code = fd_weight_hash(&read.weight[0], 1, &is, err);
        same_bytes = code == FD_OK && fd_weight_rows_equal(&was, &is);
        fd_weight_rows_free(&was);
        fd_weight_rows_free(&is);
        fd_faulty_node_free(&read);
        FD_TRY(code);
        *n += !same_bytes;
    }
    return FD_OK;
}

/* Every fault that has the hashes of the first difference. */
static fd_code contend(const fd_graph *graph, const fd_weight_differences *list, contender *all, int32_t *n,
                       fd_error *err) {
    *n = 0;
    for (int32_t f = 0; f < fd_fault_count(); f++) {
        bool yes;
        fd_faulty_node read;
        FD_TRY(explains(graph, &list->items[0], f, &yes, &read, err));
        fd_faulty_node_free(&read);
        if (!yes) continue;
        all[*n] = (contender){.fault = f};
        FD_TRY(count_explained(graph, list, &all[*n], err));
        (*n)++;
    }
    return FD_OK;
}

/* The one that explains most; among equals, the one that would have changed nothing else. */
static fd_code choose(const fd_graph *graph, const fd_weight_differences *list, contender *all, int32_t n,
                      int32_t *best, fd_error *err) {
    int32_t fewest = INT32_MAX;
    *best = -1;
    for (int32_t i = 0; i < n; i++) {
        int32_t contradictions;
        if (*best >= 0 && all[i].n_explained < all[*best].n_explained) continue;
        FD_TRY(count_contradictions(graph, list, all[i].fault, &contradictions, err));
        bool more = *best < 0 || all[i].n_explained > all[*best].n_explained;
        if (!more && contradictions >= fewest) continue;
        *best = i;
        fewest = contradictions;
    }
    return FD_OK;
}

/* ---- the graph with these bytes ---- */

static fd_code take_owner(fd_loaded_weights *loaded, fd_fault_owner *owner, fd_error *err) {
    fd_fault_owner **grown = realloc(loaded->owners, sizeof *grown * (size_t)(loaded->n_owner + 1));
    if (!grown) {
        fd_fault_owner_free(owner);
        return fd_fail(err, FD_ERR_MEMORY, "weights that differ: out of memory");
    }
    loaded->owners = grown;
    grown[loaded->n_owner++] = owner;
    return FD_OK;
}

static fd_code put_weight(fd_graph *graph, const fd_weight_difference *d, const fd_weight *weight, fd_error *err) {
    fd_weight *grown = realloc(graph->weights, sizeof *grown * (size_t)(graph->n_weight + 1));
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "weights that differ: out of memory");
    graph->weights = grown;
    int32_t was = graph->nodes[d->node].weight[d->slot];
    grown[graph->n_weight] = *weight;
    memcpy(grown[graph->n_weight].name, grown[was].name, sizeof grown->name);
    graph->nodes[d->node].weight[d->slot] = graph->n_weight;
    for (int32_t h = 0; h < d->n_other_reader; h++)
        for (int k = 0; k < FD_MAX_WEIGHTS; k++)
            if (graph->nodes[d->other_readers[h]].weight[k] == was)
                graph->nodes[d->other_readers[h]].weight[k] = graph->n_weight;
    graph->n_weight++;
    return FD_OK;
}

static fd_code build(const fd_graph *graph, const fd_weight_differences *list, int32_t fault, fd_loaded_weights *loaded,
                     bool *explained, fd_error *err) {
    FD_TRY(fd_graph_clone(graph, &loaded->graph, err));
    for (int32_t i = 0; i < list->n; i++) {
        fd_faulty_node read;
        FD_TRY(explains(graph, &list->items[i], fault, &explained[i], &read, err));
        if (!explained[i]) continue;
        FD_TRY(take_owner(loaded, read.owner, err));
        FD_TRY(put_weight(loaded->graph, &list->items[i], &read.weight[0], err));
    }
    return FD_OK;
}

static void list_same(const contender *all, int32_t n, int32_t best, fd_verdict_weights *v) {
    size_t at = 0;
    for (int32_t i = 0; i < n && at < sizeof v->same_as; i++)
        if (i != best && all[i].n_explained == all[best].n_explained)
            at += (size_t)snprintf(v->same_as + at, sizeof v->same_as - at, "%s%s", at ? ", " : "",
                                   fd_fault_at(all[i].fault)->name);
}

fd_code fd_weights_find_fault(const fd_graph *graph, const fd_weight_differences *list, fd_verdict_weights *v,
                              fd_loaded_weights *loaded, bool *explained, fd_error *err) {
    int32_t n, best;
    contender *all = malloc(sizeof *all * (size_t)fd_fault_count());
    if (!all) return fd_fail(err, FD_ERR_MEMORY, "weights that differ: out of memory");
    fd_code code = contend(graph, list, all, &n, err);
    if (code == FD_OK) code = choose(graph, list, all, n, &best, err);
    if (code == FD_OK && best >= 0) {
        const fd_fault_info *fault = fd_fault_at(all[best].fault);
        v->named = true;
        v->n_explained = all[best].n_explained;
        snprintf(v->fault, sizeof v->fault, "%s", fault->name);
        snprintf(v->summary, sizeof v->summary, "%s", fault->summary);
        list_same(all, n, best, v);
        code = build(graph, list, all[best].fault, loaded, explained, err);
    }
    free(all);
    return code;
}
