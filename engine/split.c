#include "engine/split.h"

#include <stdlib.h>
#include <string.h>

#include "engine/edges.h"
#include "exec/peers.h"
#include "model/gguf/quant.h"

/* How a node is cut: `units` equal parts along shape[axis], of which each GPU has its share; 0: not at all. */
typedef struct cut {
    int32_t units;
    int axis;
} cut;

typedef struct splitter {
    const fd_graph *graph;
    int32_t n, rank;
    cut *cuts;        /* [n_node] */
    bool *read_whole; /* [n_node] of those that are cut */
} splitter;

/* ---- which nodes are cut ---- */

/* By how a part of their result follows from the same part of their inputs. */
static bool is_elementwise(fd_op op) {
    return op == FD_OP_SILU_MUL || op == FD_OP_GELU_MUL || op == FD_OP_SWIGLU_CLAMP || op == FD_OP_GELU ||
           op == FD_OP_RELU_SQUARED || op == FD_OP_SIGMOID || op == FD_OP_CLAMP || op == FD_OP_SOFTCAP ||
           op == FD_OP_SCALE || op == FD_OP_ATTN_TEMPERATURE;
}

static bool is_product(fd_op op) {
    return op == FD_OP_MATMUL || op == FD_OP_EXPERT_MATMUL;
}

/* A vector can be cut where its elements can be. */
static bool vector_can(const fd_graph *graph, int32_t weight) {
    return weight < 0 || fd_dtype_get(graph->weights[weight].dtype)->block_elements == 1;
}

static bool can_cut(const splitter *s, int32_t id, cut by) {
    const fd_node *node = &s->graph->nodes[id];
    if (s->cuts[id].units) return s->cuts[id].units == by.units && s->cuts[id].axis == by.axis;
    if (node->override || node->over_kv || by.axis >= node->n_dim || node->shape[by.axis] % by.units != 0) return false;
    switch (node->op) {
    case FD_OP_MATMUL: return by.axis == 0 && vector_can(s->graph, node->weight[1]);
    case FD_OP_EXPERT_MATMUL: return by.axis == 1 && vector_can(s->graph, node->weight[1]);
    case FD_OP_EXPERT_SUM: return by.axis == 0 && can_cut(s, node->input[0], (cut){by.units, 1});
    case FD_OP_ROPE: return by.axis == 0 && can_cut(s, node->input[0], by);
    case FD_OP_RMS_NORM: /* of each head */
        return by.axis == 0 && node->n_dim == 2 && s->graph->weights[node->weight[0]].n_row == 1 &&
               can_cut(s, node->input[0], by);
    default: break;
    }
    if (!is_elementwise(node->op)) return false;
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0 && !can_cut(s, node->input[k], by)) return false;
    return true;
}

/* The node and what it follows from, back to the products. */
static void do_cut(splitter *s, int32_t id, cut by) {
    const fd_node *node = &s->graph->nodes[id];
    s->cuts[id] = by;
    if (is_product(node->op)) return;
    if (node->op == FD_OP_EXPERT_SUM) {
        do_cut(s, node->input[0], (cut){by.units, 1});
        return;
    }
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) do_cut(s, node->input[k], by);
}

static int readers_of(const fd_graph *graph, int32_t id) {
    int n = 0;
    for (int32_t i = id + 1; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) n += graph->nodes[i].input[k] == id;
    return n;
}

static bool is_plain(const fd_graph *graph, int32_t id, fd_op op) {
    return id >= 0 && graph->nodes[id].op == op && !graph->nodes[id].override;
}

/* Attention that ends in mix `id`: a K/V head and the queries that read it stay together. */
static void cut_attention(splitter *s, int32_t id) {
    const fd_graph *graph = s->graph;
    const fd_node *nodes = graph->nodes;
    if (!is_plain(graph, id, FD_OP_ATTN_MIX) || !is_plain(graph, nodes[id].input[0], FD_OP_ATTN_SOFTMAX)) return;
    int32_t softmax = nodes[id].input[0], scores = nodes[softmax].input[0], v = nodes[id].input[1];
    if (!is_plain(graph, scores, FD_OP_ATTN_SCORES)) return;
    int32_t q = nodes[scores].input[0], k = nodes[scores].input[1];
    cut by = {nodes[k].shape[0], 0};
    if (!is_plain(graph, k, FD_OP_KV_WRITE) || !is_plain(graph, v, FD_OP_KV_WRITE) || by.units < s->n ||
        nodes[v].shape[0] != by.units || nodes[id].shape[0] % by.units != 0 || readers_of(graph, k) != 1 ||
        readers_of(graph, v) != 1 || readers_of(graph, scores) != 1 || readers_of(graph, softmax) != 1 ||
        !vector_can(graph, nodes[softmax].weight[0]) || !can_cut(s, q, by) || !can_cut(s, nodes[k].input[0], by) ||
        !can_cut(s, nodes[v].input[0], by))
        return;
    do_cut(s, q, by);
    do_cut(s, nodes[k].input[0], by);
    do_cut(s, nodes[v].input[0], by);
    s->cuts[k] = s->cuts[v] = s->cuts[scores] = s->cuts[softmax] = s->cuts[id] = by;
}

