/* What came out is right but for its place: another order, other rows, another tensor's; or for a number of its own; in one line. */
#include <stdio.h>
#include <string.h>

#include "compare/hypothesis/internal.h"

#define SAY(...) snprintf(to, size, __VA_ARGS__)

/* "of every 8 elements 1, 2 stand in the order 2, 1". */
static void blocks_text(const fd_hypothesis *h, const char *unit, int32_t each, char *to, size_t size) {
    char are[64] = "", from[64] = "";
    size_t at = 0, to_at = 0;
    for (int i = 0, n = 0; i < h->n; i++) {
        const int other = (int)(h->keys >> 4 * i & 15);
        if (other == i) continue;
        const char *comma = n++ ? ", " : "";
        at += (size_t)snprintf(are + at, sizeof are - at, "%s%d", comma, i);
        to_at += (size_t)snprintf(from + to_at, sizeof from - to_at, "%s%d", comma, other);
    }
    if (each > 1)
        SAY("of every %d groups of %d %s %s are the right ones of %s", h->n, each, unit, are, from);
    else
        SAY("of every %d %s %s are the right ones of %s", h->n, unit, are, from);
}

/* `part`: of what halves are meant, "each head". */
static void order_text(const fd_hypothesis *h, const char *part, char *to, size_t size) {
    static const char *const words[FD_ORDER_COUNT] = {
        [FD_ORDER_REVERSED] = "reversed",
        [FD_ORDER_HEADS_REVERSED] = "with the heads reversed",
        [FD_ORDER_TRANSPOSED] = "as [head_dim, n_head], not [n_head, head_dim]",
        [FD_ORDER_UNTRANSPOSED] = "as if they were [head_dim, n_head]",
        [FD_ORDER_PAIRS_SWAPPED] = "with the elements of each pair exchanged",
    };
    if (h->which == FD_ORDER_HEADS_ROTATED)
        SAY("%sthe right values stand %d head%s too early", h->node < 0 ? "in the caches of K and of V " : "", h->n,
            h->n == 1 ? "" : "s");
    else if (h->which == FD_ORDER_HEADS_STRIDED)
        SAY("the right heads stand in steps of %d", h->n);
    else if (h->which == FD_ORDER_HEADS_SWAPPED)
        SAY("the right values of heads %d and %d stand in each other's place", h->n, h->other);
    else if (h->which == FD_ORDER_HEADS_REPEATED)
        SAY("of every %d heads all have the right values of the first", h->n);
    else if (h->which == FD_ORDER_PIECES && h->other > 0)
        SAY("elements %d…%d are the right ones of %d…%d, and %d…%d those of %d…%d", h->first, h->other - 1, h->n,
            h->n + h->other - h->first - 1, h->other, h->end - 1, (int)h->keys, (int)h->keys + h->end - h->other - 1);
    else if (h->which == FD_ORDER_PIECES)
        SAY("elements %d…%d are the right ones of %d…%d", h->first, h->end - 1, h->n, h->n + h->end - h->first - 1);
    else if (h->which == FD_ORDER_BLOCKS)
        blocks_text(h, "elements", h->other, to, size);
    else if (h->which == FD_ORDER_ROTATED)
        SAY("the right values stand %d element%s too %s", h->n < 0 ? -h->n : h->n, h->n * h->n == 1 ? "" : "s",
            h->n < 0 ? "late" : "early");
    else if (h->which == FD_ORDER_HALVES_TO_PAIRS || h->which == FD_ORDER_HALVES_SWAPPED)
        SAY("the right values stand there with the halves of %s %s", part,
            h->which == FD_ORDER_HALVES_SWAPPED ? "exchanged" : "interleaved");
    else if (h->which == FD_ORDER_PAIRS_TO_HALVES)
        SAY("the right values stand there with the even elements of %s before the odd ones", part);
    else
        SAY("the right values stand there %s", words[h->which]);
}

static void input_order_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const fd_node *node = &graph->nodes[h->node < 0 ? 0 : h->node];
    fd_hypothesis of_input = *h;
    const int64_t width = node->weight[0] < 0 ? 0 : graph->weights[node->weight[0]].n_col;
    char order[160], part[32] = "each head";
    of_input.guess = FD_GUESS_ORDER;
    if (h->end > 0) snprintf(part, sizeof part, "every %d elements", (int)(width / h->end));
    order_text(&of_input, part, order, sizeof order);
    SAY("reads %s as if %s", node->input[0] < 0 ? "its input" : graph->nodes[node->input[0]].name, order);
}

static void copy_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const fd_node *node = &graph->nodes[h->node], *other = &graph->nodes[h->other];
    if (h->which)
        SAY("%s is added to it as well", other->name);
    else if (h->first == 0 && h->end == fd_node_width(node) && h->n == 0)
        SAY("it is the same as %s", other->name);
    else if (h->n == h->first)
        SAY("elements %d…%d are those of %s", h->first, h->end - 1, other->name);
    else
        SAY("elements %d…%d are elements %d…%d of %s", h->first, h->end - 1, h->n, h->n + h->end - h->first - 1,
            other->name);
}

