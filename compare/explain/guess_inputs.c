#include "compare/bounds/dot_inputs.h"
#include "compare/explain/guesses.h"
#include "compare/explain/readers.h"
#include "compare/explain/solve.h"

static const fd_graph *graph_of(const fd_trial *t) {
    return t->all.request->args.graph;
}

static fd_code try_weights(fd_trial *t, const fd_node *node, fd_error *err) {
    const fd_graph *graph = graph_of(t);
    for (int k = 0; k < FD_MAX_WEIGHTS; k++) {
        if (node->weight[k] < 0) continue;
        const fd_weight *right = &graph->weights[node->weight[k]];
        for (int32_t w = 0; w < graph->n_weight && !fd_trial_fits(t); w++) {
            const fd_weight *other = &graph->weights[w];
            if (w == node->weight[k] || other->n_row != right->n_row || other->n_col != right->n_col) continue;
            fd_hypothesis h = {.guess = FD_GUESS_WEIGHT, .node = node->id, .which = k, .other = w};
            FD_TRY(fd_trial_try(t, &h, err));
            h.n = k == 0 && !fd_trial_fits(t) && fd_bias_of_weight(graph, w, node) >= 0;
            if (h.n) FD_TRY(fd_trial_try(t, &h, err));
        }
    }
    return FD_OK;
}

/* Tensors that can stand in for an input: as wide, with the same heads, and at hand. */
static bool stands_in(const fd_trial *t, const fd_node *right, const fd_node *other) {
    if (other->op == FD_OP_TOP_K || other->n_dim != right->n_dim || other->over_kv != right->over_kv) return false;
    if ((other->op == FD_OP_KV_WRITE) != (right->op == FD_OP_KV_WRITE)) return false;
    for (int d = 0; d < right->n_dim; d++)
        if (other->shape[d] != right->shape[d]) return false;
    if (fd_evaluate_recorded(t->all.bench, other->id)) return true;
    for (int32_t i = 0; i < t->n_span; i++)
        if (t->span[i] == other->id) return true;
    return false;
}

static fd_code try_inputs(fd_trial *t, const fd_node *node, fd_error *err) {
    const fd_graph *graph = graph_of(t);
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] < 0) continue;
        const fd_node *right = &graph->nodes[node->input[k]];
        fd_hypothesis h = {.guess = FD_GUESS_INPUT, .node = node->id, .which = k, .other = right->id, .n = 1};
        if (!fd_trial_fits(t) && right->op != FD_OP_KV_WRITE && !right->over_kv) FD_TRY(fd_trial_try(t, &h, err));
        h.n = 0;
        for (int32_t i = node->id - 1; i >= 0 && !fd_trial_fits(t); i--) {
            const fd_node *other = &graph->nodes[i];
            const int32_t layer = right->layer < 0 ? node->layer : right->layer;
            const bool near = other->layer < 0 || other->layer >= layer - 1;
            if (i == right->id || !near || !stands_in(t, right, other)) continue;
            h.other = i;
            FD_TRY(fd_trial_try(t, &h, err));
        }
    }
    return FD_OK;
}

/* A branch that is missing, subtracted or taken several times; scores or a router's logits that reach softmax or sigmoid at
 * another scale. */
static fd_code try_branches(fd_trial *t, const fd_node *node, fd_error *err) {
    static const double factors[] = {0, 2, -1};
    const bool scaled = node->op == FD_OP_ATTN_SOFTMAX || node->op == FD_OP_SOFTMAX || node->op == FD_OP_SIGMOID;
    int n = node->op == FD_OP_ADD ? 2 : scaled ? 1 : 0;
    for (int k = 0; k < n; k++) {
        const fd_hypothesis h = {.guess = FD_GUESS_INPUT_FACTOR, .node = node->id, .which = k};
        FD_TRY(fd_try_or_solve(t, h, factors, 3, err));
    }
    return FD_OK;
}

