#include "compare/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/weights/internal.h"
#include "compare/weights/requantised.h"

/* ---- lists ---- */

static void free_differences(fd_weight_differences *d) {
    for (int32_t i = 0; i < d->n; i++) fd_weight_rows_free(&d->items[i].expected);
    free(d->items);
    *d = (fd_weight_differences){0};
}

void fd_loaded_weights_free(fd_loaded_weights *loaded) {
    fd_graph_free(loaded->graph);
    for (int32_t i = 0; i < loaded->n_owner; i++) fd_fault_owner_free(loaded->owners[i]);
    for (int32_t i = 0; i < loaded->n_rows; i++) free(loaded->rows[i]);
    free(loaded->owners);
    free(loaded->rows);
    free(loaded->unknown);
    *loaded = (fd_loaded_weights){0};
}

/* Takes over expected->hashes, also when it fails. */
static fd_code add_difference(fd_weight_differences *list, fd_weight_difference item, fd_error *err) {
    fd_weight_difference *grown = realloc(list->items, sizeof *grown * (size_t)(list->n + 1));
    if (!grown) {
        fd_weight_rows_free(&item.expected);
        return fd_fail(err, FD_ERR_MEMORY, "weights that differ: out of memory");
    }
    list->items = grown;
    grown[list->n++] = item;
    return FD_OK;
}

/* ---- comparing ---- */

/* The trace's entry for what `node` reads as `name`. */
static const fd_weight_rows *entry_of(const fd_weight_table *table, const fd_node *node, const char *name) {
    char own[192];
    snprintf(own, sizeof own, "%.62s:%.127s", node->name, name);
    const fd_weight_rows *found = fd_weight_table_find(table, own);
    return found ? found : fd_weight_table_find(table, name);
}

/* Every weight that a node of the graph reads; one that several nodes read is looked at once. right [n_weight]: the
 * model's own hashes of weights that were found to have them, so that the other trace's need not be made again; hashes
 * NULL: none yet. */
static fd_code look_at_all(const fd_graph *graph, const fd_weight_table *table, fd_weight_rows *right,
                           fd_verdict_weights *v, fd_weight_differences *out, fd_error *err) {
    const fd_weight_rows **seen = calloc((size_t)graph->n_weight + 1, sizeof *seen);
    bool *absent = calloc((size_t)graph->n_weight + 1, sizeof *absent);
    fd_code code = seen && absent ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "weights: out of memory");
    for (int32_t i = 0; i < graph->n_node && code == FD_OK; i++)
        for (int k = 0; k < FD_MAX_WEIGHTS && code == FD_OK; k++) {
            const fd_node *node = &graph->nodes[i];
            int32_t w = node->weight[k];
            if (w < 0 || !fd_weight_can_hash(&graph->weights[w])) continue;
            const fd_weight_rows *loaded = entry_of(table, node, graph->weights[w].name);
            if (!loaded) {
                v->n_unknown += !absent[w];
                absent[w] = true;
                continue;
            }
            fd_weight_difference item = {.node = i, .slot = k, .loaded = loaded};
            if (loaded == seen[w]) { /* another reader of the same bytes */
                for (int32_t d = 0; d < out->n; d++)
                    if (out->items[d].loaded == loaded && out->items[d].n_other_reader < FD_MAX_OTHER_READERS)
                        out->items[d].other_readers[out->items[d].n_other_reader++] = i;
                continue;
            }
            seen[w] = loaded;
            if (right[w].hashes && fd_weight_rows_equal(loaded, &right[w])) {
                v->n_same++;
                continue;
            }
            code = fd_weight_hash(&graph->weights[w], loaded->rows_per_hash, &item.expected, err);
            if (code != FD_OK) break;
            if (fd_weight_rows_equal(loaded, &item.expected)) {
                v->n_same++;
                fd_weight_rows_free(&right[w]);
                right[w] = item.expected;
            } else {
                v->n_differ++;
                code = add_difference(out, item, err);
            }
        }
    free(seen);
    free(absent);
    v->compared = v->n_same + v->n_differ > 0;
    return code;
}

/* ---- describing the first ---- */

