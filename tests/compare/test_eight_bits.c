/* Engines of bfloat16 tensors with something in 8 bits, which no class repeats: products with FP8 or int8 factors. They are no bug, a bug beside
 * them is one. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "emulate/rounding.h"
#include "tests/compare/mixed_products.h"
#include "tests/compare/replay_bench.h"

static const char all[] = "*norm,*attn_[qkv],*rope,*cache*,*attn_out,*proj,*inp,*gate,*up,*act,*down,*l_out,logits",
                  fused[] = "*norm,*attn_[qkv],*proj,*inp,*down,*l_out,logits";

/* All products of the layers in `how`. */
static fd_graph *engine(const bench *b, fd_override_fn how) {
    fd_graph *graph = graph_copy(b);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_MATMUL && graph->nodes[i].layer >= 0) graph->nodes[i].override = how;
    return graph;
}

static fd_verdict verdict_of(const bench *b, const fd_graph *graph, const char *tensors) {
    recording how = {.emulated = "hf-bf16", .numerics = "unknown", .tensors = tensors, .store = FD_BF16};
    return judge(b->graph, b->ref, record(graph, how), NULL);
}

/* Each result by up to a fifth of the rows' size in no direction, in layer 1 by a third of that: then it is within the bounds. */
static void about_a_tenth_off(const fd_op_args *args) {
    float *y = args->out;
    const int64_t n = args->n_pos * fd_node_width(args->node);
    double squares = 0;
    run_clean(args);
    for (int64_t i = 0; i < n; i++) squares += (double)y[i] * (double)y[i];
    for (int64_t i = 0; i < n; i++)
        y[i] += (args->node->layer == 1 ? 0.06f : 0.2f) * (float)sqrt(squares / (double)n) *
                ((float)((uint32_t)(i * 2654435761u) >> 8) / 0x1p23f - 1);
    fd_round_row(FD_EMULATE_BF16, y, y, n);
}

Test(eight_bits, products_of_8_bit_factors_are_how_the_engine_multiplies) {
    static const fd_override_fn how[] = {fp8_products, int8_products};
    static const char *const tensors[] = {all, fused};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (int i = 0; i < 4; i++) {
            fd_graph *graph = engine(&b, how[i / 2]);
            fd_verdict v = verdict_of(&b, graph, tensors[i % 2]);
            cr_expect_eq(v.status, FD_INCOMPLETE, "%s %d: %s at %s as %s", models[m], i,
                         fd_verdict_status_name(v.status), v.divergence.node, v.replay.numerics);
            cr_expect(strncmp(v.replay.numerics, "hf-bf16", 7) == 0, "%s %d: %s", models[m], i, v.replay.numerics);
            if (tensors[i % 2] == all) /* else spans are so wide that other reasons come first */
                cr_expect(v.reasons.n > 0 && v.reasons.items[0].kind == FD_REASON_MIXED_CLASS, "%s %d", models[m], i);
            fd_verdict_free(&v);
            fd_graph_free(graph);
        }
        close_model(&b);
    }
}

/* Layers show no product: they may have an 8-bit cache as well. What departs at the logits, where no cache is on the way, is no more than they
 * have. Binary32 is stated, which has no room for it. */
Test(eight_bits, one_scale_for_a_tensor_shows_in_layers_and_logits) {
    bench b = open_bench(models[1], (recording){0});
    fd_graph *graph = graph_copy(&b);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_MATMUL) graph->nodes[i].override = int8_tensors;
    recording how = {.numerics = "unknown", .tensors = "*l_out,logits"};
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), "f32");
    cr_expect_eq(v.status, FD_INCOMPLETE, "%s at %s", fd_verdict_status_name(v.status), v.divergence.node);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* Of experts as of all others. */
Test(eight_bits, so_are_those_of_experts) {
    static const int32_t small[N_PREFILL + N_DECODE] = {65, 91, 7, 119, 63, 13, 40, 28};
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    fd_graph *graph = engine(&b, int8_products);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_EXPERT_MATMUL) graph->nodes[i].override = about_a_tenth_off;
    recording how = {.emulated = "hf-bf16", .numerics = "unknown", .tensors = "*", .store = FD_BF16, .tokens = small};
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_eq(v.status, FD_INCOMPLETE, "%s at %s as %s", fd_verdict_status_name(v.status), v.divergence.node,
                 v.replay.numerics);
    cr_expect(v.reasons.n > 0 && v.reasons.items[0].kind == FD_REASON_MIXED_CLASS);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* Its bounds are bfloat16's. */
