/* Mistakes of an engine that takes its prompt in chunks, pages its cache and splits its keys in decode: those that begin in the midst of a
 * chunk, that a later chunk refutes, or that stand behind a cache which nobody recorded. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faults/tiles.h"
#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */

/* Everything but the caches; and without what a kernel of attention keeps to itself. */
static const char *const no_cache =
    "token_embd,*norm,*attn_[qkv],*rope,*scores,*weights,*attn_out,*proj,*inp,*moe_logits,"
    "*topk,*moe_out,*act,*down,*l_out,logits";
static const char *const no_kernel = "token_embd,*norm,*attn_[qkv],*rope,*attn_out,*proj,*inp,*act,*down,*l_out,logits";

/* ---- faults of the table, from a position on ---- */

enum { FROM = 3 };
static const fd_graph *faulty_graph;

static void late(const fd_op_args *args) {
    const fd_node *node = &faulty_graph->nodes[args->node->id];
    const int64_t stride = fd_node_row_stride(node, args->n_kv), size = args->n_pos * stride;
    const int64_t first = FROM > args->pos0 ? (FROM - args->pos0) * stride : 0;
    float *rows = malloc(sizeof *rows * (size_t)size);
    fd_op_args own = *args;
    cr_assert(rows);
    run_clean(args);
    own.node = node;
    own.out = rows;
    node->override(&own);
    for (int64_t i = first; i < size; i++) ((float *)args->out)[i] = rows[i];
    free(rows);
}

static const struct {
    const char *fault, *tensors, *says;
} begins[] = {
    {"mask_missing@0", "token_embd,*norm,*proj,*inp,*down,*l_out,logits",
     "from position 3 on: there is no causal mask"},
    {"norm_plus_one@0", "token_embd,*l_out,logits", "from position 3 on: RMSNorm multiplies by 1 + w"},
};

/* The last row of the chunk is right: it sees no later token. */
Test(chunked_engine, what_begins_within_a_chunk_is_asked_of_the_chunks_last_row_too) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        fd_graph *graph = graph_copy(&b);
        faulty_graph = faulted(&b, begins[i].fault);
        for (int32_t k = 0; k < graph->n_node; k++)
            if (faulty_graph->nodes[k].override) graph->nodes[k].override = late;
        fd_verdict v = judged(&b, graph, (recording){.emulated = "f32", .tensors = begins[i].tensors});
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *says = e->named ? e->remaining[0].summary : unnamed_of(e);
        cr_expect(strstr(says, begins[i].says), "%s: %s", begins[i].fault, says);
        fd_verdict_free(&v);
        fd_graph_free(graph);
        forget(&b);
    }
    close_model(&b);
}

/* ---- what a later step refutes ---- */

/* Pages that nobody wrote to: in the second chunk just what reading before writing gives. */
static void zeros_from_3(const fd_op_args *args) {
    const int64_t width = fd_node_width(&args->graph->nodes[args->node->input[1]]), n = args->n_kv * width;
    float *rows = copy_input(args, 1, n);
    for (int64_t i = FROM * width; i < n; i++) rows[i] = 0;
    run_with(args, 1, rows);
}

Test(chunked_engine, a_name_that_a_later_step_refutes_makes_way_for_one_that_it_bears) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = graph_copy(&b);
    graph->nodes[fd_graph_find(graph, "blk.0.attn_scores")].override = zeros_from_3;
    graph->nodes[fd_graph_find(graph, "blk.0.attn_out")].override = zeros_from_3;
    fd_verdict v = judged(&b, graph, (recording){.emulated = "f32", .tensors = fused, .first_chunk = FROM});
    const fd_explanation *e = &v.diagnosis.explanation;
    const char *says = e->named ? e->remaining[0].summary : unnamed_of(e);
    cr_expect(strstr(says, "the K and V rows from position 3 on are read as zeros"), "%s", says);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* In decode no later token is there that a mask could let through. Eight keys are padded to sixteen, seven to eight. */
static void padded_to_8_in_decode(const fd_op_args *args) {
    fd_op_args own = *args;
    const fd_node *node = &faulty_graph->nodes[args->node->id];
    own.node = node;
    if (args->n_pos > 1)
        run_clean(args);
    else
        node->override(&own);
}

Test(chunked_engine, keys_that_pad_a_decode_step_are_no_later_tokens) {
    bench b = open_bench(models[0], (recording){0});
    faulty_graph = faulted(&b, "softmax_padding_8");
    fd_graph *graph = spoiled_everywhere(&b, "attn_weights", padded_to_8_in_decode);
    fd_verdict v = judged(&b, graph, (recording){.emulated = "f32", .tensors = no_kernel});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect(e->named && among_remaining(e, "softmax_padding_8"), "%s", unnamed_of(e));
    cr_expect(!among_remaining(e, "mask_zero"));
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* ---- behind a cache that was not recorded ---- */

static void pairs_of_heads_exchanged(const fd_op_args *args) {
    const int64_t n = args->node->shape[1], width = fd_node_width(args->node);
    float *kept = malloc(sizeof *kept * (size_t)width);
    cr_assert(kept);
    run_clean(args);
    for (int32_t r = 0; r < args->n_pos; r++) {
        float *row = (float *)args->out + r * width;
        memcpy(kept, row, sizeof *kept * (size_t)width);
        for (int64_t h = 0; h < args->node->shape[0]; h++)
            memcpy(row + (h ^ 1) * n, kept + h * n, sizeof *kept * (size_t)n);
    }
    free(kept);
}

static fd_tile_rule rule;
static void split(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n_head; i++) {
        const int32_t n = args->pos0 + (int32_t)(i / n_head) + 1;
        fd_tile_weights(rule, (n + 1) / 2, (float *)args->out + i * args->n_kv, n);
    }
}

