/* plan_check [--slots] MODEL.gguf…: the plans of the decode step and of a fast pass (engine/plan.h, engine/fast.h), which need no
 * device.
 *
 *   every tensor is computed once, after what it is made from, and kept until its last reader
 *   no two results that are needed at the same time share a slot
 *   with --slots nothing else, for models of any shape; without, of plain ones:
 *   a plain layer is five items; a graph that a fault has changed is fused only where the pattern still holds */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "engine/fast.h"

static int n_failed;

static void expect(bool holds, const char *path, const char *what) {
    if (holds) return;
    printf("FAIL %s: %s\n", path, what);
    n_failed++;
}

/* Runs the plan with node ids in place of tensors: a slot remembers whose tensor it holds. */
static bool simulate(const fd_graph *graph, const fd_plan *plan) {
    int32_t *holds = malloc(sizeof *holds * (size_t)(plan->n_slot + 1));
    if (!holds) exit(1);
    bool good = true;
    for (int32_t s = 0; s < plan->n_slot; s++) holds[s] = -1;
    for (int32_t i = 0; i < plan->n_item && good; i++) {
        int32_t reads[FD_ITEM_EDGES], writes[FD_ITEM_EDGES];
        int n_read = fd_item_reads(graph, &plan->items[i], reads), n_write = fd_item_writes(&plan->items[i], writes);
        for (int k = 0; k < n_read; k++) {
            if (graph->nodes[reads[k]].op == FD_OP_KV_WRITE) continue;
            int32_t slot = plan->slot_of[reads[k]];
            good = good && slot >= 0 && holds[slot] == reads[k];
            for (int w = 0; w < n_write; w++)
                good = good && slot != plan->slot_of[writes[w]]; /* not over what it reads */
        }
        for (int w = 0; w < n_write; w++)
            if (plan->slot_of[writes[w]] >= 0) holds[plan->slot_of[writes[w]]] = writes[w];
    }
    int32_t last = plan->slot_of[graph->n_node - 1];
    good = good && last >= 0 && holds[last] == graph->n_node - 1;
    free(holds);
    return good;
}

static int count(const fd_plan *plan, fd_item_kind kind) {
    int n = 0;
    for (int32_t i = 0; i < plan->n_item; i++) n += plan->items[i].kind == kind;
    return n;
}

static void nothing(const struct fd_op_args *args) {
    (void)args;
}

/* Slots in binary32 and in binary16 of a fast plan, likewise. */
typedef struct holdings {
    const fd_graph *graph;
    const fd_fast_plan *plan;
    int32_t *real, *half;
} holdings;

static bool holds_real(const holdings *h, int32_t id) {
    int32_t slot = h->plan->real.slot_of[id];
    return h->graph->nodes[id].op == FD_OP_KV_WRITE || (slot >= 0 && h->real[slot] == id);
}

static bool holds_half(const holdings *h, int32_t id) {
    int32_t slot = h->plan->half_of[id];
    return slot >= 0 && h->half[slot] == id;
}

/* Whether what node i reads is there, at the turn at which it is computed. */
static bool finds_inputs(const holdings *h, int32_t i) {
    const fd_node *nodes = h->graph->nodes, *node = &nodes[i];
    switch ((fd_fast_how)h->plan->how[i]) {
    case FD_FAST_INSIDE: return true;
    case FD_FAST_BY_PRODUCT: return holds_half(h, node->input[0]);
    case FD_FAST_BY_PRODUCT_ADD: {
        int32_t other = node->input[0] == i - 1 ? node->input[1] : node->input[0];
        return holds_half(h, nodes[i - 1].input[0]) && holds_real(h, other);
    }
    case FD_FAST_BY_TURN:
        return holds_real(h, node->input[0]) && holds_real(h, nodes[i + 1].input[0]) &&
               holds_real(h, nodes[i + 3].input[0]);
    case FD_FAST_BY_ATTENTION: return holds_real(h, nodes[nodes[node->input[0]].input[0]].input[0]);
    default:
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (node->input[k] >= 0 && !holds_real(h, node->input[k])) return false;
        return true;
    }
}

