#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/compare/fake_run.h"
#include "tests/compare/said.h"

static const fd_trace_level levels[] = {FD_TRACE_FULL, FD_TRACE_STATS, FD_TRACE_FINGERPRINT};

Test(compare, a_trace_is_identical_to_its_twin_at_every_level) {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            fake_trace_options cand = {.level = levels[j]};
            fd_verdict v = fake_against_clean(levels[i], &cand);
            cr_expect_eq(v.status, FD_IDENTICAL, "levels %d and %d: %s", i, j, reason_of(&v, 0));
            cr_expect_eq(v.counts.n_compared, 4 * fake_graph()->n_node);
            cr_expect_eq(v.counts.n_by_fingerprint, v.counts.n_compared);
            cr_expect_eq(v.counts.n_before, v.counts.n_compared);
            cr_expect_eq(v.counts.n_pos, 8);
            cr_expect_eq(fd_verdict_exit_status(&v), 0);
            fd_verdict_free(&v);
        }
}

Test(compare, one_ulp_is_found_at_its_node_in_every_node) {
    const fd_graph *graph = fake_graph();
    fake_trace_options clean = {.level = FD_TRACE_FULL};
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        int32_t pos = i % 2 ? 3 : 6; /* in the prefill, or in decode step 2 */
        int64_t index = fd_node_elements(node, pos + 1) - 1;
        fake_trace_options cand = {.level = FD_TRACE_FULL, .run.edits = {{node->name, pos, index, FAKE_ULP, 0}}};
        fd_verdict v = fake_compare(fake_trace(&clean), fake_trace(&cand), NULL);
        const fd_divergence *d = &v.divergence;
        cr_expect_eq(v.status, FD_DIVERGED, "%s", node->name);
        cr_expect_str_eq(d->node, node->name);
        cr_expect_eq(d->pos, pos, "%s", node->name);
        cr_expect_eq(d->step, i % 2 ? 0 : 2, "%s", node->name);
        cr_expect(d->has_values, "%s", node->name);
        cr_expect_eq(d->diff.first.index, index, "%s", node->name);
        cr_expect_eq(d->diff.n_differ, 1, "%s", node->name);
        cr_expect_eq(d->diff.first.ulp, 1, "%s", node->name);
        cr_expect_eq(d->inputs_equal, FD_EQUAL, "%s", node->name);
        cr_expect_eq(v.counts.n_before, (i % 2 ? 0 : 2 * graph->n_node) + i, "%s", node->name);
        cr_expect_eq(v.counts.n_after_differ, 0, "%s: nothing is computed from it here", node->name);
        fd_verdict_free(&v);
    }
}

Test(compare, fingerprints_find_what_elements_find) {
    fake_trace_options cand = {.level = FD_TRACE_FINGERPRINT, .run.edits = {{"blk.1.ffn_up", 4, 11, FAKE_ULP, 0}}};
    fd_verdict v = fake_against_clean(FD_TRACE_FINGERPRINT, &cand);
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_str_eq(v.divergence.node, "blk.1.ffn_up");
    cr_expect_eq(v.divergence.pos, 4);
    cr_expect(!v.divergence.has_values);
    cr_expect_eq(v.divergence.inputs_equal, FD_EQUAL);
    fd_verdict_free(&v);
}

Test(compare, order_is_step_then_node_then_position) {
    /* A later node at position 0, an earlier node at position 4, and an earlier node in a later step. */
    fake_trace_options cand = {.level = FD_TRACE_FULL,
                               .run.edits = {{"blk.1.attn_q", 0, 0, FAKE_ULP, 0},
                                             {"blk.0.attn_v", 4, 0, FAKE_ULP, 0},
                                             {"token_embd", 7, 0, FAKE_ULP, 0}}};
    fd_verdict v = fake_against_clean(FD_TRACE_FULL, &cand);
    cr_expect_str_eq(v.divergence.node, "blk.0.attn_v");
    cr_expect_eq(v.divergence.pos, 4);
    cr_expect_eq(v.counts.n_after_differ, 2);
    cr_expect_eq(v.counts.n_before + 1 + v.counts.n_after_differ + v.counts.n_after_identical, v.counts.n_compared);
    fd_verdict_free(&v);
}

