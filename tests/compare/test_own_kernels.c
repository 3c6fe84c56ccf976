/* Engines whose kernels compute in their own way: polynomials for e^x, the bit trick for 1/sqrt, angles turned on from position to position,
 * attention in binary16 beside products in binary32, sums in binary16. None is a bug as far as a trace can tell, none passes for a class
 * that only has room; and the same in one layer, or far larger, is a bug. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "emulate/rounding.h"
#include "model/gguf/quant.h"
#include "tests/compare/replay_bench.h"

/* ---- kernels ---- */

/* 2^f by a polynomial of degree three, off by 1e-4 of it. */
static float exp_by_polynomial(float x) {
    float y = x * 1.44269504f, n = rintf(y), f = y - n;
    return x < -80 ? 0 : ldexpf(0.99992807f + f * (0.69326099f + f * (0.24261112f + f * 0.05517166f)), (int)n);
}
/* Its straight line, off by 6 %. */
static float exp_by_line(float x) {
    float y = x * 1.44269504f, n = floorf(y);
    return x < -80 ? 0 : ldexpf(1 + (y - n), (int)n);
}

static void softmax_with(const fd_op_args *args, float (*e)(float)) {
    const int64_t n_head = args->node->shape[0], n_kv = args->n_kv;
    run_clean(args);
    for (int64_t r = 0; r < args->n_pos * n_head; r++) {
        const int64_t seen = args->pos0 + r / n_head + 1;
        const float *s = (const float *)args->in[0] + r * n_kv;
        float *w = (float *)args->out + r * n_kv, most = -INFINITY, sum = 0;
        for (int64_t t = 0; t < seen; t++) most = fmaxf(most, s[t]);
        for (int64_t t = 0; t < seen; t++) sum += w[t] = e(s[t] - most);
        for (int64_t t = 0; t < seen; t++) w[t] /= sum;
    }
}
static void softmax_by_polynomial(const fd_op_args *args) {
    softmax_with(args, exp_by_polynomial);
}
/* In the first of the steps after the prompt alone. */
static void softmax_by_polynomial_once(const fd_op_args *args) {
    if (args->pos0 == N_PREFILL)
        softmax_by_polynomial(args);
    else
        run_clean(args);
}
static void softmax_by_line(const fd_op_args *args) {
    softmax_with(args, exp_by_line);
}
static void silu_by_polynomial(const fd_op_args *args) {
    const float *g = args->in[0], *up = args->in[1];
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++)
        ((float *)args->out)[i] = g[i] / (1 + exp_by_polynomial(-g[i])) * up[i];
}

/* The bit trick, then `steps` of Newton's. */
static void norm_by_newton(const fd_op_args *args, int steps) {
    const int64_t n = args->node->shape[0];
    float *w = malloc(sizeof *w * (size_t)n);
    cr_assert(w);
    fd_dequantize_row(args->weight[0]->dtype, args->weight[0]->data, w, n);
    for (int64_t p = 0; p < args->n_pos; p++) {
        const float *x = (const float *)args->in[0] + p * n;
        float sum = 0, r;
        for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
        sum = sum / (float)n + args->node->eps;
        int32_t bits;
        memcpy(&bits, &sum, sizeof bits);
        bits = 0x5f3759df - (bits >> 1);
        memcpy(&r, &bits, sizeof r);
        for (int k = 0; k < steps; k++) r *= 1.5f - 0.5f * sum * r * r;
        for (int64_t i = 0; i < n; i++) ((float *)args->out)[p * n + i] = x[i] * r * w[i];
    }
    free(w);
}
static void norm_by_two_steps(const fd_op_args *args) {
    norm_by_newton(args, 2);
}
static void norm_by_one_step(const fd_op_args *args) {
    norm_by_newton(args, 1);
}

/* Factors in binary16, as they meet a cache of binary16. */
static void first_in_f16(const fd_op_args *args) {
    const fd_node *from = &args->graph->nodes[args->node->input[0]];
    const int64_t n = args->n_pos * fd_node_row_stride(from, args->n_kv);
    float *x = malloc(sizeof *x * (size_t)n);
    fd_op_args own = *args;
    cr_assert(x);
    memcpy(x, args->in[0], sizeof *x * (size_t)n);
    fd_round_row(FD_EMULATE_F16, x, x, n);
    own.in[0] = x;
    run_clean(&own);
    free(x);
}

