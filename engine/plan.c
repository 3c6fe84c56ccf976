#include "engine/plan.h"

#include <stdlib.h>
#include <string.h>

#include "engine/match.h"
#include "engine/recurrent.h"
#include "engine/split.h"

/* What each kind of pass may fuse. */
static const struct policy {
    unsigned patterns;
    bool fast;
} policies[FD_PLAN_KIND_COUNT] = {
    [FD_PLAN_NODES] = {0, false},
    [FD_PLAN_ROWS] = {FD_MATCH_MATMULS | FD_MATCH_ADD_NORM | FD_MATCH_ROPE_KV_WRITE, false},
    [FD_PLAN_STEP] = {FD_MATCH_ATTN_DECODE | FD_MATCH_MATVEC | FD_MATCH_GATHER_ADD, false},
    [FD_PLAN_BATCH] = {FD_MATCH_ATTN_DECODE | FD_MATCH_MATMULS | FD_MATCH_ADD_NORM, false},
    [FD_PLAN_FAST_NODES] = {FD_MATCH_ATTN_ROW_F16 | FD_MATCH_IN_ORDER, true},
    [FD_PLAN_FAST_ROWS] = {FD_MATCH_ATTENTION_F16 | FD_MATCH_ROPE_KV_WRITE | FD_MATCH_DROP_K | FD_MATCH_GEMM_F16 |
                               FD_MATCH_IN_ORDER,
                           true},
    [FD_PLAN_FAST_STEP] = {FD_MATCH_ATTN_DECODE_F16 | FD_MATCH_MATVEC | FD_MATCH_GATHER_ADD, true},
    [FD_PLAN_FAST_BATCH] = {FD_MATCH_ATTN_DECODE_F16 | FD_MATCH_MATMULS | FD_MATCH_ADD_NORM, true},
};

/* ---- rows ---- */

/* Exact: what a cache or a kept state is made from, which later positions need. Fast: everything up to the last layer's end, whose
 * kernels take all rows at once. */
static void mark_all_rows(const fd_graph *graph, bool fast, bool *all_rows) {
    bool in_layers = false;
    for (int32_t i = graph->n_node - 1; i >= 0; i--) {
        const fd_node *node = &graph->nodes[i];
        in_layers = in_layers || node->layer >= 0;
        if (fast ? in_layers : node->op == FD_OP_KV_WRITE || fd_recurrent_keeps(graph, node)) all_rows[i] = true;
        for (int k = 0; k < FD_MAX_INPUTS && all_rows[i]; k++)
            if (node->input[k] >= 0) all_rows[node->input[k]] = true;
    }
}

/* ---- types of results ---- */

/* The item that reads each node last, by type; -1: none. The logits are read after all items. */
static void find_last_readers(const fd_plan *plan, int32_t *const last[FD_RESULT_COUNT]) {
    size_t bytes = sizeof **last * (size_t)plan->graph->n_node;
    for (int t = 0; t < FD_RESULT_COUNT; t++) memset(last[t], -1, bytes);
    for (int32_t i = 0; i < plan->n_item; i++)
        for (int k = 0; k < plan->items[i].n_read; k++)
            last[plan->items[i].reads[k].type][plan->items[i].reads[k].node] = i;
    last[FD_REAL][plan->graph->n_node - 1] = INT32_MAX;
}

bool fd_op_leaves_half(fd_op op) {
    return op == FD_OP_RMS_NORM || op == FD_OP_SILU_MUL || op == FD_OP_GELU_MUL || op == FD_OP_SWIGLU_CLAMP;
}

/* Whether the item's kernel leaves binary16 itself. */
static bool leaves_half(const fd_graph *graph, const fd_item *item) {
    const fd_node *leading = &graph->nodes[item->node];
    for (int r = 0; r < item->n_read && leading->op == FD_OP_GATHER; r++)
        if (item->reads[r].type == FD_HALF) return true;
    return item->kernel == FD_KERNEL_ATTENTION_F16 ||
           (item->kernel == FD_KERNEL_OP && fd_op_leaves_half(leading->op) && !leading->override);
}

/* A part that its kernel leaves in binary16 is gathered so: the kernel is the one that it is where nothing is split. */
static void gather_halves(fd_plan *plan, int32_t *const last[FD_RESULT_COUNT]) {
    for (int32_t i = 1; i < plan->n_item; i++) {
        fd_item *item = &plan->items[i];
        const fd_node *node = &plan->graph->nodes[item->node];
        bool pairs = node->shape[node->n_dim - 1] % 2 == 0; /* two go as one; shares are of eight, or of heads */
        if (node->op != FD_OP_GATHER || last[FD_HALF][node->id] < 0 || !pairs) continue;
        int32_t by = i - 1; /* the part's item, which stands where its node does or, fused, before it */
        while (by > 0 && plan->items[by].writes[0].node != node->id - 1) by--;
        if (!leaves_half(plan->graph, &plan->items[by])) continue;
        item->n_read = 0;
        if (last[FD_REAL][node->id] >= 0) item->reads[item->n_read++] = (fd_edge){node->id - 1, FD_REAL};
        item->reads[item->n_read++] = (fd_edge){node->id - 1, FD_HALF};
    }
}

