/* llama.cpp's CPU kernels with attention in their own way: scores that were rounded are no reason for a class with room in every product, nor
 * are sums of V in binary16. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/infer/f16_sums.h"
#include "emulate/rounding.h"
#include "tests/compare/replay_bench.h"

/* Kernels of attention differ in how they sum V. Where that and all products are what llama.cpp's are, so are its scores. */
Test(attention_classes, scores_alone_are_no_reason_for_a_class_with_room_in_every_product) {
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        fd_graph *graph = spoiled_everywhere(&b, "attn_scores", rounded_to_f16);
        recording how = {.emulated = "llama-cpu", .numerics = "unknown", .tensors = "*"};
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        cr_expect_neq(v.status, FD_NOISE, "%s: %s", models[m], v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
        close_model(&b);
    }
}

static void a_thousandth_more(const fd_op_args *args) {
    run_clean(args);
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] *= 1.001f;
}

/* As ggml's kernel for a CPU does it: key after key, e^(score − largest so far)·v is added to a sum in binary16, which a larger score scales
 * down first, and the total divides it in the end. */
static void sum_in_turn(const float *weights, const float *v, int32_t n, int32_t stride, int32_t dim, float *y) {
    float most = 0;
    for (int32_t i = 0; i < dim; i++) y[i] = 0;
    for (int32_t t = 0; t < n; t++) {
        const float old = most;
        most = weights[t] > most ? weights[t] : most;
        for (int32_t i = 0; i < dim; i++) {
            if (most > old) y[i] = fd_round_f16(y[i] * (old / most));
            y[i] = fd_round_f16(fmaf(v[t * stride + i], weights[t] / most, y[i]));
        }
    }
    for (int32_t i = 0; i < dim; i++) y[i] *= most;
}

static void summed_in_f16(const fd_op_args *args) {
    const fd_node *node = args->node;
    const int32_t n_head = node->shape[0], dim = node->shape[1],
                  n_head_kv = args->graph->nodes[node->input[1]].shape[0];
    for (int32_t i = 0; i < args->n_pos * n_head; i++)
        sum_in_turn((const float *)args->in[0] + (int64_t)i * args->n_kv,
                    (const float *)args->in[1] + i % n_head / (n_head / n_head_kv) * dim, args->pos0 + i / n_head + 1,
                    n_head_kv * dim, dim, (float *)args->out + (int64_t)i * dim);
}

static void make_flash(fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ATTN_MIX) graph->nodes[i].override = summed_in_f16;
}

/* Flash attention on llama.cpp's CPU sums V in binary16, which says nothing of its products: they are repeated, and held to the bounds
 * of binary32. */
Test(attention_classes, flash_attention_that_sums_in_binary16_leaves_products_no_room) {
    static const char tensors[] = "*norm,*attn_[qkv],*rope,*attn_out,*proj,*inp,*gate,*up,*act,*down,*l_out,logits";
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        recording how = {.emulated = "llama-cpu", .numerics = "unknown", .tensors = tensors};
        fd_graph *graph = spoiled_everywhere(&b, "attn_out", summed_in_f16);
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        fd_graph_free(graph);
        cr_expect_str_eq(v.replay.numerics, "ggml-cpu-fa", "%s: %s", models[m], v.replay.numerics);
        expect_noise(v, models[m], "flash attention");
        graph = spoiled_everywhere(&b, "ffn_down", a_thousandth_more);
        make_flash(graph);
        v = judge(b.graph, b.ref, record(graph, how), NULL);
        cr_expect_neq(v.status, FD_NOISE, "%s: %s", models[m], v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
        close_model(&b);
    }
}

/* One factor of a product is no rounding, however near to 1: a class whose roundings are repeated leaves it to the last bits. */
Test(attention_classes, a_thousandth_more_of_a_product_is_named_beside_a_cache_in_binary16) {
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        recording how = {.emulated = "f16kv", .numerics = "unknown", .tensors = "*"};
        fd_graph *graph = spoiled_everywhere(&b, "ffn_down", a_thousandth_more);
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, FD_DIVERGED, "%s: %s", models[m], v.replay.numerics);
        cr_expect(e->named && strcmp(e->remaining[0].name, "factor") == 0, "%s: %s", models[m],
                  e->named ? e->remaining[0].name : "");
        fd_verdict_free(&v);
        fd_graph_free(graph);
        close_model(&b);
    }
}

/* Weights of attention that are all a little too small: within the room that factors in bfloat16 have. */
static void a_hundredth_less(const fd_op_args *args) {
    run_clean(args);
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] *= 0.99f;
}

