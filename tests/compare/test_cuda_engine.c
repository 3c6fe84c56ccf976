/* An engine that computes as ggml's CUDA backend, with kernels chosen by a call's rows: noise of its own class, so tight that an error of a
 * ten-thousandth is found. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report/remarks.h"
#include "model/gguf/quant.h"
#include "model/weight_rows.h"
#include "tests/compare/replay_bench.h"

static float to_half(float x) {
    return fd_f16_to_f32(fd_f32_to_f16(x));
}

/* Int8 blocks of 32; the scale is binary16 where rows are few. */
static void quantise(float *x, int64_t n, bool many) {
    for (int64_t at = 0; at < n; at += 32) {
        float most = 0;
        for (int i = 0; i < 32; i++) most = fmaxf(most, fabsf(x[at + i]));
        const float step = most / 127, scale = many ? step : to_half(step);
        for (int i = 0; i < 32 && step > 0; i++) x[at + i] = scale * roundf(x[at + i] / step);
    }
}

/* In one rounding. */
static float once_to_half(double x) {
    const double ulp = ldexp(1, (fabs(x) > 0x1p-14 ? ilogb(x) : -14) - 10);
    return (float)(rint(x / ulp) * ulp);
}

/* What tensor cores read of binary32: the first 11 bits of a mantissa. */
static void cut_to_tf32(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0xffffe000u;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

/* Beside Q8_0, and beside binary32 of up to sixteen rows. */
static void product(const fd_op_args *args) {
    const fd_weight *weight = args->weight[0];
    const int64_t n = weight->n_col;
    float *w = malloc(2 * sizeof *w * (size_t)n), *x = w + n;
    for (int64_t r = 0; r < weight->n_row; r++) {
        fd_weight_row(weight, r, w);
        const bool tf32 = weight->dtype == FD_F32 && args->n_pos > 1;
        if (tf32) cut_to_tf32(w, n);
        for (int32_t p = 0; p < args->n_pos; p++) {
            double sum = 0;
            memcpy(x, (const float *)args->in[0] + p * n, sizeof *x * (size_t)n);
            if (weight->dtype == FD_Q8_0) quantise(x, n, args->n_pos > 8);
            if (tf32) cut_to_tf32(x, n);
            for (int64_t i = 0; i < n; i++) sum += (double)w[i] * (double)x[i];
            float *y = (float *)args->out + p * weight->n_row + r;
            *y = (float)sum;
            if (args->weight[1]) *y += fd_weight_element(args->weight[1], r);
        }
    }
    free(w);
}

/* q of several rows is rounded, that of one is not. */
static void scores(const fd_op_args *args) {
    const int64_t n = args->n_pos * fd_node_row_stride(&args->graph->nodes[args->node->input[0]], args->n_kv);
    float *q = malloc(sizeof *q * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        const float own = ((const float *)args->in[0])[i];
        q[i] = args->n_pos > 1 ? to_half(own) : own;
    }
    fd_op_args rounded = *args;
    rounded.in[0] = q;
    run_clean(&rounded);
    free(q);
}

static void mix(const fd_op_args *args) {
    const fd_node *node = args->node;
    const int64_t n_head = node->shape[0], dim = node->shape[1],
                  n_kv_head = args->graph->nodes[node->input[1]].shape[0];
    for (int64_t p = 0; p < args->n_pos; p++)
        for (int64_t h = 0; h < n_head; h++)
            for (int64_t d = 0; d < dim; d++) {
                const float *weights = (const float *)args->in[0] + (p * n_head + h) * args->n_kv;
                const float *v = (const float *)args->in[1] + h / (n_head / n_kv_head) * dim + d;
                float own[64], column[64];
                double sum = 0;
                const int64_t n = args->pos0 + p + 1;
                for (int64_t t = 0; t < n; t++) own[t] = to_half(weights[t]), column[t] = v[t * n_kv_head * dim];
                for (int64_t t = 0; t < n; t++) {
                    const double one = (double)own[t] * (double)column[t];
                    sum += args->n_pos == 1 ? (double)once_to_half(one) : one;
                }
                ((float *)args->out)[(p * n_head + h) * dim + d] = (float)sum;
            }
}

/* Flash attention: e^(s - max) and the sum of V in binary16, divided at the end. */
static void flash_mix(const fd_op_args *args) {
    const fd_node *node = args->node;
    const int64_t n_head = node->shape[0], dim = node->shape[1],
                  n_kv_head = args->graph->nodes[node->input[1]].shape[0];
    for (int64_t i = 0; i < args->n_pos * n_head; i++) {
        const int64_t n = args->pos0 + i / n_head + 1;
        const float *weights = (const float *)args->in[0] + i * args->n_kv;
        float most = 0, own[64], sum = 0;
        for (int64_t t = 0; t < n; t++) most = fmaxf(most, weights[t]);
        for (int64_t t = 0; t < n; t++) sum += own[t] = to_half(weights[t] / most);
        for (int64_t d = 0; d < dim; d++) {
            const float *v = (const float *)args->in[1] + i % n_head / (n_head / n_kv_head) * dim + d;
            float y = 0;
            for (int64_t t = 0; t < n; t++) y = to_half(y + own[t] * v[t * n_kv_head * dim]);
            ((float *)args->out)[i * dim + d] = y / sum;
        }
    }
}

/* As cuBLAS does where heads are short. */
static void scores_as_they_are(const fd_op_args *args) {
    run_clean(args);
}

static fd_graph *cuda_engine(const bench *b, fd_override_fn of_scores, fd_override_fn of_mix) {
    fd_graph *graph = graph_copy(b);
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_MATMUL) node->override = product;
        if (node->op == FD_OP_ATTN_SCORES) node->override = of_scores;
        if (node->op == FD_OP_ATTN_MIX) node->override = of_mix;
    }
    return graph;
}

