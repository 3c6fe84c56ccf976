/* Bugs of a part of a tensor: rows of a weight, what a norm's weight multiplies, the heads of one rank. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "tests/compare/guess_bench.h"

static void elements_5_to_7_of_another_weight(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), n_in = args->weight[0]->n_col;
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++)
        for (int64_t i = 5; i < 8; i++) {
            double sum = 0;
            for (int64_t k = 0; k < n_in; k++)
                sum += (double)((const float *)args->in[0])[row * n_in + k] * 0.01 * sin((double)(i * n_in + k));
            ((float *)args->out)[row * width + i] = (float)sum;
        }
}
static void three_rows(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = elements_5_to_7_of_another_weight;
}

/* To bfloat16, to the nearest. */
static float coarse(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static void coarse_before_weight(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    float *w = malloc(sizeof *w * (size_t)n);
    cr_assert(w);
    fd_dequantize_row(args->weight[0]->dtype, args->weight[0]->data, w, n);
    for (int64_t row = 0; row < args->n_pos; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        double squares = 0;
        for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
        const double by = sqrt(squares / (double)n + (double)args->node->eps);
        for (int64_t i = 0; i < n; i++) ((float *)args->out)[row * n + i] = coarse((float)((double)x[i] / by)) * w[i];
    }
    free(w);
}
static void norm_rounded_inside(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = coarse_before_weight;
}

/* Decode does not write the second half of the K/V heads. */
static void half_unwritten(const fd_op_args *args) {
    const fd_node *cache = &args->graph->nodes[args->node->input[1]];
    const int64_t width = fd_node_width(cache), n = width * args->n_kv;
    float *rows = malloc(sizeof *rows * (size_t)n);
    fd_op_args own = *args;
    cr_assert(rows);
    memcpy(rows, args->in[1], sizeof *rows * (size_t)n);
    for (int64_t i = N_PREFILL * width; i < n; i++)
        if (i % width >= width / 2) rows[i] = 0;
    own.in[1] = rows;
    run_clean(&own);
    free(rows);
}
static void one_rank_unwritten(fd_graph *g, fd_node *n) {
    n->override = half_unwritten;
    for (int32_t i = n->id; i < g->n_node; i++)
        if (g->nodes[i].op == FD_OP_ATTN_MIX && g->nodes[i].layer == n->layer) g->nodes[i].override = half_unwritten;
}

static const struct {
    guessed bug;
    bool spans; /* through fused attention */
} bugs[] = {
    {{"blk.1.attn_v", three_rows, "weight_rows_wrong", "elements 5…7 are others in every row, and nothing else"},
     false},
    {{"ffn_norm", norm_rounded_inside, "rounded", "what its weight multiplies is rounded to bfloat16"}, false},
    {{"attn_scores", one_rank_unwritten, "cache_rows_unwritten", "from position 6 on are read as zeros"}, true},
};

Test(parts, rows_of_a_weight_what_a_weight_multiplies_and_heads_of_a_rank_are_named) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        expect_guess(&b, &bugs[i].bug, bugs[i].spans ? fused : all, "f32", true);
    close_model(&b);
}
