/* Bugs of a kernel that several nodes run through, seen from layer outputs alone; heads and tiles; fp8 where no cache is; and a class
 * that is shown although rows of zeros round nothing. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

/* The last 16 elements of every row are not summed. */
static void cut_by_16(const fd_op_args *args) {
    const int64_t n_in = args->weight[0]->n_col, n = args->n_pos * n_in;
    float *rows = copy_input(args, 0, n);
    for (int64_t i = 0; i < n; i++)
        if (i % n_in >= n_in - 16) rows[i] = 0;
    run_with(args, 0, rows);
}
static void every_product_cut(fd_graph *g, fd_node *n) {
    (void)n;
    for (int32_t i = 0; i < g->n_node; i++)
        if (g->nodes[i].op == FD_OP_MATMUL) g->nodes[i].override = cut_by_16;
}

/* Squares of all but the last 32 elements, over all. */
static void squares_cut_by_32(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        double sum = 0, first = 0;
        for (int64_t i = 0; i < n; i++) {
            sum += (double)x[i] * (double)x[i];
            if (i < n - 32) first += (double)x[i] * (double)x[i];
        }
        const double eps = (double)args->node->eps;
        const float by = (float)sqrt((sum / (double)n + eps) / (first / (double)n + eps));
        for (int64_t i = 0; i < n; i++) ((float *)args->out)[row * n + i] *= by;
    }
}
static void every_norm_cut(fd_graph *g, fd_node *n) {
    (void)n;
    for (int32_t i = 0; i < g->n_node; i++)
        if (fd_node_is_norm(&g->nodes[i])) g->nodes[i].override = squares_cut_by_32;
}

static void all_as_the_first_of(const fd_op_args *args, int32_t n_of) {
    const int64_t dim = args->node->shape[1], n_head = args->node->shape[0];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n_head; i++)
        if (i % n_of)
            memcpy((float *)args->out + i * dim, (float *)args->out + i / n_of * n_of * dim,
                   sizeof(float) * (size_t)dim);
}
static void first_of_all(const fd_op_args *args) {
    all_as_the_first_of(args, args->node->shape[0]);
}
static void first_of_two(const fd_op_args *args) {
    all_as_the_first_of(args, 2);
}
static void one_head_for_all(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = first_of_all;
}
static void one_head_for_two(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = first_of_two;
}

/* exp2 where the rest of the kernel has exp. */
static void rescaled_by_exp2(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0], n = args->n_pos * n_head * args->n_kv;
    float *weights = copy_input(args, 0, n);
    for (int64_t row = 0; row < args->n_pos * n_head; row++) {
        float *w = weights + row * args->n_kv;
        const int32_t seen = args->pos0 + (int32_t)(row / n_head) + 1;
        float largest = 0, first = 0, sum = 0;
        for (int32_t i = 0; i < seen; i++) largest = fmaxf(largest, w[i]);
        for (int32_t i = 0; i < 4 && i < seen; i++) first = fmaxf(first, w[i]);
        for (int32_t i = 0; i < seen; i++) { /* two tiles: the first one is off by e^-x / 2^-x */
            if (i < 4) w[i] *= powf(first / largest, logf(2) - 1);
            sum += w[i];
        }
        for (int32_t i = 0; i < seen; i++) w[i] /= sum;
    }
    run_with(args, 0, weights);
}
static void tiles_by_exp2(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = rescaled_by_exp2;
}

static void to_e4m3(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        float *x = (float *)args->out + i;
        int exponent;
        (void)frexpf(*x, &exponent); /* four bits of mantissa, down to 2^-9 */
        const float step = ldexpf(1, exponent - 4 > -9 ? exponent - 4 : -9);
        *x = nearbyintf(*x / step) * step;
    }
}
static void in_e4m3(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = to_e4m3;
}

static const struct {
    guessed bug;
    const char *tensors, *emulated;
} bugs[] = {
    {{"blk.0.attn_q", every_product_cut, "sum_cut_short", "the last 16 elements"}, "token_embd,*l_out,logits", "f32"},
    {{"blk.0.attn_norm", every_norm_cut, "other_statistic", "the first 224 elements"},
     "token_embd,*l_out,logits",
     "f32"},
    {{"attn_out", one_head_for_all, "other_order", "of every 8 heads all have"}, "*", "f32"},
    {{"attn_out", one_head_for_two, "other_order", "of every 2 heads all have"}, "token_embd,*l_out,logits", "f32"},
    {{"attn_out", tiles_by_exp2, "flash_rescaled_by_exp2", "2^-x for e^-x (tiles of 4 keys)"}, "*", "f32"},
    {{"blk.1.ffn_act", in_e4m3, "rounded", "e4m3"}, "*", "hf-bf16"},
};

Test(one_kernel, bugs_at_all_nodes_of_a_kernel_and_in_heads_and_tiles_are_named) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        expect_guess(&b, &bugs[i].bug, bugs[i].tensors, bugs[i].emulated, true);
    close_model(&b);
}

static void no_row(const fd_op_args *args) {
    run_clean(args);
    if (args->n_pos == 1) memset(args->out, 0, sizeof(float) * (size_t)fd_node_width(args->node));
}
static void empty_in_decode(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = no_row;
}

/* Zeros are right in every class: what follows from rows that are zero must not hide that the engine rounds to bfloat16. */
Test(one_kernel, rows_of_zeros_say_nothing_of_a_class) {
    static const guessed bug = {"token_embd", empty_in_decode, "zeros", "it is zero"};
    bench b = open_bench(models[0], (recording){0});
    expect_guess(&b, &bug, "*", "hf-bf16", false);
    close_model(&b);
}

/* Explanations that differ in nothing here are one, also where the op's own bounds are a little too narrow for them. */
Test(one_kernel, a_missing_mask_is_named_where_scores_and_weights_alone_are_missing) {
    bench b = open_bench(models[0], (recording){0});
    fd_verdict v = judged(
        &b, faulted(&b, "mask_missing"),
        (recording){.emulated = "hf-bf16",
                    .numerics = "hf-bf16-fa",
                    .tensors = "token_embd,*norm,*attn_[qkv],*rope,*cache_*,*attn_out,*proj,*ffn_*,*l_out,logits"});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect(e->named && strcmp(e->remaining[0].name, "mask_missing") == 0, "%s: %s", v.divergence.node,
              unnamed_of(e));
    fd_verdict_free(&v);
    forget(&b);
    close_model(&b);
}