static void norm_off(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++) ((float *)args->out)[i] *= 1.0001f;
}

static const int32_t tokens[] = {1, 300, 45, 1036, 261, 7, 512, 88, 5, 900, 33, 260};
static const struct {
    const char *model, *tensors;
    int32_t n_prompt; /* 0: six rows, then single ones */
    fd_override_fn of_scores;
} runs[] = {
    {"kjv-llama", "*", 0, scores},
    {"kjv-llama", "*", 12, scores},
    {"kjv-llama", "*", 12, scores_as_they_are},
    {"kjv-llama", "*l_out,logits", 12, scores},
};

Test(cuda_engine, sound_engines_are_noise_in_their_class_and_a_tiny_bug_is_found) {
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
        const int32_t *fed = runs[r].n_prompt ? tokens : NULL;
        bench b = open_bench(runs[r].model, (recording){.n_prompt = runs[r].n_prompt, .tokens = fed});
        const bool all = strcmp(runs[r].tensors, "*") == 0;
        for (int bug = 0; bug < 1 + all; bug++) { /* through layers, as small a bug is within bounds */
            fd_graph *graph = cuda_engine(&b, runs[r].of_scores, mix);
            if (bug) graph->nodes[fd_graph_find(graph, "blk.2.ffn_norm")].override = norm_off;
            recording how = {.emulated = "f16kv",
                             .numerics = "unknown",
                             .tensors = runs[r].tensors,
                             .n_prompt = runs[r].n_prompt,
                             .tokens = fed};
            fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
            char text[FD_REMARK_SIZE];
            cr_expect_eq(v.status, bug ? FD_DIVERGED : FD_NOISE, "%zu: %s at %s as %s: %s", r,
                         fd_verdict_status_name(v.status), v.divergence.node, v.replay.numerics,
                         fd_reason_text(&v, 0, text));
            cr_expect_str_eq(v.replay.numerics, "ggml-cuda", "%zu: %s", r, v.replay.numerics);
            if (bug) cr_expect_str_eq(v.divergence.node, "blk.2.ffn_norm", "%zu: %s", r, v.divergence.node);
            fd_verdict_free(&v);
            fd_graph_free(graph);
        }
        close_model(&b);
    }
}

/* Beside binary32 weights products show which engine it is, where attention's result was not recorded. */
Test(cuda_engine, flash_attention_between_layer_outputs_is_noise_of_its_class) {
    static const int32_t few[] = {1, 30, 45, 103, 26, 7, 51, 88, 12, 64, 99, 5};
    bench b = open_arch("llama-dense");
    recording how = {.tokens = few, .n_prompt = 12};
    b.ref = record(b.graph, how);
    how.emulated = "f16kv";
    how.numerics = "unknown";
    how.tensors = "*l_out,logits";
    fd_graph *graph = cuda_engine(&b, scores, flash_mix);
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_str_eq(v.replay.numerics, "ggml-cuda-fa");
    expect_noise(v, "llama-dense", "flash attention");
    fd_graph_free(graph);
    close_model(&b);
}
