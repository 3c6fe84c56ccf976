/* Who computes each node of a fast pass, and where its results lie. Pure host code. */
#include <stdlib.h>
#include <string.h>

#include "engine/fast.h"

void fd_fast_mark_rows(const fd_graph *graph, bool *rows) {
    int32_t last = -1;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].layer >= 0) last = i;
    for (int32_t i = 0; i < graph->n_node; i++) rows[i] = i <= last;
}

/* ATTN_MIX right behind its softmax, and that behind its scores, so that nodes are shown in order. */
static bool fused_attention(const fd_graph *graph, int32_t mix, fd_item *item) {
    return graph->nodes[mix].op == FD_OP_ATTN_MIX && fd_match_fast_attention(graph, mix, item) &&
           item->attention.softmax == mix - 1 && item->attention.scores == mix - 2;
}

fd_code fd_fast_check(const fd_graph *graph, fd_error *err) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        fd_item item;
        bool attention = node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_SOFTMAX || node->op == FD_OP_ATTN_MIX;
        if (node->override && (attention || node->op == FD_OP_KV_WRITE))
            return fd_fail(err, FD_ERR_UNSUPPORTED,
                           "node %s: a fault computes it in place of its op, which fast numerics keep inside a kernel; "
                           "exact ones run it",
                           node->name);
        if (node->op == FD_OP_ATTN_MIX && !fused_attention(graph, i, &item))
            return fd_fail(err, FD_ERR_UNSUPPORTED,
                           "node %s: not the end of scores, softmax and mix in a row, which fast numerics compute as "
                           "one; exact ones run it",
                           node->name);
    }
    return FD_OK;
}

/* ---- who computes it ---- */

typedef struct planner {
    const fd_graph *graph;
    fd_fast_plan *plan;
    bool *rows;                     /* [n_node] as fd_fast_mark_rows */
    int32_t *at;                    /* [n_node] the node at whose turn it is computed */
    int32_t *last_real, *last_half; /* [n_node] turn of the last reader; -1 none */
} planner;

bool fd_fast_feeds_choice(const fd_graph *graph, int32_t id) {
    for (int32_t i = id + 1; i < graph->n_node; i++) {
        fd_op op = graph->nodes[i].op;
        if (op != FD_OP_SOFTMAX && op != FD_OP_TOP_K && op != FD_OP_EXPERT_WEIGHTS) continue;
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (graph->nodes[i].input[k] == id) return true;
    }
    return false;
}

