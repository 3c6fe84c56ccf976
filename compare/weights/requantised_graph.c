/* Weights that were quantised again: their name, the graph that reads them, and their hashes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/weights/requantised.h"

void fd_requantised_say(const fd_requantisation *q, fd_verdict_weights *v) {
    char text[FD_REQUANTISATION_SIZE];
    v->named = true;
    snprintf(v->fault, sizeof v->fault, "quantised_again");
    snprintf(v->summary, sizeof v->summary, "the engine quantised the file's weights again: %s",
             fd_requantisation_text(q, text));
}

fd_code fd_requantised_hold(const fd_graph *graph, int32_t w, const fd_requantisation *q, fd_loaded_weights *loaded,
                            fd_error *err) {
    if (!loaded->graph) FD_TRY(fd_graph_clone(graph, &loaded->graph, err));
    void **grown = realloc(loaded->rows, sizeof *grown * (size_t)(loaded->n_rows + 1));
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "weights quantised again: out of memory");
    loaded->rows = grown;
    FD_TRY(fd_requantise_weight(q, &graph->weights[w], &loaded->graph->weights[w], err));
    grown[loaded->n_rows++] = (void *)loaded->graph->weights[w].data;
    return FD_OK;
}

/* ---- hashes ---- */

static fd_code has_hashes(const fd_weight *weight, const fd_weight_difference *d, const fd_requantisation *q, bool *yes,
                          fd_error *err) {
    fd_weight_rows all;
    fd_weight again;
    *yes = false;
    if (weight->n_row != d->loaded->n_row || !fd_requantisation_fits(q, weight->n_col)) return FD_OK;
    fd_weight some = *weight; /* the first hash alone tells most grids apart */
    some.n_row = d->loaded->rows_per_hash < weight->n_row ? d->loaded->rows_per_hash : weight->n_row;
    for (int whole = 0; whole < 2; whole++) {
        FD_TRY(fd_requantise_weight(q, whole ? weight : &some, &again, err));
        fd_code code = fd_weight_hash(&again, d->loaded->rows_per_hash, &all, err);
        free((void *)again.data);
        FD_TRY(code);
        *yes = whole ? fd_weight_rows_equal(d->loaded, &all) : all.hashes[0] == d->loaded->hashes[0];
        fd_weight_rows_free(&all);
        if (!*yes) return FD_OK;
    }
    return FD_OK;
}

static fd_code find_grid(const fd_weight *weight, const fd_weight_difference *d, fd_requantisation *q, bool *found,
                         fd_error *err) {
    *found = false;
    for (int32_t i = 0; !*found && fd_requantisation_at(i, q); i++)
        for (int32_t way = 0; way < FD_REQUANTISATION_WAYS && !*found; way++) {
            fd_requantisation_keep(q, way);
            FD_TRY(has_hashes(weight, d, q, found, err));
        }
    return FD_OK;
}

fd_code fd_weights_match_requantised(const fd_graph *graph, const fd_weight_differences *list, fd_verdict_weights *v,
                                     fd_loaded_weights *loaded, bool *explained, fd_error *err) {
    fd_requantisation q;
    for (int32_t i = 0; i < list->n; i++) {
        const fd_weight_difference *d = &list->items[i];
        const int32_t w = graph->nodes[d->node].weight[d->slot];
        bool yes = false;
        if (v->named) FD_TRY(has_hashes(&graph->weights[w], d, &q, &yes, err));
        if (!yes) FD_TRY(find_grid(&graph->weights[w], d, &q, &yes, err));
        if (i == 0 && !yes) return FD_OK;
        if (!yes) continue;
        if (i == 0) fd_requantised_say(&q, v);
        explained[i] = true;
        v->n_explained++;
        FD_TRY(fd_requantised_hold(graph, w, &q, loaded, err));
    }
    return FD_OK;
}