/* Whether node i would be written over what it reads; a product added in place is meant to be. */
static bool spoils_inputs(const holdings *h, int32_t i) {
    int32_t own = h->plan->real.slot_of[i];
    if (h->plan->how[i] == FD_FAST_BY_PRODUCT_ADD || own < 0) return false;
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (h->graph->nodes[i].input[k] >= 0 && h->plan->real.slot_of[h->graph->nodes[i].input[k]] == own) return true;
    return false;
}

static bool simulate_fast(const fd_graph *graph, const fd_fast_plan *plan) {
    size_t n = (size_t)graph->n_node;
    holdings h = {graph, plan, malloc(sizeof *h.real * n), malloc(sizeof *h.half * n)};
    if (!h.real || !h.half) exit(1);
    memset(h.real, -1, sizeof *h.real * n);
    memset(h.half, -1, sizeof *h.half * n);
    bool good = true;
    for (int32_t i = 0; i < graph->n_node && good; i++) {
        good = finds_inputs(&h, i) && !spoils_inputs(&h, i);
        if (plan->real.slot_of[i] >= 0) h.real[plan->real.slot_of[i]] = i;
        if (plan->half_of[i] >= 0) h.half[plan->half_of[i]] = i;
    }
    good = good && holds_real(&h, graph->n_node - 1);
    free(h.real);
    free(h.half);
    return good;
}

static int count_how(const fd_graph *graph, const fd_fast_plan *plan, fd_fast_how how) {
    int n = 0;
    for (int32_t i = 0; i < graph->n_node; i++) n += plan->how[i] == how;
    return n;
}

/* Both fast plans and the fast step, of any graph. */
static void check_fast_slots(const fd_graph *graph, const char *path) {
    fd_error err = {0};
    fd_fast_plan many, one;
    fd_plan step;
    must(fd_fast_check(graph, &err), &err);
    must(fd_fast_plan_make(graph, true, &many, &err), &err);
    must(fd_fast_plan_make(graph, false, &one, &err), &err);
    must(fd_plan_make_fast(graph, true, &step, &err), &err);
    expect(simulate_fast(graph, &many), path, "fast, many rows: an input is gone when it is read");
    expect(simulate_fast(graph, &one), path, "fast, one row: an input is gone when it is read");
    expect(simulate(graph, &step), path, "fast step: an input is gone when it is read");
    fd_fast_plan_free(&many);
    fd_fast_plan_free(&one);
    fd_plan_free(&step);
}

static void check_fast(const fd_graph *graph, const char *path) {
    fd_error err = {0};
    fd_fast_plan many, one;
    fd_plan step;
    fd_graph *changed;
    int32_t n_layer = graph->hparams.n_layer;
    must(fd_fast_plan_make(graph, true, &many, &err), &err);
    must(fd_fast_plan_make(graph, false, &one, &err), &err);
    must(fd_plan_make_fast(graph, true, &step, &err), &err);
    expect(step.n_item == 2 + 5 * n_layer && count(&step, FD_ITEM_ATTENTION) == n_layer, path,
           "fast step: five items a layer, embedding and logits");
    expect(count_how(graph, &many, FD_FAST_BY_ATTENTION) == n_layer, path, "fast: one attention a layer");
    expect(count_how(graph, &many, FD_FAST_BY_PRODUCT) == 5 * n_layer, path, "fast: five products a layer");
    expect(count_how(graph, &many, FD_FAST_BY_PRODUCT_ADD) == 2 * n_layer, path, "fast: two more onto the residual");
    expect(count_how(graph, &many, FD_FAST_BY_TURN) == n_layer, path, "fast: RoPE and cache writes together");
    expect(count_how(graph, &one, FD_FAST_BY_PRODUCT) == 0, path, "fast, one row: no product by cuBLAS");

    must(fd_graph_clone(graph, &changed, &err), &err);
    changed->nodes[fd_graph_find(graph, "blk.0.attn_scores")].override = nothing;
    expect(fd_fast_check(changed, &err) == FD_ERR_UNSUPPORTED, path, "fast: scores that a fault replaces are refused");
    fd_graph_free(changed);

    int32_t act = fd_graph_find(graph, "blk.0.ffn_act"), half = many.half_of[act];
    many.half_of[act] = -1;
    expect(!simulate_fast(graph, &many), path, "a tensor that is not there in binary16 is found");
    many.half_of[act] = half;
    many.real.slot_of[fd_graph_find(graph, "blk.0.attn_q")] = many.real.slot_of[fd_graph_find(graph, "token_embd")];
    expect(!simulate_fast(graph, &many), path, "a residual that is written over is found");
    fd_fast_plan_free(&many);
    fd_fast_plan_free(&one);
    fd_plan_free(&step);
}

