/* Two classes set against each other: what one rounds that the other does not, and which kinds of tensors need it. */
#include "compare/bounds/dot_inputs.h"
#include "compare/infer/evidence_internal.h"

static tally need_of(const fd_evidence *e, const fd_class_case *wide, const fd_class_case *tight, int32_t node) {
    tally t = {0};
    for (int32_t p = 0; p < e->n_slot; p++) {
        int64_t at = (int64_t)node * e->n_slot + p;
        const fd_evidence_row *w = &wide->rows[at], *own = &tight->rows[at];
        if (w->z < 0 || own->z < 0 || e->graph->nodes[node].op == FD_OP_TOP_K) continue;
        bool copied = e->graph->nodes[node].op == FD_OP_KV_WRITE; /* one rounding, of which types differ by less */
        /* a class that repeats the cache's rounding has no more room for it, and explains what the other does not */
        const bool repeated = copied && w->z <= 1 && !(own->z <= 1);
        if (!own->through && !repeated && !(w->tau > (copied ? 2 : MUCH_MORE) * own->tau)) continue;
        t.rounded++;
        t.needed += copied && !own->through ? !(own->z <= 1) : !(own->left <= 1);
    }
    return t;
}

/* What a kernel of attention does in its own way: the cache that it reads, too. */
static bool in_attention(const fd_node *node) {
    return node->over_kv || of_attention(node->op) || node->op == FD_OP_KV_WRITE;
}

/* Layers without attention have outputs of another kind, which say nothing of how a kernel of attention rounds. */
static bool same_kind(const fd_evidence *e, int32_t a, int32_t b) {
    return e->kind[a] == e->kind[b] && e->through_attention[a] == e->through_attention[b];
}

static bool begins_kind(const fd_evidence *e, int32_t node) {
    for (int32_t i = e->kind[node]; i < node; i++)
        if (same_kind(e, i, node)) return false;
    return true;
}

fd_class_need fd_evidence_need(const fd_evidence *e, const fd_class_case *wide, const fd_class_case *tight) {
    const fd_node *nodes = e->graph->nodes;
    fd_class_need need = {0};
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        int32_t rounded = 0, needed = 0;
        if (!begins_kind(e, i)) continue;
        for (int32_t k = i; k < e->graph->n_node; k++) {
            if (!same_kind(e, k, i)) continue;
            tally t = need_of(e, wide, tight, k);
            rounded += t.rounded > 0;
            needed += t.rounded > 0 && 2 * t.needed >= t.rounded;
        }
        bool departs = needed > 0 && 2 * needed >= rounded, attention = in_attention(&nodes[i]);
        need.n_rounded += rounded;
        need.n_needed += needed;
        need.n_products += rounded > 0 && fd_dot_is_product(nodes[i].op);
        need.n_products_depart += departs && fd_dot_is_product(nodes[i].op);
        need.n_products_fit += rounded > 0 && 2 * needed < rounded && fd_dot_is_product(nodes[i].op);
        need.n_attention_depart += departs && attention;
        need.n_mix_depart += departs && nodes[i].op == FD_OP_ATTN_MIX;
        need.n_mix_fit += rounded > 0 && 2 * needed < rounded && nodes[i].op == FD_OP_ATTN_MIX;
        need.n_depart += departs;
    }
    return need;
}

/* Beside weights of binary32, as routers have them, the factors say nothing: they may have few bits anyway. */
static bool repeats_factors_of_all(const fd_evidence *e, const fd_numerics_class *tight, double u) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        const fd_node *node = &e->graph->nodes[i];
        if (node->op != FD_OP_MATMUL || node->layer < 0) continue;
        const fd_dot_type type = fd_dot_type_of(tight, node, &e->graph->weights[node->weight[0]], 0);
        if (type == FD_DOT_BF16 || ((type == FD_DOT_F16 || type == FD_DOT_TF32) && u <= 0x1p-11)) return false;
        n += type != FD_DOT_AS_IS;
    }
    return n > 0;
}