static void a_tenth_more(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++) ((float *)args->out)[i] *= 1.1f;
}

/* Nor does an engine of binary32 tensors, or one of which layers alone were recorded, have a bug for it. */
Test(eight_bits, so_are_they_beside_binary32_and_through_layers) {
    static const struct {
        const char *tensors;
        bool bug;
    } cases[] = {{"*", false}, {fused, false}, {"*", true}, {"*l_out,logits", false}};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_graph *graph = engine(&b, fp8_factors);
        if (cases[i].bug) graph->nodes[fd_graph_find(graph, "blk.2.ffn_norm")].override = a_tenth_more;
        recording how = {.emulated = "f32", .numerics = "unknown", .tensors = cases[i].tensors};
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        if (cases[i].bug)
            expect_at(&v, "blk.2.ffn_norm", v.replay.numerics);
        else
            cr_expect_eq(v.status, FD_INCOMPLETE, "%zu: %s at %s as %s", i, fd_verdict_status_name(v.status),
                         v.divergence.node, v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

Test(eight_bits, a_bug_beside_them_is_found_at_its_place) {
    static const fd_override_fn how[] = {fp8_products, int8_products};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 2; i++) {
        fd_graph *graph = engine(&b, how[i]);
        graph->nodes[fd_graph_find(graph, "blk.2.ffn_norm")].override = a_tenth_more;
        fd_verdict v = verdict_of(&b, graph, all);
        expect_at(&v, "blk.2.ffn_norm", v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

static void neighbours_exchanged(const fd_op_args *args) {
    float *y = args->out;
    fp8_products(args);
    for (int64_t i = 0; i + 1 < args->n_pos * fd_node_width(args->node); i += 2) {
        const float first = y[i];
        y[i] = y[i + 1], y[i + 1] = first;
    }
}
static void of_other_sign(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) ((float *)args->out)[i] *= -1;
}

/* A product that is off by far more than its kind is in any other layer is none of them, nor is what it is computed through. */
Test(eight_bits, what_is_off_by_far_more_in_one_layer_is_found_there) {
    static const struct {
        const char *node, *at, *tensors;
        fd_override_fn how;
    } cases[] = {{"blk.2.attn_q", "blk.2.attn_q", all, neighbours_exchanged},
                 {"blk.2.ffn_act", "blk.2.ffn_down", fused, of_other_sign}};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_graph *graph = engine(&b, fp8_products);
        graph->nodes[fd_graph_find(graph, cases[i].node)].override = cases[i].how;
        fd_verdict v = verdict_of(&b, graph, cases[i].tensors);
        expect_at(&v, cases[i].at, v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* A product of one layer alone is no way to multiply. */
Test(eight_bits, one_product_in_8_bits_is_a_bug) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = engine(&b, NULL);
    graph->nodes[fd_graph_find(graph, "blk.2.ffn_down")].override = fp8_products;
    fd_verdict v = verdict_of(&b, graph, all);
    expect_at(&v, "blk.2.ffn_down", v.replay.numerics);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* As nothing that has a name. */
static void half_of_it_off(const fd_op_args *args) {
    run_clean(args);
    float *y = args->out;
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0] * args->node->shape[1]; i++)
        y[i] *= (uint32_t)(i * 2654435761) >> 31 ? 1.5f : 0.5f;
}

/* Through unrecorded tensors an engine of 16 bits leaves several roundings of a product, with no direction either. */
Test(eight_bits, several_roundings_on_the_way_are_no_factors_of_8_bits) {
    bench b = open_bench(models[0], (recording){0});
    fd_verdict v = verdict_of(&b, spoiled(&b, "blk.2.attn_v", half_of_it_off), "*attn_proj,*ffn_down,logits");
    expect_at(&v, "blk.2.attn_proj", v.replay.numerics);
    fd_verdict_free(&v);
    close_model(&b);
}