/* Products of int8 blocks: none, those that are faster so on a device of 132 multiprocessors, all that can be. Never the
 * logits', whose rows a traced prompt shows, nor of floats. */
static void check_int8(const fd_graph *graph, const char *path) {
    fd_error err = {0};
    fd_launch_context queue = {.n_sm = 132};
    for (int where = FD_INT8_WHERE_FASTER; where <= FD_INT8_ALWAYS; where++) {
        bool *int8 = calloc((size_t)graph->n_node, sizeof *int8), good = true;
        if (!int8) exit(1);
        must(fd_fast_choose_int8(&queue, graph, (fd_int8)where, int8, &err), &err);
        for (int32_t i = 0; i < graph->n_node; i++) {
            const fd_node *node = &graph->nodes[i];
            bool can = node->op == FD_OP_MATMUL && fd_q8_can(graph->weights[node->weight[0]].dtype) &&
                       node->layer >= 0 && !fd_fast_feeds_choice(graph, i);
            good = good && (where == FD_INT8_ALWAYS ? int8[i] == can : !int8[i] || (can && where != FD_INT8_NEVER));
        }
        expect(good, path,
               where == FD_INT8_ALWAYS  ? "int8: every product of a layer with quantised weights"
               : where == FD_INT8_NEVER ? "int8: no product"
                                        : "int8: no other product than those that can be");
        free(int8);
    }
}

/* As measured (docs/performance.md): products of llama-8B and tinyllama, and short rows. */
static void check_int8_shapes(void) {
    static const struct {
        uint32_t dtype;
        int64_t n_row, n_col;
        bool faster;
    } cases[] = {{FD_Q4_K, 28672, 4096, true},  {FD_Q4_K, 2048, 5632, true},   {FD_Q8_0, 6144, 4096, true},
                 {FD_Q8_0, 28672, 4096, false}, {FD_Q8_0, 11264, 2048, false}, {FD_Q8_0, 9728, 896, false},
                 {FD_Q6_K, 4096, 14336, true},  {FD_Q6_K, 2048, 2048, false},  {FD_F16, 4096, 4096, false}};
    fd_launch_context queue = {.n_sm = 132};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(fd_q8_matvec_is_faster(&queue, cases[i].dtype, cases[i].n_row, cases[i].n_col) == cases[i].faster,
               "int8", fd_dtype_get(cases[i].dtype)->name);
}

static fd_plan plan_of(const fd_graph *graph, bool fuse) {
    fd_error err = {0};
    fd_plan plan;
    must(fd_plan_make(graph, fuse, &plan, &err), &err);
    return plan;
}

