/* plan_check [--slots] MODEL.gguf…: the plans of all kinds of passes (engine/plan.h), which need no device.
 *
 *   every tensor is computed once, after what it is made from, and kept until its last reader
 *   no two results that are needed at the same time share a slot
 *   with --slots nothing else, for models of any shape; without, of plain ones:
 *   a plain layer is five items; a graph that a fault has changed is fused only where the pattern still holds */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "engine/internal.h"
#include "engine/edges.h"
#include "engine/recurrent.h"
#include "kernels/int8/q8.h"
#include "tests/gpu/plan_simulation.h"

static int n_failed;

static void expect(bool holds, const char *path, const char *what) {
    if (holds) return;
    printf("FAIL %s: %s\n", path, what);
    n_failed++;
}

/* Whether every kind of pass finds its inputs. */
static void check_slots(const fd_graph *graph, const char *path) {
    static const char *const names[FD_PLAN_KIND_COUNT] = {
        [FD_PLAN_NODES] = "node by node: an input is gone when it is read",
        [FD_PLAN_ROWS] = "many rows: an input is gone when it is read",
        [FD_PLAN_STEP] = "fused: an input is gone when it is read",
        [FD_PLAN_BATCH] = "rows of several sequences: an input is gone when it is read",
        [FD_PLAN_FAST_NODES] = "fast, one row: an input is gone when it is read",
        [FD_PLAN_FAST_ROWS] = "fast, many rows: an input is gone when it is read",
        [FD_PLAN_FAST_STEP] = "fast step: an input is gone when it is read",
        [FD_PLAN_FAST_BATCH] = "fast, rows of several sequences: an input is gone when it is read",
    };
    for (int kind = 0; kind < FD_PLAN_KIND_COUNT; kind++) {
        fd_plan plan = plan_made(graph, (fd_plan_kind)kind);
        expect(plan_simulate(&plan), path, names[kind]);
        fd_plan_free(&plan);
    }
}

static void nothing(const struct fd_op_args *args) {
    (void)args;
}

static void check_fast(const fd_graph *graph, const char *path) {
    fd_error err = {0};
    fd_graph *changed;
    int32_t n_layer = graph->hparams.n_layer;
    fd_plan many = plan_made(graph, FD_PLAN_FAST_ROWS), one = plan_made(graph, FD_PLAN_FAST_NODES);
    fd_plan step = plan_made(graph, FD_PLAN_FAST_STEP);
    expect(step.n_item == 2 + 5 * n_layer && plan_count(&step, FD_KERNEL_ATTN_DECODE_F16) == n_layer, path,
           "fast step: five items a layer, embedding and logits");
    expect(plan_count(&many, FD_KERNEL_ATTENTION_F16) == n_layer, path, "fast: one attention a layer");
    expect(plan_count(&many, FD_KERNEL_GEMM_F16) == 5 * n_layer, path, "fast: five products a layer");
    expect(plan_count(&many, FD_KERNEL_GEMM_ADD_F16) == 2 * n_layer, path, "fast: two more onto the residual");
    expect(plan_count(&many, FD_KERNEL_ROPE_KV_WRITE) == n_layer, path, "fast: RoPE and cache writes together");
    expect(plan_count(&one, FD_KERNEL_GEMM_F16) == 0, path, "fast, one row: no product by cuBLAS");

    must(fd_graph_clone(graph, &changed, &err), &err);
    changed->nodes[fd_graph_find(graph, "blk.0.attn_scores")].override = nothing;
    expect(fd_plan_check_fast(changed, &err) == FD_ERR_UNSUPPORTED, path,
           "fast: scores that a fault replaces are refused");
    fd_graph_free(changed);

    int32_t *half_of = many.slot_of[FD_HALF], *real_of = many.slot_of[FD_REAL];
    int32_t act = fd_graph_find(graph, "blk.0.ffn_act"), half = half_of[act];
    half_of[act] = -1;
    expect(!plan_simulate(&many), path, "a tensor that is not there in binary16 is found");
    half_of[act] = half;
    real_of[fd_graph_find(graph, "blk.0.attn_q")] = real_of[fd_graph_find(graph, "token_embd")];
    expect(!plan_simulate(&many), path, "a residual that is written over is found");
    fd_plan_free(&many);
    fd_plan_free(&one);
    fd_plan_free(&step);
}

/* Products of int8 blocks: none, those that are faster so on a device of 132 multiprocessors, all that can be. Never
 * the logits', whose rows a traced prompt shows, nor of floats. */
