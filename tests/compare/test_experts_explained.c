/* Mistakes of a mixture of experts that only some rows show, and those that move the weights; through spans, and in a class that no
 * trace states. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */

/* Expert 3 is chosen in some of these rows alone. */
static void expert_3_left_out(const fd_op_args *args) {
    const int64_t n = args->node->shape[1], n_row = args->n_pos * args->node->shape[0];
    run_clean(args);
    for (int64_t i = 0; i < n_row; i++)
        if (((const float *)args->in[1])[i] >= 3) memset((float *)args->out + i * n, 0, sizeof(float) * (size_t)n);
}

/* Each takes two rows of a step. */
static void two_rows_each(const fd_op_args *args) {
    const int64_t n = args->node->shape[1], n_row = args->n_pos * args->node->shape[0];
    int taken[64] = {0};
    run_clean(args);
    for (int64_t i = 0; i < n_row; i++)
        if (taken[(int)((const float *)args->in[1])[i]]++ >= 2)
            memset((float *)args->out + i * n, 0, sizeof(float) * (size_t)n);
}

/* A step of one row has the ids that the step before it ended with. */
static void ids_of_the_step_before(const fd_op_args *args) {
    enum { MOST_NODES = 512, MOST_USED = 8 };
    static float last[MOST_NODES][N_PREFILL + N_DECODE][MOST_USED];
    const int32_t k = args->node->shape[0], end = args->pos0 + args->n_pos;
    fd_op_args own = *args;
    cr_assert(k <= MOST_USED && args->node->id < MOST_NODES);
    memcpy(last[args->node->id][end - 1], (const float *)args->in[1] + (args->n_pos - 1) * k,
           sizeof(float) * (size_t)k);
    if (args->n_pos == 1) own.in[1] = last[args->node->id][args->pos0 - 1];
    run_clean(&own);
}

static float *weights; /* of the step, by the node that computes them; owned */

static void keep_weights(const fd_op_args *args) {
    const size_t size = sizeof *weights * (size_t)(args->n_pos * fd_node_width(args->node));
    run_clean(args);
    free(weights);
    weights = malloc(size);
    cr_assert(weights);
    memcpy(weights, args->out, size);
}

static void times_weight(const fd_op_args *args) {
    const int64_t n = args->node->shape[1];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0] * n; i++) ((float *)args->out)[i] *= weights[i / n];
}

static void unweighted(const fd_op_args *args) {
    const int64_t n_weight = args->n_pos * args->graph->nodes[args->node->input[1]].shape[0];
    float *ones = malloc(sizeof *ones * (size_t)n_weight);
    fd_op_args own = *args;
    cr_assert(ones);
    for (int64_t i = 0; i < n_weight; i++) ones[i] = 1;
    own.in[1] = ones;
    run_clean(&own);
    free(ones);
}

static fd_graph *weighted_inputs(const bench *b) {
    static const char *const suffixes[] = {"ffn_moe_weights", "ffn_moe_gate", "ffn_moe_up", "ffn_moe_out"};
    static const fd_override_fn how[] = {keep_weights, times_weight, times_weight, unweighted};
    fd_graph *faulty;
    fd_error err = {0};
    must(fd_graph_clone(b->graph, &faulty, &err), &err);
    for (int32_t i = 0; i < faulty->n_node; i++)
        for (int k = 0; k < 4; k++)
            if (fd_ends_with(faulty->nodes[i].name, suffixes[k])) faulty->nodes[i].override = how[k];
    return faulty;
}

static void expect_said(const bench *b, fd_graph *faulty, recording how, const char *name, const char *says,
                        const char *class_) {
    how.tokens = small;
    fd_verdict v = judged(b, faulty, how);
    const fd_explanation *e = &v.diagnosis.explanation;
    const char *found = e->named ? e->remaining[0].summary : unnamed_of(e);
    cr_expect_eq(v.status, FD_DIVERGED, "%s in %s, %s", name, how.emulated, how.tensors);
    cr_expect(e->named && strcmp(e->remaining[0].name, name) == 0, "%s, %s: %s", how.tensors, v.divergence.node, found);
    cr_expect(strstr(found, says), "%s, %s, %s: %s", how.tensors, v.divergence.node, v.replay.numerics, found);
    if (class_) cr_expect_str_eq(v.replay.numerics, class_, "%s, %s", how.tensors, v.divergence.node);
    fd_verdict_free(&v);
    fd_graph_free(faulty);
}

Test(experts, one_that_is_left_out_is_named_whatever_rows_chose_it) {
    const char *const recorded[] = {all, layers};
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (int i = 0; i < 2; i++)
        expect_said(&b, spoiled_everywhere(&b, "ffn_moe_down", expert_3_left_out),
                    (recording){.emulated = "f32", .tensors = recorded[i]}, "experts_left_out", "expert 3 gives zeros",
                    NULL);
    close_model(&b);
}

Test(experts, rows_beyond_their_room_are_named) {
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    expect_said(&b, spoiled_everywhere(&b, "ffn_moe_down", two_rows_each),
                (recording){.emulated = "f32", .tensors = all}, "experts_left_out", "an expert takes so many rows",
                NULL);
    close_model(&b);
}