/* A result is kept in the types that are read. What a kernel leaves in binary16 itself need not be there in binary32. */
static void choose_types(const fd_graph *graph, fd_item *item, int32_t *const last[FD_RESULT_COUNT]) {
    const bool leaves = leaves_half(graph, item);
    fd_edge writes[FD_ITEM_EDGES] = {0};
    int n = 0;
    for (int k = 0; k < item->n_write; k++) {
        int32_t node = item->writes[k].node;
        bool half = last[FD_HALF][node] >= 0;
        if (!leaves || !half || last[FD_REAL][node] >= 0) writes[n++] = (fd_edge){node, FD_REAL};
        if (half) writes[n++] = (fd_edge){node, FD_HALF};
    }
    memcpy(item->writes, writes, sizeof writes);
    item->n_write = n;
}

/* ---- slots ---- */

/* The slot of the other summand, where the product is added in place: this item is its last reader. */
static int32_t slot_in_place(const fd_plan *plan, int32_t i, const fd_edge *write,
                             int32_t *const last[FD_RESULT_COUNT]) {
    const fd_item *item = &plan->items[i];
    if (item->kernel != FD_KERNEL_GEMM_ADD_F16 || write->type != FD_REAL) return -1;
    for (int k = 0; k < item->n_read; k++)
        if (item->reads[k].type == FD_REAL && last[FD_REAL][item->reads[k].node] == i)
            return plan->slot_of[FD_REAL][item->reads[k].node];
    return -1;
}

/* A slot is free again only after the item that reads it last: a kernel never writes over what it reads. What is
 * gathered other GPUs may write while this one is at the gather before: the slot must be free since then. And what is
 * sent is put together while the item that sends it still runs. */
static void assign_slots(fd_plan *plan, int32_t *const last[FD_RESULT_COUNT],
                         int32_t *const busy_until[FD_RESULT_COUNT]) {
    int32_t last_gather = 0; /* a pass begins with one */
    for (int32_t i = 0; i < plan->n_item; i++) {
        const fd_node *node = &plan->graph->nodes[plan->items[i].node];
        int32_t free_since = node->op == FD_OP_GATHER            ? last_gather - 1
                             : i > 0 && plan->items[i - 1].sends ? i - 2
                                                                 : i - 1;
        if (plan->items[i].kernel == FD_KERNEL_GATHER_ADD || (node->op == FD_OP_GATHER && node->input[0] >= 0))
            last_gather = i;
        for (int k = 0; k < plan->items[i].n_write; k++) {
            const fd_edge *write = &plan->items[i].writes[k];
            fd_result type = write->type;
            if (plan->graph->nodes[write->node].op == FD_OP_KV_WRITE) continue;
            int32_t slot = slot_in_place(plan, i, write, last);
            if (slot < 0)
                for (slot = 0; slot < plan->n_slot[type] && busy_until[type][slot] > free_since;) slot++;
            if (slot == plan->n_slot[type]) plan->n_slot[type]++;
            plan->slot_of[type][write->node] = slot;
            busy_until[type][slot] = last[type][write->node] > i ? last[type][write->node] : i;
        }
    }
}

/* ---- several GPUs ---- */

/* The gather that an item is, or begins with; -1: none. */
static int32_t gathered_by(const fd_graph *graph, const fd_item *item) {
    const fd_node *node = &graph->nodes[item->node];
    if (item->kernel == FD_KERNEL_GATHER_ADD) return item->gather;
    return node->op == FD_OP_GATHER && node->input[0] >= 0 ? item->node : -1;
}

/* Which kernels of one row send their result's elements as they finish them: where that is all that they leave. */
static void mark_sends(fd_plan *plan) {
    for (int32_t i = 0; i + 1 < plan->n_item; i++) {
        fd_item *item = &plan->items[i];
        const fd_item *next = item + 1;
        int32_t gather = gathered_by(plan->graph, next);
        if (gather < 0 || item->n_write != 1 || item->writes[0].node != gather - 1) continue;
        bool adds = next->kernel == FD_KERNEL_GATHER_ADD;
        if (item->kernel == FD_KERNEL_MATVEC)
            item->sends = !adds || (item->silu < 0 && item->add < 0);
        else
            item->sends = item->kernel == FD_KERNEL_ATTN_DECODE && !adds;
        item->sent_sum = adds ? next->add : -1;
    }
}

/* ---- a plan ---- */

