/* What only some architectures' blocks have: norms with biases, parallel branches, biases beside each other, tables of positions. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */

static int32_t weight_named(const fd_graph *g, const char *name) {
    for (int32_t w = 0; w < g->n_weight; w++)
        if (strcmp(g->weights[w].name, name) == 0) return w;
    cr_assert_fail("no %s", name);
    return -1;
}

static void norm_of_layer_2(fd_graph *g, fd_node *n) {
    n->weight[0] = weight_named(g, "blk.2.attn_norm.weight");
    n->weight[1] = weight_named(g, "blk.2.attn_norm.bias");
}

/* Decode begins at 0 again. */
static void from_its_call_on(const fd_op_args *args) {
    fd_op_args own = *args;
    if (args->n_pos == 1) own.pos0 = 0;
    run_clean(&own);
}

static void bias_again(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n; i++)
        ((float *)args->out)[i] += ((const float *)args->weight[1]->data)[i % n];
}

/* The first of the chosen experts' outputs in place of the second's. */
static void first_output_twice(const fd_op_args *args) {
    const int64_t k = args->graph->nodes[args->node->input[0]].shape[0], n = fd_node_width(args->node);
    float *x = copy_input(args, 0, args->n_pos * k * n);
    for (int64_t row = 0; row < args->n_pos; row++)
        memcpy(x + (row * k + 1) * n, x + row * k * n, sizeof *x * (size_t)n);
    run_with(args, 0, x);
}

static void fifth_zero(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++) ((float *)args->out)[row * n + 5] = 0;
}

static const struct {
    const char *arch, *nodes[3];
    void (*edit)(fd_graph *graph, fd_node *node); /* of those nodes */
    fd_override_fn override;                      /* likewise, where there is no edit */
    const char *fault;                            /* else a row of the table */
    const char *tensors, *name, *says;
} cases[] = {
    {"gptneox-dense",
     {"blk.1.ffn_norm"},
     norm_of_layer_2,
     NULL,
     NULL,
     "*",
     "other_weight",
     "reads blk.2.attn_norm.weight, and its bias, where blk.1.ffn_norm.weight is right"},
    {"gpt2-dense",
     {"inp_pos"},
     NULL,
     from_its_call_on,
     NULL,
     "*norm,inp_pos,*l_out,logits",
     "other_position",
     "adds the row of position 0 in every row"},
    {"llama-dense",
     {"blk.1.attn_q", "blk.1.attn_k", "blk.1.attn_v"},
     NULL,
     bias_again,
     NULL,
     "token_embd,*l_out,logits",
     "bias_twice",
     "in what reads blk.1.attn_norm alone"},
    {"deepseek-moe",
     {"blk.1.ffn_moe_out"},
     NULL,
     first_output_twice,
     NULL,
     "*",
     "other_expert_outputs",
     "number 0 is added as number 1"},
    {"llama-dense", {NULL}, NULL, NULL, "act_on_product@1", "token_embd,*l_out,logits", "act_on_product", ""},
    {"qwen2-dense", {NULL}, NULL, NULL, "up_activated@1", "token_embd,*l_out,logits", "up_activated", ""},
    {"gemma2-dense", {NULL}, NULL, NULL, "up_added@1", "token_embd,*l_out,logits", "up_added", ""},
    {"gemma2-dense", {NULL}, NULL, NULL, "post_norms_swapped@1", "token_embd,*l_out,logits", "post_norms_swapped", ""},
    {"gemma2-dense",
     {NULL},
     NULL,
     NULL,
     "ffn_norm_after_attention@1",
     "token_embd,*l_out,logits",
     "ffn_norm_after_attention",
     ""},
    {"gptneox-dense",
     {NULL},
     NULL,
     NULL,
     "block_norms_swapped@1",
     "token_embd,*l_out,logits",
     "block_norms_swapped",
     ""},
    {"gptneox-dense",
     {NULL},
     NULL,
     NULL,
     "layer_norm_bias_before_weight@1",
     "token_embd,*l_out,logits",
     "layer_norm_bias_before_weight",
     ""},
    {"llama-dense",
     {"blk.1.ffn_up"},
     NULL,
     fifth_zero,
     NULL,
     "*norm,*inp,*down,*l_out,logits",
     "sum_cut_short",
     "element 5 of what it multiplies is left out"},
    {"nemotron-dense",
     {"blk.1.ffn_up"},
     NULL,
     fifth_zero,
     NULL,
     "*norm,*inp,*down,*l_out,logits",
     "sum_cut_short",
     "element 5 of what it multiplies is left out"},
    /* without RoPE nothing but the cache tells the two apart, and both are listed */
    {"bloom-dense", {NULL}, NULL, NULL, "k_v_biases_swapped@1", "token_embd,*l_out,logits", "kv_written_exchanged", ""},
    {"bloom-dense", {NULL}, NULL, NULL, "k_v_biases_swapped@1", "*", "k_v_biases_swapped", ""},
    {"falcon-dense", {NULL}, NULL, NULL, "k_v_swapped@1", "*", "k_v_swapped", ""},
    {"qwen2-dense", {NULL}, NULL, NULL, "kv_exchanged@1", "token_embd,*l_out,logits", "kv_exchanged", ""},
    {"llama-dense",
     {NULL},
     NULL,
     NULL,
     "kv_exchanged_unpermuted@1",
     "token_embd,*l_out,logits",
     "kv_exchanged_unpermuted",
     ""},
    {"llama-dense",
     {NULL},
     NULL,
     NULL,
     "kv_v_is_k_unpermuted@1",
     "*norm,*proj,*inp,*l_out,logits",
     "kv_v_is_k_unpermuted",
     ""},
    {"phi2-dense",
     {NULL},
     NULL,
     NULL,
     "parallel_as_sequential@1",
     "token_embd,*l_out,logits",
     "parallel_as_sequential",
     ""},
    {"falcon-dense",
     {NULL},
     NULL,
     NULL,
     "parallel_as_sequential@1",
     "*norm,*norm_2,*proj,*down,*l_out,logits",
     "parallel_as_sequential",
     ""},
    /* whose norms of heads are LayerNorms: this is not RoPE before them */
    {"stablelm-dense", {NULL}, NULL, NULL, "qk_norm_missing@1", "*", "qk_norm_missing", ""},
};