static void expect_said(bench *b, fd_graph *graph, const char *tensors, const char *says) {
    fd_verdict v = judged(b, graph, (recording){.emulated = "f32", .tensors = tensors, .n_prompt = 7});
    const fd_explanation *e = &v.diagnosis.explanation;
    const char *said = e->named ? e->remaining[0].summary : unnamed_of(e);
    cr_expect(strstr(said, says), "%s: %s", tensors, said);
    fd_verdict_free(&v);
    fd_graph_free(graph);
}

Test(chunked_engine, heads_in_another_order_are_named_behind_an_unrecorded_cache) {
    static const char *const says = "of every 2 groups of 32 elements 0, 1 are the right ones of 1, 0";
    bench b = open_bench(models[0], (recording){.n_prompt = 7});
    expect_said(&b, spoiled_everywhere(&b, "attn_out", pairs_of_heads_exchanged), no_cache, says);
    expect_said(&b, spoiled_everywhere(&b, "attn_out", pairs_of_heads_exchanged), no_kernel, says);
    close_model(&b);
}

/* The first part has the odd key. */
Test(chunked_engine, parts_of_keys_may_be_rounded_up) {
    bench b = open_bench(models[0], (recording){.n_prompt = 7});
    rule = FD_TILES_UNSCALED;
    expect_said(&b, spoiled_everywhere(&b, "attn_weights", split), all, "each off its own maximum (2 parts)");
    rule = FD_TILES_FIRST_ALONE;
    expect_said(&b, spoiled_everywhere(&b, "attn_weights", split), all,
                "the first part of the keys alone is attended to (2 parts)");
    close_model(&b);
}

/* ---- experts, norms of heads, an activation ---- */

Test(chunked_engine, a_choice_of_experts_is_explained_by_logits_of_the_router_alone) {
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    fd_verdict v =
        judged(&b, faulted(&b, "moe_smallest@1"), (recording){.emulated = "f32", .tensors = no_cache, .tokens = small});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect_str_eq(v.divergence.node, "blk.1.ffn_moe_topk");
    cr_expect(e->named && among_remaining(e, "moe_smallest"), "%s", unnamed_of(e));
    fd_verdict_free(&v);
    close_model(&b);
}

/* One kernel norms both. */
Test(chunked_engine, another_eps_in_the_norms_of_q_and_k_is_no_noise_of_layers) {
    bench b = open_arch("qwen3-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    fd_graph *graph = graph_copy(&b), *eps = faulted(&b, "eps_outside_root");
    for (int32_t i = 0; i < graph->n_node; i++)
        if (fd_node_is_norm(&graph->nodes[i]) && graph->nodes[i].n_dim == 2)
            graph->nodes[i].override = eps->nodes[i].override;
    fd_verdict v = judged(&b, graph, (recording){.emulated = "f32", .tensors = "*l_out,logits", .tokens = small});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect(e->named && strstr(e->remaining[0].summary, "at the norms of Q's and K's heads"), "%s",
              e->named ? e->remaining[0].summary : unnamed_of(e));
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* And another all whole rows, which bugs of norms are asked of as well: the heads' were right. `eps`: another; 0: the fault. */
Test(chunked_engine, norms_of_whole_rows_are_one_function) {
    static const struct {
        const char *fault, *tensors, *says;
        float eps;
    } cases[] = {{"layer_norm", "*l_out,logits", "LayerNorm in place of RMSNorm", 0},
                 {"norm_over_rows", "logits", "one mean square over all rows of a forward call", 0},
                 {"norm_weight_first", "*l_out,logits", "multiplies every element by its weight's first one", 0},
                 {"eps_value", "logits", "eps 0.001; the file says 1e-05", 1e-3f},
                 {"eps_value", "*l_out,logits", "RMSNorm has no eps", 1e-12f}};
    bench b = open_arch("qwen3-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_graph *graph = graph_copy(&b), *faulty = faulted(&b, cases[i].fault);
        for (int32_t k = 0; k < graph->n_node; k++) {
            fd_node *node = &graph->nodes[k];
            if (!fd_node_is_norm(node) || node->n_dim != 1) continue;
            node->override = cases[i].eps > 0 ? NULL : faulty->nodes[k].override;
            if (cases[i].eps > 0) node->eps = cases[i].eps;
        }
        recording how = {.emulated = "f32", .tensors = cases[i].tensors, .tokens = small};
        fd_verdict v = judged(&b, graph, how);
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *said = e->n_remaining > 0 ? e->remaining[0].summary : "";
        cr_expect_eq(v.status, FD_DIVERGED, "%zu: %s", i, fd_verdict_status_name(v.status));
        cr_expect(e->named && strstr(said, cases[i].says) && strstr(said, "at the norms of whole rows"), "%zu: %s", i,
                  e->named ? said : unnamed_of(e));
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* 0.044 for 0.044715: of the size of what a table of binary16 leaves, but none of its values. */
static void other_constant(const fd_op_args *args) {
    const float *gate = args->in[0], *up = args->in[1];
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        const double x = (double)gate[i];
        ((float *)args->out)[i] =
            (float)(0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044 * x * x * x)))) * (up ? up[i] : 1);
    }
}

Test(chunked_engine, an_activation_near_a_tables_is_not_the_table) {
    bench b = open_arch("gemma-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    fd_graph *graph = spoiled_everywhere(&b, "ffn_act", other_constant);
    fd_verdict v =
        judged(&b, graph, (recording){.emulated = "f32", .numerics = "unknown", .tensors = all, .tokens = small});
    cr_expect_neq(v.status, FD_NOISE, "class %s", v.replay.numerics);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}