/* Eight running sums in binary16. */
static void sums_in_f16(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    const int64_t n = w->n_col;
    float *row = malloc(sizeof *row * (size_t)n);
    cr_assert(row);
    run_clean(args);
    for (int64_t r = 0; r < w->n_row; r++) {
        fd_dequantize_row(w->dtype, (const char *)w->data + r * fd_dtype_row_bytes(w->dtype, n), row, n);
        for (int64_t p = 0; p < args->n_pos; p++) {
            const float *x = (const float *)args->in[0] + p * n;
            float lane[8] = {0}, sum = 0;
            for (int64_t i = 0; i < n; i++) {
                lane[i % 8] += x[i] * row[i];
                fd_round_row(FD_EMULATE_F16, &lane[i % 8], &lane[i % 8], 1);
            }
            for (int i = 0; i < 8; i++) sum += lane[i];
            ((float *)args->out)[p * w->n_row + r] = sum;
        }
    }
    free(row);
}
static void decode_in_f16(const fd_op_args *args) {
    if (args->n_pos == 1)
        sums_in_f16(args);
    else
        run_clean(args);
}

/* ---- engines ---- */

/* `how` for every node of that op; of layer 2 alone where `one`. */
static fd_graph *engine(const bench *b, fd_op op, fd_override_fn how, bool one) {
    fd_graph *graph = graph_copy(b);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == op && (!one || graph->nodes[i].layer == 2)) graph->nodes[i].override = how;
    return graph;
}

Test(own_kernels, small_errors_of_a_function_in_every_layer_may_be_meant_so) {
    static const struct {
        const char *what;
        fd_op op;
        fd_override_fn how;
        bool one;
        fd_verdict_status status;
    } cases[] = {
        {"softmax by a polynomial", FD_OP_ATTN_SOFTMAX, softmax_by_polynomial, false, FD_INCOMPLETE},
        {"in one layer", FD_OP_ATTN_SOFTMAX, softmax_by_polynomial, true, FD_DIVERGED},
        {"in one call, not in the next", FD_OP_ATTN_SOFTMAX, softmax_by_polynomial_once, false, FD_DIVERGED},
        {"softmax by a line", FD_OP_ATTN_SOFTMAX, softmax_by_line, false, FD_DIVERGED},
        {"SiLU by a polynomial", FD_OP_SILU_MUL, silu_by_polynomial, false, FD_INCOMPLETE},
        {"two Newton steps", FD_OP_RMS_NORM, norm_by_two_steps, false, FD_INCOMPLETE},
        {"two in one layer", FD_OP_RMS_NORM, norm_by_two_steps, true, FD_DIVERGED},
        {"one Newton step", FD_OP_RMS_NORM, norm_by_one_step, false, FD_DIVERGED},
        {"decode sums in binary16", FD_OP_MATMUL, decode_in_f16, false, FD_INCOMPLETE},
        {"and in one layer", FD_OP_MATMUL, decode_in_f16, true, FD_DIVERGED},
    };
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_graph *graph = engine(&b, cases[i].op, cases[i].how, cases[i].one);
        fd_verdict v = judged(&b, graph, (recording){.emulated = "f32", .numerics = "unknown"});
        cr_expect_eq(v.status, cases[i].status, "%s: %s at %s as %s", cases[i].what, fd_verdict_status_name(v.status),
                     v.divergence.node, v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* Nobody can tell; frees the verdict. */
static void expect_untold(fd_verdict v) {
    cr_expect_eq(v.status, FD_INCOMPLETE, "%s at %s as %s", fd_verdict_status_name(v.status), v.divergence.node,
                 v.replay.numerics);
    fd_verdict_free(&v);
}

/* Rows that are about as large all get one factor: so it is with a step of one row. */
static void norm_nearly(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++) ((float *)args->out)[i] *= 0.999996f;
}

Test(own_kernels, so_may_one_factor_that_is_nearly_1) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = engine(&b, FD_OP_RMS_NORM, norm_nearly, false);
    expect_untold(judged(&b, graph, (recording){.emulated = "f32", .numerics = "unknown"}));
    fd_graph_free(graph);
    close_model(&b);
}