static bool read_by(const fd_graph *graph, int32_t id, int32_t but) {
    for (int32_t i = id + 1; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (i != but && graph->nodes[i].input[k] == id) return true;
    return false;
}

static fd_fast_how gate_or_norm(fd_op op) {
    switch (op) {
    case FD_OP_RMS_NORM: return FD_FAST_BY_NORM;
    case FD_OP_SILU_MUL:
    case FD_OP_GELU_MUL:
    case FD_OP_SWIGLU_CLAMP: return FD_FAST_BY_GATE;
    default: return FD_FAST_BY_NODE;
    }
}

static void choose_products(planner *p) {
    for (int32_t i = 0; i < p->graph->n_node; i++) {
        const fd_node *node = &p->graph->nodes[i];
        if (node->op == FD_OP_MATMUL && !node->override && p->rows[i] && !fd_fast_feeds_choice(p->graph, i))
            p->plan->how[i] = FD_FAST_BY_PRODUCT;
    }
    for (int32_t i = 1; i < p->graph->n_node; i++) {
        const fd_node *node = &p->graph->nodes[i];
        int32_t other = node->input[0] == i - 1 ? node->input[1] : node->input[0];
        if (node->op != FD_OP_ADD || node->override || p->plan->how[i - 1] != FD_FAST_BY_PRODUCT) continue;
        if ((node->input[0] != i - 1 && node->input[1] != i - 1) || other == i - 1) continue;
        if (p->graph->nodes[i - 1].weight[1] >= 0 || read_by(p->graph, i - 1, i)) continue;
        p->plan->how[i] = FD_FAST_BY_PRODUCT_ADD;
        p->plan->how[i - 1] = FD_FAST_INSIDE;
        p->at[i - 1] = i;
    }
}

/* Which form a reader takes its inputs in. */
static bool reads_half(const planner *p, int32_t reader) {
    int how = p->plan->how[reader];
    return how == FD_FAST_BY_PRODUCT || (how == FD_FAST_INSIDE && p->graph->nodes[reader].op == FD_OP_MATMUL);
}

static void mark_read(planner *p, int32_t id, bool half, int32_t turn) {
    int32_t *last = half ? p->last_half : p->last_real;
    if (turn > last[id]) last[id] = turn;
}

static void find_readers(planner *p) {
    for (int32_t i = 0; i < p->graph->n_node; i++) p->last_real[i] = p->last_half[i] = -1;
    for (int32_t i = 0; i < p->graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t id = p->graph->nodes[i].input[k];
            if (id >= 0) mark_read(p, id, reads_half(p, i), p->at[i]);
        }
    mark_read(p, p->graph->n_node - 1, false, p->graph->n_node); /* the logits are read after all nodes */
}

static void choose_others(planner *p, bool batch) {
    for (int32_t i = 0; i < p->graph->n_node; i++) {
        const fd_node *node = &p->graph->nodes[i];
        fd_item item;
        if (node->op == FD_OP_KV_WRITE) p->plan->how[i] = FD_FAST_BY_KV_WRITE;
        if (fused_attention(p->graph, i, &item)) {
            p->plan->how[i] = FD_FAST_BY_ATTENTION;
            p->plan->how[item.attention.scores] = p->plan->how[item.attention.softmax] = FD_FAST_INSIDE;
            p->at[item.attention.scores] = p->at[item.attention.softmax] = i;
        }
    }
    for (int32_t i = 0; batch && i < p->graph->n_node; i++) {
        if (!fd_match_turn(p->graph, i) || read_by(p->graph, i + 1, i + 2)) continue; /* k after RoPE is not kept */
        p->plan->how[i] = FD_FAST_BY_TURN;
        for (int k = 1; k <= 3; k++) {
            p->plan->how[i + k] = FD_FAST_INSIDE;
            p->at[i + k] = i;
        }
    }
    if (batch) choose_products(p);
    find_readers(p);
    for (int32_t i = 0; i < p->graph->n_node; i++)
        if (p->plan->how[i] == FD_FAST_BY_NODE && !p->graph->nodes[i].override && p->last_half[i] >= 0)
            p->plan->how[i] = (uint8_t)gate_or_norm(p->graph->nodes[i].op);
}

/* ---- where it lies ---- */

/* Whether the result is kept in binary32: always, where only such a kernel computes it. */
static bool kept_real(const planner *p, int32_t i) {
    switch (p->plan->how[i]) {
    case FD_FAST_BY_NORM:
    case FD_FAST_BY_GATE:
    case FD_FAST_BY_ATTENTION: return p->last_real[i] >= 0 || p->last_half[i] < 0;
    case FD_FAST_BY_KV_WRITE:
    case FD_FAST_INSIDE: return false;
    default: return true;
    }
}

static int32_t take(int32_t *busy_until, int32_t *n_slot, int32_t turn, int32_t last) {
    int32_t slot = 0;
    while (slot < *n_slot && busy_until[slot] >= turn) slot++;
    if (slot == *n_slot) (*n_slot)++;
    busy_until[slot] = last > turn ? last : turn;
    return slot;
}

static void assign_slots(planner *p, int32_t *busy_real, int32_t *busy_half) {
    fd_fast_plan *plan = p->plan;
    for (int32_t i = 0; i < p->graph->n_node; i++) {
        plan->real.slot_of[i] = plan->half_of[i] = -1;
        if (plan->how[i] == FD_FAST_BY_PRODUCT_ADD) {
            /* The product is added in place, where nobody reads the other summand later. */
            const fd_node *node = &p->graph->nodes[i];
            int32_t other = node->input[0] == i - 1 ? node->input[1] : node->input[0], slot = plan->real.slot_of[other];
            if (slot >= 0 && p->last_real[other] == i && p->rows[other]) {
                plan->real.slot_of[i] = slot;
                busy_real[slot] = p->last_real[i] > i ? p->last_real[i] : i;
            }
        }
        if (kept_real(p, i) && plan->real.slot_of[i] < 0)
            plan->real.slot_of[i] = take(busy_real, &plan->real.n_slot, i, p->last_real[i]);
        if (p->last_half[i] >= 0 && plan->how[i] != FD_FAST_INSIDE)
            plan->half_of[i] = take(busy_half, &plan->n_half, i, p->last_half[i]);
    }
}

fd_code fd_fast_plan_make(const fd_graph *graph, bool batch, fd_fast_plan *out, fd_error *err) {
    size_t n = (size_t)graph->n_node;
    planner p = {.graph = graph, .plan = out};
    *out = (fd_fast_plan){.real.slot_of = calloc(n, sizeof *out->real.slot_of),
                          .how = calloc(n, sizeof *out->how),
                          .half_of = calloc(n, sizeof *out->half_of)};
    int32_t *work = calloc(n, 5 * sizeof *work);
    p.rows = calloc(n, sizeof *p.rows);
    fd_code code = FD_OK;
    if (!out->real.slot_of || !out->how || !out->half_of || !work || !p.rows) {
        code = fd_fail(err, FD_ERR_MEMORY, "plan: out of memory for %zu nodes", n);
        fd_fast_plan_free(out);
    } else {
        p.at = work;
        p.last_real = work + n;
        p.last_half = work + 2 * n;
        for (int32_t i = 0; i < graph->n_node; i++) p.at[i] = i;
        fd_fast_mark_rows(graph, p.rows);
        choose_others(&p, batch);
        assign_slots(&p, work + 3 * n, work + 4 * n);
    }
    free(work);
    free(p.rows);
    return code;
}

void fd_fast_plan_free(fd_fast_plan *plan) {
    fd_plan_free(&plan->real);
    free(plan->how);
    free(plan->half_of);
    memset(plan, 0, sizeof *plan);
}