bool fd_evidence_factors_are_others(const fd_evidence *e, const fd_class_case *wide, const fd_class_case *tight,
                                    const fd_class_need *need) {
    const bool repeated = need->n_products > 0 && need->n_products_fit == need->n_products;
    return repeated && wide->numerics->u_in > 0 && repeats_factors_of_all(e, tight->numerics, wide->numerics->u_in);
}

/* Beyond the class's bounds at any of its rows; *n: it was judged. */
static bool is_beyond(const fd_class_case *c, int32_t node, int32_t *n) {
    const fd_evidence_row *rows = c->rows + (int64_t)node * c->evidence->n_slot;
    bool beyond = false, judged = false;
    for (int32_t p = 0; p < c->evidence->n_slot; p++) {
        judged |= rows[p].z >= 0;
        beyond |= rows[p].z >= 0 && !(rows[p].z <= 1);
    }
    *n += judged;
    return beyond;
}

bool fd_evidence_other_kernel(const fd_evidence *e, const fd_class_case *c, const fd_class_case *best) {
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        int32_t n = 0, n_depart = 0, unused = 0;
        if (e->kind[i] != i) continue;
        for (int32_t k = i; k < e->graph->n_node; k++)
            if (e->kind[k] == i) n_depart += is_beyond(c, k, &n) && !is_beyond(best, k, &unused);
        int32_t fewest = best->numerics->replays_inputs ? 1 : 2;
        if (n_depart >= fewest && 2 * n_depart >= n) return true;
    }
    return false;
}

/* ---- products that round by their shape ---- */

/* What a row shows of its product: 1, that factors were rounded, which the finest class does not do; 0, that they were not; -1: nothing. */
static int rounds_factors(const fd_evidence *e, const fd_class_case *c, int64_t row) {
    if (c->rows[row].z < 0 || e->finest[row].z < 0) return -1;
    if (e->finest[row].z <= 1) return 0;
    return c->rows[row].z <= 1 ? 1 : -1;
}

/* A bias may be added by another kernel, or by the product's own. */
static bool of_one_shape(const fd_graph *graph, const fd_node *a, const fd_node *b) {
    const fd_weight *of_a = &graph->weights[a->weight[0]], *of_b = &graph->weights[b->weight[0]];
    return of_a->n_row == of_b->n_row && of_a->n_col == of_b->n_col && (a->weight[1] < 0) == (b->weight[1] < 0);
}

/* Few of many positions: errors that happen to be small. */
enum { FEW_DISAGREE_OF = 8 };

bool fd_evidence_shapes_disagree(const fd_evidence *e, const fd_class_case *c) {
    const fd_node *nodes = e->graph->nodes;
    int32_t n = 0, n_disagree = 0;
    for (int32_t i = 0; i < e->graph->n_node && c->numerics->either; i++)
        for (int32_t j = i + 1; j < e->graph->n_node && nodes[i].op == FD_OP_MATMUL; j++) {
            if (nodes[j].op != FD_OP_MATMUL || e->n_way[i] + e->n_way[j] > 0) continue;
            if (!of_one_shape(e->graph, &nodes[i], &nodes[j])) continue;
            for (int32_t p = 0; p < e->n_slot; p++) {
                const int a = rounds_factors(e, c, (int64_t)i * e->n_slot + p),
                          b = rounds_factors(e, c, (int64_t)j * e->n_slot + p);
                n += a >= 0 && b >= 0;
                n_disagree += a >= 0 && b >= 0 && a != b;
            }
        }
    return FEW_DISAGREE_OF * n_disagree > n;
}

enum { FEWEST_ASKED = 3 };

bool fd_evidence_same_products(const fd_evidence *e, const fd_class_case *a, const fd_class_case *b) {
    int32_t n = 0;
    bool same = true;
    for (int32_t i = 0; i < e->graph->n_node && same; i++) {
        bool asked = false;
        if (e->graph->nodes[i].op != FD_OP_MATMUL || e->n_way[i] > 0) continue;
        for (int32_t p = 0; p < e->n_slot && same; p++) {
            const int64_t row = (int64_t)i * e->n_slot + p;
            if (a->rows[row].z < 0 || b->rows[row].z < 0) continue;
            asked = true;
            same = a->rows[row].error == b->rows[row].error;
        }
        n += asked;
    }
    return same && n >= FEWEST_ASKED;
}