static void check(const char *path, bool slots_alone) {
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph, *changed;
    must(fd_gguf_open(path, &gguf, &err), &err);
    must(fd_graph_build(gguf, &graph, NULL, &err), &err);
    int32_t n_layer = graph->hparams.n_layer;

    fd_plan single = plan_of(graph, false), fused = plan_of(graph, true);
    expect(single.n_item == graph->n_node && simulate(graph, &single), path,
           "node by node: an input is gone when it is read");
    expect(simulate(graph, &fused), path, "fused: an input is gone when it is read");
    fd_plan prompt;
    must(fd_plan_make_rows(graph, &prompt, &err), &err);
    expect(simulate(graph, &prompt), path, "many rows: an input is gone when it is read");
    check_fast_slots(graph, path);
    check_int8(graph, path);
    if (slots_alone) {
        fd_plan_free(&prompt);
        fd_plan_free(&single);
        fd_plan_free(&fused);
        fd_graph_free(graph);
        fd_gguf_close(gguf);
        return;
    }
    expect(fused.n_item == 2 + 5 * n_layer, path, "fused: five items a layer, embedding and logits");
    expect(count(&fused, FD_ITEM_ATTENTION) == n_layer, path, "fused: one attention a layer");

    expect(count(&prompt, FD_ITEM_PRODUCTS) == 2 * n_layer && count(&prompt, FD_ITEM_ADD_NORM) == 2 * n_layer &&
               count(&prompt, FD_ITEM_TURN) == n_layer,
           path, "many rows: q, k and v together, gate and up, both sums with their norms, RoPE with the cache writes");
    fd_plan_free(&prompt);

    fd_plan rows;
    must(fd_plan_make_batch(graph, &rows, &err), &err);
    expect(simulate(graph, &rows), path, "rows of several sequences: an input is gone when it is read");
    expect(fd_plan_batches(graph, &rows), path, "a plain model runs several sequences in one batch");
    expect(rows.n_item < graph->n_node && count(&rows, FD_ITEM_ATTENTION) == n_layer, path,
           "rows of several sequences: one attention a layer");
    fd_plan_free(&rows);

    int32_t node = fd_graph_find(graph, "blk.1.attn_scores");
    must(fd_graph_clone(graph, &changed, &err), &err);
    changed->nodes[node].override = nothing;
    fd_plan overridden = plan_of(changed, true);
    expect(simulate(changed, &overridden), path, "an override: an input is gone when it is read");
    expect(count(&overridden, FD_ITEM_ATTENTION) == n_layer - 1, path, "an op that a fault replaces is not fused");
    must(fd_plan_make_batch(changed, &rows, &err), &err);
    expect(simulate(changed, &rows), path, "rows with an override: an input is gone when it is read");
    expect(!fd_plan_batches(changed, &rows), path, "an op that a fault replaces is not run for several sequences");
    fd_plan_free(&rows);
    fd_plan_free(&overridden);
    fd_graph_free(changed);

    must(fd_graph_clone(graph, &changed, &err), &err);
    changed->nodes[fd_graph_find(graph, "blk.0.cache_v")].row_offset = 1;
    fd_plan shifted = plan_of(changed, true);
    expect(count(&shifted, FD_ITEM_ATTENTION) == n_layer - 1, path, "a shifted cache write is not fused");
    must(fd_plan_make_rows(changed, &prompt, &err), &err);
    expect(simulate(changed, &prompt), path, "many rows, shifted: an input is gone when it is read");
    expect(count(&prompt, FD_ITEM_TURN) == n_layer - 1, path, "a shifted cache write is not fused for many rows");
    fd_plan_free(&prompt);
    must(fd_plan_make_batch(changed, &rows, &err), &err);
    expect(!fd_plan_batches(changed, &rows), path, "a shifted cache write is not run for several sequences");
    fd_plan_free(&rows);
    fd_plan_free(&shifted);
    fd_graph_free(changed);

    /* The simulation itself can fail: give a result the slot of a tensor that is still needed. */
    int32_t residual = fused.slot_of[fd_graph_find(graph, "token_embd")];
    fused.slot_of[fd_graph_find(graph, "blk.0.attn_out")] = residual;
    expect(!simulate(graph, &fused), path, "a slot given away too early is found");

    check_fast(graph, path);

    fd_plan_free(&single);
    fd_plan_free(&fused);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
}

int main(int argc, char **argv) {
    bool slots_alone = argc > 1 && strcmp(argv[1], "--slots") == 0;
    int first = slots_alone ? 2 : 1;
    check_int8_shapes();
    for (int i = first; i < argc; i++) check(argv[i], slots_alone);
    printf("%d models, %d failed\n", argc - first, n_failed);
    return n_failed != 0 || argc <= first;
}
