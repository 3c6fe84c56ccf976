/* Bugs that no row of the table has: another number, another weight, another input, another order. Each is named by what
 * it does, with its own value, whatever lies between the recorded tensors; and a class is refuted by a bug, not by room. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "tests/compare/guess_bench.h"

static void base_5e5(fd_graph *g, fd_node *n) {
    (void)g;
    n->rope.base = 5e5;
}
static void half_the_dims(fd_graph *g, fd_node *n) {
    (void)g;
    n->rope.n_rot /= 2;
}
static void eps_1e_3(fd_graph *g, fd_node *n) {
    (void)g;
    n->eps = 1e-3f;
}
static void scale_by_heads(fd_graph *g, fd_node *n) {
    (void)g;
    n->scale = 1.0f / sqrtf((float)n->shape[0]);
}
static void window_of_4(fd_graph *g, fd_node *n) {
    (void)g;
    n->window = 4;
}
static void weight_of_layer_3(fd_graph *g, fd_node *n) {
    n->weight[0] = g->nodes[fd_graph_find(g, "blk.3.attn_q")].weight[0];
}
static void input_of_the_stream(fd_graph *g, fd_node *n) {
    n->input[0] = fd_graph_find(g, "blk.0.l_out");
}

static void first_and_third_head(const fd_op_args *args) {
    int64_t width = (int64_t)args->node->shape[0] * args->node->shape[1], dim = args->node->shape[1];
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++)
        for (int64_t i = 0; i < dim; i++) {
            float *at = (float *)args->out + row * width + i, kept = at[0];
            at[0] = at[2 * dim];
            at[2 * dim] = kept;
        }
}
static void heads_exchanged(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = first_and_third_head;
}

/* Blocks of 32 with a scale of binary16, cut off instead of rounded. */
static void cut_blocks(const fd_op_args *args) {
    int64_t n = args->n_pos * args->graph->weights[args->node->weight[0]].n_col;
    float *x = malloc(sizeof *x * (size_t)n);
    fd_op_args own = *args;
    memcpy(x, args->in[0], sizeof *x * (size_t)n);
    for (int64_t at = 0; at < n; at += 32) {
        float most = 0;
        for (int i = 0; i < 32; i++) most = fmaxf(most, fabsf(x[at + i]));
        float step = most / 127, inverse = 1 / step;
        for (int i = 0; i < 32; i++) x[at + i] = fd_dot_round_f16(step) * (float)(int)(x[at + i] * inverse);
    }
    own.in[0] = x;
    run_clean(&own);
    free(x);
}
static void blocks_of_products(fd_graph *g, fd_node *n) {
    (void)g;
    if (n->op == FD_OP_MATMUL) n->override = cut_blocks;
}

static const guessed bugs[] = {
    {"_rope", base_5e5, "other_rope_base", "500000"},
    {"_rope", half_the_dims, "other_rope_dims", "16"},
    {"_norm", eps_1e_3, "other_eps", "0.001"},
    {"attn_scores", scale_by_heads, "other_attn_scale", "0.353553"},
    {"attn_scores", window_of_4, "other_window", "4"},
    {"blk.1.attn_q", weight_of_layer_3, "other_weight", "blk.3.attn_q.weight"},
    {"blk.1.ffn_norm", input_of_the_stream, "other_input", "blk.0.l_out"},
    {"attn_out", heads_exchanged, "other_order", "heads 0 and 2"},
    {"", blocks_of_products, "other_blocks", "cut off towards zero"},
};
enum { N_BUG = sizeof bugs / sizeof *bugs };

Test(guesses, numbers_weights_and_inputs_are_named_with_their_values_whatever_is_recorded) {
    const char *const recorded[] = {all, fused, layers};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < N_BUG - 1; i++) expect_guess(&b, &bugs[i], recorded[i % 3], "f32", true);
    expect_guess(&b, &bugs[0], layers, "f32", true);
    expect_guess(&b, &bugs[3], fused, "f32", false);
    close_model(&b);
}

/* As where layers are loaded in another order. */
static void exchange_layers_1_and_2(fd_graph *g, fd_node *n) {
    for (int k = 0; k < FD_MAX_WEIGHTS && (n->layer == 1 || n->layer == 2); k++) {
        char name[96];
        if (n->weight[k] < 0) continue;
        snprintf(name, sizeof name, "blk.%d%s", 3 - n->layer, strchr(g->weights[n->weight[k]].name + 4, '.'));
        for (int32_t w = 0; w < g->n_weight; w++)
            if (strcmp(g->weights[w].name, name) == 0) {
                n->weight[k] = w;
                break;
            }
    }
}

Test(guesses, another_layers_weights_are_one_bug_of_all_tensors_of_a_layer_or_through_it) {
    const guessed exchanged = {"", exchange_layers_1_and_2, "other_layer", "layer 1 has the weights of layer 2"};
    bench b = open_bench(models[0], (recording){0});
    expect_guess(&b, &exchanged, layers, "f32", true);
    expect_guess(&b, &exchanged, all, "f32", true);
    close_model(&b);
}

static void norms_of_layer_2(fd_graph *g, fd_node *n) {
    if (n->layer == 1) exchange_layers_1_and_2(g, n);
}

/* All other weights of the layer are seen to be its own. */
Test(guesses, two_weights_of_another_layer_are_not_all_of_it) {
    const guessed norms = {"_norm", norms_of_layer_2, "other_weight", "reads blk.2.attn_norm.weight"};
    bench b = open_bench(models[0], (recording){0});
    expect_guess(&b, &norms, all, "f32", true);
    close_model(&b);
}

