/* Which neighbouring nodes run as one item. Each pattern is looked for in the graph as it stands, so that a graph which
 * a fault has rearranged is not fused where it no longer fits. A tensor inside an item is not kept: nothing outside may
 * read it, and no node in it may have an override. None of the fusions changes an operation or the order of a sum. */
#include <string.h>

#include "engine/plan.h"

enum { MANY = 2 };

/* How many nodes read `id`, counted up to MANY; *reader is the last of them. */
static int readers_of(const fd_graph *graph, int32_t id, int32_t *reader) {
    int n = 0;
    for (int32_t i = id + 1; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (graph->nodes[i].input[k] == id && n < MANY) {
                n++;
                *reader = i;
            }
    return n;
}

static bool plain(const fd_graph *graph, int32_t id, fd_op op) {
    return id >= 0 && graph->nodes[id].op == op && !graph->nodes[id].override;
}

/* The only reader of `id`, if it is a plain node of that op; else -1. */
static int32_t only_reader(const fd_graph *graph, int32_t id, fd_op op) {
    int32_t reader = -1;
    return readers_of(graph, id, &reader) == 1 && plain(graph, reader, op) ? reader : -1;
}

/* A whole row, not one head at a time. */
static bool read_by_matmuls_alone(const fd_graph *graph, int32_t id) {
    if (graph->nodes[id].n_dim != 1) return false;
    for (int32_t i = id + 1; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (graph->nodes[i].input[k] == id && !plain(graph, i, FD_OP_MATMUL)) return false;
    return true;
}

static const fd_weight *weight_of(const fd_graph *graph, int32_t id) {
    return &graph->weights[graph->nodes[id].weight[0]];
}

/* ---- matrix products ---- */

/* gate and up, read by their SILU_MUL alone. */
static bool match_silu(const fd_graph *graph, int32_t id, const bool *covered, fd_item *item) {
    int32_t silu = only_reader(graph, id, FD_OP_SILU_MUL);
    if (silu < 0 || graph->nodes[silu].input[0] != id) return false;
    int32_t up = graph->nodes[silu].input[1];
    if (up == id || covered[up] || !plain(graph, up, FD_OP_MATMUL) || only_reader(graph, up, FD_OP_SILU_MUL) != silu ||
        graph->nodes[up].input[0] != graph->nodes[id].input[0] ||
        weight_of(graph, up)->dtype != weight_of(graph, id)->dtype ||
        weight_of(graph, up)->n_row != weight_of(graph, id)->n_row)
        return false;
    item->matvec.matmul[item->matvec.n_matmul++] = up;
    item->matvec.silu = silu;
    return true;
}

/* A product that is only added to a tensor known before it. */
static bool match_add(const fd_graph *graph, int32_t id, fd_item *item) {
    int32_t add = only_reader(graph, id, FD_OP_ADD);
    if (add < 0) return false;
    const fd_node *node = &graph->nodes[add];
    int32_t other = node->input[0] == id ? node->input[1] : node->input[0];
    if (other >= id) return false;
    item->matvec.add = add;
    return true;
}

/* Further products of the same input and type. */
static void match_siblings(const fd_graph *graph, int32_t id, const bool *covered, fd_item *item) {
    for (int32_t i = id + 1; i < graph->n_node && item->matvec.n_matmul < FD_ITEM_MATMULS; i++) {
        int32_t reader;
        if (covered[i] || !plain(graph, i, FD_OP_MATMUL) || graph->nodes[i].input[0] != graph->nodes[id].input[0] ||
            weight_of(graph, i)->dtype != weight_of(graph, id)->dtype)
            continue;
        if (readers_of(graph, i, &reader) == 1 && graph->nodes[reader].op == FD_OP_ADD) continue;
        item->matvec.matmul[item->matvec.n_matmul++] = i;
    }
}

static void match_matvec(const fd_graph *graph, int32_t id, const bool *covered, fd_item *item) {
    *item = (fd_item){.kind = FD_ITEM_MATVEC, .node = id};
    item->matvec.norm = item->matvec.add = item->matvec.silu = -1;
    item->matvec.matmul[item->matvec.n_matmul++] = id;
    int32_t input = graph->nodes[id].input[0];
    if (plain(graph, input, FD_OP_RMS_NORM) && read_by_matmuls_alone(graph, input)) item->matvec.norm = input;
    if (!match_silu(graph, id, covered, item) && !match_add(graph, id, item)) match_siblings(graph, id, covered, item);
}

/* ---- attention ---- */

static bool match_attention(const fd_graph *graph, int32_t mix, fd_item *item) {
    const fd_node *nodes = graph->nodes;
    int32_t softmax = nodes[mix].input[0], cache_v = nodes[mix].input[1];
    if (!plain(graph, softmax, FD_OP_ATTN_SOFTMAX) || only_reader(graph, softmax, FD_OP_ATTN_MIX) != mix) return false;
    int32_t scores = nodes[softmax].input[0];
    if (!plain(graph, scores, FD_OP_ATTN_SCORES) || only_reader(graph, scores, FD_OP_ATTN_SOFTMAX) != softmax)
        return false;
    int32_t q_rope = nodes[scores].input[0], cache_k = nodes[scores].input[1];
    if (!plain(graph, q_rope, FD_OP_ROPE) || only_reader(graph, q_rope, FD_OP_ATTN_SCORES) != scores) return false;
    if (!plain(graph, cache_k, FD_OP_KV_WRITE) || only_reader(graph, cache_k, FD_OP_ATTN_SCORES) != scores)
        return false;
    if (!plain(graph, cache_v, FD_OP_KV_WRITE) || only_reader(graph, cache_v, FD_OP_ATTN_MIX) != mix) return false;
    /* No window, no softcap, no sinks: the fused kernels have none of them. */
    if (nodes[scores].window != 0 || nodes[scores].softcap != 0.0f || nodes[softmax].weight[0] >= 0) return false;
    if (nodes[cache_k].row_offset != 0 || nodes[cache_v].row_offset != 0) return false;
    int32_t k_rope = nodes[cache_k].input[0];
    if (!plain(graph, k_rope, FD_OP_ROPE) || only_reader(graph, k_rope, FD_OP_KV_WRITE) != cache_k) return false;
    if (nodes[cache_k].shape[0] != nodes[cache_v].shape[0] || nodes[cache_k].shape[1] != nodes[cache_v].shape[1])
        return false;
    *item = (fd_item){.kind = FD_ITEM_ATTENTION, .node = mix};
    item->attention.q_rope = q_rope;
    item->attention.k_rope = k_rope;
    item->attention.cache_k = cache_k;
    item->attention.cache_v = cache_v;
    item->attention.scores = scores;
    item->attention.softmax = softmax;
    item->attention.mix = mix;
    return true;
}

/* A ROPE that only `reader` reads, taken along. */
static int32_t rope_before(const fd_graph *graph, int32_t id, fd_op reader) {
    return plain(graph, id, FD_OP_ROPE) && only_reader(graph, id, reader) >= 0 ? id : -1;
}

bool fd_match_fast_attention(const fd_graph *graph, int32_t mix, fd_item *item) {
    const fd_node *nodes = graph->nodes;
    int32_t softmax = nodes[mix].input[0], cache_v = nodes[mix].input[1];
    if (!plain(graph, mix, FD_OP_ATTN_MIX) || !plain(graph, softmax, FD_OP_ATTN_SOFTMAX) ||
        only_reader(graph, softmax, FD_OP_ATTN_MIX) != mix)
        return false;
    int32_t scores = nodes[softmax].input[0];
    if (!plain(graph, scores, FD_OP_ATTN_SCORES) || only_reader(graph, scores, FD_OP_ATTN_SOFTMAX) != softmax)
        return false;
    int32_t q = nodes[scores].input[0], cache_k = nodes[scores].input[1];
    if (!plain(graph, cache_k, FD_OP_KV_WRITE) || !plain(graph, cache_v, FD_OP_KV_WRITE) ||
        nodes[cache_k].shape[0] != nodes[cache_v].shape[0] || nodes[cache_k].shape[1] != nodes[cache_v].shape[1])
        return false;
    *item = (fd_item){.kind = FD_ITEM_ATTENTION, .node = mix};
    item->attention.q_rope = rope_before(graph, q, FD_OP_ATTN_SCORES);
    item->attention.k_rope = item->attention.cache_k = item->attention.cache_v = -1;
    item->attention.scores = scores;
    item->attention.softmax = softmax;
    item->attention.mix = mix;
    if (only_reader(graph, cache_k, FD_OP_ATTN_SCORES) == scores &&
        only_reader(graph, cache_v, FD_OP_ATTN_MIX) == mix && nodes[cache_k].row_offset == 0 && nodes[cache_v].row_offset == 0) {
        item->attention.cache_k = cache_k;
        item->attention.cache_v = cache_v;
        item->attention.k_rope = rope_before(graph, nodes[cache_k].input[0], FD_OP_KV_WRITE);
    }
    return true;
}

static int32_t turned_or(const fd_graph *graph, int32_t rope, int32_t reader) {
    return graph->nodes[rope >= 0 ? rope : reader].input[0];
}
int32_t fd_item_query(const fd_graph *graph, const fd_item *item) {
    return turned_or(graph, item->attention.q_rope, item->attention.scores);
}
int32_t fd_item_key(const fd_graph *graph, const fd_item *item) {
    return turned_or(graph, item->attention.k_rope, item->attention.cache_k);
}
int32_t fd_item_value(const fd_graph *graph, const fd_item *item) {
    return graph->nodes[item->attention.cache_v].input[0];
}

/* ---- the list ---- */

/* Attention items take the place of their last node, so that what they read is there; they are found before the walk.
 */
static void cover_attention(const fd_graph *graph, bool fast, bool *covered) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_item item;
        if (!plain(graph, i, FD_OP_ATTN_MIX)) continue;
        if (!(fast ? fd_match_fast_attention(graph, i, &item) : match_attention(graph, i, &item))) continue;
        const int32_t inside[] = {item.attention.q_rope,  item.attention.k_rope, item.attention.cache_k,
                                  item.attention.cache_v, item.attention.scores, item.attention.softmax};
        for (size_t k = 0; k < sizeof inside / sizeof *inside; k++)
            if (inside[k] >= 0) covered[inside[k]] = true;
    }
}

