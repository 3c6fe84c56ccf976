/* split_check MODEL.gguf…: a graph split for several GPUs (engine/split.h), computed on the CPU, a rank after the
 * other: the parts of every node that is split, each computed from this rank's weights alone and put together, are
 * the reference's, bit by bit. For 2 to 5 ranks, even shares or not. And the plans of a split: what other GPUs write
 * to is free since the gather before. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "engine/plan.h"
#include "engine/split.h"
#include "reference_cpu/reference.h"

enum { N_TOK = 5 };

static int n_failed, n_fast, n_half; /* splits that fast numerics take; gathers in binary16 */

static void expect(bool holds, const char *path, const char *what) {
    if (holds) return;
    printf("FAIL %s: %s\n", path, what);
    n_failed++;
}

static void *room(size_t size) {
    void *data = calloc(1, size + 1);
    if (!data) exit(2);
    return data;
}

static size_t tensor_bytes(const fd_node *node) {
    return sizeof(float) * (size_t)fd_node_row_stride(node, N_TOK) * N_TOK;
}

/* ---- the reference's tensors ---- */

static fd_code keep(void *user, const fd_observation *seen, fd_error *err) {
    float **tensors = user;
    tensors[seen->node->id] = room(tensor_bytes(seen->node));
    memcpy(tensors[seen->node->id], seen->data, tensor_bytes(seen->node));
    return (void)err, FD_OK;
}

static float **reference(const fd_graph *graph, const int32_t *tokens) {
    fd_error err = {0};
    fd_exec *exec;
    float **tensors = room(sizeof *tensors * (size_t)graph->n_node);
    must(fd_reference_new(graph, &(fd_reference_options){.n_ctx = N_TOK}, &exec, &err), &err);
    fd_exec_set_observer(exec, (fd_observer){.observe = keep, .user = tensors});
    must(fd_exec_forward(exec, &(fd_batch){.tokens = tokens, .n_tok = N_TOK}, &err), &err);
    fd_exec_free(exec);
    return tensors;
}

/* ---- a rank ---- */

/* The weight as one piece of memory, from where its rows are in the file. */
static fd_weight packed(const fd_split *split, int32_t weight) {
    fd_weight w = split->graph->weights[weight];
    const fd_weight_runs *rows = &split->rows[weight];
    size_t row = (size_t)fd_dtype_row_bytes(w.dtype, w.n_col);
    char *data = room(row * (size_t)w.n_row);
    for (int64_t i = 0; i < w.n_row; i++)
        memcpy(data + (size_t)i * row,
               (const char *)w.data + (i / rows->run * rows->period + i % rows->run) * rows->stride, row);
    w.data = data;
    return w;
}

static float *compute(const fd_split *split, int32_t id, float *const *tensors, const int32_t *tokens) {
    const fd_node *node = &split->graph->nodes[id];
    fd_weight weights[FD_MAX_WEIGHTS];
    fd_op_args args = {.graph = split->graph,
                       .node = node,
                       .n_pos = N_TOK,
                       .n_kv = N_TOK,
                       .n_ctx = N_TOK,
                       .tokens = tokens,
                       .out = room(tensor_bytes(node))};
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) args.in[k] = tensors[node->input[k]];
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (node->weight[k] >= 0) {
            weights[k] = packed(split, node->weight[k]);
            args.weight[k] = &weights[k];
        }
    size_t half = node->op == FD_OP_ROPE ? (size_t)(node->rope.n_rot / 2) : 0;
    float *cosine = room(sizeof *cosine * N_TOK * half), *sine = room(sizeof *sine * N_TOK * half);
    if (half) fd_rope_table(&node->rope, args.weight[0], 0, N_TOK, cosine, sine);
    args.rope_cos = cosine;
    args.rope_sin = sine;
    fd_reference_op(FD_NUMERICS_EXACT, &args);
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (node->weight[k] >= 0) free((void *)(uintptr_t)weights[k].data);
    free(cosine);
    free(sine);
    return args.out;
}

/* Every part of the rank against the reference's whole: how many elements are there, and how many differ. `seen`: of
 * each full node, elements that some rank has. */