static void describe_rows(const fd_weight_difference *d, fd_verdict_weights *v) {
    const fd_weight_rows *loaded = d->loaded, *expected = &d->expected;
    snprintf(v->name, sizeof v->name, "%.127s", expected->name);
    snprintf(v->dtype, sizeof v->dtype, "%s", loaded->dtype);
    snprintf(v->expected_dtype, sizeof v->expected_dtype, "%s", expected->dtype);
    v->n_row = loaded->n_row;
    v->n_col = loaded->n_col;
    v->expected_n_row = expected->n_row;
    v->expected_n_col = expected->n_col;
    v->rows_per_hash = loaded->rows_per_hash;
    v->n_zero_row = loaded->n_zero_row;
    v->n_trailing_zero_row = loaded->n_trailing_zero_row;
    v->expected_zero_row = expected->n_zero_row;
    v->expected_trailing_zero_row = expected->n_trailing_zero_row;
    v->first_row = -1;
    v->n_row_differ = 0;
    int64_t common = loaded->n_hash < expected->n_hash ? loaded->n_hash : expected->n_hash,
            each = loaded->rows_per_hash;
    for (int64_t i = 0; i < common && loaded->rows_per_hash == expected->rows_per_hash; i++) {
        if (loaded->hashes[i] == expected->hashes[i]) continue;
        if (v->first_row < 0) v->first_row = i * each;
        v->n_row_differ += (i + 1) * each <= loaded->n_row ? each : loaded->n_row - i * each;
    }
}

static void describe_differences(const fd_weight_differences *list, fd_verdict_weights *v) {
    describe_rows(&list->items[0], v);
    size_t at = 0;
    for (int32_t i = 1; i < list->n; i++) {
        const char *name = list->items[i].expected.name;
        if (at + strlen(name) + 24 > sizeof v->others) {
            snprintf(v->others + at, sizeof v->others - at, " and %d more", list->n - i);
            return;
        }
        at += (size_t)snprintf(v->others + at, sizeof v->others - at, "%s%s", at ? ", " : "", name);
    }
}

/* ---- with the model ---- */

static fd_code mark_unknown(const fd_graph *graph, const fd_weight_differences *list, const bool *explained,
                            fd_loaded_weights *loaded, fd_error *err) {
    loaded->unknown = calloc((size_t)graph->n_node + 1, sizeof *loaded->unknown);
    if (!loaded->unknown) return fd_fail(err, FD_ERR_MEMORY, "weights that differ: out of memory");
    for (int32_t i = 0; i < list->n; i++) {
        if (explained[i]) continue;
        loaded->unknown[list->items[i].node] = true;
        for (int32_t h = 0; h < list->items[i].n_other_reader; h++)
            loaded->unknown[list->items[i].other_readers[h]] = true;
    }
    for (int32_t i = 0; i < graph->n_node; i++) loaded->n_unknown += loaded->unknown[i];
    return FD_OK;
}

/* One trace against the model. */
static fd_code check_side(const fd_graph *graph, const fd_trace *trace, fd_weight_rows *right, fd_verdict_weights *v,
                          fd_loaded_weights *loaded, fd_error *err) {
    fd_weight_table table;
    fd_weight_differences list = {0};
    *v = (fd_verdict_weights){.against_model = true};
    FD_TRY(fd_trace_read_weights(trace, &table, err));
    fd_code code = table.n ? look_at_all(graph, &table, right, v, &list, err) : FD_OK;
    if (code == FD_OK && list.n) {
        bool *explained = calloc((size_t)list.n, sizeof *explained);
        snprintf(v->node, sizeof v->node, "%s", graph->nodes[list.items[0].node].name);
        describe_differences(&list, v);
        if (!explained) code = fd_fail(err, FD_ERR_MEMORY, "weights that differ: out of memory");
        if (code == FD_OK) code = fd_weights_match_model(graph, &list.items[0], v, err);
        if (code == FD_OK) code = fd_weights_find_fault(graph, &list, v, loaded, explained, err);
        if (code == FD_OK && !v->named) code = fd_weights_match_requantised(graph, &list, v, loaded, explained, err);
        if (code == FD_OK) code = mark_unknown(graph, &list, explained, loaded, err);
        v->replayed = loaded->graph != NULL;
        v->n_unjudged = loaded->n_unknown;
        free(explained);
    }
    free_differences(&list);
    fd_weight_table_free(&table);
    return code;
}

