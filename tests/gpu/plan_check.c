/* plan_check MODEL.gguf…: the decode step's plan (engine/plan.h), which needs no device.
 *
 *   every tensor is computed once, after what it is made from, and kept until its last reader
 *   no two results that are needed at the same time share a slot
 *   a plain layer is five items; a graph that a fault has changed is fused only where the pattern still holds */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"

static int n_failed;

static void expect(bool holds, const char *path, const char *what) {
    if (holds) return;
    printf("FAIL %s: %s\n", path, what);
    n_failed++;
}

static void must(fd_code code, const fd_error *err) {
    if (code == FD_OK) return;
    printf("FAIL: %s\n", err->message);
    exit(1);
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

static fd_plan plan_of(const fd_graph *graph, bool fuse) {
    fd_error err = {0};
    fd_plan plan;
    must(fd_plan_make(graph, fuse, &plan, &err), &err);
    return plan;
}

static int count(const fd_plan *plan, fd_item_kind kind) {
    int n = 0;
    for (int32_t i = 0; i < plan->n_item; i++) n += plan->items[i].kind == kind;
    return n;
}

static void nothing(const struct fd_op_args *args) {
    (void)args;
}

static void check(const char *path) {
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
    expect(fused.n_item == 2 + 5 * n_layer, path, "fused: five items a layer, embedding and logits");
    expect(count(&fused, FD_ITEM_ATTENTION) == n_layer, path, "fused: one attention a layer");

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
    must(fd_plan_make_batch(changed, &rows, &err), &err);
    expect(!fd_plan_batches(changed, &rows), path, "a shifted cache write is not run for several sequences");
    fd_plan_free(&rows);
    fd_plan_free(&shifted);
    fd_graph_free(changed);

    /* The simulation itself can fail: give a result the slot of a tensor that is still needed. */
    int32_t residual = fused.slot_of[fd_graph_find(graph, "token_embd")];
    fused.slot_of[fd_graph_find(graph, "blk.0.attn_out")] = residual;
    expect(!simulate(graph, &fused), path, "a slot given away too early is found");

    fd_plan_free(&single);
    fd_plan_free(&fused);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) check(argv[i]);
    printf("%d plans, %d failed\n", argc - 1, n_failed);
    return n_failed != 0 || argc < 2;
}
