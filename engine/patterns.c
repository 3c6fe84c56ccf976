#include "engine/patterns.h"

#include "engine/edges.h"
#include "engine/split.h"
#include "kernels/attention/attention.h"

/* ---- nodes ---- */

static int32_t other_input(const fd_node *node, int32_t id) {
    return node->input[0] == id ? node->input[1] : node->input[0];
}

static const fd_weight *weight_of(const fd_graph *graph, int32_t id) {
    return &graph->weights[graph->nodes[id].weight[0]];
}

/* ---- products of one token ---- */

/* gate and up, read by their SILU_MUL alone. */
static bool match_silu(const fd_matcher *m, int32_t id, fd_item *item) {
    const fd_graph *graph = m->graph;
    int32_t silu = fd_only_reader(graph, id, FD_OP_SILU_MUL);
    if (silu < 0 || graph->nodes[silu].input[0] != id) return false;
    int32_t up = graph->nodes[silu].input[1];
    if (up == id || m->covered[up] || !fd_is_plain(graph, up, FD_OP_MATMUL) ||
        fd_only_reader(graph, up, FD_OP_SILU_MUL) != silu || graph->nodes[up].input[0] != graph->nodes[id].input[0] ||
        weight_of(graph, up)->dtype != weight_of(graph, id)->dtype ||
        weight_of(graph, up)->n_row != weight_of(graph, id)->n_row)
        return false;
    item->matmul[item->n_matmul++] = up;
    item->silu = silu;
    return true;
}

/* A product that is only added to a tensor known before it. */
static bool match_add(const fd_matcher *m, int32_t id, fd_item *item) {
    int32_t add = fd_only_reader(m->graph, id, FD_OP_ADD);
    if (add < 0 || other_input(&m->graph->nodes[add], id) >= id) return false;
    item->add = add;
    return true;
}

/* Further products of the same input and type. */
static void match_siblings(const fd_matcher *m, int32_t id, fd_item *item) {
    const fd_graph *graph = m->graph;
    for (int32_t i = id + 1; i < graph->n_node && item->n_matmul < FD_ITEM_MATMULS; i++) {
        int32_t reader;
        if (m->covered[i] || !fd_is_plain(graph, i, FD_OP_MATMUL) ||
            graph->nodes[i].input[0] != graph->nodes[id].input[0] ||
            weight_of(graph, i)->dtype != weight_of(graph, id)->dtype)
            continue;
        int32_t whole = fd_split_whole(graph, i)->id;
        if (fd_readers_of(graph, whole, &reader) == 1 && graph->nodes[reader].op == FD_OP_ADD) continue;
        item->matmul[item->n_matmul++] = i;
    }
}

static bool match_matvec(const fd_matcher *m, int32_t id, fd_item *item) {
    int32_t input = m->graph->nodes[id].input[0];
    item->kernel = FD_KERNEL_MATVEC;
    item->matmul[item->n_matmul++] = id;
    if (fd_is_norm_of_matmuls(m->graph, input)) item->norm = input;
    if (!match_silu(m, id, item) && !match_add(m, id, item)) match_siblings(m, id, item);
    return true;
}

/* ---- many rows ---- */

/* The next products, as long as they have the same input and type of weight. */
static bool match_matmuls(const fd_matcher *m, int32_t id, fd_item *item) {
    const fd_graph *graph = m->graph;
    item->kernel = FD_KERNEL_MATMULS;
    for (int32_t i = id; i < graph->n_node && item->n_matmul < FD_ITEM_MATMULS; i++) {
        if (graph->nodes[i].op != FD_OP_MATMUL) continue;
        if (graph->nodes[i].override || graph->nodes[i].input[0] != graph->nodes[id].input[0] ||
            weight_of(graph, i)->dtype != weight_of(graph, id)->dtype)
            break;
        item->matmul[item->n_matmul++] = i;
    }
    return item->n_matmul > 1;
}

static bool match_add_norm(const fd_matcher *m, int32_t id, fd_item *item) {
    const fd_node *add = &m->graph->nodes[id];
    int32_t i = id + 1;
    while (i < m->graph->n_node && !(fd_reads(m->graph, i, id) && fd_is_plain(m->graph, i, FD_OP_RMS_NORM))) i++;
    if (i == m->graph->n_node) return false;
    const fd_node *norm = &m->graph->nodes[i];
    item->kernel = FD_KERNEL_ADD_NORM;
    item->add = id;
    item->norm = i;
    return norm->n_dim == 1 && add->n_dim == 1 && norm->shape[0] == add->shape[0];
}