static int64_t compare_part(const fd_split *split, int32_t id, const float *part, const float *whole, int64_t *seen) {
    fd_place place = fd_split_place(split, id, N_TOK);
    int64_t n_differ = 0, n = (int64_t)N_TOK * place.n_piece;
    for (int64_t row = 0; row < n; row++)
        n_differ += memcmp(part + row * place.width, whole + row * place.stride + place.first,
                           sizeof *part * (size_t)place.width) != 0;
    *seen += n * place.width;
    return n_differ;
}

static void check_rank(const char *path, const fd_split *split, float *const *full, const int32_t *tokens,
                       int64_t *seen) {
    const fd_graph *graph = split->graph;
    float **tensors = room(sizeof *tensors * (size_t)graph->n_node);
    int64_t n_differ = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        int32_t of = split->full_id[i];
        tensors[i] = of >= 0 ? full[of] : compute(split, i, tensors, tokens);
        if (graph->nodes[i].op == FD_OP_GATHER) n_differ += compare_part(split, i, tensors[i - 1], full[of], &seen[of]);
    }
    expect(n_differ == 0, path, "a part is not the reference's");
    for (int32_t i = 0; i < graph->n_node; i++)
        if (split->full_id[i] < 0) free(tensors[i]);
    free(tensors);
}

/* ---- plans ---- */

static bool is_at(const fd_plan *plan, const fd_edge *edge, fd_result type, int32_t slot) {
    return edge->type == type && slot >= 0 && plan->slot_of[type][edge->node] == slot;
}

static bool uses(const fd_plan *plan, const fd_item *item, fd_result type, int32_t slot) {
    for (int r = 0; r < item->n_read; r++)
        if (is_at(plan, &item->reads[r], type, slot)) return true;
    for (int w = 0; w < item->n_write; w++)
        if (is_at(plan, &item->writes[w], type, slot)) return true;
    return false;
}

/* Neither the gather before nor an item between the two uses the memory that is gathered into. */
static bool gathers_are_free(const fd_plan *plan) {
    int32_t before = 0;
    for (int32_t i = 0; i < plan->n_item; i++) {
        const fd_node *node = &plan->graph->nodes[plan->items[i].node];
        if (plan->items[i].kernel == FD_KERNEL_GATHER_ADD) before = i;
        if (node->op != FD_OP_GATHER) continue;
        for (int32_t k = before; k < i; k++)
            for (int t = 0; t < FD_RESULT_COUNT; t++)
                if (uses(plan, &plan->items[k], (fd_result)t, plan->slot_of[t][node->id])) return false;
        if (node->input[0] >= 0) before = i;
    }
    return true;
}

/* What an item sends is put together while it still runs: in memory that it does not use. */
static bool sends_are_apart(const fd_plan *plan, int32_t *n_send) {
    *n_send = 0;
    for (int32_t i = 0; i < plan->n_item; i++) {
        if (!plan->items[i].sends) continue;
        ++*n_send;
        if (uses(plan, &plan->items[i], FD_REAL, plan->slot_of[FD_REAL][plan->items[i + 1].writes[0].node]))
            return false;
    }
    return true;
}

static int32_t count(const fd_plan *plan, fd_kernel kernel) {
    int32_t n = 0;
    for (int32_t i = 0; i < plan->n_item; i++) n += plan->items[i].kernel == kernel;
    return n;
}

/* Fast numerics: the kernels are those of one GPU, so a prompt's attention is one each, and what a product reads in
 * binary16 is gathered so. */
