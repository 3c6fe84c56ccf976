/* Engines that round the factors of their products, and perhaps the products, while the rest is binary32: autocast, JAX,
 * int8 activations with one scale a row. Each is inferred and sound, and a bug in it is found at its place; rounding in one
 * kind of product alone is no class. */
#include <criterion/criterion.h>
#include <string.h>

#include "compare/report/remarks.h"
#include "emulate/rounding.h"
#include "tests/compare/mixed_products.h"
#include "tests/compare/replay_bench.h"

/* ---- engines ---- */

static void norm_off(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++) ((float *)args->out)[i] *= 1.01f;
}

/* Products of the layers, the logits where `logits`, in which `suffix` is what the node's name ends with; "" is in all. */
static fd_graph *engine(const bench *b, fd_override_fn how, const char *suffix, bool logits) {
    fd_graph *graph = graph_copy(b);
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_MATMUL && fd_ends_with(node->name, suffix) && (logits || node->layer >= 0))
            node->override = how;
    }
    return graph;
}

#define FUSED "*norm,*attn_out,*proj,*inp,*down,*l_out,logits"
static const char *const all = "*",
                         *const inside =
                             "*norm,*attn_[qkv],*rope,*attn_out,*proj,*inp,*gate,*up,*act,*down,*l_out,logits";

static const struct {
    const char *what, *class_, *tensors;
    fd_override_fn how;
    int model;
    bool logits;
} engines[] = {
    {"bfloat16 factors, logits in binary32", "bf16-f32kv", FUSED, bf16_factors, 0, false},
    {"bfloat16 factors", "bf16-f32kv", "*", bf16_factors, 1, true},
    {"binary16 factors of Q8_0 weights", "f16-f32kv", "*l_out,logits", f16_factors, 0, true},
    {"bfloat16 factors of several rows", "bf16-gemm", "*", bf16_of_several_rows, 0, true},
    {"bfloat16 factors of several rows, fused", "bf16-gemm", FUSED, bf16_of_several_rows, 1, true},
    {"bfloat16 factors of several rows, layers alone", "bf16-gemm", "*l_out,logits", bf16_of_several_rows, 0, true},
    {"binary16 factors of several rows", "f16-gemm", FUSED, f16_of_several_rows, 0, true},
    {"bfloat16 products", "mixed-bf16", FUSED, bf16_products, 0, true},
    {"bfloat16 products before a bias of binary32", "mixed-bf16", "*", bf16_products, 1, true},
    {"bfloat16 products of weights that are as they were", "mixed-bf16", "*", bf16_activations, 0, true},
    {"TF32 beside some shapes", "tf32", "*", tf32_factors, 0, true},
    {"TF32 beside some shapes, with biases", "tf32", FUSED, tf32_factors, 1, true},
    {"TF32 of several rows", "tf32-gemm", "*l_out,logits", tf32_of_several_rows, 1, true},
    {"TF32 cut off, rounded or neither", "tf32-cut", "*", tf32_cut_factors, 0, true},
    {"TF32 cut off, rounded or neither, with biases", "tf32-cut", FUSED, tf32_cut_factors, 1, true},
    {"binary16 factors, single rows summed in binary16", "ggml-cpu-f32kv", "*", f16_sums_of_single_rows, 1, true},
    {"int8 activations, one scale a row", "int8-rows", FUSED, int8_rows, 0, true},
    {"int8 blocks of bfloat16", "int8-bf16", "*", int8_blocks_of_bf16, 0, true},
    {"int8 activations, a scale for 64", "int8-64-f32kv", FUSED, int8_blocks_64, 0, true},
    {"int8 activations, a scale for 128", "int8-128-f32kv", "*", int8_blocks_128, 0, true},
    {"int8 activations and weights, one scale a row", "w8a8", "*", int8_both, 1, true},
};

Test(mixed_classes, sound_engines_are_noise_in_their_own_class) {
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
            if (engines[i].model != m) continue;
            fd_graph *graph = engine(&b, engines[i].how, "", engines[i].logits);
            recording how = {.emulated = "f32", .numerics = "unknown", .tensors = engines[i].tensors};
            fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
            char text[FD_REMARK_SIZE];
            cr_expect_eq(v.status, FD_NOISE, "%s: %s at %s: %s", engines[i].what, fd_verdict_status_name(v.status),
                         v.divergence.node, fd_reason_text(&v, 0, text));
            cr_expect_str_eq(v.replay.numerics, engines[i].class_, "%s: %s", engines[i].what, v.replay.numerics);
            fd_verdict_free(&v);
            fd_graph_free(graph);
        }
        close_model(&b);
    }
}