static void check_int8(const fd_graph *graph, const char *path) {
    fd_launch_context ctx = {.n_sm = 132};
    fd_plan step = plan_made(graph, FD_PLAN_FAST_STEP);
    for (int where = FD_INT8_WHERE_FASTER; where <= FD_INT8_ALWAYS; where++) {
        bool *int8 = calloc((size_t)graph->n_node, sizeof *int8), good = true;
        if (!int8) exit(1);
        fd_int8_choose_faster(&ctx, &step, (fd_int8)where, int8);
        for (int32_t i = 0; i < graph->n_node; i++) {
            const fd_node *node = &graph->nodes[i];
            bool can = node->op == FD_OP_MATMUL && fd_q8_can(graph->weights[node->weight[0]].dtype) &&
                       node->layer >= 0 && !fd_feeds_choice(graph, i);
            good = good && (where == FD_INT8_ALWAYS ? int8[i] == can : !int8[i] || (can && where != FD_INT8_NEVER));
        }
        expect(good, path,
               where == FD_INT8_ALWAYS  ? "int8: every product of a layer with quantised weights"
               : where == FD_INT8_NEVER ? "int8: no product"
                                        : "int8: no other product than those that can be");
        free(int8);
    }
    fd_plan_free(&step);
}

static int n_mixed(const fd_plan *plan, const bool *int8) {
    int mixed = 0;
    for (int32_t i = 0; i < plan->n_item; i++) {
        int n = 0;
        for (int k = 0; k < plan->items[i].n_matmul; k++) n += int8[plan->items[i].matmul[k]];
        mixed += n > 0 && n < plan->items[i].n_matmul;
    }
    return mixed;
}

/* Products of one launch stay chosen together, in a token's plan and in that of several sequences. */
static void check_agree(const fd_graph *graph, const char *path) {
    fd_plan step = plan_made(graph, FD_PLAN_FAST_STEP), batch = plan_made(graph, FD_PLAN_FAST_BATCH);
    const fd_plan *both[] = {&step, &batch};
    bool *int8 = calloc((size_t)graph->n_node, sizeof *int8), several = false;
    if (!int8) exit(1);
    for (int32_t i = 0; i < batch.n_item; i++) {
        if (batch.items[i].n_matmul > 0) int8[batch.items[i].matmul[0]] = true;
        several = several || batch.items[i].n_matmul > 1;
    }
    expect(!several || n_mixed(&batch, int8) > 0, path, "int8: one product of a launch alone is seen");
    fd_int8_agree(both, 2, int8);
    expect(n_mixed(&step, int8) == 0 && n_mixed(&batch, int8) == 0, path, "int8: all products of a launch or none");
    free(int8);
    fd_plan_free(&step);
    fd_plan_free(&batch);
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
    fd_launch_context ctx = {.n_sm = 132};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(fd_q8_matvec_is_faster(&ctx, cases[i].dtype, cases[i].n_row, cases[i].n_col) == cases[i].faster, "int8",
               fd_dtype_get(cases[i].dtype)->name);
}

static void check_plain(const fd_graph *graph, const char *path) {
    int32_t n_layer = graph->hparams.n_layer;
    fd_plan single = plan_made(graph, FD_PLAN_NODES), fused = plan_made(graph, FD_PLAN_STEP);
    fd_plan prompt = plan_made(graph, FD_PLAN_ROWS), rows = plan_made(graph, FD_PLAN_BATCH);
    expect(single.n_item == graph->n_node, path, "node by node: an item a node");
    expect(fused.n_item == 2 + 5 * n_layer, path, "fused: five items a layer, embedding and logits");
    expect(plan_count(&fused, FD_KERNEL_ATTN_DECODE) == n_layer, path, "fused: one attention a layer");
    expect(plan_count(&prompt, FD_KERNEL_MATMULS) == 2 * n_layer &&
               plan_count(&prompt, FD_KERNEL_ADD_NORM) == 2 * n_layer &&
               plan_count(&prompt, FD_KERNEL_ROPE_KV_WRITE) == n_layer,
           path, "many rows: q, k and v together, gate and up, both sums with their norms, RoPE with the cache writes");
    expect(fd_plan_batches(&rows), path, "a plain model runs several sequences in one batch");
    expect(rows.n_item < graph->n_node && plan_count(&rows, FD_KERNEL_ATTN_DECODE) == n_layer, path,
           "rows of several sequences: one attention a layer");

    /* The simulation itself can fail: give a result the slot of a tensor that is still needed. */
    int32_t *slot_of = fused.slot_of[FD_REAL];
    slot_of[fd_graph_find(graph, "blk.0.attn_out")] = slot_of[fd_graph_find(graph, "token_embd")];
    expect(!plan_simulate(&fused), path, "a slot given away too early is found");
    fd_plan_free(&single);
    fd_plan_free(&fused);
    fd_plan_free(&prompt);
    fd_plan_free(&rows);
}

static void check_override(const fd_graph *graph, const char *path) {
    fd_error err = {0};
    fd_graph *changed;
    must(fd_graph_clone(graph, &changed, &err), &err);
    changed->nodes[fd_graph_find(graph, "blk.1.attn_scores")].override = nothing;
    fd_plan step = plan_made(changed, FD_PLAN_STEP), rows = plan_made(changed, FD_PLAN_BATCH);
    expect(plan_simulate(&step), path, "an override: an input is gone when it is read");
    expect(plan_count(&step, FD_KERNEL_ATTN_DECODE) == graph->hparams.n_layer - 1, path,
           "an op that a fault replaces is not fused");
    expect(plan_simulate(&rows), path, "rows with an override: an input is gone when it is read");
    expect(!fd_plan_batches(&rows), path, "an op that a fault replaces is not run for several sequences");
    fd_plan_free(&step);
    fd_plan_free(&rows);
    fd_graph_free(changed);
}

