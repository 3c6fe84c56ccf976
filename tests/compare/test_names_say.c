/* What a name says is what is so: of which of Q, K and V, of which elements, and before or after the bias. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

/* A matrix whose last 16 rows were not read: what it gives there is the bias. */
static void last_rows_not_read(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    const float *bias = args->weight[1]->data;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n; i++)
        if (i % n >= n - 16) ((float *)args->out)[i] = bias[i % n];
}
static void rows_not_read(fd_graph *graph, fd_node *node) {
    cr_assert_eq(graph->weights[node->weight[1]].dtype, FD_F32);
    node->override = last_rows_not_read;
}
static void no_bias(fd_graph *graph, fd_node *node) {
    (void)graph;
    node->weight[1] = -1;
}

Test(names_say, a_matrix_of_zeros_behind_a_bias_is_no_wrong_bias) {
    static const guessed bugs[] = {{"blk.1.attn_q", rows_not_read, "zeros", "are the bias alone"},
                                   {"attn_k", rows_not_read, "zeros", "are the bias alone"}};
    bench b = open_bench(models[1], (recording){0});
    expect_guess(&b, &bugs[0], all, "f32", false);
    expect_guess(&b, &bugs[1], all, "hf-bf16", true);
    close_model(&b);
}

Test(names_say, of_q_k_and_v_the_one_that_lacks_its_bias) {
    static const guessed of_v = {"attn_v", no_bias, "missing_qkv_bias", "(attn_v alone)"},
                         of_k = {"blk.1.attn_k", no_bias, "missing_qkv_bias", "(attn_k alone)"},
                         at_k = {"blk.1.attn_k", no_bias, "missing_qkv_bias", "added"};
    bench b = open_bench(models[1], (recording){0});
    expect_guess(&b, &of_v, all, "f32", false);
    expect_guess(&b, &of_k, fused, "f32", false);
    expect_guess(&b, &at_k, layers, "f32", false);
    close_model(&b);
}