/* All products are to their last bits what factors in binary16 make, as beside weights of binary16 they are: so no factors were rounded to
 * bfloat16 or cut to TF32, and attention has not the room of such an engine. */
Test(attention_classes, products_that_show_their_factors_refute_classes_of_coarser_ones) {
    static const char tensors[] = "*norm,*attn_[qkv],*attn_out,*proj,*inp,*act,*down,*l_out,logits";
    bench b = open_bench(models[1], (recording){0}); /* of binary16 */
    recording how = {.emulated = "llama-cpu", .numerics = "unknown", .tensors = tensors};
    fd_graph *graph = spoiled_everywhere(&b, "attn_weights", a_hundredth_less);
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_neq(v.status, FD_NOISE, "%s", v.replay.numerics);
    cr_expect_neq(strncmp(v.replay.numerics, "bf16", 4), 0, "%s", v.replay.numerics);
    cr_expect_neq(strncmp(v.replay.numerics, "tf32", 4), 0, "%s", v.replay.numerics);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */

/* Beside weights of binary32 no product rounds, and the sums of V show it all the same: each head's row is numbers of 11 bits times one. */
Test(attention_classes, sums_in_binary16_show_themselves_beside_weights_of_binary32) {
    static const char tensors[] =
        "*norm,*attn_[qkv],*rope,*cache_k,*attn_out,*proj,*inp,*gate,*up,*act,*down,*l_out,logits";
    bench b = open_arch("llama-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    recording how = {.emulated = "llama-cpu", .numerics = "unknown", .tensors = tensors, .tokens = small};
    fd_graph *graph = spoiled_everywhere(&b, "attn_out", summed_in_f16);
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_str_eq(v.replay.numerics, "ggml-cpu-fa");
    expect_noise(v, "llama-dense", "flash attention");
    fd_graph_free(graph);
    close_model(&b);
}

Test(attention_classes, numbers_of_11_bits_times_one_are_told_from_others) {
    double f16[64], bf16[64], others[64], halved[64];
    for (int i = 0; i < 64; i++) {
        const float x = sinf((float)(7 * i + 1)) * (i % 3 ? 1.0f : 0.1f);
        f16[i] = (double)((float)fd_round_f16(x) * 0.7321f);
        bf16[i] = (double)(fd_round_bf16(x) * 0.7321f);
        others[i] = (double)x;
        halved[i] = i == 40 ? (double)x : f16[i];
    }
    cr_expect(fd_are_f16_sums(f16, 64));
    cr_expect_not(fd_are_f16_sums(bf16, 64)); /* fewer bits: another engine */
    cr_expect_not(fd_are_f16_sums(others, 64));
    cr_expect_not(fd_are_f16_sums(halved, 64));
    cr_expect_not(fd_are_f16_sums(f16, 8)); /* too few */
    f16[3] = NAN;
    cr_expect_not(fd_are_f16_sums(f16, 64));
}

static void rounded_to_bf16(const fd_op_args *args) {
    run_clean(args);
    fd_round_row(FD_EMULATE_BF16, args->out, args->out, args->n_pos * fd_node_row_stride(args->node, args->n_kv));
}

/* bfloat16 tensors, but scores and weights, which a fused kernel keeps to itself. */
static fd_graph *fused_in_bf16(const bench *b) {
    fd_graph *graph = graph_copy(b);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (!graph->nodes[i].over_kv && graph->nodes[i].op != FD_OP_KV_WRITE)
            graph->nodes[i].override = rounded_to_bf16;
    return graph;
}

/* The class of attention that rounds its scores has room for a bug of the size, and would be inferred because of it. */
Test(attention_classes, a_small_bug_of_fused_attention_is_no_reason_for_scores_in_16_bits) {
    static const char tensors[] =
        "token_embd,*norm,*attn_[qkv],*rope,*cache*,*attn_out,*proj,*inp,*gate,*up,*act,*down,*l_out,logits";
    static const struct {
        int model;
        const char *layer; /* whose scores are off by a factor */
        float factor;
    } of[] = {{0, "blk.2", 1}, {0, "blk.2", 1.04f}, {1, "blk.3", 1}, {1, "blk.3", 1.12f}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const bool bug = of[i].factor > 1;
        char scores[64], out[64];
        snprintf(scores, sizeof scores, "%s.attn_scores", of[i].layer);
        snprintf(out, sizeof out, "%s.attn_out", of[i].layer);
        bench b = open_bench(models[of[i].model], (recording){0});
        fd_graph *graph = fused_in_bf16(&b);
        graph->nodes[fd_graph_find(graph, scores)].scale *= of[i].factor;
        recording how = {.emulated = "f32", .numerics = "unknown", .tensors = tensors, .store = FD_BF16};
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        cr_expect_str_eq(v.replay.numerics, "hf-bf16-fa", "%zu: %s", i, v.replay.numerics);
        if (bug)
            expect_at(&v, out, v.replay.numerics);
        else
            cr_expect_eq(v.status, FD_NOISE, "%s at %s", fd_verdict_status_name(v.status), v.divergence.node);
        fd_verdict_free(&v);
        fd_graph_free(graph);
        close_model(&b);
    }
}

/* e^(score − largest so far) in binary16, which V is multiplied with, tile after tile of so many keys; the sum divides at the end. */
enum { TILE = 4 };
static void rounded_undivided(const fd_op_args *args) {
    const int32_t n_head = args->node->shape[0];
    run_clean(args);
    for (int64_t i = 0; i < (int64_t)args->n_pos * n_head; i++) {
        float *w = (float *)args->out + i * args->n_kv, largest = 0;
        const int64_t n = args->pos0 + i / n_head + 1;
        for (int64_t k = 0; k < n; k += TILE) {
            const int64_t end = k + TILE < n ? k + TILE : n;
            for (int64_t t = k; t < end; t++) largest = fmaxf(largest, w[t]);
            for (int64_t t = k; t < end; t++) w[t] = fd_round_f16(w[t] / largest) * largest;
        }
    }
}

/* Such a kernel's weights are sound where attention's factors are of 16 bits, and say nothing against that class. */
Test(attention_classes, weights_may_be_rounded_before_they_are_divided) {
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        recording how = {.emulated = "f16", .numerics = "unknown", .tensors = "*"};
        fd_graph *graph = spoiled_everywhere(&b, "attn_weights", rounded_undivided);
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        expect_noise(v, models[m], "flash attention");
        fd_graph_free(graph);
        /* in binary32 they are no rounding */
        how.emulated = "f32";
        graph = spoiled_everywhere(&b, "attn_weights", rounded_undivided);
        v = judge(b.graph, b.ref, record(graph, how), NULL);
        cr_expect_neq(v.status, FD_NOISE, "%s: %s", models[m], v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
        close_model(&b);
    }
}

/* Tensors of binary16, but gate and up, which a fused kernel hands out as it has them. Biases, as large as what they are added to, are added
 * before the one rounding. */
Test(attention_classes, a_bias_within_the_product_is_no_other_class) {
    bench b = open_bench(models[1], (recording){0});
    fd_graph *graph = graph_copy(&b);
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_node *node = &graph->nodes[i];
        const bool inside = node->over_kv || strstr(node->name, "ffn_gate") || strstr(node->name, "ffn_up");
        if (!inside && node->op != FD_OP_KV_WRITE) node->override = rounded_to_f16;
    }
    recording how = {.emulated = "f32", .numerics = "unknown", .tensors = "*"};
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_str_eq(v.replay.numerics, "hf-f16");
    expect_noise(v, models[1], "biases");
    fd_graph_free(graph);
    close_model(&b);
}

/* A cache of binary16 shows itself, whatever one layer's attention does with it. */
Test(attention_classes, a_bug_of_one_layers_attention_says_nothing_against_the_cache) {
    static const char tensors[] = "*norm,*attn_[qkv],*rope,*cache*,*attn_out,*proj,*inp,*act,*down,*l_out,logits";
    bench b = open_arch("llama-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    recording how = {.emulated = "f16kv", .numerics = "unknown", .tensors = tensors, .tokens = small};
    fd_graph *graph = graph_copy(&b);
    graph->nodes[fd_graph_find(graph, "blk.2.attn_scores")].scale *= 2;
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_str_eq(v.replay.numerics, "f16kv");
    expect_at(&v, "blk.2.attn_out", v.replay.numerics);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* Nor does a product that reads another tensor: a class that repeats the cache's rounding has no more room for it than another. */
Test(attention_classes, a_bug_of_one_product_says_nothing_against_the_cache) {
    static const char tensors[] =
        "token_embd,*attn_[qkv],*rope,*attn_out,*proj,*gate,*up,*down,*l_out,output_norm,logits";
    bench b = open_arch("qwen2-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    recording how = {.emulated = "f16kv", .numerics = "unknown", .tensors = tensors, .tokens = small};
    fd_graph *graph = graph_copy(&b);
    graph->nodes[fd_graph_find(graph, "blk.2.attn_v")].input[0] = fd_graph_find(graph, "blk.1.l_out");
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_str_eq(v.replay.numerics, "f16kv");
    expect_at(&v, "blk.2.attn_v", v.replay.numerics);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}