static void check_shifted(const fd_graph *graph, const char *path) {
    fd_error err = {0};
    fd_graph *changed;
    int32_t n_layer = graph->hparams.n_layer;
    must(fd_graph_clone(graph, &changed, &err), &err);
    changed->nodes[fd_graph_find(graph, "blk.0.cache_v")].row_offset = 1;
    fd_plan step = plan_made(changed, FD_PLAN_STEP), prompt = plan_made(changed, FD_PLAN_ROWS);
    fd_plan rows = plan_made(changed, FD_PLAN_BATCH);
    expect(plan_count(&step, FD_KERNEL_ATTN_DECODE) == n_layer - 1, path, "a shifted cache write is not fused");
    expect(plan_simulate(&prompt), path, "many rows, shifted: an input is gone when it is read");
    expect(plan_count(&prompt, FD_KERNEL_ROPE_KV_WRITE) == n_layer - 1, path,
           "a shifted cache write is not fused for many rows");
    expect(!fd_plan_batches(&rows), path, "a shifted cache write is not run for several sequences");
    fd_plan_free(&step);
    fd_plan_free(&prompt);
    fd_plan_free(&rows);
    fd_graph_free(changed);
}

/* A list in another order than an architecture's: patterns follow the edges, not the places. */
static void check_order(const fd_graph *graph, const char *path) {
    fd_error err = {0};
    fd_graph *changed;
    int32_t n_layer = graph->hparams.n_layer, k = fd_graph_find(graph, "blk.0.cache_k");
    must(fd_graph_clone(graph, &changed, &err), &err);
    fd_node cache_k = changed->nodes[k]; /* V's cache write first */
    changed->nodes[k] = changed->nodes[k + 1];
    changed->nodes[k + 1] = cache_k;
    changed->nodes[k].id = k;
    changed->nodes[k + 1].id = k + 1;
    for (int32_t i = k; i < changed->n_node; i++)
        for (int j = 0; j < FD_MAX_INPUTS; j++) {
            int32_t *input = &changed->nodes[i].input[j];
            *input = *input == k ? k + 1 : *input == k + 1 ? k : *input;
        }
    must(fd_graph_validate(changed, &err), &err);
    check_slots(changed, path);
    fd_plan prompt = plan_made(changed, FD_PLAN_ROWS), many = plan_made(changed, FD_PLAN_FAST_ROWS);
    expect(plan_count(&prompt, FD_KERNEL_ROPE_KV_WRITE) == n_layer &&
               plan_count(&many, FD_KERNEL_ROPE_KV_WRITE) == n_layer,
           path, "cache writes in the other order are fused too");
    fd_plan_free(&prompt);
    fd_plan_free(&many);
    fd_graph_free(changed);
}

/* A kept state goes on from pass to pass: each computes it for every row, as long as its cache's rows lie where they
 * belong. */
static void check_states(const fd_graph *graph, const char *path) {
    fd_error err = {0};
    fd_graph *shifted;
    must(fd_graph_clone(graph, &shifted, &err), &err);
    for (int32_t i = 0; i < graph->n_node; i++) shifted->nodes[i].row_offset = 1;
    fd_plan prompt = plan_made(graph, FD_PLAN_ROWS);
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        bool state = node->op == FD_OP_SSM_SCAN || node->op == FD_OP_GATED_DELTA || node->op == FD_OP_WKV7;
        expect(fd_recurrent_keeps(graph, node) == state, path, "every state is kept");
        expect(!state || prompt.all_rows[i], path, "a state that is kept is computed for every row");
        expect(!fd_recurrent_keeps(shifted, &shifted->nodes[i]), path, "a state of shifted rows is not kept");
    }
    fd_plan_free(&prompt);
    fd_graph_free(shifted);
}

/* Fast numerics take no ALiBi, no rows that a state is made of, and K and V of one size. */
static bool fast_takes(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_KV_WRITE && !fd_node_is_kv_cache(node)) return false;
        if (node->op != FD_OP_ATTN_MIX) continue;
        int32_t scores = graph->nodes[node->input[0]].input[0];
        if (graph->nodes[scores].op != FD_OP_ATTN_SCORES ||
            graph->nodes[graph->nodes[scores].input[1]].shape[1] != node->shape[1])
            return false;
    }
    return true;
}

static void check(const char *path, bool slots_alone) {
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    must(fd_gguf_open(path, &gguf, &err), &err);
    must(fd_graph_build(gguf, &graph, NULL, &err), &err);
    expect(fd_plan_check_fast(graph, &err) == (fast_takes(graph) ? FD_OK : FD_ERR_UNSUPPORTED), path,
           "fast: all but ALiBi, states and K and V of two sizes is taken");
    check_slots(graph, path);
    check_states(graph, path);
    check_int8(graph, path);
    check_agree(graph, path);
    if (!slots_alone) {
        check_plain(graph, path);
        check_override(graph, path);
        check_shifted(graph, path);
        check_order(graph, path);
        check_fast(graph, path);
    }
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
