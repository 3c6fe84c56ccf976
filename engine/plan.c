#include "engine/plan.h"

#include <stdlib.h>
#include <string.h>

int fd_item_reads(const fd_graph *graph, const fd_item *item, int32_t nodes[FD_ITEM_EDGES]) {
    int n = 0;
    if (item->kind == FD_ITEM_NODE) {
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (graph->nodes[item->node].input[k] >= 0) nodes[n++] = graph->nodes[item->node].input[k];
    } else if (item->kind == FD_ITEM_MATVEC) {
        int32_t first = item->matvec.norm >= 0 ? item->matvec.norm : item->matvec.matmul[0];
        nodes[n++] = graph->nodes[first].input[0];
        if (item->matvec.add >= 0) {
            const fd_node *add = &graph->nodes[item->matvec.add];
            nodes[n++] = add->input[0] == item->matvec.matmul[0] ? add->input[1] : add->input[0];
        }
    } else if (item->kind == FD_ITEM_PRODUCTS) {
        nodes[n++] = graph->nodes[item->matvec.matmul[0]].input[0];
    } else if (item->kind == FD_ITEM_ADD_NORM) {
        for (int k = 0; k < 2; k++) nodes[n++] = graph->nodes[item->node].input[k];
    } else if (item->kind == FD_ITEM_TURN) {
        nodes[n++] = graph->nodes[item->node].input[0];
        nodes[n++] = graph->nodes[item->node + 1].input[0];
        nodes[n++] = graph->nodes[item->node + 3].input[0];
    } else {
        nodes[n++] = fd_item_query(graph, item);
        if (item->attention.cache_k >= 0) {
            nodes[n++] = fd_item_key(graph, item);
            nodes[n++] = fd_item_value(graph, item);
        }
    }
    return n;
}

int fd_item_writes(const fd_item *item, int32_t nodes[FD_ITEM_EDGES]) {
    int n = 0;
    if (item->kind == FD_ITEM_NODE)
        nodes[n++] = item->node;
    else if (item->kind == FD_ITEM_ADD_NORM)
        nodes[n++] = item->node, nodes[n++] = item->matvec.norm;
    else if (item->kind == FD_ITEM_TURN)
        for (int i = 0; i < 4; i++) nodes[n++] = item->node + i;
    else if (item->kind == FD_ITEM_PRODUCTS)
        for (int i = 0; i < item->matvec.n_matmul; i++) nodes[n++] = item->matvec.matmul[i];
    else if (item->kind == FD_ITEM_ATTENTION)
        nodes[n++] = item->attention.mix;
    else if (item->matvec.silu >= 0)
        nodes[n++] = item->matvec.silu;
    else if (item->matvec.add >= 0)
        nodes[n++] = item->matvec.add;
    else
        for (int i = 0; i < item->matvec.n_matmul; i++) nodes[n++] = item->matvec.matmul[i];
    return n;
}

/* The item that reads the node last; INT32_MAX for the logits, which are read after all items. */
static int32_t last_reader(const fd_graph *graph, const fd_plan *plan, int32_t from, int32_t node) {
    int32_t last = node == graph->n_node - 1 ? INT32_MAX : from;
    for (int32_t i = from + 1; i < plan->n_item && last != INT32_MAX; i++) {
        int32_t reads[FD_ITEM_EDGES];
        int n = fd_item_reads(graph, &plan->items[i], reads);
        for (int k = 0; k < n; k++)
            if (reads[k] == node) last = i;
    }
    return last;
}

/* A slot is free again only after the item that reads it last: a kernel never writes over what it reads. */
static fd_code assign_slots(const fd_graph *graph, fd_plan *plan, fd_error *err) {
    int32_t *busy_until = malloc(sizeof *busy_until * (size_t)graph->n_node);
    if (!busy_until) return fd_fail(err, FD_ERR_MEMORY, "plan: out of memory for %d nodes", graph->n_node);
    for (int32_t i = 0; i < plan->n_item; i++) {
        int32_t writes[FD_ITEM_EDGES];
        int n = fd_item_writes(&plan->items[i], writes);
        for (int k = 0; k < n; k++) {
            if (graph->nodes[writes[k]].op == FD_OP_KV_WRITE) continue;
            int32_t slot = 0;
            while (slot < plan->n_slot && busy_until[slot] >= i) slot++;
            if (slot == plan->n_slot) plan->n_slot++;
            plan->slot_of[writes[k]] = slot;
            busy_until[slot] = last_reader(graph, plan, i, writes[k]);
        }
    }
    free(busy_until);
    return FD_OK;
}

static fd_code make(const fd_graph *graph, unsigned fuse, bool fast, fd_plan *out, fd_error *err) {
    size_t n = (size_t)graph->n_node;
    bool *covered = calloc(n, sizeof *covered);
    *out = (fd_plan){.items = calloc(n, sizeof *out->items), .slot_of = malloc(sizeof *out->slot_of * n)};
    if (!covered || !out->items || !out->slot_of) {
        free(covered);
        fd_plan_free(out);
        return fd_fail(err, FD_ERR_MEMORY, "plan: out of memory for %zu nodes", n);
    }
    memset(out->slot_of, -1, sizeof *out->slot_of * n);
    out->n_item = fd_fuse(graph, fuse, fast, out->items, covered);
    free(covered);
    fd_code code = assign_slots(graph, out, err);
    if (code != FD_OK) fd_plan_free(out);
    return code;
}

fd_code fd_plan_make(const fd_graph *graph, bool fuse, fd_plan *out, fd_error *err) {
    return make(graph, fuse ? FD_FUSE_ATTENTION | FD_FUSE_TOKEN : 0, false, out, err);
}

fd_code fd_plan_make_fast(const fd_graph *graph, bool fuse, fd_plan *out, fd_error *err) {
    return make(graph, FD_FUSE_ATTENTION | (fuse ? FD_FUSE_TOKEN : 0), true, out, err);
}

fd_code fd_plan_make_rows(const fd_graph *graph, fd_plan *out, fd_error *err) {
    return make(graph, FD_FUSE_ROWS | FD_FUSE_TURN, false, out, err);
}

fd_code fd_plan_make_batch(const fd_graph *graph, fd_plan *out, fd_error *err) {
    return make(graph, FD_FUSE_ATTENTION | FD_FUSE_ROWS, false, out, err);
}

bool fd_plan_batches(const fd_graph *graph, const fd_plan *plan) {
    for (int32_t i = 0; i < plan->n_item; i++) {
        if (plan->items[i].kind != FD_ITEM_NODE) continue;
        const fd_node *node = &graph->nodes[plan->items[i].node];
        if (node->override || node->over_kv || node->op == FD_OP_ROPE || node->op == FD_OP_KV_WRITE ||
            node->op == FD_OP_ATTN_MIX)
            return false;
    }
    return true;
}

void fd_plan_free(fd_plan *plan) {
    free(plan->items);
    free(plan->slot_of);
    memset(plan, 0, sizeof *plan);
}

void fd_mark_cache_feeders(const fd_graph *graph, bool *feeds) {
    memset(feeds, 0, sizeof *feeds * (size_t)graph->n_node);
    for (int32_t i = graph->n_node - 1; i >= 0; i--) {
        const fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_KV_WRITE) feeds[i] = true;
        for (int k = 0; k < FD_MAX_INPUTS && feeds[i]; k++)
            if (node->input[k] >= 0) feeds[node->input[k]] = true;
    }
}