static void rows_text(const fd_hypothesis *h, char *to, size_t size) {
    char where[48] = "each row is";
    if (h->end) snprintf(where, sizeof where, "elements %d…%d of each row are", h->first, h->end - 1);
    if (h->which == FD_ROWS_LAST_OF_EARLIER)
        SAY("nothing new is written: each row is the last one of earlier steps");
    else if (h->which == FD_ROWS_ROLLED)
        SAY("each row is the right one of the position 1 %s, around the end of the step",
            h->n == 1 ? "earlier" : "later");
    else if (h->which == FD_ROWS_REVERSED)
        SAY("the rows of a step stand in reverse");
    else if (h->which == FD_ROWS_BLOCKS)
        blocks_text(h, "rows of a step", 1, to, size);
    else if (h->which == FD_ROWS_STEP_LAST)
        SAY("the last row of a step of several is that of its %s", h->n ? "last but one" : "first position");
    else if (h->which == FD_ROWS_LATE)
        SAY("from position %d on every row is written %d position%s too far, and nothing to that position", h->other,
            h->n, h->n == 1 ? "" : "s");
    else if (h->which == FD_ROWS_ADDED)
        SAY("the row of %d position%s earlier is added to each: what is summed into was not cleared", h->n,
            h->n == 1 ? "" : "s");
    else if (h->which == FD_ROWS_EXCHANGED)
        SAY("the rows of positions %d and %d stand in each other's place", h->n, h->other);
    else if (h->which == FD_ROWS_ALL_ARE && h->end)
        SAY("from position %d on elements %d…%d of every row are those of position %d: they were not written", h->other,
            h->first, h->end - 1, h->n);
    else if (h->which == FD_ROWS_ALL_ARE && h->other > 0)
        SAY("from position %d on every row is that of position %d", h->other, h->n);
    else if (h->which == FD_ROWS_ALL_ARE)
        SAY("every row is that of position %d", h->n);
    else
        SAY("%s the right %s of the position %d %s", where, h->end ? "ones" : "one", h->n < 0 ? -h->n : h->n,
            h->n < 0 ? "later" : "earlier");
}

/* The weights whose rows make elements of a node: its own, or those of the products that an activation reads. */
static void say_weights_of(const fd_graph *graph, const fd_node *node, char *to, size_t size) {
    if (node->weight[0] >= 0) {
        SAY("%s", graph->weights[node->weight[0]].name);
        return;
    }
    for (int k = 0; k < 2 && node->input[k] >= 0; k++) {
        const fd_node *in = &graph->nodes[node->input[k]];
        const size_t at = strlen(to);
        if (in->weight[0] >= 0)
            snprintf(to + at, size - at, "%s%s", at ? " or " : "", graph->weights[in->weight[0]].name);
    }
}

static void own_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const fd_node *node = &graph->nodes[h->node < 0 ? 0 : h->node];
    const bool norm = node->op == FD_OP_RMS_NORM || node->op == FD_OP_LAYER_NORM || node->op == FD_OP_L2_NORM;
    const bool weights = node->op == FD_OP_ATTN_SOFTMAX || node->op == FD_OP_ATTN_MIX;
    const bool heads = norm || node->op == FD_OP_ROPE;
    char of[160] = "";
    switch ((fd_own_rule)h->which) {
    case FD_OWN_ROW_FACTOR:
        if (weights && h->other == FD_OUTSIDE) {
            SAY("attention sees keys that are not in the trace: of padding, of another sequence, or that stood there");
            return;
        }
        SAY("%s the right one times a number of its own%s",
            weights                     ? "each row of a head is"
            : node->n_dim == 2 && heads ? "each head of a row is"
                                        : "each row is",
            norm                            ? ": what it is divided by is another"
            : weights && h->other           ? ": softmax's sum is larger, or keys are seen that are not in the trace"
            : weights                       ? ": softmax's sum is another"
            : node->op == FD_OP_ATTN_SCORES ? ": a scale that depends on the position"
            : node->op == FD_OP_ROPE        ? ": a norm, or a scale that depends on the position"
                                            : "");
        break;
    case FD_OWN_COLUMN_TERM:
        SAY("the same vector is added to all rows%s", node->op == FD_OP_MATMUL || norm ? ": another bias" : "");
        break;
    case FD_OWN_COLUMN_FACTOR:
        SAY("each element of a row is the right one times a number of its own, the same in all rows: %s",
            norm ? "another weight" : "the weight's rows have other scales");
        break;
    case FD_OWN_ELEMENTS:
        say_weights_of(graph, node, of, sizeof of);
        SAY("elements %d…%d are others in every row, and nothing else: these rows of %s are not the file's, or are "
            "written over",
            h->first, h->end - 1, of);
        break;
    case FD_OWN_INPUT_ELEMENT:
        say_weights_of(graph, &graph->nodes[node->input[0]], of, sizeof of);
        SAY("element %d of what %s multiplies is another in every row, and nothing else: this row of %s is not the "
            "file's, or is written over",
            h->first, graph->weights[node->weight[0]].name, of);
        break;
    case FD_OWN_LOW_RANK:
        SAY("a matrix of rank %d is added to %s: an adapter (LoRA), or a zero point", h->n,
            graph->weights[node->weight[0]].name);
        break;
    case FD_OWN_FUNCTION:
        SAY("%s is another function than it should be, the same in all elements",
            node->op == FD_OP_ATTN_SOFTMAX ? "softmax's exponential" : "the activation");
        break;
    case FD_OWN_LOG_SOFTMAX: SAY("each row is less by log Σ e^x: log-probabilities, not logits"); break;
    case FD_OWN_CONSTANT: SAY("all its values are %.6g, whatever it reads", h->value); break;
    case FD_OWN_DROPPED:
        SAY("dropout is active: single elements are zero, in no order, and all others divided by 1 - p, p = %.6g",
            h->value);
        break;
    case FD_OWN_EXPERT_BIAS:
        SAY("the experts are the chosen ones, but the biases that are added are other experts'");
        break;
    case FD_OWN_EXPERTS:
        SAY("of the chosen experts some are not added, in each row others: as where an expert takes so many rows "
            "alone");
        break;
    }
}

