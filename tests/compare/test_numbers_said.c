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

static void not_normed_in_decode(const fd_op_args *args) {
    run_clean(args);
    if (args->pos0 > 0)
        memcpy(args->out, args->in[0], sizeof(float) * (size_t)(args->n_pos * fd_node_width(args->node)));
}

/* Both leave next to nothing of the first FFN: the stream has the size of an embedding there. */
Test(numbers_said, an_ffn_of_a_small_stream_without_its_norm_is_as_good_as_missing) {
    bench b = open_bench(models[1], (recording){0});
    fd_graph *faulty = spoiled_everywhere(&b, "ffn_norm", not_normed_in_decode);
    fd_verdict v =
        judged(&b, faulty,
               (recording){.emulated = "hf-bf16", .numerics = "hf-bf16-fa", .tensors = "token_embd,*l_out,logits"});
    const fd_explanation *e = &v.diagnosis.explanation;
    bool said = false;
    for (int32_t i = 0; i < e->n_remaining && i < FD_MAX_REMAINING; i++)
        said |= strcmp(e->remaining[i].name, "norm_missing") == 0;
    cr_expect(said, "%s: %s", v.divergence.node, e->named ? e->remaining[0].summary : unnamed_of(e));
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}