/* Parts of `width` rows that kernels like; 0: too few for all GPUs. */
static int32_t units_of(int32_t width, int32_t n) {
    for (int32_t least = 4 * n; least >= n; least -= 3 * n)
        for (int32_t unit = 64; unit >= 8; unit /= 2)
            if (width % unit == 0 && width / unit >= least) return width / unit;
    return 0;
}

/* Products and what follows from them element by element. */
static void cut_rows(splitter *s, int32_t id) {
    const fd_node *node = &s->graph->nodes[id];
    if (s->cuts[id].units || fd_feeds_choice(s->graph, id)) return;
    if (!is_product(node->op) && node->op != FD_OP_EXPERT_SUM && !is_elementwise(node->op)) return;
    bool heads = node->op == FD_OP_MATMUL && node->n_dim == 2;
    cut by = {.axis = node->n_dim == 2 && !heads ? 1 : 0};
    by.units = heads ? (node->shape[0] >= s->n ? node->shape[0] : 0) : units_of(node->shape[by.axis], s->n);
    if (by.units && can_cut(s, id, by)) do_cut(s, id, by);
}

/* Whether `reader`, which is cut, needs this input's part alone. */
static bool reads_part(const splitter *s, int32_t reader, int32_t input) {
    return s->cuts[reader].units && s->cuts[input].units && !is_product(s->graph->nodes[reader].op);
}

static void cut_graph(splitter *s) {
    const fd_graph *graph = s->graph;
    for (int32_t i = 0; i < graph->n_node; i++) cut_attention(s, i);
    for (int32_t i = graph->n_node - 1; i >= 0; i--) cut_rows(s, i);
    for (int32_t i = 0; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t input = graph->nodes[i].input[k];
            if (input >= 0 && s->cuts[input].units && !reads_part(s, i, input)) s->read_whole[input] = true;
        }
    s->read_whole[graph->n_node - 1] = true; /* the logits */
}

/* ---- this GPU's graph ---- */

/* This GPU's share of `n` items that are cut in so many units. */
static void share_of(const splitter *s, int32_t units, int64_t n, int64_t *first, int64_t *count) {
    *first = fd_share_first(units, s->n, s->rank) * (n / units);
    *count = fd_share_first(units, s->n, s->rank + 1) * (n / units) - *first;
}

static int32_t add_weight(fd_split *out, fd_weight weight, fd_weight_runs rows) {
    int32_t at = out->graph->n_weight++;
    out->graph->weights[at] = weight;
    out->rows[at] = rows;
    return at;
}

/* Of each of the blocks that the weight's rows make, a run of rows. */
static int32_t rows_of(const splitter *s, fd_split *out, int32_t weight, int64_t block, int32_t units) {
    fd_weight w = out->graph->weights[weight];
    int64_t first, count, stride = fd_dtype_row_bytes(w.dtype, w.n_col);
    share_of(s, units, block, &first, &count);
    fd_weight_runs rows = {.run = count, .period = block, .stride = stride};
    w.data = (const char *)w.data + first * stride;
    w.n_row = w.n_row / block * count;
    w.bytes = (uint64_t)(w.n_row * stride);
    return add_weight(out, w, rows);
}

/* Of each row of a vector's, or of experts' biases, a run of elements. */
static int32_t elements_of(const splitter *s, fd_split *out, int32_t weight, int32_t units) {
    if (weight < 0) return -1;
    fd_weight w = out->graph->weights[weight];
    int64_t first, count, stride = fd_dtype_row_bytes(w.dtype, w.n_col);
    share_of(s, units, w.n_col, &first, &count);
    fd_weight_runs rows = {.run = w.n_row, .period = w.n_row, .stride = stride};
    w.data = (const char *)w.data + fd_dtype_row_bytes(w.dtype, first);
    w.n_col = count;
    w.bytes = (uint64_t)(w.n_row * fd_dtype_row_bytes(w.dtype, count));
    return add_weight(out, w, rows);
}

static void narrow(const splitter *s, fd_split *out, fd_node *node, cut by) {
    int64_t first, count;
    int32_t block = node->op == FD_OP_EXPERT_MATMUL ? node->shape[1] : (int32_t)fd_node_width(node);
    share_of(s, by.units, node->shape[by.axis], &first, &count);
    node->shape[by.axis] = (int32_t)count;
    if (is_product(node->op)) {
        node->weight[0] = rows_of(s, out, node->weight[0], block, by.units);
        node->weight[1] = elements_of(s, out, node->weight[1], by.units);
    }
    if (node->op == FD_OP_ATTN_SOFTMAX) node->weight[0] = elements_of(s, out, node->weight[0], by.units);
}

