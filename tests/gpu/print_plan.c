/* print_plan MODEL.gguf: what each kind of pass launches for one layer: kernel and nodes, then what it reads and
 * keeps, each with its type and slot. plans.txt holds the output for traces/kjv-llama.gguf: a change of the plans
 * shows there. */
#include <stdio.h>
#include <string.h>

#include "engine/plan.h"

static const char *const kinds[FD_PLAN_KIND_COUNT] = {
    [FD_PLAN_NODES] = "a node each",
    [FD_PLAN_ROWS] = "a prompt that no one observes",
    [FD_PLAN_STEP] = "one token",
    [FD_PLAN_BATCH] = "a token of each of several sequences",
    [FD_PLAN_FAST_NODES] = "fast: a node each",
    [FD_PLAN_FAST_ROWS] = "fast: a prompt",
    [FD_PLAN_FAST_STEP] = "fast: one token",
    [FD_PLAN_FAST_BATCH] = "fast: a token of each of several sequences",
};

static const char *const kernels[FD_KERNEL_COUNT] = {
    [FD_KERNEL_OP] = "op",
    [FD_KERNEL_MATVEC] = "matvec",
    [FD_KERNEL_ATTN_DECODE] = "attn_decode",
    [FD_KERNEL_MATMULS] = "matmuls",
    [FD_KERNEL_ADD_NORM] = "add_norm",
    [FD_KERNEL_ROPE_KV_WRITE] = "rope_kv_write",
    [FD_KERNEL_ATTN_DECODE_F16] = "attn_decode_f16",
    [FD_KERNEL_ATTN_ROW_F16] = "attn_row_f16",
    [FD_KERNEL_ATTENTION_F16] = "attention_f16",
    [FD_KERNEL_GEMM_F16] = "gemm_f16",
    [FD_KERNEL_GEMM_ADD_F16] = "gemm_add_f16",
};

static void print_edges(const fd_plan *plan, const char *what, const fd_edge *edges, int32_t n) {
    printf("    %s", what);
    for (int32_t k = 0; k < n; k++) {
        int32_t slot = plan->slot_of[edges[k].type][edges[k].node];
        printf(" %s", plan->graph->nodes[edges[k].node].name);
        if (slot < 0)
            printf(" (cache)");
        else
            printf(" (%s %d)", edges[k].type == FD_HALF ? "f16" : "f32", slot);
    }
    printf("\n");
}

static void print_layer(const fd_plan *plan, int32_t layer) {
    for (int32_t i = 0; i < plan->n_item; i++) {
        const fd_item *item = &plan->items[i];
        if (plan->graph->nodes[item->node].layer != layer) continue;
        printf("%s:", kernels[item->kernel]);
        for (int k = 0; k < item->n_member; k++) printf(" %s", plan->graph->nodes[item->members[k]].name);
        printf("\n");
        print_edges(plan, "reads", item->reads, item->n_read);
        print_edges(plan, "keeps", item->writes, item->n_write);
    }
}

int main(int argc, char **argv) {
    fd_error err = {0};
    fd_gguf *gguf = NULL;
    fd_graph *graph = NULL;
    fd_code code = argc == 2 ? fd_gguf_open(argv[1], &gguf, &err) : FD_ERR_INPUT;
    if (code == FD_OK) code = fd_graph_build(gguf, &graph, NULL, &err);
    for (int kind = 0; kind < FD_PLAN_KIND_COUNT && code == FD_OK; kind++) {
        fd_plan plan;
        code = fd_plan_make(graph, (fd_plan_kind)kind, &plan, &err);
        if (code != FD_OK) break;
        printf("%s== %s: %d items, slots: %d f32, %d f16\n", kind > 0 ? "\n" : "", kinds[kind], plan.n_item,
               plan.n_slot[FD_REAL], plan.n_slot[FD_HALF]);
        print_layer(&plan, 1);
        fd_plan_free(&plan);
    }
    if (code != FD_OK) fprintf(stderr, "print_plan: %s\n", argc == 2 ? err.message : "usage: print_plan MODEL.gguf");
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return code == FD_OK ? 0 : 2;
}
