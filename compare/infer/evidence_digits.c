/* What the digits of the recorded values say of where their engine rounds. */
#include "compare/attribute/typical.h"
#include "compare/bounds/dot_inputs.h"
#include "compare/infer/evidence_internal.h"

/* Of an engine that rounds all the way, two in three logits are others, and half of a layer's outputs. */
#define NEARLY_ALL 0.95

int32_t fd_first_of_logits(const fd_graph *graph) {
    int32_t i = graph->n_node - 1;
    while (i > 0 && graph->nodes[i].op != FD_OP_MATMUL && graph->nodes[i].layer < 0) i--;
    return graph->nodes[i].op == FD_OP_MATMUL && graph->nodes[i].layer < 0 ? i : graph->n_node - 1;
}

fd_storage fd_evidence_storage(const fd_evidence *e, const fd_numerics_class *numerics) {
    bool bf16 = numerics->u_out > 0x1p-11;
    fd_storage s = {.digits = bf16 ? BF16_DIGITS : F16_DIGITS};
    const int32_t logits = fd_first_of_logits(e->graph);
    for (int32_t i = 0; i < logits; i++) {
        if (is_copy(&e->graph->nodes[i]) || !e->seen[i]) continue;
        s.n_seen++;
        s.n_wide += e->wide[2 * i + bf16];
    }
    /* engines of 16-bit tensors give logits in binary32 */
    const bool others_are_narrow = s.n_seen > 0 && s.n_wide == 0;
    for (int32_t i = logits; i < e->graph->n_node && !others_are_narrow; i++) {
        if (!e->seen[i]) continue;
        s.n_seen++;
        s.n_wide += e->wide[2 * i + bf16];
    }
    if (numerics->u_out <= 0x1p-24) s.n_wide = 0;
    return s;
}

bool fd_evidence_cache_speaks_against(const fd_evidence *e, const fd_class_case *c) {
    int32_t n = 0, n_wide = 0, bf16 = c->numerics->u_kv > 0x1p-11;
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        if (!e->stored[i] || e->graph->nodes[i].op != FD_OP_KV_WRITE) continue;
        n++;
        n_wide += e->wide[2 * i + bf16];
    }
    const bool of_binary32 = c->numerics->u_out <= 0x1p-24;                   /* else its values show it */
    if (c->numerics->sums_in_turn && fd_case_leaves_nothing(c)) return false; /* its kernel reads the cache so */
    if (n == 0 && (!of_binary32 || fd_class_rounds_to_steps(c->numerics))) return false;
    return c->numerics->u_kv > 0x1p-24 && !c->rounds_products && (n == 0 || 2 * n_wide > n);
}

bool fd_evidence_shows_f16_cache(const fd_evidence *e) {
    for (int32_t i = 0; i < e->graph->n_node; i++)
        if (e->graph->nodes[i].op == FD_OP_KV_WRITE && e->seen[i] && !e->wide[2 * i]) return true;
    return false;
}

bool fd_evidence_stores_f16_cache(const fd_evidence *e) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        if (e->graph->nodes[i].op != FD_OP_KV_WRITE || !e->seen[i]) continue;
        if (e->stored[i] || e->wide[2 * i]) return false;
        n++;
    }
    return n > 0;
}

bool fd_evidence_refutes_table(const fd_evidence *e, const fd_numerics_class *numerics) {
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        const fd_node *node = &e->graph->nodes[i];
        if (node->op == FD_OP_GELU && fd_gelu_is_table(numerics, node) && e->stored[i] && e->wide[2 * i]) return true;
    }
    return false;
}

/* Of two layers or more: an engine keeps that tensor so. A table of GELU in binary16 is one of other classes. */
static bool is_kept_in_16_bits(const fd_evidence *e, int32_t kind, int32_t bf16) {
    int32_t n = 0;
    for (int32_t i = kind; i < e->graph->n_node; i++) {
        if (e->kind[i] != kind || !e->seen[i]) continue;
        if (e->wide[2 * i + bf16]) return false;
        n++;
    }
    return n > 1;
}

bool fd_evidence_nothing_is_narrow(const fd_evidence *e, const fd_numerics_class *numerics) {
    const int32_t bf16 = numerics->u_shown > 0x1p-11;
    int32_t n = 0, n_op = 0;
    bool narrow[FD_OP_COUNT] = {false};
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        const fd_node *node = &e->graph->nodes[i];
        if (!e->stored[i] || node->layer < 0) continue;
        const bool product = fd_dot_is_product(node->op);
        if (product && !e->wide[2 * i + bf16]) return false;
        n += product;
        const bool told = product || narrow[node->op] || is_copy(node) || node->op == FD_OP_GELU;
        if (!told && is_kept_in_16_bits(e, e->kind[i], bf16)) narrow[node->op] = true, n_op++;
    }
    return n > 1 && n_op < 2; /* of one op it is a bug's */
}

/* Of the rows that are kept of a node binary32 explains all. */
static bool is_of_binary32(const fd_evidence *e, int32_t node) {
    for (int32_t p = 0; p < e->n_slot; p++)
        if (!(e->finest[(int64_t)node * e->n_slot + p].z <= 1)) return false;
    return true;
}

int32_t fd_evidence_n_one_rounding(const fd_evidence *e) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->graph->n_node; i++) {
        if (!e->seen[i] || is_copy(&e->graph->nodes[i])) continue;
        const bool wide = e->wide[2 * i] && e->wide[2 * i + 1];
        const bool once = !wide && (double)e->n_rounded[i] >= NEARLY_ALL * (double)e->n_value[i];
        if (!once && !(wide && is_of_binary32(e, i))) return 0;
        n += once && e->n_way[i] >= FD_LONG_SPAN;
    }
    return n;
}
