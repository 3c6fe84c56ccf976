/* Names that some rows give and others, or other tensors, refute: they are not said, and what all of them give is. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

/* Everything but the caches. */
static const char *const no_cache = "token_embd,*norm,*attn_[qkv],*rope,*scores,*weights,*attn_out,*proj,*inp,*moe*,*"
                                    "ffn_gate,*ffn_up,*act,*down,*l_out,logits";

static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */

/* ---- rows of one step ---- */

/* The first row is half of what it should be, the second right, the fourth something else. */
static void half_then_reversed(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    float *rows = args->out;
    run_clean(args);
    for (int64_t i = 0; i < n && args->n_pos > 3; i++) {
        rows[i] *= 0.5f;
        rows[3 * n + i] = -3.0f * rows[2 * n + i];
    }
}
/* The same, and the fourth is right. */
static void half_of_one_row(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < fd_node_width(args->node) && args->n_pos > 3; i++) ((float *)args->out)[i] *= 0.5f;
}

Test(refuted_names, a_name_of_the_first_rows_must_not_be_refuted_by_the_steps_others) {
    bench b = open_bench(models[0], (recording){0});
    for (int other = 0; other < 2; other++) {
        fd_verdict v = judged(&b, spoiled(&b, "blk.2.ffn_down", other ? half_then_reversed : half_of_one_row),
                              (recording){.emulated = "f32"});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_str_eq(v.divergence.node, "blk.2.ffn_down");
        cr_expect_neq(e->named, other, "%d: %s", other, e->named ? e->remaining[0].summary : unnamed_of(e));
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

/* ---- V that is coarser, and sums that are ---- */

static float to_bfloat16(float x) {
    return fd_bf16_to_f32(fd_f32_to_bf16(x));
}
static void coarse_v(const fd_op_args *args) {
    const int64_t n = args->n_kv * fd_node_width(&args->graph->nodes[args->node->input[1]]);
    float *rows = malloc(sizeof *rows * (size_t)n);
    fd_op_args own = *args;
    cr_assert(rows);
    for (int64_t i = 0; i < n; i++) rows[i] = to_bfloat16(((const float *)args->in[1])[i]);
    own.in[1] = rows;
    run_clean(&own);
    free(rows);
}
static void coarse_sums(const fd_op_args *args) {
    const fd_node *v_node = &args->graph->nodes[args->node->input[1]];
    const int64_t n_head = args->node->shape[0], d = args->node->shape[1], group = n_head / v_node->shape[0];
    const float *p = args->in[0], *v = args->in[1];
    for (int64_t item = 0; item < args->n_pos * n_head; item++)
        for (int64_t i = 0; i < d; i++) {
            float sum = 0;
            for (int64_t t = 0; t <= args->pos0 + item / n_head; t++)
                sum = to_bfloat16(sum +
                                  p[item * args->n_kv + t] * v[(t * v_node->shape[0] + item % n_head / group) * d + i]);
            ((float *)args->out)[item * d + i] = sum;
        }
}

Test(refuted_names, v_in_bfloat16_is_no_row_of_another_sequence_and_sums_in_it_no_noise) {
    bench b = open_bench(models[0], (recording){0});
    for (int sums = 0; sums < 2; sums++) {
        fd_graph *faulty;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        for (int32_t i = 0; i < faulty->n_node; i++)
            if (fd_ends_with(faulty->nodes[i].name, "attn_out"))
                faulty->nodes[i].override = sums ? coarse_sums : coarse_v;
        fd_verdict v =
            judged(&b, faulty,
                   (recording){.emulated = sums ? "llama-cpu" : "f32", .tensors = no_cache, .numerics = "unknown"});
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *name = e->named ? e->remaining[0].name : "";
        cr_expect_str_neq(name, "cache_rows_stale");
        cr_expect_neq(v.status, FD_NOISE, "%d: class %s", sums, v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}

/* ---- a tile of the result that is not of its rows ---- */

/* Elements 32 to 47 of each row: of every eighth row they are right, of the others the last right one's three times. */
static void tile_of_other_rows(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    float *rows = args->out;
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++)
        for (int64_t i = 32; i < 48 && row % 8 != 0; i++) rows[row * n + i] = 3.0f * rows[(row - row % 8) * n + i];
}
/* Of all rows of the prompt, and decode is right. */
static void tile_of_the_prompt(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n && args->n_pos > 1; i++)
        if (i % n >= 32 && i % n < 48) ((float *)args->out)[i] = (float)(i * i % 17) - 8.25f;
}

Test(refuted_names, rows_that_are_right_refute_other_rows_of_the_weight) {
    bench b = open_bench(models[0], (recording){0});
    for (int prompt = 0; prompt < 2; prompt++) {
        fd_verdict v = judged(&b, spoiled(&b, "blk.1.ffn_up", prompt ? tile_of_the_prompt : tile_of_other_rows),
                              (recording){.emulated = "f32"});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_str_eq(v.divergence.node, "blk.1.ffn_up");
        cr_expect(!e->named, "%d: %s", prompt, e->named ? e->remaining[0].summary : "");
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

/* ---- experts that take so many rows ---- */

/* Of the two chosen experts a row lacks the second, the first, none or both. */
static void some_experts(const fd_op_args *args) {
    const int32_t k = args->graph->nodes[args->node->input[1]].shape[0];
    float *weights = malloc(sizeof *weights * (size_t)(args->n_pos * k));
    fd_op_args own = *args;
    memcpy(weights, args->in[1], sizeof *weights * (size_t)(args->n_pos * k));
    for (int32_t row = 0; row < args->n_pos; row++) {
        if (row % 4 == 0 || row % 4 == 3) weights[row * k + 1] = 0;
        if (row % 4 == 1 || row % 4 == 3) weights[row * k] = 0;
    }
    own.in[1] = weights;
    run_clean(&own);
    free(weights);
}

Test(refuted_names, experts_that_some_rows_lack_are_said_as_that) {
    const char *const recorded[] = {no_cache, "token_embd,*attn_norm,*ffn_norm,*ffn_inp,*moe_out,*l_out,logits"};
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (int i = 0; i < 2; i++) {
        fd_verdict v = judged(&b, spoiled(&b, "blk.1.ffn_moe_out", some_experts),
                              (recording){.emulated = "f32", .tensors = recorded[i], .tokens = small});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_str_eq(v.divergence.node, "blk.1.ffn_moe_out");
        cr_expect(e->named && strcmp(e->remaining[0].name, "experts_left_out") == 0, "%d: %s", i,
                  e->named ? e->remaining[0].summary : unnamed_of(e));
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

/* The second choice is the worst: no rank's choice, for each has the router whole. */
static void first_and_worst(const fd_op_args *args) {
    const int64_t k = fd_node_width(args->node), n = fd_node_width(&args->graph->nodes[args->node->input[0]]);
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos && k == 2; row++) {
        const float *p = (const float *)args->in[0] + row * n;
        float *ids = (float *)args->out + row * k;
        int64_t worst = -1;
        for (int64_t i = 0; i < n; i++)
            if (i != (int64_t)ids[0] && i != (int64_t)ids[1] && (worst < 0 || p[i] < p[worst])) worst = i;
        ids[1] = (float)worst;
    }
}

Test(refuted_names, the_choice_of_experts_is_no_single_ranks) {
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    fd_verdict v = judged(&b, spoiled(&b, "blk.1.ffn_moe_topk", first_and_worst),
                          (recording){.emulated = "f32", .tensors = "token_embd,*l_out,logits", .tokens = small});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect_str_eq(v.divergence.node, "blk.1.l_out");
    cr_expect(!e->named, "%s", e->named ? e->remaining[0].summary : "");
    fd_verdict_free(&v);
    forget(&b);
    close_model(&b);
}

/* ---- errors of a few columns ---- */

static void roughly(const fd_op_args *args) {
    float *y = args->out;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) y[i] *= 1 + 0x1p-9f * (float)(i * i % 7 - 3);
}

/* A matrix of four rows is of rank four at most, whatever is wrong with it. */
Test(refuted_names, a_router_of_four_rows_has_no_adapter) {
    static const int32_t many[] = {1, 30, 45, 103, 26, 7, 51, 88, 9, 64, 77, 18};
    recording how = {.tokens = many, .n_prompt = sizeof many / sizeof *many, .tensors = no_cache};
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, how);
    how.emulated = "f32";
    fd_verdict v = judged(&b, spoiled(&b, "blk.1.ffn_moe_logits", roughly), how);
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect_str_eq(v.divergence.node, "blk.1.ffn_moe_logits");
    cr_expect(!e->named, "%s", e->named ? e->remaining[0].summary : "");
    fd_verdict_free(&v);
    forget(&b);
    close_model(&b);
}

/* ---- tokens that see the later ones of their chunk ---- */

static fd_override_fn unmasked[FD_OP_COUNT];

static void unmasked_behind_the_first_chunk(const fd_op_args *args) {
    if (args->pos0 > 0 && args->n_pos > 1)
        unmasked[args->node->op](args);
    else
        run_clean(args);
}

Test(refuted_names, a_mask_that_lacks_in_a_later_chunk_is_that_and_no_factor_of_the_rows) {
    bench b = open_bench(models[1], (recording){.first_chunk = 3});
    fd_graph *faulty = faulted(&b, "mask_missing@1");
    for (int32_t i = 0; i < faulty->n_node; i++) {
        if (!faulty->nodes[i].override) continue;
        unmasked[faulty->nodes[i].op] = faulty->nodes[i].override;
        faulty->nodes[i].override = unmasked_behind_the_first_chunk;
    }
    fd_verdict v = judged(&b, faulty,
                          (recording){.emulated = "f32", .numerics = "unknown", .tensors = no_cache, .first_chunk = 3});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect(e->named && strcmp(e->remaining[0].name, "mask_missing") == 0, "%s: %s", v.divergence.node,
              e->named ? e->remaining[0].summary : unnamed_of(e));
    fd_verdict_free(&v);
    forget(&b);
    close_model(&b);
}

/* ---- a layer that does nothing ---- */

Test(refuted_names, branches_that_are_not_added_are_said_as_that_and_not_as_matrices_read_as_zeros) {
    bench b = open_bench(models[1], (recording){0}); /* of F16 matrices */
    fd_verdict v =
        judged(&b, faulted(&b, "branch_missing@1"), (recording){.emulated = "f32", .tensors = "*l_out,logits"});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect_str_eq(v.divergence.node, "blk.1.l_out");
    cr_expect(e->named && strcmp(e->remaining[0].name, "branch_missing") == 0, "%s",
              e->named ? e->remaining[0].summary : unnamed_of(e));
    fd_verdict_free(&v);
    forget(&b);
    close_model(&b);
}