/* Which experts were chosen is not recorded. */
Test(experts, ids_of_the_step_before_are_named_at_a_product_and_through_all_of_them) {
    static const char *const also[] = {"ffn_moe_up", "ffn_moe_down"};
    static const char *const recorded[] = {"[!b]*,*attn*,*norm,*inp,*moe_[gud]*,*moe_out,*l_out",
                                           "token_embd,*attn*,*ffn_norm,*ffn_inp,*l_out,logits"};
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (int i = 0; i < 2; i++) {
        fd_graph *faulty = spoiled_everywhere(&b, "ffn_moe_gate", ids_of_the_step_before);
        for (int32_t k = 0; k < faulty->n_node; k++)
            if (fd_ends_with(faulty->nodes[k].name, also[0]) || fd_ends_with(faulty->nodes[k].name, also[1]))
                faulty->nodes[k].override = ids_of_the_step_before;
        expect_said(&b, faulty, (recording){.emulated = "f32", .tensors = recorded[i]}, "earlier_input",
                    "of 1 position before", NULL);
    }
    close_model(&b);
}

Test(experts, weights_on_their_inputs_are_named_and_show_the_class) {
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    expect_said(&b, weighted_inputs(&b), (recording){.emulated = "f32", .tensors = all}, "expert_inputs_weighted",
                "applied to what they read", NULL);
    expect_said(&b, weighted_inputs(&b), (recording){.emulated = "f16kv", .numerics = "unknown", .tensors = layers},
                "expert_inputs_weighted", "applied to what they read", "f16kv");
    free(weights);
    close_model(&b);
}

/* Of a router of four experts: what no matrix of low rank explains, any matrix of rank 4 does. */
static void scattered(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n; i++)
        ((float *)args->out)[i] += 0.2f * (float)((args->pos0 * n + i) * 7919 % 31 - 15) / 15;
}

Test(experts, four_columns_that_depart_are_no_matrix_of_rank_4) {
    static const int32_t many[] = {1, 30, 45, 103, 26, 7, 51, 88, 12, 64, 99, 5};
    bench b = open_arch("llama-moe");
    recording how = {.emulated = "f32", .tensors = all, .tokens = many, .n_prompt = 12};
    b.ref = record(b.graph, (recording){.tokens = many, .n_prompt = 12});
    fd_graph *faulty = spoiled_everywhere(&b, "ffn_moe_logits", scattered);
    fd_verdict v = judged(&b, faulty, how);
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect_str_eq(v.divergence.node, "blk.0.ffn_moe_logits");
    cr_expect(!e->named || strcmp(e->remaining[0].name, "low_rank_term") != 0, "%s", e->remaining[0].summary);
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

/* The router's softmax has a temperature, which leaves the choice of experts as it is. */
static void cooler(const fd_op_args *args) {
    const int64_t n = args->n_pos * fd_node_width(args->node);
    float *logits = malloc(sizeof *logits * (size_t)n);
    fd_op_args own = *args;
    cr_assert(logits);
    for (int64_t i = 0; i < n; i++) logits[i] = 1.25f * ((const float *)args->in[0])[i];
    own.in[0] = logits;
    run_clean(&own);
    free(logits);
}

Test(experts, a_temperature_of_the_router_is_said) {
    const char *const recorded[] = {all, "token_embd,*attn_norm,*ffn_norm,*ffn_inp,*moe_out,*l_out,logits"};
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (int i = 0; i < 2; i++) {
        recording how = {.emulated = "f32", .tensors = recorded[i]};
        expect_said(&b, spoiled_everywhere(&b, "ffn_moe_probs", cooler), how, "input_factor",
                    "takes blk.0.ffn_moe_logits 1.25 times", NULL);
    }
    close_model(&b);
}

static void router_of_zeros(const fd_op_args *args) {
    run_clean(args);
    memset((float *)args->out, 0, sizeof(float) * (size_t)(args->n_pos * fd_node_width(args->node)));
}

/* Of an unrecorded router the ids show little: the weights of the chosen ones, which come of it too, must come nearer. */
Test(experts, a_few_choices_that_an_explanation_gives_by_chance_are_no_name) {
    static const int32_t many[] = {1, 30, 45, 103, 26, 7, 51, 88, 12, 64, 99, 5};
    static const char *const no_router = "[!b]*,*attn*,*norm,*inp,*topk,*moe_weights,*moe_[aod]*,*l_out";
    recording how = {.emulated = "f32", .tensors = no_router, .tokens = many, .n_prompt = 12};
    bench b = open_arch("qwen3moe-moe");
    b.ref = record(b.graph, (recording){.tokens = many, .n_prompt = 12});
    for (int zeros = 0; zeros < 2; zeros++) {
        fd_graph *faulty = spoiled_everywhere(&b, "ffn_moe_logits", zeros ? router_of_zeros : scattered);
        fd_verdict v = judged(&b, faulty, how);
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *found = e->named ? e->remaining[0].summary : "";
        cr_expect_str_eq(v.divergence.node, "blk.0.ffn_moe_topk");
        cr_expect_str_eq(found, zeros ? "blk.0.ffn_moe_logits is left out" : "", "%s", found);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}