/* The sum of a whole that nothing else reads, and of a tensor known before. */
static bool match_gather_add(const fd_matcher *m, int32_t id, fd_item *item) {
    const fd_node *add = &m->graph->nodes[id];
    int32_t whole = add->input[0] > add->input[1] ? add->input[0] : add->input[1]; /* the later one */
    item->kernel = FD_KERNEL_GATHER_ADD;
    item->gather = whole;
    item->add = id;
    return fd_is_plain(m->graph, whole, FD_OP_GATHER) && fd_only_reader(m->graph, whole, FD_OP_ADD) == id;
}

/* From ROPE of q along scores, softmax and mix, whoever computes these, to both caches and ROPE of k. */
static bool match_rope_kv_write(const fd_matcher *m, int32_t id, fd_item *item) {
    const fd_graph *graph = m->graph;
    const fd_node *nodes = graph->nodes;
    int32_t scores = fd_reader_with(graph, id, FD_OP_ATTN_SCORES);
    int32_t softmax = scores < 0 ? -1 : fd_reader_with(graph, scores, FD_OP_ATTN_SOFTMAX);
    int32_t mix = softmax < 0 ? -1 : fd_reader_with(graph, softmax, FD_OP_ATTN_MIX);
    if (mix < 0) return false;
    int32_t cache_k = nodes[scores].input[1], cache_v = nodes[mix].input[1];
    if (!fd_is_plain(graph, cache_k, FD_OP_KV_WRITE) || !fd_is_plain(graph, cache_v, FD_OP_KV_WRITE) ||
        nodes[cache_k].row_offset != 0 || nodes[cache_v].row_offset != 0)
        return false;
    int32_t k_rope = nodes[cache_k].input[0];
    if (!fd_is_plain(graph, k_rope, FD_OP_ROPE) || k_rope == id) return false;
    const fd_node *k = &nodes[k_rope], *v = &nodes[cache_v];
    if (m->patterns & FD_MATCH_DROP_K && fd_only_reader(graph, k_rope, FD_OP_KV_WRITE) != cache_k) return false;
    item->kernel = FD_KERNEL_ROPE_KV_WRITE;
    item->q_rope = id;
    item->k_rope = k_rope;
    item->cache_k = cache_k;
    item->cache_v = cache_v;
    item->q = nodes[id].input[0];
    item->k = k->input[0];
    item->v = v->input[0];
    return nodes[id].shape[1] == k->shape[1] && k->shape[1] % 2 == 0 && v->shape[0] == k->shape[0] &&
           v->shape[1] == k->shape[1];
}

/* ---- attention ---- */

/* Scores and softmax that nothing but the mix at `id` needs, and the caches that these two read. */
static bool match_scores(const fd_graph *graph, int32_t id, fd_item *item) {
    const fd_node *nodes = graph->nodes;
    item->mix = id;
    item->softmax = nodes[id].input[0];
    if (!fd_is_plain(graph, id, FD_OP_ATTN_MIX) || !fd_is_plain(graph, item->softmax, FD_OP_ATTN_SOFTMAX) ||
        fd_only_reader(graph, item->softmax, FD_OP_ATTN_MIX) != id)
        return false;
    item->scores = nodes[item->softmax].input[0];
    if (!fd_is_plain(graph, item->scores, FD_OP_ATTN_SCORES) ||
        fd_only_reader(graph, item->scores, FD_OP_ATTN_SOFTMAX) != item->softmax)
        return false;
    item->cache_k = nodes[item->scores].input[1];
    item->cache_v = nodes[id].input[1];
    item->q = nodes[item->scores].input[0];
    return fd_is_plain(graph, item->cache_k, FD_OP_KV_WRITE) && fd_is_plain(graph, item->cache_v, FD_OP_KV_WRITE) &&
           nodes[item->cache_k].shape[0] == nodes[item->cache_v].shape[0] &&
           nodes[item->cache_k].shape[1] == nodes[item->cache_v].shape[1];
}

/* With it a ROPE of q that only the scores read, and both cache writes where only this attention reads the caches, with
 * a ROPE of k that only its cache write reads. */