/* Scores and the weighted sum are products of several rows as well; single rows, which tell, are the last ones. */
Test(mixed_classes, eager_attention_on_tensor_cores_is_noise_in_a_class_of_its_own) {
    static const char *const recorded[] = {"*l_out,logits", FUSED, "*"};
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = engine(&b, tf32_of_several_rows, "", true);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ATTN_SCORES || graph->nodes[i].op == FD_OP_ATTN_MIX)
            graph->nodes[i].override = tf32_of_several_rows;
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        recording how = {.emulated = "f32", .numerics = "unknown", .tensors = recorded[i]};
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        cr_expect_eq(v.status, FD_NOISE, "%s: %s at %s", recorded[i], fd_verdict_status_name(v.status),
                     v.divergence.node);
        cr_expect_str_eq(v.replay.numerics, "tf32-gemm-eager", "%s: %s", recorded[i], v.replay.numerics);
        fd_verdict_free(&v);
    }
    fd_graph_free(graph);
    close_model(&b);
}

/* Products that are handed out in binary32 before they are rounded; the scale is no power of two in neither model. */
Test(mixed_classes, rope_and_attention_in_bfloat16_beside_products_of_24_bits_are_noise) {
    for (int m = 0; m < N_MODEL; m++)
        for (int i = 0; i < 2; i++) {
            bench b = open_bench(models[m], (recording){0});
            fd_graph *graph = engine(&b, bf16_factors, "", true);
            for (int32_t k = 0; k < graph->n_node; k++) {
                const fd_op op = graph->nodes[k].op;
                if (op == FD_OP_ROPE) graph->nodes[k].override = bf16_rope;
                if (op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX) graph->nodes[k].override = bf16_attention;
            }
            recording how = {.emulated = "f32", .numerics = "unknown", .tensors = i ? inside : all};
            fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
            cr_expect_eq(v.status, FD_NOISE, "%d, %d: %s at %s", m, i, fd_verdict_status_name(v.status),
                         v.divergence.node);
            cr_expect_str_eq(v.replay.numerics, "mixed-bf16", "%d, %d: %s", m, i, v.replay.numerics);
            fd_verdict_free(&v);
            fd_graph_free(graph);
            close_model(&b);
        }
}