/* A sum that left the branch out would give the norm's values, too; but the next sum reads the same tensor, and is right. */
Test(guesses, what_another_reader_of_an_unrecorded_tensor_refutes_is_not_named) {
    bench b = open_bench(models[0], (recording){0});
    expect_guess(&b, &bugs[6], hooks, "f32", true);
    close_model(&b);
}

/* The emulated q8 makes int8 blocks as ggml does (test_evidence.c has its sound run): the class is shown, and the bug stands out as beside binary32. */
Test(guesses, a_bug_beside_int8_blocks_is_named_because_replay_repeats_the_blocks) {
    bench b = open_bench(models[0], (recording){0});
    expect_guess(&b, &bugs[0], fused, "q8", false);
    expect_guess(&b, &bugs[2], fused, "q8", false);
    expect_guess(&b, &bugs[N_BUG - 1], all, "f32", false); /* no coarser class is taken because it has room */
    close_model(&b);
}

static void by_columns(const fd_op_args *args, float factor, float term) {
    const int64_t width = fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * width; i++) {
        float *x = (float *)args->out + i;
        *x = *x * (1 + factor * (float)(i % width % 7)) + term * (float)(i % width % 5);
    }
}
static void columns_scaled(const fd_op_args *args) {
    by_columns(args, 0.1f, 0);
}
static void columns_moved(const fd_op_args *args) {
    by_columns(args, 0, 0.1f);
}
static void other_norm_weight(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = columns_scaled;
}
static void other_norm_bias(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = columns_moved;
}

static float stream[N_PREFILL * 4096];
static void keep_stream(const fd_op_args *args) {
    const size_t size = sizeof *stream * (size_t)(args->n_pos * fd_node_width(args->node));
    run_clean(args);
    cr_assert(size <= sizeof stream);
    memcpy(stream, args->out, size);
}
static void add_stream(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) ((float *)args->out)[i] += stream[i];
}
static void stream_added_again(fd_graph *g, fd_node *n) {
    g->nodes[fd_graph_find(g, "blk.1.l_out")].override = keep_stream;
    n->override = add_stream;
}

Test(guesses, another_weight_or_bias_of_a_norm_and_a_further_term_of_a_sum_are_named) {
    static const guessed of_columns[] = {
        {"blk.1.attn_norm", other_norm_weight, "column_factor", "the same in all rows: another weight"},
        {"blk.1.ffn_norm", other_norm_bias, "column_term", "another bias"},
        {"blk.1.ffn_up", other_norm_weight, "column_factor", "the weight's rows have other scales"},
        {"blk.2.l_out", stream_added_again, "other_term", "blk.1.l_out is added to it as well"},
    };
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof of_columns / sizeof *of_columns; i++)
        expect_guess(&b, &of_columns[i], all, "f32", i % 2 == 0);
    close_model(&b);
}

static void without_the_last_64(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    run_clean(args);
    for (int32_t r = 0; r < args->n_pos; r++) memset((float *)args->out + (r + 1) * width - 64, 0, 64 * sizeof(float));
}
static void drop_the_last_64(fd_graph *graph, fd_node *node) {
    (void)graph;
    node->override = without_the_last_64;
}

/* Tensors of small values are within such bounds of zeros. */
Test(guesses, zeros_are_no_other_tensors_small_values) {
    const guessed padded = {"logits", drop_the_last_64, "zeros", "1984…2047 are zero"};
    bench b = open_bench(models[0], (recording){0});
    expect_guess(&b, &padded, all, "hf-bf16", false);
    close_model(&b);
}

static void halved(const fd_op_args *args) {
    int64_t n = args->n_pos * fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] *= 0.5f;
}
static void halved_but_zero_in_decode(const fd_op_args *args) {
    halved(args);
    for (int64_t i = 0; i < fd_node_width(args->node) && args->n_pos == 1; i++) ((float *)args->out)[i] = 0;
}

static bool name_ends(const fd_verdict *v, int64_t *pos) {
    for (int32_t i = 0; i < v->notes.n && i < FD_MAX_REMARKS; i++)
        if (v->notes.items[i].kind == FD_NOTE_NAME_ENDS) {
            *pos = v->notes.items[i].n[1];
            return true;
        }
    return false;
}

Test(guesses, a_name_that_does_not_hold_in_later_steps_says_so) {
    bench b = open_bench(models[0], (recording){0});
    for (int second = 0; second < 2; second++) {
        fd_graph *faulty;
        fd_error err = {0};
        int64_t pos = 0;
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        faulty->nodes[fd_graph_find(faulty, "blk.2.ffn_down")].override = second ? halved_but_zero_in_decode : halved;
        fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32"});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect(e->named && strcmp(e->remaining[0].name, "factor") == 0, "%d: %s", second, e->remaining[0].name);
        cr_expect_eq(name_ends(&v, &pos), second == 1, "%d", second);
        if (second) cr_expect_eq(pos, N_PREFILL, "%lld", (long long)pos);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}

Test(guesses, what_nothing_explains_stays_unnamed_through_a_span) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty;
    fd_error err = {0};
    must(fd_graph_clone(b.graph, &faulty, &err), &err);
    faulty->nodes[fd_graph_find(faulty, "blk.2.attn_q_rope")].override = third_head_scaled;
    faulty->nodes[fd_graph_find(faulty, "blk.2.attn_k_rope")].rope.base = 5e5;
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = layers});
    cr_expect_str_eq(v.divergence.node, "blk.2.l_out");
    cr_expect(v.diagnosis.done && !v.diagnosis.explanation.named, "two bugs in one span were named %s",
              v.diagnosis.explanation.remaining[0].name);
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}