static void match_before_scores(const fd_graph *graph, fd_item *item) {
    const fd_node *nodes = graph->nodes;
    if (fd_is_plain(graph, item->q, FD_OP_ROPE) && fd_only_reader(graph, item->q, FD_OP_ATTN_SCORES) >= 0) {
        item->q_rope = item->q;
        item->q = nodes[item->q].input[0];
    }
    if (fd_only_reader(graph, item->cache_k, FD_OP_ATTN_SCORES) != item->scores ||
        fd_only_reader(graph, item->cache_v, FD_OP_ATTN_MIX) != item->mix || nodes[item->cache_k].row_offset != 0 ||
        nodes[item->cache_v].row_offset != 0)
        return;
    item->k = nodes[item->cache_k].input[0];
    item->v = nodes[item->cache_v].input[0];
    if (fd_is_plain(graph, item->k, FD_OP_ROPE) && fd_only_reader(graph, item->k, FD_OP_KV_WRITE) >= 0) {
        item->k_rope = item->k;
        item->k = nodes[item->k].input[0];
    }
}

/* The exact kernels have no window, softcap, sinks or wide heads, and take both ROPEs and cache writes. */
static bool match_attn_decode(const fd_matcher *m, int32_t id, fd_item *item) {
    const fd_node *nodes = m->graph->nodes;
    if (!match_scores(m->graph, id, item)) return false;
    match_before_scores(m->graph, item);
    item->kernel = FD_KERNEL_ATTN_DECODE;
    return item->q_rope >= 0 && item->k_rope >= 0 && nodes[id].shape[1] <= FD_ATTENTION_MAX_HEAD_DIM &&
           nodes[item->scores].window == 0 && nodes[item->scores].softcap == 0.0f && nodes[item->softmax].weight[0] < 0;
}

static bool match_attention_f16(const fd_matcher *m, int32_t id, fd_item *item) {
    if (!match_scores(m->graph, id, item)) return false;
    item->kernel = m->patterns & FD_MATCH_ATTENTION_F16  ? FD_KERNEL_ATTENTION_F16
                   : m->patterns & FD_MATCH_ATTN_ROW_F16 ? FD_KERNEL_ATTN_ROW_F16
                                                         : FD_KERNEL_ATTN_DECODE_F16;
    if (item->kernel == FD_KERNEL_ATTN_DECODE_F16) match_before_scores(m->graph, item);
    return true;
}

/* ---- products by cuBLAS ---- */

static bool match_gemm(const fd_matcher *m, int32_t id, fd_item *item) {
    item->kernel = FD_KERNEL_GEMM_F16;
    item->matmul[item->n_matmul++] = id;
    return m->all_rows[id] && fd_is_plain(m->graph, id, FD_OP_MATMUL) && !fd_feeds_choice(m->graph, id);
}

/* A sum of which one summand is a product without a bias that nothing else reads. */
static bool match_gemm_add(const fd_matcher *m, int32_t id, fd_item *item) {
    const fd_node *add = &m->graph->nodes[id];
    int32_t product = add->input[0] > add->input[1] ? add->input[0] : add->input[1]; /* the later one */
    if (!m->all_rows[id] || !match_gemm(m, product, item)) return false;
    item->kernel = FD_KERNEL_GEMM_ADD_F16;
    item->add = id;
    return fd_only_reader(m->graph, product, FD_OP_ADD) == id && m->graph->nodes[product].weight[1] < 0;
}

const fd_pattern fd_patterns[] = {
    {FD_MATCH_MATVEC, FD_OP_MATMUL, false, match_matvec},
    {FD_MATCH_MATMULS, FD_OP_MATMUL, false, match_matmuls},
    {FD_MATCH_ADD_NORM, FD_OP_ADD, false, match_add_norm},
    {FD_MATCH_ROPE_KV_WRITE, FD_OP_ROPE, false, match_rope_kv_write},
    {FD_MATCH_ATTN_DECODE, FD_OP_ATTN_MIX, true, match_attn_decode},
    {FD_MATCH_ATTN_DECODE_F16 | FD_MATCH_ATTN_ROW_F16 | FD_MATCH_ATTENTION_F16, FD_OP_ATTN_MIX, true,
     match_attention_f16},
    {FD_MATCH_GATHER_ADD, FD_OP_ADD, true, match_gather_add},
    {FD_MATCH_GEMM_F16, FD_OP_ADD, true, match_gemm_add},
    {FD_MATCH_GEMM_F16, FD_OP_MATMUL, true, match_gemm},
};
const int fd_n_pattern = sizeof fd_patterns / sizeof *fd_patterns;