Test(blocks, are_explained_in_every_architecture) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b = open_arch(cases[i].arch);
        b.ref = record(b.graph, (recording){.tokens = small});
        fd_graph *faulty = faulted(&b, cases[i].fault ? cases[i].fault : "");
        if (!faulty) faulty = spoiled(&b, cases[i].nodes[0], NULL);
        for (int k = 0; k < 3 && cases[i].nodes[k]; k++) {
            fd_node *node = &faulty->nodes[fd_graph_find(faulty, cases[i].nodes[k])];
            if (cases[i].edit)
                cases[i].edit(faulty, node);
            else
                node->override = cases[i].override;
        }
        fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = cases[i].tensors, .tokens = small});
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *found = e->named ? e->remaining[0].summary : unnamed_of(e);
        cr_expect(e->named && strcmp(e->remaining[0].name, cases[i].name) == 0, "%s of %s: %s", cases[i].name,
                  cases[i].arch, found);
        cr_expect(strstr(found, cases[i].says), "%s of %s: %s", cases[i].name, cases[i].arch, found);
        fd_verdict_free(&v);
        close_model(&b);
    }
}

/* Where scores and weights were not recorded, fused attention's bounds are a little too narrow for an engine whose attention rounds: heads that
 * are right are beyond them as well. */
static void last_head_zero(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node), dim = args->node->shape[1];
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++)
        memset((float *)args->out + (row + 1) * n - dim, 0, sizeof(float) * (size_t)dim);
}

Test(blocks, a_head_of_zeros_is_no_cache_that_was_not_written_on_one_rank) {
    static const char partial[] = "token_embd,*norm,*attn_[qkv],*rope,*attn_out,*proj,*inp,*act,*down,*l_out,logits";
    bench b = open_arch("qwen2-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    fd_graph *faulty = spoiled_everywhere(&b, "attn_out", last_head_zero);
    fd_verdict v = judged(
        &b, faulty, (recording){.emulated = "hf-bf16", .numerics = "unknown", .tensors = partial, .tokens = small});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect(e->named && strcmp(e->remaining[0].name, "zeros") == 0, "%s at %s: %s", v.replay.numerics,
              v.divergence.node, e->named ? e->remaining[0].summary : unnamed_of(e));
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}
