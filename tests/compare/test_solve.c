/* Numbers that are solved for are those that the engine has, not others that are simpler and within the bounds, too: in an engine of 16
 * bits, whose roundings pull the number that fits best aside. */
#include <criterion/criterion.h>

#include "compare/explain/simple_numbers.h"
#include "tests/compare/guess_bench.h"

static void scale_of_0_0515(fd_graph *g, fd_node *n) {
    (void)g;
    n->scale = 0.0515f;
}
static void base_1e5(fd_graph *g, fd_node *n) {
    (void)g;
    n->rope.base = 1e5;
}
static void every_second_position(fd_graph *g, fd_node *n) {
    (void)g;
    n->rope.factor = 2;
    n->rope.scaling = FD_ROPE_SCALING_LINEAR;
}

static const struct {
    guessed bug;
    const char *emulated, *const *tensors;
} solved[] = {
    {{"attn_scores", scale_of_0_0515, "other_attn_scale", "scores 0.051"}, "hf-bf16", &fused},
    {{"attn_scores", scale_of_0_0515, "other_attn_scale", "0.0515;"}, "hf-f16", &fused},
    {{"_rope", base_1e5, "other_rope_base", "base 100000;"}, "hf-f16", &fused},
    {{"_rope", every_second_position, "other_rope_factor", "positions 2;"}, "hf-bf16", &fused},
};

Test(solve, a_number_in_an_engine_of_16_bits_is_the_round_one_that_leaves_as_little_as_the_best) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof solved / sizeof *solved; i++)
        expect_guess(&b, &solved[i].bug, *solved[i].tensors, solved[i].emulated, true);
    close_model(&b);
}

static void defaults(fd_graph *g, fd_node *n) {
    (void)g;
    n->rope.base = 10000;
    n->rope.scaling = FD_ROPE_SCALING_NONE;
}
static void eps_2e_5(fd_graph *g, fd_node *n) {
    (void)g;
    n->eps = 2e-5f;
}

/* An eps of encoders, and a model whose RoPE gets nothing of what its file says. */
Test(solve, a_number_may_be_far_from_the_files_and_rope_may_lack_both_its_base_and_its_scaling) {
    static const guessed far[] = {{"_rope", defaults, "other_rope_base",
                                   "RoPE base 10000, and no scaling for longer contexts; the file says 500000"},
                                  {"_norm", eps_2e_5, "other_eps", "eps 2e-05; the file says 1e-12"}};
    bench b = open_model(models[0]);
    for (int32_t i = 0; i < b.graph->n_node; i++) {
        fd_node *n = &b.graph->nodes[i];
        if (n->op == FD_OP_RMS_NORM) n->eps = 1e-12f;
        if (n->op == FD_OP_ROPE) n->rope.base = 5e5, n->rope.factor = 4, n->rope.scaling = FD_ROPE_SCALING_LINEAR;
    }
    b.ref = record(b.graph, (recording){0});
    for (int i = 0; i < 2; i++) expect_guess(&b, &far[i], all, "f32", true);
    expect_guess(&b, &far[0], fused, "f32", true);
    close_model(&b);
}

/* Beside int8 blocks a fitted number is off by a hundredth: what stands for it first is what an engine has. */
Test(solve, a_fitted_number_stands_for_a_root_where_that_is_nearer_than_a_digit) {
    static const struct {
        double fitted, first;
    } of[] = {{0.7085, 0.70710678118654757},
              {0.702, 0.7},
              {0.3545, 0.35355339059327379},
              {0.305, 0.3},
              {0.58, 0.57735026918962584},
              {0.501, 0.5},
              {0.8, 0.8},
              {0.89954, 1},
              {2.05, 2},
              {-0.7085, -0.7}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        double simple[FD_MOST_SIMPLE];
        const int n = fd_solve_simple(of[i].fitted, simple);
        cr_expect(n <= FD_MOST_SIMPLE);
        cr_expect_float_eq(simple[0], of[i].first, 1e-12, "%g: %g", of[i].fitted, simple[0]);
        cr_expect_float_eq(simple[n - 1], of[i].fitted, 1e-12);
    }
}