static void check_fast(const char *path, const fd_split *split) {
    static const struct {
        fd_plan_kind plan;
        fd_kernel attention;
    } kinds[] = {{FD_PLAN_FAST_ROWS, FD_KERNEL_ATTENTION_F16},
                 {FD_PLAN_FAST_ROWS, FD_KERNEL_ROPE_KV_WRITE},
                 {FD_PLAN_FAST_NODES, FD_KERNEL_ATTN_ROW_F16},
                 {FD_PLAN_FAST_STEP, FD_KERNEL_ATTN_DECODE_F16},
                 {FD_PLAN_FAST_BATCH, FD_KERNEL_ATTN_DECODE_F16}};
    fd_error err = {0};
    if (fd_plan_check_fast(split->full, &err) != FD_OK) return;
    n_fast++;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        fd_plan of_part, of_full;
        must(fd_plan_make(split->graph, kinds[k].plan, &of_part, &err), &err);
        must(fd_plan_make(split->full, kinds[k].plan, &of_full, &err), &err);
        expect(count(&of_part, kinds[k].attention) == count(&of_full, kinds[k].attention), path,
               "fast numerics run attention in other kernels than one GPU does");
        for (int32_t i = 0; i < of_part.n_item; i++) {
            const fd_item *item = &of_part.items[i];
            const fd_node *node = &split->graph->nodes[item->node];
            if (node->op != FD_OP_GATHER || of_part.slot_of[FD_HALF][node->id] < 0) continue;
            fd_op op = split->graph->nodes[node->id - 1].op;
            bool half = item->reads[item->n_read - 1].type == FD_HALF;
            expect(half == (op == FD_OP_ATTN_MIX || fd_op_leaves_half(op)), path,
                   "fast: not gathered in the type that the part's kernel leaves");
            n_half += half;
        }
        fd_plan_free(&of_part);
        fd_plan_free(&of_full);
    }
}

static void check_plans(const char *path, const fd_graph *graph) {
    static const fd_plan_kind kinds[] = {FD_PLAN_NODES,     FD_PLAN_ROWS,      FD_PLAN_STEP,      FD_PLAN_BATCH,
                                         FD_PLAN_FAST_ROWS, FD_PLAN_FAST_STEP, FD_PLAN_FAST_BATCH};
    fd_error err = {0};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        fd_plan plan;
        must(fd_plan_make(graph, kinds[k], &plan, &err), &err);
        int32_t n_send;
        expect(gathers_are_free(&plan), path, "memory is gathered into that is still in use");
        expect(sends_are_apart(&plan, &n_send), path, "what is sent is put together in the sender's memory");
        if (kinds[k] == FD_PLAN_STEP) expect(n_send > 0, path, "a step sends nothing");
        if (kinds[k] == FD_PLAN_NODES || kinds[k] == FD_PLAN_STEP) { /* the checks can fail: all in one slot */
            for (int32_t i = 0; i < graph->n_node; i++) plan.slot_of[FD_REAL][i] = 0;
            expect(kinds[k] == FD_PLAN_NODES ? !gathers_are_free(&plan)
                                             : n_send == 0 || !sends_are_apart(&plan, &n_send),
                   path, "a slot in use goes unnoticed");
        }
        fd_plan_free(&plan);
    }
}

static void check_model(const char *path) {
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    int32_t tokens[N_TOK], n_split = 0;
    must(fd_gguf_open(path, &gguf, &err), &err);
    must(fd_graph_build(gguf, &graph, NULL, &err), &err);
    for (int i = 0; i < N_TOK; i++) tokens[i] = token_at(i, graph->hparams.n_vocab);
    float **full = reference(graph, tokens);
    for (int32_t n = 2; n <= 5; n++) {
        int64_t *seen = room(sizeof *seen * (size_t)graph->n_node);
        for (int32_t rank = 0; rank < n; rank++) {
            fd_split split;
            must(fd_split_make(graph, n, rank, &split, &err), &err);
            check_rank(path, &split, full, tokens, seen);
            check_plans(path, split.graph);
            check_fast(path, &split);
            n_split = 0;
            for (int32_t i = 0; i < split.graph->n_node; i++) n_split += split.graph->nodes[i].op == FD_OP_GATHER;
            fd_split_free(&split);
        }
        for (int32_t i = 0; i < graph->n_node; i++)
            expect(seen[i] == 0 || seen[i] * (int64_t)sizeof(float) == (int64_t)tensor_bytes(&graph->nodes[i]), path,
                   "the parts do not make the whole");
        printf("%s: %d ranks, %d of %d nodes split\n", path, n, n_split, graph->n_node);
        if (n == 2) expect(n_split > 0, path, "nothing is split");
        free(seen);
    }
    for (int32_t i = 0; i < graph->n_node; i++) free(full[i]);
    free(full);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) check_model(argv[i]);
    expect(n_half > 0 || n_fast == 0, "fast", "nothing is gathered in binary16");
    printf("%s\n", n_failed ? "FAILED" : "OK");
    return n_failed != 0;
}
