#include "compare/explain/try_faults.h"

#include <stdlib.h>
#include <string.h>

#include "compare/explain/guesses.h"
#include "compare/explain/readers.h"

/* Some rows of a batch alone: weights and caches are those of all its rows. */
static bool is_of_whole_batch(const fd_trial *t, const fd_fault_info *fault) {
    static const char *const families[] = {"loader", "dequantise", "kv_cache"};
    const fd_explain_request *r = t->all.request;
    bool of = false;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) of |= strcmp(fault->family, families[i]) == 0;
    return of && (t->since > 0 || (r->departing_alone && !r->args.row_by_row));
}

static fd_code try_table(fd_trial *t, int32_t node, int32_t layer, fd_error *err) {
    for (int32_t i = 0; i < fd_fault_count(); i++) {
        if (is_of_whole_batch(t, fd_fault_at(i))) continue;
        fd_hypothesis h = {.guess = FD_GUESS_FAULT, .fault = i, .node = node, .layer = layer};
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Products that read one tensor are often one matrix: Q, K and V, gate and up. */
static fd_code of_readers(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t done = -1;
    for (int32_t i = 0; i + 1 < t->n_span && !fd_trial_fits(t); i++) {
        const fd_node *one = &nodes[t->span[i]], *next = &nodes[t->span[i + 1]];
        const bool together = one->op == FD_OP_MATMUL && next->op == one->op && next->input[0] == one->input[0];
        if (!together || one->input[0] == done) continue;
        done = one->input[0];
        fd_hypothesis h = {.guess = FD_GUESS_FAULT, .node = -1, .layer = FD_ANY_LAYER, .ops = FD_OP_MATMUL + 1};
        h.readers = done + 1;
        for (h.fault = 0; h.fault < fd_fault_count(); h.fault++)
            if (!is_of_whole_batch(t, fd_fault_at(h.fault))) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

fd_code fd_try_faults_in_parts(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t done = FD_ANY_LAYER;
    for (int32_t i = 0; i < t->n_span && !fd_trial_fits(t); i++) {
        int32_t layer = nodes[t->span[i]].layer;
        if (!fd_trial_many_layers(t))
            FD_TRY(try_table(t, t->span[i], FD_ANY_LAYER, err));
        else if (layer != done)
            FD_TRY(try_table(t, -1, done = layer, err));
    }
    return fd_trial_many_layers(t) ? FD_OK : of_readers(t, err);
}

/* Models that norm heads have a function for these, and another for whole rows: of rows alone, or of heads, where the span has both. */
fd_code fd_try_faults_at_norms(fd_trial *t, fd_error *err) {
    for (int32_t n_dim = 1; n_dim <= 2 && !fd_trial_fits(t); n_dim++) {
        const fd_node *norm = fd_trial_norm_of_both(t, n_dim);
        fd_hypothesis h = {.guess = FD_GUESS_FAULT, .node = -1, .layer = FD_ANY_LAYER, .n_dim = n_dim};
        h.ops = norm ? (int32_t)norm->op + 1 : 0;
        for (; norm && h.fault < fd_fault_count(); h.fault++)
            if (!is_of_whole_batch(t, fd_fault_at(h.fault))) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* The span's next layer after that one; -1: it was the last. */
static int32_t next_layer(const fd_trial *t, int32_t layer) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    for (int32_t i = 0; i < t->n_span; i++)
        if (nodes[t->span[i]].layer > layer) return nodes[t->span[i]].layer;
    return -1;
}

/* Nodes of the layer that the fault concerns: *n of them, to[] [n_span]. */
static fd_code concerned(const fd_trial *t, int32_t layer, int32_t fault, int32_t *to, int32_t *n, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    *n = 0;
    for (int32_t i = 0; i < t->n_span; i++) {
        const fd_node *node = &graph->nodes[t->span[i]];
        const fd_hypothesis h = {.guess = FD_GUESS_FAULT, .fault = fault, .node = node->id, .layer = FD_ANY_LAYER};
        fd_faulty_node edited;
        bool yes = false;
        if (node->layer != layer) continue;
        FD_TRY(fd_hypothesis_edit(&h, graph, node, &edited, &yes, err));
        fd_faulty_node_free(&edited);
        if (yes) to[(*n)++] = node->id;
    }
    return FD_OK;
}

/* All matrices are read by the same code, or multiplied. */
static bool is_of_all_matrices(const fd_fault_info *fault) {
    return strcmp(fault->family, "dequantise") == 0 || strcmp(fault->family, "numerics") == 0;
}

/* A wrong line in an engine's code is a bug in one kind of node, attn_norm of every layer. */
fd_code fd_try_faults_at_kinds(fd_trial *t, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    int32_t n, *nodes = malloc(sizeof *nodes * (size_t)t->n_span);
    if (!nodes) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    fd_code code = FD_OK;
    for (int32_t f = 0; f < fd_fault_count() && code == FD_OK && !fd_trial_exhausted(t); f++) {
        const fd_fault_info *fault = fd_fault_at(f);
        if (is_of_whole_batch(t, fault) || is_of_all_matrices(fault) || fault->pair) continue;
        n = 0; /* of the layer before the first has none */
        for (int32_t l = next_layer(t, -1); l >= 0 && n == 0 && code == FD_OK; l = next_layer(t, l))
            code = concerned(t, l, f, nodes, &n, err);
        for (int32_t i = 0; i < n && n > 1 && code == FD_OK; i++) {
            const fd_hypothesis one = {.guess = FD_GUESS_FAULT, .fault = f, .node = nodes[i], .layer = FD_ANY_LAYER};
            const fd_hypothesis every = fd_hypothesis_everywhere(&one, graph);
            code = fd_trial_try(t, &every, err);
        }
    }
    free(nodes);
    return code;
}

/* Where a fault concerns several nodes of a layer, at each of them: K's heads, V's being right. One of a single node is that of its layer,
 * which was tried. */
fd_code fd_try_faults_at_nodes(fd_trial *t, fd_error *err) {
    int32_t n, *nodes = malloc(sizeof *nodes * (size_t)t->n_span);
    if (!nodes) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    fd_code code = FD_OK;
    for (int32_t layer = next_layer(t, -1); layer >= 0 && code == FD_OK; layer = next_layer(t, layer))
        for (int32_t f = 0; f < fd_fault_count() && code == FD_OK && !fd_trial_exhausted(t) && !fd_trial_fits(t); f++) {
            if (is_of_whole_batch(t, fd_fault_at(f))) continue;
            code = concerned(t, layer, f, nodes, &n, err);
            for (int32_t i = 0; i < n && n > 1 && code == FD_OK; i++) {
                const fd_hypothesis h = {.guess = FD_GUESS_FAULT, .fault = f, .node = nodes[i], .layer = FD_ANY_LAYER};
                code = fd_trial_try(t, &h, err);
            }
        }
    free(nodes);
    return code;
}

fd_code fd_try_faults_in_heads(fd_trial *t, fd_error *err) {
    t->heads = fd_trial_departing_heads(&t->all);
    if (t->heads) FD_TRY(try_table(t, -1, FD_ANY_LAYER, err));
    if (t->heads && t->n_span > 1 && !fd_trial_fits(t)) FD_TRY(fd_try_faults_in_parts(t, err));
    if (t->heads) FD_TRY(fd_refute_half_pairs(t, err));
    if (t->heads && !fd_trial_fits(t)) FD_TRY(fd_guess_steps(t, err));
    if (t->heads && !fd_trial_fits(t)) FD_TRY(fd_guess_numbers(t, true, err));
    t->heads = 0;
    return FD_OK;
}

fd_code fd_try_faults_on_ranks(fd_trial *t, fd_error *err) {
    if (t->n_span == 1 || fd_trial_many_layers(t)) return FD_OK;
    for (t->n_rank = 2; t->n_rank <= 4; t->n_rank *= 2)
        for (t->rank = t->n_rank - 1; t->rank >= 0 && !fd_trial_fits(t); t->rank--) {
            FD_TRY(try_table(t, -1, FD_ANY_LAYER, err));
            if (!fd_trial_fits(t)) FD_TRY(fd_guess_steps(t, err));
            if (!fd_trial_fits(t)) FD_TRY(fd_guess_numbers(t, true, err));
        }
    t->rank = t->n_rank = 0;
    return FD_OK;
}

fd_code fd_try_faults_from_position(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const int32_t first = r->args.pos0 + r->n_unjudged;
    if (!r->departing_alone || t->n_span == 1 || r->n_unjudged <= 1 || first <= r->args.pos0 - r->args.batch_offset)
        return FD_OK;
    t->since = first;
    FD_TRY(try_table(t, -1, FD_ANY_LAYER, err));
    if (!fd_trial_fits(t)) FD_TRY(fd_try_faults_in_parts(t, err));
    if (fd_trial_may_guess(t) && !fd_trial_fits(t)) FD_TRY(fd_guess_numbers(t, !fd_trial_many_layers(t), err));
    t->since = 0;
    return FD_OK;
}

fd_code fd_try_faults(fd_trial *t, fd_error *err) {
    return try_table(t, -1, FD_ANY_LAYER, err);
}

fd_code fd_try_faults_in_layer(fd_trial *t, int32_t layer, fd_error *err) {
    return try_table(t, -1, layer, err);
}