Test(compare, what_is_not_a_number_is_classified) {
    static const struct {
        float ref, cand;
        size_t counter;
    } cases[] = {{1, NAN, offsetof(fd_tensor_diff, n_nan_new)},
                 {NAN, 1, offsetof(fd_tensor_diff, n_nan_lost)},
                 {1, INFINITY, offsetof(fd_tensor_diff, n_inf_new)},
                 {INFINITY, 1, offsetof(fd_tensor_diff, n_inf_lost)},
                 {INFINITY, -INFINITY, offsetof(fd_tensor_diff, n_inf_sign)}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_trace_options ref = {.level = FD_TRACE_FULL,
                                  .run.edits = {{"blk.0.ffn_down", 2, 7, FAKE_SET, cases[i].ref}}};
        fake_trace_options cand = {.level = FD_TRACE_FULL,
                                   .run.edits = {{"blk.0.ffn_down", 2, 7, FAKE_SET, cases[i].cand}}};
        fd_verdict v = fake_compare(fake_trace(&ref), fake_trace(&cand), NULL);
        cr_expect_eq(v.status, FD_DIVERGED, "case %zu", i);
        cr_expect_eq(*(int64_t *)((char *)&v.divergence.diff + cases[i].counter), 1, "case %zu", i);
        fd_verdict_free(&v);
    }
}

Test(compare, nan_in_the_same_place_is_no_difference) {
    fake_trace_options both = {.level = FD_TRACE_FULL, .run.edits = {{"blk.0.ffn_down", 2, 7, FAKE_SET, NAN}}};
    fd_verdict v = fake_compare(fake_trace(&both), fake_trace(&both), NULL);
    cr_expect_eq(v.status, FD_IDENTICAL);
    fd_verdict_free(&v);
}

Test(compare, permuted_heads_differ_although_their_statistics_agree) {
    fake_trace_options cand = {.level = FD_TRACE_STATS, .run.edits = {{"blk.0.attn_q", -1, 0, FAKE_SWAP_HEADS, 0}}};
    fd_verdict v = fake_against_clean(FD_TRACE_STATS, &cand);
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_str_eq(v.divergence.node, "blk.0.attn_q");
    cr_expect_eq(v.divergence.pos, 0);
    fd_verdict_free(&v);
}

Test(compare, another_split_into_steps_is_no_difference) {
    fake_trace_options cand = {.level = FD_TRACE_FULL, .n_prompt = 2, .n_decode = 6};
    fd_verdict v = fake_against_clean(FD_TRACE_FULL, &cand);
    cr_expect_eq(v.status, FD_IDENTICAL, "%s", reason_of(&v, 0));
    fd_verdict_free(&v);
}

/* ---- tokens, shapes ---- */

Test(compare, tokens_come_first) {
    fake_trace_options cand = {
        .level = FD_TRACE_FULL, .token_at = 6, .token = 1, .run.edits = {{"blk.0.attn_q", 6, 0, FAKE_ULP, 0}}};
    fd_verdict v = fake_against_clean(FD_TRACE_FULL, &cand);
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_eq(v.divergence.kind, FD_DIVERGED_TOKENS);
    cr_expect_eq(v.divergence.pos, 6);
    cr_expect_eq(v.divergence.cand_token, 1);
    cr_expect_eq(v.divergence.ref_token, fake_token(6));
    fd_verdict_free(&v);
}

Test(compare, a_divergence_in_an_earlier_step_comes_before_the_tokens_it_changed) {
    fake_trace_options cand = {
        .level = FD_TRACE_FULL, .token_at = 6, .token = 1, .run.edits = {{"logits", 5, 0, FAKE_SET, 9}}};
    fd_verdict v = fake_against_clean(FD_TRACE_FULL, &cand);
    cr_expect_eq(v.divergence.kind, FD_DIVERGED_VALUES);
    cr_expect_str_eq(v.divergence.node, "logits");
    cr_expect_eq(v.divergence.pos, 5);
    fd_verdict_free(&v);
}

static void fill(float *values, int32_t n) {
    for (int32_t i = 0; i < n; i++) values[i] = (float)fd_mix64((uint64_t)i) / 1.8e19f;
}

