/* Two classes set against each other: what one rounds that the other does not, and which kinds of tensors need it. */
#include "compare/replay/evidence_internal.h"

static tally need_of(const fd_evidence *e, const fd_class_case *wide, const fd_class_case *tight, int32_t node) {
    tally t = {0};
    for (int32_t p = 0; p < e->n_slot; p++) {
        int64_t at = (int64_t)node * e->n_slot + p;
        const fd_evidence_row *w = &wide->rows[at], *own = &tight->rows[at];
        if (w->z < 0 || own->z < 0 || e->graph->nodes[node].op == FD_OP_TOP_K) continue;
        if (!own->through && !(w->tau > MUCH_MORE * own->tau)) continue;
        t.rounded++;
        t.needed += !(own->left <= 1);
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
        need.n_products += rounded > 0 && is_product(nodes[i].op);
        need.n_products_depart += departs && is_product(nodes[i].op);
        need.n_products_fit += rounded > 0 && 2 * needed < rounded && is_product(nodes[i].op);
        need.n_attention_depart += departs && attention;
        need.n_depart += departs;
    }
    return need;
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
