/* Through several layers, where every trial costs all of them: what engines do wrong in every layer alike, or in one, and what few trials
 * tell. Matrices of a neighbouring layer, Q's and K's rows in another order, a branch that is missing or counted otherwise, a norm that
 * is skipped, a rank's part of a sum that is left out. */
#include <string.h>

#include "compare/explain/guesses.h"
#include "compare/explain/solve.h"

/* Of the other layers' matrices those of the next and of the one before, without their biases and with them: in every layer, or in
 * this one. */
static fd_code try_neighbours(fd_trial *t, const fd_node *node, bool everywhere, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    for (int i = 0; i < 4 && node->op == FD_OP_MATMUL && !fd_trial_fits(t); i++) {
        const int32_t away = i % 2 ? -1 : 1, with_bias = i / 2;
        const int32_t other = fd_fault_in_layer(graph, node, node->layer + away);
        fd_hypothesis h = {
            .guess = FD_GUESS_WEIGHT, .node = node->id, .other = other < 0 ? -1 : graph->nodes[other].weight[0]};
        h.n = with_bias;
        if (everywhere) {
            h = fd_hypothesis_everywhere(&h, graph);
            h.n = away;
            h.other = with_bias;
        }
        if ((everywhere || other >= 0) && (!with_bias || node->weight[1] >= 0)) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* What a converter does to the rows of each head, or to some of them alone. */
static const fd_order_rule orders[] = {FD_ORDER_HALVES_TO_PAIRS, FD_ORDER_PAIRS_TO_HALVES, FD_ORDER_HALVES_SWAPPED};
enum { N_ORDER = sizeof orders / sizeof *orders };

static fd_code try_orders(fd_trial *t, const fd_node *node, fd_error *err) {
    if (node->op != FD_OP_MATMUL || node->n_dim != 2) return FD_OK;
    for (int i = 0; i < 2 * N_ORDER && !fd_trial_fits(t); i++) {
        const fd_hypothesis h = {.guess = FD_GUESS_ORDER,
                                 .node = node->id,
                                 .before_bias = i >= N_ORDER,
                                 .which = (int32_t)orders[i % N_ORDER]};
        if (i < N_ORDER || node->weight[1] >= 0) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Where all of a head is turned, neighbours that stand where halves should, in Q and K alike, or the other way about, are RoPE's other
 * pairs, which the table has. */
static bool is_other_pairing(const fd_graph *graph, const fd_node *k, fd_order_rule order, bool before_bias) {
    for (int32_t i = 0; i < graph->n_node && !before_bias; i++) {
        const fd_node *rope = &graph->nodes[i];
        const bool halves = rope->rope.pairing == FD_ROPE_HALF;
        if (rope->op != FD_OP_ROPE || rope->layer != k->layer || rope->rope.n_rot != rope->shape[1]) continue;
        if (order == (halves ? FD_ORDER_PAIRS_TO_HALVES : FD_ORDER_HALVES_TO_PAIRS)) return true;
    }
    return false;
}

fd_code fd_guess_orders_of_q_and_k(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    const bool many = fd_trial_many_layers(t);
    for (int32_t at = 0; at < t->n_span && !fd_trial_fits(t); at++) {
        const fd_node *k = &nodes[t->span[at]];
        const bool found = k->op == FD_OP_MATMUL && strcmp(fd_fault_suffix(k), "attn_k") == 0;
        for (int i = 0; i < 4 * N_ORDER && found && !fd_trial_fits(t); i++) {
            const bool everywhere = i >= 2 * N_ORDER, before_bias = i / N_ORDER % 2;
            const fd_hypothesis h = {.guess = FD_GUESS_ORDER,
                                     .node = -1,
                                     .layer = everywhere ? FD_ANY_LAYER : k->layer,
                                     .ops = FD_OP_MATMUL + 1,
                                     .kind = "attn_q attn_k",
                                     .before_bias = before_bias,
                                     .which = (int32_t)orders[i % N_ORDER]};
            if ((everywhere && !many) || (before_bias && k->weight[1] < 0)) continue;
            if (is_other_pairing(t->all.request->args.graph, k, orders[i % N_ORDER], before_bias)) continue;
            FD_TRY(fd_trial_try(t, &h, err));
        }
    }
    return FD_OK;
}

/* Either side of an addition. */
static fd_code try_branches(fd_trial *t, const fd_node *node, fd_error *err) {
    static const double factors[] = {0, 2, 0.5};
    for (int i = 0; i < 6 && node->op == FD_OP_ADD && !fd_trial_fits(t); i++) {
        const fd_hypothesis h = {
            .guess = FD_GUESS_INPUT_FACTOR, .node = node->id, .which = 1 - i / 3, .value = factors[i % 3]};
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* What reads a norm reads what the norm does: of norms that one op alone reads, behind a branch or of heads. */
static fd_code try_without_norm(fd_trial *t, const fd_node *node, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    for (int k = 0; k < FD_MAX_INPUTS && node->layer >= 0 && !fd_trial_fits(t); k++) {
        const fd_node *norm = node->input[k] < 0 ? NULL : &nodes[node->input[k]];
        const bool alone = norm && fd_node_is_norm(norm) && (node->op == FD_OP_ADD || node->op == FD_OP_ROPE);
        const fd_hypothesis h = {
            .guess = FD_GUESS_INPUT, .node = node->id, .which = k, .other = alone ? norm->input[0] : -1};
        if (alone) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Of two ranks or four, one's part of what attention's output or the FFN's is summed from. */
static fd_code try_parts(fd_trial *t, const fd_node *node, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    const bool sums = node->op == FD_OP_MATMUL && node->layer >= 0 && node->n_dim == 1 &&
                      fd_node_width(node) == graph->hparams.n_embd;
    const int32_t width = sums ? (int32_t)graph->weights[node->weight[0]].n_col : 0;
    for (int32_t n = 2; n <= 4; n += 2)
        for (int32_t r = 0; r < n && sums && width % n == 0 && !fd_trial_fits(t); r++) {
            const fd_hypothesis h = {.guess = FD_GUESS_PARTIAL,
                                     .node = node->id,
                                     .which = r,
                                     .n = n,
                                     .first = width / n * r,
                                     .end = width / n * (r + 1)};
            FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}

/* At that node; of the first layer's every other layer's as well (fd_trial_try). */
static fd_code try_node(fd_trial *t, const fd_node *node, bool first, fd_error *err) {
    if (first) FD_TRY(try_neighbours(t, node, true, err));
    if (!fd_trial_fits(t)) FD_TRY(try_neighbours(t, node, false, err));
    if (!fd_trial_fits(t)) FD_TRY(try_orders(t, node, err));
    if (!fd_trial_fits(t)) FD_TRY(try_without_norm(t, node, err));
    return fd_trial_fits(t) ? FD_OK : try_parts(t, node, err);
}

/* Two layers in each other's place, neighbours first. */
static fd_code try_exchanged(fd_trial *t, fd_error *err) {
    const int32_t n_layer = t->all.request->args.graph->hparams.n_layer, first = fd_trial_first_layer(t);
    for (int32_t away = 1; first >= 0 && away < n_layer - first; away++)
        for (int32_t layer = first; layer + away < n_layer && !fd_trial_fits(t); layer++) {
            const fd_hypothesis h = {
                .guess = FD_GUESS_WEIGHT, .node = -1, .layer = layer, .other = layer + away, .n = 1};
            FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}

fd_code fd_guess_branches(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    for (int32_t i = 0; i < t->n_span && !fd_trial_fits(t); i++)
        if (nodes[t->span[i]].layer >= 0) FD_TRY(try_branches(t, &nodes[t->span[i]], err));
    return try_exchanged(t, err);
}

/* What an op gives, or of attention's output one head, times any number: in every layer, or in this one. */
static fd_code try_factor(fd_trial *t, fd_hypothesis h, bool everywhere, fd_error *err) {
    const fd_hypothesis every = fd_hypothesis_everywhere(&h, t->all.request->args.graph);
    if (everywhere) FD_TRY(fd_solve_near(t, every, err));
    return fd_trial_fits(t) ? FD_OK : fd_solve_near(t, h, err);
}

fd_code fd_guess_factors(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    const int32_t first = fd_trial_first_layer(t);
    for (int32_t i = 0; i < t->n_span && !fd_trial_fits(t); i++) {
        const fd_node *node = &nodes[t->span[i]];
        const int32_t width = (int32_t)fd_node_width(node), n_head = node->op == FD_OP_ATTN_MIX ? node->shape[0] : 1;
        fd_hypothesis h = {.guess = FD_GUESS_FACTOR, .node = node->id, .end = width};
        if (node->layer < 0 || node->over_kv || node->op == FD_OP_TOP_K) continue;
        FD_TRY(try_factor(t, h, node->layer == first, err));
        for (int32_t head = 0; head < n_head && n_head > 1 && !fd_trial_fits(t); head++) {
            h.first = width / n_head * head;
            h.end = h.first + width / n_head;
            FD_TRY(try_factor(t, h, node->layer == first, err));
        }
    }
    return FD_OK;
}

fd_code fd_guess_layers(fd_trial *t, bool first, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t layer = -1;
    for (int32_t i = 0; i < t->n_span && !fd_trial_fits(t); i++) {
        const fd_node *node = &nodes[t->span[i]];
        if (layer < 0) layer = node->layer;
        if (node->layer >= 0 && (node->layer == layer) == first) FD_TRY(try_node(t, node, first, err));
    }
    return FD_OK;
}
