/* Numbers that are solved for are those that the engine has, not others that are simpler and within the bounds, too: in an engine of 16
 * bits, whose roundings pull the number that fits best aside. */
#include <criterion/criterion.h>

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