static fd_node gather_of(const fd_node *full, int32_t part, bool is_read) {
    fd_node node = *full;
    node.op = FD_OP_GATHER;
    for (int k = 0; k < FD_MAX_INPUTS; k++) node.input[k] = -1;
    for (int k = 0; k < FD_MAX_WEIGHTS; k++) node.weight[k] = -1;
    if (is_read) node.input[0] = part;
    return node;
}

static int32_t add_node(fd_split *out, fd_node node, int32_t full_id) {
    int32_t id = out->graph->n_node++;
    node.id = id;
    out->graph->nodes[id] = node;
    out->full_id[id] = full_id;
    return id;
}

/* `part`, `whole`: [n_node], where the full graph's nodes are in this one. */
static void add_nodes(const splitter *s, fd_split *out, int32_t *part, int32_t *whole) {
    for (int32_t i = 0; i < s->graph->n_node; i++) {
        const fd_node *full = &s->graph->nodes[i];
        cut by = s->cuts[i];
        fd_node node = *full;
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (node.input[k] >= 0) node.input[k] = (reads_part(s, i, node.input[k]) ? part : whole)[node.input[k]];
        if (by.units) narrow(s, out, &node, by);
        part[i] = whole[i] = add_node(out, node, by.units ? -1 : i);
        if (!by.units) continue;
        int64_t first, count, width = fd_node_width(full);
        if (full->over_kv || by.axis == 1) width = full->shape[by.axis];
        share_of(s, by.units, width, &first, &count);
        whole[i] = add_node(out, gather_of(full, part[i], s->read_whole[i]), i);
        out->first[whole[i]] = (int32_t)first;
        out->units[whole[i]] = by.units;
    }
}

/* Room for the most nodes and weights there can be. */
static fd_code allocate(const fd_graph *graph, fd_split *out, fd_error *err) {
    size_t n_node = 2 * (size_t)graph->n_node, n_weight = (size_t)graph->n_weight + 2 * (size_t)graph->n_node;
    FD_TRY(fd_graph_clone(graph, &out->graph, err));
    fd_node *nodes = realloc(out->graph->nodes, n_node * sizeof *nodes);
    if (nodes) out->graph->nodes = nodes;
    fd_weight *weights = realloc(out->graph->weights, n_weight * sizeof *weights);
    if (weights) out->graph->weights = weights;
    out->full_id = calloc(n_node, sizeof *out->full_id);
    out->first = calloc(n_node, sizeof *out->first);
    out->units = calloc(n_node, sizeof *out->units);
    out->rows = calloc(n_weight, sizeof *out->rows);
    if (!nodes || !weights || !out->full_id || !out->first || !out->units || !out->rows)
        return fd_fail(err, FD_ERR_MEMORY, "split: out of memory for %zu nodes", n_node);
    out->graph->n_node = 0;
    for (int32_t i = 0; i < graph->n_weight; i++) out->rows[i] = fd_weight_whole(&graph->weights[i]);
    return FD_OK;
}

fd_code fd_split_make(const fd_graph *graph, int32_t n, int32_t rank, fd_split *out, fd_error *err) {
    size_t n_node = (size_t)graph->n_node;
    splitter s = {.graph = graph, .n = n, .rank = rank};
    s.cuts = calloc(n_node, sizeof *s.cuts);
    s.read_whole = calloc(n_node, sizeof *s.read_whole);
    int32_t *ids = calloc(2 * n_node, sizeof *ids);
    *out = (fd_split){.full = graph};
    fd_code code =
        s.cuts && s.read_whole && ids ? allocate(graph, out, err) : fd_fail(err, FD_ERR_MEMORY, "split: out of memory");
    if (code == FD_OK) {
        cut_graph(&s);
        add_nodes(&s, out, ids, ids + n_node);
    } else {
        fd_split_free(out);
    }
    free(s.cuts);
    free(s.read_whole);
    free(ids);
    return code;
}

const fd_node *fd_split_whole(const fd_graph *graph, int32_t id) {
    const fd_node *next = &graph->nodes[id + 1];
    return id + 1 < graph->n_node && next->op == FD_OP_GATHER ? next : &graph->nodes[id];
}

bool fd_split_for_observers(const fd_node *node) {
    return node->op == FD_OP_GATHER && node->input[0] < 0;
}

fd_place fd_split_place(const fd_split *split, int32_t id, int32_t n_kv) {
    const fd_node *whole = &split->graph->nodes[id], *part = &split->graph->nodes[id - 1];
    bool experts = whole->n_dim == 2 && !whole->over_kv && whole->shape[1] != part->shape[1]; /* a piece for each */
    int32_t n_piece = experts ? whole->shape[0] : 1;
    return (fd_place){.n_piece = n_piece,
                      .units = split->units[id],
                      .first = (int64_t)split->first[id] * (whole->over_kv ? n_kv : 1),
                      .width = fd_node_row_stride(part, n_kv) / n_piece,
                      .stride = fd_node_row_stride(whole, n_kv) / n_piece};
}

void fd_split_free(fd_split *split) {
    fd_graph_free(split->graph);
    free(split->rows);
    free(split->full_id);
    free(split->first);
    free(split->units);
    memset(split, 0, sizeof *split);
}