/* The bounds of products and of what is not rounded are binary32's, so an error of a hundredth is far beyond. */
Test(mixed_classes, a_bug_is_found_beside_their_roundings) {
    static const fd_override_fn of[] = {bf16_factors,        bf16_products,        int8_rows,
                                        int8_blocks_64,      tf32_factors,         tf32_cut_factors,
                                        int8_blocks_of_bf16, bf16_of_several_rows, f16_of_several_rows};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        fd_graph *graph = engine(&b, of[i], "", true);
        graph->nodes[fd_graph_find(graph, "blk.2.ffn_norm")].override = norm_off;
        recording how = {.emulated = "f32", .numerics = "unknown", .tensors = inside};
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        expect_at(&v, "blk.2.ffn_norm", v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* Nor where a class has it that products of some shapes round: others of that shape do not. */
Test(mixed_classes, one_kind_of_product_is_no_class) {
    static const fd_override_fn of[] = {bf16_products, f16_factors, tf32_factors, bf16_of_several_rows};
    static const char *const kinds[] = {"ffn_up", "attn_q", "attn_q", "attn_q"};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        fd_graph *graph = engine(&b, of[i], kinds[i], false);
        recording how = {.emulated = "f32", .numerics = "unknown", .tensors = all};
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        cr_expect_neq(v.status, FD_NOISE, "%zu", i);
        cr_expect_str_eq(v.replay.numerics, "f32", "%zu: %s", i, v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* A product of the class is held to the bounds of binary32, whichever way it was computed: a twentieth of what its rounding leaves. */
static void slightly_off(const fd_op_args *args) {
    tf32_factors(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++)
        if (i % 7 == 3) ((float *)args->out)[i] *= 1 + 0x1p-15f;
}

Test(mixed_classes, an_error_far_below_what_tf32_leaves_is_found_in_a_product) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = engine(&b, tf32_factors, "", true);
    graph->nodes[fd_graph_find(graph, "blk.2.attn_q")].override = slightly_off;
    recording how = {.emulated = "f32", .numerics = "unknown", .tensors = all};
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_str_eq(v.replay.numerics, "tf32", "%s", v.replay.numerics);
    expect_at(&v, "blk.2.attn_q", v.replay.numerics);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

static void expect_undecided(int model, fd_override_fn how_products, const char *tensors) {
    bench b = open_bench(models[model], (recording){0});
    fd_graph *graph = engine(&b, how_products, "", true);
    recording how = {.emulated = "f32", .numerics = "unknown", .tensors = tensors};
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_eq(v.status, FD_INCOMPLETE, "%s at %s as %s", fd_verdict_status_name(v.status), v.divergence.node,
                 v.replay.numerics);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* Through unrecorded products nobody can tell which: the bounds have room for both, and it is no bug. */
Test(mixed_classes, layer_outputs_of_tf32_are_no_bug) {
    expect_undecided(0, tf32_factors, "*l_out,logits");
}

/* ggml-cpu's factors are repeated to the last bits in the prompt; what single rows sum in binary16 goes through gate and up. */
Test(mixed_classes, single_rows_of_another_kernel_behind_an_unrecorded_product_are_no_bug) {
    expect_undecided(1, f16_sums_of_single_rows, "*norm,*attn_*,*rope,*cache*,*inp,*act,*down,*l_out,logits");
}

/* Nothing but room speaks for them then. */
Test(mixed_classes, layer_outputs_alone_show_no_class_that_takes_16_bit_values_as_they_come) {
    expect_undecided(0, bf16_products, "*l_out,logits");
}

/* K and V in int8 with one scale a head: through attention all roundings of a cache look alike, and none is sure. */
static void int8_heads(const fd_op_args *args) {
    int64_t n_head = args->node->shape[0], dim = args->node->shape[1];
    run_clean(args);
    for (int64_t i = args->pos0 * n_head; i < (args->pos0 + args->n_pos) * n_head; i++)
        in_int8((float *)args->out + i * dim, dim);
}

Test(mixed_classes, a_rounded_cache_is_no_bug_of_an_engine_whose_fused_attention_hides_it) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = graph_copy(&b);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (fd_node_is_kv_cache(&graph->nodes[i])) graph->nodes[i].override = int8_heads;
    recording how = {
        .emulated = "hf-f16", .numerics = "unknown", .tensors = "token_embd,*attn_proj,*ffn_down,*l_out,logits"};
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_eq(v.status, FD_INCOMPLETE, "%s at %s", fd_verdict_status_name(v.status), v.divergence.node);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* A class for every way to make integers there is none. */
Test(mixed_classes, products_that_are_off_in_no_direction_in_an_engine_of_unknown_class_are_no_bug) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = engine(&b, int8_batch, "", true);
    recording how = {.emulated = "f32", .numerics = "unknown", .tensors = "*norm,*attn_proj,*ffn_down,logits"};
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_eq(v.status, FD_INCOMPLETE, "%s at %s as %s", fd_verdict_status_name(v.status), v.divergence.node,
                 v.replay.numerics);
    cr_expect(v.reasons.n > 0 && v.reasons.items[0].kind == FD_REASON_MIXED_CLASS);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

Test(mixed_classes, factors_that_all_products_round_are_how_the_engine_multiplies) {
    static const char *const kinds[] = {"", ".ffn_gate"};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 2; i++) {
        fd_graph *graph = engine(&b, f16_activations, kinds[i], true);
        fd_verdict v =
            judge(b.graph, b.ref, record(graph, (recording){.emulated = "f16kv", .numerics = "unknown"}), NULL);
        cr_expect_eq(v.status, i ? FD_DIVERGED : FD_INCOMPLETE, "%s: %s at %s as %s", kinds[i],
                     fd_verdict_status_name(v.status), v.divergence.node, v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

Test(mixed_classes, int8_blocks_are_in_all_products_or_in_none) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = graph_copy(&b);
    for (int32_t i = 0; i < graph->n_node; i++) {
        const char *dot = strrchr(graph->nodes[i].name, '.');
        if (dot && strstr(".attn_q.attn_k.attn_v", dot) && graph->nodes[i].op == FD_OP_MATMUL)
            graph->nodes[i].override = off_by_scales;
    }
    recording how = {.emulated = "f32", .numerics = "unknown", .tensors = "token_embd," FUSED ",*attn_[qkv]"};
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_neq(v.status, FD_NOISE, "%s at %s as %s", fd_verdict_status_name(v.status), v.divergence.node,
                  v.replay.numerics);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

static void rounded_to_bf16(const fd_op_args *args) {
    run_clean(args);
    fd_round_row(FD_EMULATE_BF16, args->out, args->out, args->n_pos * args->node->shape[0]);
}

/* Between layers: an engine of bfloat16 rounds within them, too. */
Test(mixed_classes, a_stream_that_is_rounded_between_layers_of_binary32_is_no_16_bit_engine) {
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        recording how = {.emulated = "f32", .numerics = "unknown", .tensors = "*l_out,logits"};
        fd_verdict v = judge(b.graph, b.ref, record(spoiled_everywhere(&b, "l_out", rounded_to_bf16), how), NULL);
        expect_at(&v, "blk.0.l_out", models[m]);
        cr_expect_str_eq(v.replay.numerics, "f32", "%s: %s", models[m], v.replay.numerics);
        fd_verdict_free(&v);
        close_model(&b);
    }
}
