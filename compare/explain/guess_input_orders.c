/* A product that takes what it reads for laid out otherwise: heads in another order, or blocks of quantised weights whose values lie
 * otherwise than what they are multiplied with. */
#include "compare/explain/guesses.h"

static fd_code try_order(fd_trial *t, const fd_node *node, fd_order_rule rule, int32_t n, int64_t n_head,
                         fd_error *err) {
    const fd_hypothesis h = {
        .guess = FD_GUESS_INPUT_ORDER, .node = node->id, .which = (int32_t)rule, .n = n, .end = (int32_t)n_head};
    return fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

/* Of more heads by one alone, either way. */
enum { MOST_ROTATED = 16 };

static fd_code try_heads(fd_trial *t, const fd_node *node, int32_t n_head, fd_error *err) {
    for (int rule = 0; rule < FD_ORDER_PIECES; rule++) {
        const bool of_heads = rule >= FD_ORDER_HEADS_REVERSED && rule <= FD_ORDER_UNTRANSPOSED;
        const bool numbered = rule == FD_ORDER_HEADS_ROTATED || rule == FD_ORDER_ROTATED ||
                              (rule >= FD_ORDER_HEADS_STRIDED && rule <= FD_ORDER_HEADS_REPEATED);
        if (!numbered && (!of_heads || n_head > 1)) FD_TRY(try_order(t, node, (fd_order_rule)rule, 1, n_head, err));
    }
    for (int32_t n = 1, step = n_head <= MOST_ROTATED ? 1 : n_head - 2; n < n_head; n += step)
        FD_TRY(try_order(t, node, FD_ORDER_HEADS_ROTATED, n, n_head, err));
    FD_TRY(try_order(t, node, FD_ORDER_ROTATED, -1, n_head, err));
    return try_order(t, node, FD_ORDER_ROTATED, 1, n_head, err);
}

/* Nibbles: the first and the second half of a block lie in the low and in the high bits of the same bytes. */
static fd_code try_quantised_blocks(fd_trial *t, const fd_node *node, int64_t width, fd_error *err) {
    static const fd_order_rule rules[] = {FD_ORDER_HALVES_TO_PAIRS, FD_ORDER_PAIRS_TO_HALVES, FD_ORDER_HALVES_SWAPPED};
    for (int64_t block = 16; block <= 256; block *= 2)
        for (size_t i = 0; i < sizeof rules / sizeof *rules && width % block == 0; i++)
            FD_TRY(try_order(t, node, rules[i], 1, width / block, err));
    return try_order(t, node, FD_ORDER_HALVES_SWAPPED, 1, 1, err);
}

fd_code fd_guess_input_orders(fd_trial *t, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    for (int32_t i = t->n_span - 1; i >= 0 && !fd_trial_fits(t); i--) {
        const fd_node *node = &graph->nodes[t->span[i]];
        if (node->op != FD_OP_MATMUL) continue;
        const fd_node *read = &graph->nodes[node->input[0]];
        FD_TRY(try_heads(t, node, read->n_dim == 2 ? read->shape[0] : 1, err));
        FD_TRY(try_quantised_blocks(t, node, graph->weights[node->weight[0]].n_col, err));
    }
    return FD_OK;
}