fd_code fd_weights_against_model(const fd_graph *graph, const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict,
                                 fd_loaded_weights *ref_loaded, fd_loaded_weights *cand_loaded, fd_error *err) {
    fd_verdict_weights of_ref = {0};
    *ref_loaded = *cand_loaded = (fd_loaded_weights){0};
    fd_weight_rows *right = calloc((size_t)graph->n_weight + 1, sizeof *right);
    if (!right) return fd_fail(err, FD_ERR_MEMORY, "weights: out of memory");
    fd_code code = check_side(graph, cand, right, &verdict->weights, cand_loaded, err);
    if (code == FD_OK && ref) code = check_side(graph, ref, right, &of_ref, ref_loaded, err);
    for (int32_t w = 0; w < graph->n_weight; w++) fd_weight_rows_free(&right[w]);
    free(right);
    FD_TRY(code);
    if (verdict->weights.n_differ || !of_ref.n_differ) return FD_OK;
    verdict->weights = of_ref;
    verdict->weights.of_reference = true;
    return FD_OK;
}

/* ---- without a model ---- */

/* "NODE:NAME", else "NAME". */
static const fd_weight_rows *entry_like(const fd_weight_table *table, const char *name) {
    const fd_weight_rows *found = fd_weight_table_find(table, name);
    const char *colon = strchr(name, ':');
    return found || !colon ? found : fd_weight_table_find(table, colon + 1);
}

/* A side may be NULL: not recorded. */
static fd_code compare_rows(const fd_weight_rows *a, const fd_weight_rows *b, fd_verdict_weights *v,
                            fd_weight_differences *list, fd_error *err) {
    bool known = a && b && (a->n_row != b->n_row || a->rows_per_hash == b->rows_per_hash);
    v->n_unknown += !known;
    if (!known) return FD_OK;
    if (fd_weight_rows_equal(a, b)) {
        v->n_same++;
        return FD_OK;
    }
    fd_weight_difference item = {.node = -1, .loaded = b, .expected = *a};
    item.expected.hashes = malloc(sizeof *a->hashes * (size_t)a->n_hash);
    if (!item.expected.hashes) return fd_fail(err, FD_ERR_MEMORY, "weights that differ: out of memory");
    memcpy(item.expected.hashes, a->hashes, sizeof *a->hashes * (size_t)a->n_hash);
    v->n_differ++;
    return add_difference(list, item, err);
}

fd_code fd_weights_of_traces(const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict, fd_error *err) {
    fd_verdict_weights *v = &verdict->weights;
    fd_weight_table tables[2] = {{0}, {0}};
    fd_weight_differences list = {0};
    *v = (fd_verdict_weights){0};
    fd_code code = fd_trace_read_weights(ref, &tables[0], err);
    if (code == FD_OK) code = fd_trace_read_weights(cand, &tables[1], err);
    for (int32_t i = 0; i < tables[0].n && code == FD_OK; i++)
        code = compare_rows(&tables[0].rows[i], entry_like(&tables[1], tables[0].rows[i].name), v, &list, err);
    for (int32_t i = 0; i < tables[1].n && code == FD_OK;
         i++) { /* what one node alone has, and the reference has not */
        const fd_weight_rows *own = &tables[1].rows[i];
        if (strchr(own->name, ':') && !fd_weight_table_find(&tables[0], own->name))
            code = compare_rows(entry_like(&tables[0], own->name), own, v, &list, err);
    }
    v->compared = v->n_same + v->n_differ > 0;
    if (code == FD_OK && list.n) {
        describe_differences(&list, v);
        fd_weights_match_table(&tables[0], &list.items[0], v);
    }
    if (code == FD_OK) fd_verdict_decide(verdict);
    free_differences(&list);
    for (int t = 0; t < 2; t++) fd_weight_table_free(&tables[t]);
    return code;
}