int32_t fd_fuse(const fd_graph *graph, unsigned what, bool fast, fd_item *items, bool *covered) {
    int32_t n = 0;
    bool products = what & FD_FUSE_TOKEN, attention = what & FD_FUSE_ATTENTION;
    if (attention) cover_attention(graph, fast, covered);
    for (int32_t i = 0; i < graph->n_node; i++) {
        if (covered[i]) continue;
        fd_item item = {.kind = FD_ITEM_NODE, .node = i};
        if (products && plain(graph, i, FD_OP_RMS_NORM) && read_by_matmuls_alone(graph, i) && i != graph->n_node - 1) {
            int32_t reader;
            if (readers_of(graph, i, &reader) > 0) continue; /* every product that reads it norms for itself */
        } else if (products && plain(graph, i, FD_OP_MATMUL)) {
            match_matvec(graph, i, covered, &item);
            for (int k = 0; k < item.matvec.n_matmul; k++) covered[item.matvec.matmul[k]] = true;
            if (item.matvec.add >= 0) covered[item.matvec.add] = true;
            if (item.matvec.silu >= 0) covered[item.matvec.silu] = true;
        } else if (attention && plain(graph, i, FD_OP_ATTN_MIX)) {
            if (!(fast ? fd_match_fast_attention(graph, i, &item) : match_attention(graph, i, &item)))
                item = (fd_item){.kind = FD_ITEM_NODE, .node = i};
        } else if (what & FD_FUSE_ROWS && fd_match_rows(graph, i, what & FD_FUSE_TURN, &item)) {
            int32_t nodes[FD_ITEM_EDGES];
            for (int k = fd_item_writes(&item, nodes) - 1; k >= 0; k--) covered[nodes[k]] = true;
        }
        items[n++] = item;
    }
    return n;
}
