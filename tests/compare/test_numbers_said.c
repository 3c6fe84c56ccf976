/* What a number means is said with it: a factor that is one of the model's sizes, positions that are doubled where RoPE is applied twice. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

static float factor;
static void scaled(const fd_op_args *a) {
    run_clean(a);
    for (int64_t i = 0; i < (int64_t)a->n_pos * fd_node_width(a->node); i++) ((float *)a->out)[i] *= factor;
}
static void scale(fd_graph *graph, fd_node *node) {
    (void)graph;
    node->override = scaled;
}

/* kjv-llama: 256 elements, 8 heads of 32, 4 of K and V, 6 layers. */
Test(numbers_said, factors_are_the_models_sizes) {
    static const struct {
        double factor;
        const char *says;
    } cases[] = {{5.656854249, "equal to sqrt(head_dim)"},
                 {16, "equal to sqrt(n_embd)"},
                 {0.0625, "equal to 1 / sqrt(n_embd)"},
                 {0.40824829, "equal to 1 / sqrt(n_layer)"},
                 {0.2886751346, "equal to 1 / sqrt(2 n_layer)"}};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const guessed bug = {"blk.1.attn_proj", scale, "factor", cases[i].says};
        factor = (float)cases[i].factor;
        expect_guess(&b, &bug, all, "f32", true);
    }
    close_model(&b);
}

static void expect_silent(const bench *b, double by) {
    fd_graph *graph = graph_copy(b);
    graph->nodes[fd_graph_find(graph, "blk.1.attn_proj")].override = scaled;
    factor = (float)by;
    fd_verdict v = judged(b, graph, (recording){.emulated = "f32"});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect(e->named && !strstr(e->remaining[0].summary, "equal to"), "%g: %s", by, e->remaining[0].summary);
    fd_verdict_free(&v);
    fd_graph_free(graph);
}

Test(numbers_said, of_other_numbers_nothing_is_said) {
    bench b = open_bench(models[0], (recording){0});
    expect_silent(&b, 5.657);
    expect_silent(&b, 2);
    expect_silent(&b, 0.25);
    close_model(&b);
}

Test(numbers_said, twice_rope_is_twice_the_position) {
    bench b = open_bench(models[0], (recording){0});
    fd_verdict v = judged(&b, faulted(&b, "rope_twice"), (recording){.emulated = "f32"});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect(e->named);
    cr_expect_str_eq(e->remaining[0].name, "rope_twice");
    cr_expect_eq(e->n_remaining, 2, "%d", e->n_remaining);
    cr_expect(strstr(e->remaining[1].summary, "divisor of RoPE's positions 0.5") != NULL, "%s",
              e->remaining[1].summary);
    fd_verdict_free(&v);
    close_model(&b);
}
