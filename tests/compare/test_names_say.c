/* What a name says is what is so: of which of Q, K and V, of which elements, and before or after the bias. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
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
static void gelu(fd_graph *graph, fd_node *node) {
    fd_error err = {0};
    fd_faulty_node other;
    must(fd_fault_edit_node(fd_fault_find("gelu_erf"), graph, node, &other, &err), &err);
    node->override = other.node.override;
    fd_faulty_node_free(&other);
}
static void small_weights_dropped(const fd_op_args *args) {
    run_clean(args);
    float *w = args->out;
    for (int64_t i = 0; i < (int64_t)args->n_pos * args->node->shape[0] * args->n_kv; i++)
        if (w[i] < 0.05f) w[i] = 0;
}
static void drop_small_weights(fd_graph *graph, fd_node *node) {
    (void)graph;
    node->override = small_weights_dropped;
}
/* A head of K and V late: the next group's. */
static void next_group(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), dim = args->node->shape[1];
    float *rows = args->out;
    run_clean(args);
    for (int64_t r = args->pos0; r < args->pos0 + args->n_pos; r++) {
        float *row = rows + r * width, *kept = malloc(sizeof *kept * (size_t)dim);
        memcpy(kept, row, sizeof *kept * (size_t)dim);
        memmove(row, row + dim, sizeof *row * (size_t)(width - dim));
        memcpy(row + width - dim, kept, sizeof *kept * (size_t)dim);
        free(kept);
    }
}
static void read_the_next_group(fd_graph *graph, fd_node *node) {
    (void)graph;
    node->override = next_group;
}
static void halved_product(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    const float *bias = args->weight[1]->data;
    run_clean(args);
    float *y = args->out;
    for (int64_t i = 0; i < args->n_pos * n; i++) y[i] = (y[i] - bias[i % n]) * 0.5f + bias[i % n];
}
static void halve_the_matrix(fd_graph *graph, fd_node *node) {
    (void)graph;
    node->override = halved_product;
}
static void by_the_largest(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t r = 0; r < args->n_pos; r++) {
        const float *x = (const float *)args->in[0] + r * n;
        double squares = 0, largest = 0;
        for (int64_t i = 0; i < n; i++) {
            squares += (double)x[i] * (double)x[i];
            largest = fmax(largest, fabs((double)x[i]));
        }
        const double root = sqrt(squares / (double)n + (double)args->node->eps);
        for (int64_t i = 0; i < n; i++) ((float *)args->out)[r * n + i] *= (float)(root / largest);
    }
}
static void divide_by_the_largest(fd_graph *graph, fd_node *node) {
    (void)graph;
    node->override = by_the_largest;
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

/* Sub-modules' outputs: the stream is what is added up of them. */
static const char *const submodules = "token_embd,*attn_proj,*ffn_down,output_norm,logits";

Test(names_say, what_is_named_where_it_was_recorded_is_named_across_the_gap) {
    static const guessed bugs[] = {
        {"blk.2.attn_norm", divide_by_the_largest, "other_statistic", "largest absolute value"},
        {"blk.2.attn_q", halve_the_matrix, "factor", "0.5 times the right ones, but for the bias"},
        {"blk.2.attn_weights", drop_small_weights, "small_as_zero", "below 0.05"},
        {"blk.2.cache_v", read_the_next_group, "other_order", "the right values stand"},
    };
    bench b = open_bench(models[1], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        expect_guess(&b, &bugs[i], all, "f32", false);
        expect_guess(&b, &bugs[i], submodules, "f32", false);
    }
    close_model(&b);
}

static void both_caches(fd_graph *graph, fd_node *node) {
    if (fd_node_is_kv_cache(node) && node->layer == 2) read_the_next_group(graph, node);
}

Test(names_say, heads_of_k_and_v_that_are_another_groups_are_one_bug) {
    static const guessed both = {"", both_caches, "other_order", "in the caches of K and of V"};
    bench b = open_bench(models[0], (recording){0});
    expect_guess(&b, &both, fused, "f32", false);
    close_model(&b);
}

Test(names_say, forms_of_gelu_that_16_bits_do_not_tell_are_one_name) {
    static const guessed exact = {"ffn_act", gelu, "gelu_erf", "GELU (erf)"};
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = faulted(&b, "gelu_tanh");
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "hf-bf16"});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect(e->named && e->forms && strstr(e->remaining[0].summary, "gelu_erf"), "%s",
              e->named ? e->remaining[0].summary : unnamed_of(e));
    fd_verdict_free(&v);
    forget(&b);
    expect_guess(&b, &exact, all, "f32", false);
    close_model(&b);
}

