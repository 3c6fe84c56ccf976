/* Bugs that are named through whole layers: from logits alone, or from the layers' outputs. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/compare/replay_bench.h"

typedef struct layers_case {
    const char *emulated; /* whose class is not told, unless it is f32 */
    const char *what;
    void (*edit)(fd_node *node); /* a node of a layer */
    const char *name, *summary;
    const char *tensors; /* NULL: logits alone */
} layers_case;

static void other_eps_before_attention(fd_node *node) {
    if (strcmp(fd_fault_suffix(node), "attn_norm") == 0) node->eps = 1e-3f;
}

static void no_norm_before_the_ffn(fd_node *node) {
    if (strcmp(fd_fault_suffix(node), "ffn_norm") != 0) return;
    node->op = FD_OP_SCALE;
    node->scale = 1;
}

static void base_of_layer_2(fd_node *node) {
    if (node->op == FD_OP_ROPE && node->layer == 2) node->rope.base = 8000;
}

static void less(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) ((float *)args->out)[i] *= 0.9f;
}

static void less_of_attention(fd_node *node) {
    if (node->op == FD_OP_ATTN_MIX) node->override = less;
}

static const layers_case cases[] = {
    {"f32", "the norms before attention have another eps, those of the FFN have not", other_eps_before_attention,
     "other_eps", "eps 0.001; the file says 1e-05, at every attn_norm"},
    /* all rows are moved, so that none shows the class: it is found with the bug, by rows to their last bits */
    {"llama-cpu", "the stream goes into the FFN without a norm, beside int8 blocks", no_norm_before_the_ffn,
     "norm_missing", "the norm before attention or FFN is left out, at every ffn_norm"},
    {"llama-cpu", "attention gives too little in every layer, beside int8 blocks", less_of_attention, "factor",
     "the values are 0.9 times the right ones", "*l_out,logits"},
    /* a base that is nearly right leaves as much as the right one does: steps hide the way to it */
    {"llama-cpu", "RoPE of one layer has another base, beside int8 blocks", base_of_layer_2, "other_rope_base",
     "RoPE base 8000; the file says 10000", "*l_out,logits"},
};

Test(through_layers, one_kind_of_node_is_named_from_logits_or_layers_alone) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b = open_bench(models[0], (recording){0});
        fd_graph *faulty;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        for (int32_t k = 0; k < faulty->n_node; k++)
            if (faulty->nodes[k].layer >= 0) cases[i].edit(&faulty->nodes[k]);
        fd_verdict v = judged(&b, faulty,
                              (recording){.emulated = cases[i].emulated,
                                          .numerics = strcmp(cases[i].emulated, "f32") == 0 ? "f32" : "unknown",
                                          .tensors = cases[i].tensors ? cases[i].tensors : "logits"});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, FD_DIVERGED, "%s: %s", cases[i].what, fd_verdict_status_name(v.status));
        cr_expect(e->named, "%s", cases[i].what);
        cr_expect_str_eq(e->remaining[0].name, cases[i].name, "%s", cases[i].what);
        cr_expect_str_eq(e->remaining[0].summary, cases[i].summary, "%s", cases[i].what);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
        close_model(&b);
    }
}

/* ---- engines of 16 bits: the bounds of a layer's output have room for a bug in the first layers ---- */

static void base_twice(fd_node *node) {
    if (node->op == FD_OP_ROPE) node->rope.base *= 2;
}

static const layers_case of_16_bits[] = {
    {"hf-bf16", "RoPE has twice the base", base_twice, "other_rope_base", "RoPE base 2e+06; the file says 1e+06"},
};

Test(through_layers, a_bug_found_in_a_later_layer_begins_where_its_direction_shows_first) {
    bench b = open_bench(models[1], (recording){0});
    for (size_t i = 0; i < sizeof of_16_bits / sizeof *of_16_bits; i++) {
        fd_graph *faulty;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        for (int32_t k = 0; k < faulty->n_node; k++)
            if (faulty->nodes[k].layer >= 0) of_16_bits[i].edit(&faulty->nodes[k]);
        recording how = {
            .emulated = of_16_bits[i].emulated, .numerics = "unknown", .tensors = "token_embd,*l_out,logits"};
        fd_verdict v = judged(&b, faulty, how);
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_str_eq(v.divergence.node, "blk.0.l_out", "%s: %s", of_16_bits[i].what, v.divergence.node);
        cr_expect(e->named, "%s", of_16_bits[i].what);
        cr_expect_str_eq(e->remaining[0].name, of_16_bits[i].name, "%s: %s", of_16_bits[i].what,
                         e->remaining[0].summary);
        cr_expect(strstr(e->remaining[0].summary, of_16_bits[i].summary), "%s: %s", of_16_bits[i].what,
                  e->remaining[0].summary);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}