Test(own_kernels, attention_in_binary16_beside_products_in_binary32_has_a_class) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = engine(&b, FD_OP_ATTN_SCORES, first_in_f16, false);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ATTN_MIX) graph->nodes[i].override = first_in_f16;
    fd_verdict v = judged(&b, graph, (recording){.emulated = "f16kv", .numerics = "unknown"});
    cr_expect_str_eq(v.replay.numerics, "f16-attention", "%s", v.replay.numerics);
    expect_noise(v, models[0], "attention in binary16");
    fd_graph_free(graph);
    close_model(&b);
}

/* e^(s - largest) in binary16 before it is divided, and the result so: kernels that take q, K and V in 16 bits (PyTorch's sdpa between casts). */
static void fused_in_f16(const fd_op_args *args) {
    first_in_f16(args);
    fd_round_row(FD_EMULATE_F16, args->out, args->out, args->n_pos * fd_node_width(args->node));
}
static void decode_adds_a_tenth(const fd_op_args *args) {
    fused_in_f16(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node) && args->n_pos == 1; i++)
        ((float *)args->out)[i] *= i % 3 ? 1.1f : 0.8f;
    fd_round_row(FD_EMULATE_F16, args->out, args->out, args->n_pos * fd_node_width(args->node));
}
static void a_hundredth_off(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) ((float *)args->out)[i] *= 1.01f;
}

Test(own_kernels, attention_alone_in_binary16_is_the_engines_way_and_other_bugs_are_found_beside_it) {
    static const struct {
        const char *what, *spoiled;
        fd_override_fn mix, how;
        fd_verdict_status status;
    } cases[] = {
        {"attention in binary16", NULL, fused_in_f16, NULL, FD_INCOMPLETE},
        {"and a norm", "blk.2.ffn_norm", fused_in_f16, a_hundredth_off, FD_DIVERGED},
        {"and an activation", "blk.2.ffn_act", fused_in_f16, a_hundredth_off, FD_DIVERGED},
        {"decode is off", "blk.0.attn_out", decode_adds_a_tenth, decode_adds_a_tenth, FD_DIVERGED},
    };
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_graph *graph = engine(&b, FD_OP_ATTN_MIX, cases[i].mix, false);
        for (int32_t n = 0; n < graph->n_node; n++)
            if (graph->nodes[n].op == FD_OP_ATTN_SCORES) graph->nodes[n].override = first_in_f16;
        if (cases[i].spoiled) graph->nodes[fd_graph_find(graph, cases[i].spoiled)].override = cases[i].how;
        recording how = {.emulated = "f16kv",
                         .numerics = "unknown",
                         .tensors = "token_embd,*norm,*attn_[qkv],*rope,*cache*,*attn_out,*proj,*ffn*,*l_out,logits"};
        fd_verdict v = judged(&b, graph, how);
        cr_expect_eq(v.status, cases[i].status, "%s: %s at %s as %s", cases[i].what, fd_verdict_status_name(v.status),
                     v.divergence.node, v.replay.numerics);
        if (cases[i].spoiled)
            cr_expect_str_eq(v.divergence.node, cases[i].spoiled, "%s: at %s", cases[i].what, v.divergence.node);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* int8 blocks and factors that are cut off have room for such sums, and are seen not to be there: errors are far smaller than blocks
 * leave them, and products no smaller than they should be. */
Test(own_kernels, sums_in_binary16_are_no_class_that_has_room_for_them) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = engine(&b, FD_OP_MATMUL, sums_in_f16, false);
    expect_untold(judged(&b, graph, (recording){.emulated = "f32", .numerics = "unknown"}));
    fd_graph_free(graph);
    close_model(&b);
}

static void bf16_rows(const fd_op_args *args) {
    run_clean(args);
    fd_round_row(FD_EMULATE_BF16, args->out, args->out, args->n_pos * args->node->shape[0]);
}

/* An engine that holds its weights in bfloat16 may read its embedding so, also where the trace shows no more than its rows times a factor. */
Test(own_kernels, an_embedding_in_bfloat16_may_be_meant_so_where_it_shows_scaled_alone) {
    static const int32_t small[N_PREFILL + N_DECODE] = {65, 91, 7, 119, 63, 13, 40, 28};
    bench b = open_arch("gemma2-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    fd_graph *graph = engine(&b, FD_OP_EMBED, bf16_rows, false);
    recording how = {.emulated = "f32",
                     .numerics = "unknown",
                     .tokens = small,
                     .tensors = "token_embd_scaled,blk.*,output_norm,logits*"};
    expect_untold(judged(&b, graph, how));
    fd_graph_free(graph);
    close_model(&b);
}