/* Beside GELU from a table of binary16, whose steps are as large as the difference. */
Test(names_say, another_form_of_gelu_is_no_table) {
    static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */
    bench b = open_arch("gemma2-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (int sound = 0; sound < 2; sound++) {
        fd_verdict v = judged(&b, sound ? b.graph : faulted(&b, "gelu_erf"),
                              (recording){.emulated = "f32", .numerics = "unknown", .tokens = small});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect(sound || (e->named && strcmp(e->remaining[0].name, "gelu_erf") == 0), "%s",
                  fd_verdict_status_name(v.status));
        cr_expect(!sound || v.status == FD_NOISE, "%s at %s", fd_verdict_status_name(v.status), v.divergence.node);
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

static void other_norm_weight(fd_graph *graph, fd_node *node) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ffn_norm", node->layer);
    node->weight[0] = graph->nodes[fd_graph_find(graph, name)].weight[0];
}
static void reads_stream(fd_graph *graph, fd_node *node) {
    node->input[0] = graph->nodes[node->input[0]].input[0];
}

Test(names_say, a_mistake_of_every_layer_is_one_bug_though_each_has_its_own_weights_and_input) {
    static const struct {
        const char *nodes;
        void (*edit)(fd_graph *graph, fd_node *node);
        const char *name;
    } bugs[] = {{".attn_norm", other_norm_weight, "other_weight"}, {".attn_v", reads_stream, "other_input"}};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        fd_graph *graph;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &graph, &err), &err);
        for (int32_t k = 0; k < graph->n_node; k++)
            if (fd_ends_with(graph->nodes[k].name, bugs[i].nodes)) bugs[i].edit(graph, &graph->nodes[k]);
        fd_verdict v = judged(&b, graph, (recording){.emulated = "f32", .tensors = "*"});
        const fd_verdict_diagnosis *d = &v.diagnosis;
        cr_expect_str_eq(d->causes.first.name, bugs[i].name);
        cr_expect_eq(d->causes.first.n_node, b.graph->hparams.n_layer);
        cr_expect_eq(d->causes.n_also, 0, "%s: %d more", bugs[i].name, d->causes.n_also);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* Positions of RoPE are no rows that are added, though all nodes of the op are meant. */
Test(names_say, what_every_rope_turns_by) {
    static const struct {
        fd_op op;
        const char *says;
    } ops[] = {{FD_OP_ROPE, "RoPE turns by position - 3"}, {FD_OP_ADD_POSITION, "adds the row of position - 3"}};
    bench b = open_model(models[0]);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const fd_hypothesis h = {.guess = FD_GUESS_POSITION,
                                 .node = -1,
                                 .layer = FD_ANY_LAYER,
                                 .ops = (int32_t)ops[i].op + 1,
                                 .which = FD_POSITION_OFFSET,
                                 .n = -3};
        char text[192];
        fd_hypothesis_summary(&h, b.graph, text, sizeof text);
        cr_expect(strncmp(text, ops[i].says, strlen(ops[i].says)) == 0, "%s", text);
    }
    close_model(&b);
}

/* Positions in 16 bits: as bfloat16 rounds them, in steps of 2 above 256 and of 4 above 512, and binary16 above 2048. */
Test(names_say, positions_in_16_bits) {
    static const int32_t of[][3] = {{8, 0, 0},     {8, 1, 1},     {8, 255, 255},  {8, 256, 256},    {8, 257, 256},
                                    {8, 258, 258}, {8, 259, 260}, {8, 511, 512},  {8, 513, 512},    {8, 514, 512},
                                    {8, 515, 516}, {8, 518, 520}, {11, 257, 257}, {11, 2049, 2048}, {11, 2051, 2052}};
    fd_hypothesis h = {.guess = FD_GUESS_POSITION, .which = FD_POSITION_ROUNDED};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        h.n = of[i][0];
        cr_expect_eq(fd_hypothesis_position(&h, of[i][1]), of[i][2], "%d in %d bits: %d", of[i][1], h.n,
                     fd_hypothesis_position(&h, of[i][1]));
    }
}

static void scaled(fd_node *node, fd_rope_scaling how, double factor, double context) {
    node->rope.scaling = how;
    node->rope.factor = factor;
    node->rope.original_context = context;
    node->rope.low_freq_factor = node->rope.beta_slow = node->rope.ext_factor = 1;
    node->rope.high_freq_factor = 4;
    node->rope.beta_fast = 32;
}
static void as_llama3(fd_graph *graph, fd_node *node) {
    (void)graph;
    scaled(node, FD_ROPE_SCALING_LLAMA3, 8, 8192);
}
static void as_yarn(fd_graph *graph, fd_node *node) {
    scaled(node, FD_ROPE_SCALING_YARN, 4, graph->hparams.n_ctx_train / 8);
}

static void times_1_14(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) ((float *)args->out)[i] *= 1.1386f;
}
static void cos_and_sin_longer(fd_graph *graph, fd_node *node) {
    (void)graph;
    node->override = times_1_14;
}

/* Where a file says that nothing is scaled; without Q and K behind RoPE, too. */
Test(names_say, how_frequencies_are_scaled_for_longer_contexts) {
    static const guessed bugs[] = {
        {"_rope", as_llama3, "other_rope_scaling", "scaled as llama3 does, by 8 from a context of 8192"},
        {"_rope", as_yarn, "other_rope_scaling", "scaled as YaRN does, by 4 from a context of 64"},
    };
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        expect_guess(&b, &bugs[i], all, "f32", true);
        expect_guess(&b, &bugs[i], fused, "f32", true);
    }
    /* YaRN's factor of cos and sin, beside which scalings of long contexts change too little */
    const guessed longer = {"_rope", cos_and_sin_longer, "other_rope_magnitude", "factor of cos and sin 1.1"};
    expect_guess(&b, &longer, all, "hf-f16", true);
    close_model(&b);
}