Test(compare, shapes_that_differ_are_a_verdict) {
    float values[48];
    fill(values, 48);
    fd_verdict v =
        fake_compare(foreign_trace("x", FD_F32, values, 4, 12), foreign_trace("x", FD_F32, values, 4, 8), NULL);
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_eq(v.divergence.kind, FD_DIVERGED_SHAPE);
    cr_expect_str_eq(v.divergence.ref_shape, "[12]");
    cr_expect_str_eq(v.divergence.cand_shape, "[8]");
    fd_verdict_free(&v);
}

Test(compare, a_flat_tensor_is_the_same_elements_in_the_same_order) {
    float values[5 * 64];
    const fd_graph *graph = fake_graph();
    int32_t id = fd_graph_find(graph, "blk.0.attn_q");
    fake_trace_options ref = {.level = FD_TRACE_FULL, .tensors = "blk.0.attn_q", .n_decode = -1};
    fd_trace *trace = fake_trace(&ref);
    fd_error err = {0};
    for (int32_t p = 0; p < 5; p++)
        cr_assert_eq(fd_trace_read(trace, fd_trace_find(trace, "blk.0.attn_q"), p, values + 64 * p, NULL, &err), FD_OK);
    cr_assert_eq(fd_node_elements(&graph->nodes[id], 1), 64);
    fd_verdict v = fake_compare(trace, foreign_trace("blk.0.attn_q", FD_F32, values, 5, 64), "*");
    cr_expect_eq(v.status, FD_IDENTICAL, "%s", reason_of(&v, 0));
    fd_verdict_free(&v);
}

/* ---- 16-bit ---- */

Test(compare, sixteen_bit_traces_are_compared_on_their_own_grid) {
    static const uint32_t types[] = {FD_F16, FD_BF16};
    float values[4 * 33];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) { /* against binary32, against itself, against a neighbour */
            fill(values, 4 * 33);
            fd_trace *ref = foreign_trace("x", j == 0 ? FD_F32 : types[i], values, 4, 33);
            if (j == 2) values[2 * 33 + 5] *= 1.01f;
            fd_verdict v = fake_compare(ref, foreign_trace("x", types[i], values, 4, 33), NULL);
            cr_expect_eq(v.status, j == 2 ? FD_DIVERGED : FD_IDENTICAL, "type %u, case %d", types[i], j);
            cr_expect_eq(v.counts.grid, types[i]);
            if (j == 2) {
                cr_expect_eq(v.divergence.pos, 2);
                cr_expect_eq(v.divergence.diff.first.index, 5);
                cr_expect(v.divergence.diff.first.ulp >= 1 && v.divergence.diff.first.ulp < 32,
                          "1 % is few steps of 16 bits, many of 32");
            }
            fd_verdict_free(&v);
        }
}

/* ---- inputs ---- */

Test(compare, an_input_that_was_not_recorded_is_said_to_be_so) {
    fake_trace_options ref = {.level = FD_TRACE_FULL, .tensors = "*attn_q_rope"};
    fake_trace_options cand = {
        .level = FD_TRACE_FULL, .tensors = "*attn_q_rope", .run.edits = {{"blk.1.attn_q_rope", 1, 0, FAKE_ULP, 0}}};
    fd_verdict v = fake_compare(fake_trace(&ref), fake_trace(&cand), "*");
    cr_expect_str_eq(v.divergence.node, "blk.1.attn_q_rope");
    cr_expect_eq(v.divergence.inputs_equal, FD_EQUALITY_UNKNOWN);
    fd_verdict_free(&v);
}

Test(compare, binary64_is_compared_on_binary32s_grid) {
    fake_trace_options wide = {.level = FD_TRACE_FULL, .run.f64 = true};
    fd_verdict v = fake_against_clean(FD_TRACE_FULL, &wide);
    cr_expect_eq(v.status, FD_IDENTICAL, "%s at %s", reason_of(&v, 0), v.divergence.node);
    cr_expect_eq(v.counts.n_by_fingerprint, 0);
    cr_expect(v.notes.n > 0, "different numerics are mentioned");
    fd_verdict_free(&v);
    wide.run.f64_offset = 1e-6;
    v = fake_against_clean(FD_TRACE_FULL, &wide);
    cr_expect_eq(v.status, FD_DIVERGED);
    fd_verdict_free(&v);
}