static fd_code allocate(fd_plan *plan, bool **covered, int32_t **work, fd_error *err) {
    size_t n = (size_t)plan->graph->n_node;
    plan->items = calloc(n, sizeof *plan->items);
    plan->all_rows = calloc(n, sizeof *plan->all_rows);
    bool good = plan->items && plan->all_rows;
    for (int t = 0; t < FD_RESULT_COUNT; t++) {
        plan->slot_of[t] = malloc(n * sizeof **plan->slot_of);
        good = good && plan->slot_of[t];
        if (plan->slot_of[t]) memset(plan->slot_of[t], -1, n * sizeof **plan->slot_of);
    }
    *covered = calloc(n, sizeof **covered);
    *work = calloc(n, 2 * FD_RESULT_COUNT * sizeof **work);
    if (good && *covered && *work) return FD_OK;
    return fd_fail(err, FD_ERR_MEMORY, "plan: out of memory for %zu nodes", n);
}

/* Observers see the passes of single nodes: elsewhere what they alone want is not gathered, or not before it is shown. */
static bool is_for_observers(const fd_graph *graph, int32_t id, fd_plan_kind kind) {
    return fd_split_for_observers(&graph->nodes[id]) && kind != FD_PLAN_NODES;
}

fd_code fd_plan_make(const fd_graph *graph, fd_plan_kind kind, fd_plan *out, fd_error *err) {
    fd_matcher matcher = {.graph = graph, .patterns = policies[kind].patterns};
    int32_t *work = NULL, *last[FD_RESULT_COUNT], *busy_until[FD_RESULT_COUNT];
    *out = (fd_plan){.graph = graph};
    fd_code code = allocate(out, &matcher.covered, &work, err);
    if (code == FD_OK) {
        for (int t = 0; t < FD_RESULT_COUNT; t++) {
            last[t] = work + t * graph->n_node;
            busy_until[t] = work + (FD_RESULT_COUNT + t) * graph->n_node;
        }
        mark_all_rows(graph, policies[kind].fast, out->all_rows);
        matcher.all_rows = out->all_rows;
        fd_match_begin(&matcher);
        for (int32_t i = 0; i < graph->n_node; i++)
            if (!is_for_observers(graph, i, kind)) out->n_item += fd_match(&matcher, i, &out->items[out->n_item]);
        mark_sends(out);
        find_last_readers(out, last);
        gather_halves(out, last);
        find_last_readers(out, last);
        for (int32_t i = 0; i < out->n_item; i++) choose_types(graph, &out->items[i], last);
        assign_slots(out, last, busy_until);
    } else {
        fd_plan_free(out);
    }
    free(matcher.covered);
    free(work);
    return code;
}

void fd_plan_free(fd_plan *plan) {
    free(plan->items);
    free(plan->all_rows);
    for (int t = 0; t < FD_RESULT_COUNT; t++) free(plan->slot_of[t]);
    memset(plan, 0, sizeof *plan);
}

void fd_plan_mark_int8(fd_plan *plan, const bool *int8) {
    for (int32_t i = 0; i < plan->n_item; i++) {
        fd_item *item = &plan->items[i];
        item->int8 = int8[item->n_matmul > 0 ? item->matmul[0] : item->node];
    }
}

bool fd_plan_batches(const fd_plan *plan) {
    for (int32_t i = 0; i < plan->n_item; i++) {
        const fd_node *node = &plan->graph->nodes[plan->items[i].node];
        if (plan->items[i].n_member > 1) continue;
        if (node->override || node->over_kv || node->op == FD_OP_ROPE || node->op == FD_OP_KV_WRITE ||
            node->op == FD_OP_ATTN_MIX || node->op == FD_OP_ADD_POSITION || node->op == FD_OP_ATTN_TEMPERATURE)
            return false;
    }
    return true;
}

fd_code fd_plan_check_fast(const fd_graph *graph, fd_error *err) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_KV_WRITE && !fd_node_is_kv_cache(node))
            return fd_fail(err, FD_ERR_UNSUPPORTED,
                           "node %s: rows that a state is made of, which fast numerics would round to binary16; exact "
                           "numerics run it",
                           node->name);
        bool attention = node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_SOFTMAX || node->op == FD_OP_ATTN_MIX;
        if (node->override && (attention || node->op == FD_OP_KV_WRITE))
            return fd_fail(err, FD_ERR_UNSUPPORTED,
                           "node %s: a fault replaces its op, which fast numerics compute inside a kernel; exact "
                           "numerics run it",
                           node->name);
        if (node->op == FD_OP_ATTN_MIX && !fd_match_attention_f16(graph, i))
            return fd_fail(err, FD_ERR_UNSUPPORTED,
                           "node %s: not the end of scores, softmax and mix in a row, which fast numerics compute as "
                           "one; exact numerics run it",
                           node->name);
    }
    return FD_OK;
}