static void token_text(const fd_hypothesis *h, char *to, size_t size) {
    if (h->which == FD_TOKEN_MODULO)
        SAY("each row is the embedding of the token's id mod %d", h->n);
    else if (h->which == FD_TOKEN_BEFORE)
        SAY("each row is the embedding of the token %d position%s %s", h->n < 0 ? -h->n : h->n,
            h->n * h->n == 1 ? "" : "s", h->n < 0 ? "after" : "before");
    else
        SAY("each row is the embedding of the token's id %s %d", h->n < 0 ? "-" : "+", h->n < 0 ? -h->n : h->n);
}

void fd_hypothesis_rows_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    if (h->guess == FD_GUESS_COPY) copy_text(h, graph, to, size);
    if (h->guess == FD_GUESS_TOKEN) token_text(h, to, size);
    if (h->guess == FD_GUESS_OWN) own_text(h, graph, to, size);
    if (h->guess == FD_GUESS_ROWS) rows_text(h, to, size);
    if (h->guess == FD_GUESS_INPUT_ORDER) input_order_text(h, graph, to, size);
    if (h->guess != FD_GUESS_ORDER) return;
    order_text(h, "each head", to, size);
    if (h->before_bias) snprintf(to + strlen(to), size - strlen(to), ", but for the bias");
}

/* What a row of several sequences has, or one with its padding; a dump has one sequence's rows alone. */
static void say_restarts(const fd_hypothesis *h, const char *does, char *to, size_t size) {
    int at = snprintf(to, size, "%s a position that begins again at ", does);
    const char *before = "";
    for (int32_t b = 0; b < 64 && at > 0 && (size_t)at < size; b++)
        if (h->keys >> b & 1) at += snprintf(to + at, size - (size_t)at, "%s%d", before, b), before = ", ";
    if (at > 0 && (size_t)at < size)
        snprintf(to + at, size - (size_t)at,
                 ": of several sequences in one row, or of padding, record one sequence's rows");
}

void fd_hypothesis_position_text(const fd_hypothesis *h, char *to, size_t size) {
    const char *does = h->ops - 1 == FD_OP_ADD_POSITION ? "adds the row of" : "RoPE turns by";
    switch ((fd_position_rule)h->which) {
    case FD_POSITION_OFFSET: SAY("%s position %s %d", does, h->n < 0 ? "-" : "+", h->n < 0 ? -h->n : h->n); break;
    case FD_POSITION_CLAMPED: SAY("%s position - %d, but not below 0", does, -h->n); break;
    case FD_POSITION_MODULO: SAY("%s position mod %d", does, h->n); break;
    case FD_POSITION_AT_MOST: SAY("%s position %d from %d on", does, h->n, h->n + 1); break;
    case FD_POSITION_DIVIDED: SAY("%s position / %d, a whole number", does, h->n); break;
    case FD_POSITION_OF_TILE: SAY("%s, in a tile of %d rows, the position of its first one", does, h->n); break;
    case FD_POSITION_ROUNDED:
        SAY("%s positions in %s, which has not every whole number above %d", does, h->n == 8 ? "bfloat16" : "binary16",
            1 << h->n);
        break;
    case FD_POSITION_OF_STEP:
        SAY("%s, in every row of a step of the prompt, the position of its %s", does,
            h->other ? "last one" : "first one");
        break;
    case FD_POSITION_RESTARTS: say_restarts(h, does, to, size); break;
    case FD_POSITION_ROLLED:
        SAY("%s, in the rows of a step, the position of the row %s, the %s row that of the %s", does,
            h->other > 0 ? "before" : "after", h->other > 0 ? "first" : "last", h->other > 0 ? "last" : "first");
        break;
    case FD_POSITION_REVERSED:
        SAY("%s, in the rows of a step, its positions in reverse, the last one's first", does);
        break;
    case FD_POSITION_IS: SAY("%s position %d in every row", does, h->n); break;
    }
}