/* The last elements of a sum: one, a few, a tile, the rest of one. */
static fd_code try_tails(fd_trial *t, const fd_node *node, fd_error *err) {
    for (int32_t tile = 2; tile <= 64 && node->op == FD_OP_ATTN_MIX; tile *= 2)
        for (int32_t which = 0; which < 2 && !fd_trial_fits(t); which++) {
            fd_hypothesis h = {.guess = FD_GUESS_INPUT_TAIL, .node = node->id, .which = which, .n = tile};
            FD_TRY(fd_trial_try(t, &h, err));
        }
    const bool product = node->op == FD_OP_MATMUL || node->op == FD_OP_EXPERT_MATMUL;
    if (!product && node->op != FD_OP_ATTN_SCORES) return FD_OK;
    int64_t width = product ? graph_of(t)->weights[node->weight[0]].n_col : graph_of(t)->nodes[node->input[0]].shape[1];
    for (int32_t tile = 1; tile <= 512 && tile < width; tile *= 2) { /* a tile that overlaps the one before */
        const fd_hypothesis h = {
            .guess = FD_GUESS_INPUT_TAIL, .node = node->id, .n = tile, .end = (int32_t)width, .value = 2};
        if (product && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    }
    for (int32_t tile = 1; tile <= 512; tile *= 2) {
        int32_t cut[] = {tile, (int32_t)(width % tile), tile - 1};
        for (int i = 0; i < 3; i++) {
            fd_hypothesis h = {.guess = FD_GUESS_INPUT_TAIL, .node = node->id, .n = cut[i], .end = (int32_t)width};
            if (cut[i] > 0 && cut[i] < width && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
        }
    }
    return FD_OK;
}

/* The end of every block of weights: a loop that stops too early in each. */
static fd_code try_tails_of_blocks(fd_trial *t, const fd_node *node, fd_error *err) {
    if (node->op != FD_OP_MATMUL && node->op != FD_OP_EXPERT_MATMUL) return FD_OK;
    const int64_t width = graph_of(t)->weights[node->weight[0]].n_col;
    for (int32_t block = 16; block <= 256 && block < width; block *= 2)
        for (int32_t n = 1; n <= block / 2 && width % block == 0 && !fd_trial_fits(t); n *= 2) {
            const fd_hypothesis h = {.guess = FD_GUESS_INPUT_TAIL, .node = node->id, .n = n, .end = block};
            FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}

static fd_code try_partial(fd_trial *t, fd_hypothesis h, bool twice, bool alone, bool bias, fd_error *err) {
    h.value = twice ? 2 : 0;
    h.keys = alone;
    h.other = bias;
    return fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

/* A product that ranks share by its inputs: one rank's partial sum missing, added twice, or not added to the others'. One rank adds the
 * bias. */
static fd_code try_partials(fd_trial *t, const fd_node *node, fd_error *err) {
    static const int32_t ranks[] = {2, 3, 4, 8, 16};
    if (node->op != FD_OP_MATMUL) return FD_OK;
    const int64_t width = graph_of(t)->weights[node->weight[0]].n_col;
    const bool bias = node->weight[1] >= 0;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        for (int32_t r = 0; r < ranks[i] && width >= ranks[i]; r++) {
            int64_t each = (width + ranks[i] - 1) / ranks[i], end = (r + 1) * each;
            fd_hypothesis h = {.guess = FD_GUESS_PARTIAL, .node = node->id, .which = r, .n = ranks[i]};
            h.first = (int32_t)(r * each < width ? r * each : width);
            h.end = (int32_t)(end < width ? end : width);
            if (h.first >= h.end) continue;
            FD_TRY(try_partial(t, h, false, false, false, err));
            FD_TRY(try_partial(t, h, true, false, false, err));
            if (bias) FD_TRY(try_partial(t, h, false, false, true, err));
            if (ranks[i] > 2) FD_TRY(try_partial(t, h, false, true, false, err)); /* of two: the other one is missing */
            if (ranks[i] > 2 && bias) FD_TRY(try_partial(t, h, false, true, true, err));
        }
    return FD_OK;
}

/* Of a class that repeats an engine's int8 blocks. */
static fd_code try_blocks(fd_trial *t, const fd_node *node, fd_error *err) {
    const fd_weight *weight = node->weight[0] < 0 ? NULL : &graph_of(t)->weights[node->weight[0]];
    fd_dot_type type = fd_dot_type_of(t->all.request->numerics, node, weight, 0);
    for (int rule = 0; rule < FD_BLOCKS_COUNT && fd_dot_is_blocks(type) && !fd_trial_fits(t); rule++) {
        fd_hypothesis h = {.guess = FD_GUESS_BLOCKS, .node = node->id, .which = rule};
        FD_TRY(fd_trial_try(t, &h, err));
        h = (fd_hypothesis){.guess = FD_GUESS_BLOCKS, .node = -1, .layer = FD_ANY_LAYER, .which = rule};
        if (t->n_span > 1 && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Readers of one tensor in one slot, together: their rows are those of the position before. */
static fd_code try_row_before(fd_trial *t, int32_t read, int slot, fd_op op, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_INPUT, .node = -1, .layer = FD_ANY_LAYER, .ops = (int32_t)op + 1};
    h.which = slot;
    h.readers = read + 1;
    h.other = read;
    h.n = 1;
    return fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

/* Products that read one tensor are often one matrix: Q, K and V, gate and up. Together they read another tensor, or leave out
 * the end of their sums. */
static fd_code try_readers(fd_trial *t, int32_t read, fd_error *err) {
    const fd_graph *graph = graph_of(t);
    const fd_node *right = &graph->nodes[read];
    fd_hypothesis h = {.guess = FD_GUESS_INPUT, .node = -1, .layer = FD_ANY_LAYER, .ops = FD_OP_MATMUL + 1};
    h.readers = read + 1;
    for (h.other = read - 1; h.other >= 0 && !fd_trial_fits(t); h.other--) {
        const fd_node *other = &graph->nodes[h.other];
        const bool near = other->layer < 0 || other->layer >= right->layer - 1;
        if (near && stands_in(t, right, other)) FD_TRY(fd_trial_try(t, &h, err));
    }
    h.guess = FD_GUESS_INPUT_TAIL;
    h.other = 0;
    for (h.n = 1; h.n <= 512 && h.n < fd_node_width(right) && !fd_trial_fits(t); h.n *= 2)
        FD_TRY(fd_trial_try(t, &h, err));
    return try_row_before(t, read, 0, FD_OP_MATMUL, err);
}

/* Of the span, the nodes of `op` that read `read` in `slot`. */
static int32_t readers_of(const fd_trial *t, int32_t read, int slot, fd_op op) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_span; i++) {
        const fd_node *node = &graph_of(t)->nodes[t->span[i]];
        n += node->op == op && node->input[slot] == read;
    }
    return n;
}

static fd_code try_fused_products(fd_trial *t, fd_error *err) {
    const fd_graph *graph = graph_of(t);
    for (int32_t read = graph->n_node - 1; read >= 0 && !fd_trial_fits(t); read--) {
        if (readers_of(t, read, 0, FD_OP_MATMUL) > 1) FD_TRY(try_readers(t, read, err));
        if (readers_of(t, read, 1, FD_OP_EXPERT_MATMUL) > 1) /* the ids of experts */
            FD_TRY(try_row_before(t, read, 1, FD_OP_EXPERT_MATMUL, err));
    }
    return FD_OK;
}

/* Through all of a layer, from its first norm on: its weights are another layer's, as where layers are loaded in another order. */
static fd_code try_layers(fd_trial *t, fd_error *err) {
    const fd_graph *graph = graph_of(t);
    const int32_t layer = t->all.request->args.node->layer, n_layer = graph->hparams.n_layer;
    int32_t n_norm = 0;
    for (int32_t i = 0; i < t->n_span; i++) {
        const fd_node *node = &graph->nodes[t->span[i]];
        n_norm += node->layer == layer && fd_node_is_norm(node) && node->n_dim == 1;
    }
    for (int32_t away = 1; away < n_layer && n_norm > 0 && layer >= 0; away++)
        for (int sign = -1; sign <= 1 && !fd_trial_fits(t); sign += 2) {
            const int32_t other = layer + sign * away;
            const fd_hypothesis h = {.guess = FD_GUESS_WEIGHT, .node = -1, .layer = layer, .other = other};
            if (other >= 0 && other < n_layer) FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}

fd_code fd_guess_own_weights(fd_trial *t, fd_error *err) {
    return try_weights(t, t->all.request->args.node, err);
}

fd_code fd_guess_inputs(fd_trial *t, fd_error *err) {
    if (t->n_span > 1) FD_TRY(try_layers(t, err));
    if (t->n_span > 1 && !fd_trial_fits(t)) FD_TRY(try_fused_products(t, err));
    for (int32_t i = t->n_span - 1; i >= 0 && !fd_trial_fits(t); i--) /* few, of all nodes, before many of any */
        FD_TRY(try_branches(t, &graph_of(t)->nodes[t->span[i]], err));
    FD_TRY(fd_refute_by_readers(t, err));
    for (int32_t i = t->n_span - 1; i >= 0 && !fd_trial_fits(t); i--) {
        const fd_node *node = &graph_of(t)->nodes[t->span[i]];
        FD_TRY(try_blocks(t, node, err));
        FD_TRY(try_inputs(t, node, err));
        FD_TRY(try_weights(t, node, err));
        FD_TRY(try_tails(t, node, err));
        FD_TRY(try_partials(t, node, err));
    }
    for (int32_t i = t->n_span - 1; i >= 0 && !fd_trial_fits(t) && !fd_trial_many_layers(t); i--) {
        FD_TRY(try_tails_of_blocks(t, &graph_of(t)->nodes[t->span[i]], err));
        FD_TRY(fd_guess_blocks_of_sums(t, &graph_of(t)->nodes[t->span[i]], err));
    }
    return FD_OK;
}
