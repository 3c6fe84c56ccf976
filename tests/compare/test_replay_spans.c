/* Replay where tensors are missing: spans between recorded tensors, caches whose rows were not recorded, traces without
 * elements. Clean runs stay noise through them, and a fault inside is found as near as the trace allows. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/compare/replay_bench.h"
#include "tests/compare/said.h"

static const char *const spans[] = {"*l_out", "*attn_q,*attn_norm,*attn_out,*l_out", "logits", "*cache*,*l_out",
                                    "*[!s]"};
enum { N_SPAN = sizeof spans / sizeof *spans };

Test(replay_spans, a_clean_run_is_never_an_error_through_any_span) {
    int32_t n_noise = 0, n_inconclusive = 0;
    static const char *const classes[] = {"f16", "q8", "bf16"};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (int i = 0; i < 3; i++)
            for (int s = m; s < N_SPAN; s += N_MODEL) { /* half of them with each model */
                const char *name = classes[i];
                fd_verdict v = judged(&b, b.graph, (recording){.emulated = name, .tensors = spans[s]});
                n_noise += v.status == FD_NOISE;
                n_inconclusive += v.status == FD_INCOMPLETE;
                cr_expect_neq(v.status, FD_DIVERGED, "%s %s %s: %s, z %g", models[m], name, spans[s], v.divergence.node,
                              v.replay.z);
                bool said = v.reasons.n && strstr(reason_of(&v, v.reasons.n - 1), "cannot tell at");
                cr_expect(v.status != FD_INCOMPLETE || said, "%s %s %s", models[m], name, spans[s]);
                fd_verdict_free(&v);
            }
        close_model(&b);
    }
    fprintf(stderr, "spans of clean runs: %d noise, %d cannot tell\n", n_noise, n_inconclusive);
    cr_expect_gt(n_noise, n_inconclusive);
}

static void third_head_twice(const fd_op_args *args) {
    run_clean(args);
    int64_t d = args->node->shape[1], n = (int64_t)args->node->shape[0] * d;
    for (int64_t r = 0; r < args->n_pos; r++)
        for (int64_t i = 3 * d; i < 4 * d; i++) ((float *)args->out)[r * n + i] *= 2;
}

Test(replay_spans, attention_that_is_not_seen_may_be_fused_or_not_and_its_error_is_found) {
    static const struct {
        const char *emulated;
        uint32_t store;
    } cases[N_MODEL] = {{"hf-bf16", FD_BF16}, {"hf-f16", FD_F16}};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_twice);
        b.ref = record(b.graph, (recording){0});
        recording unseen = {
            .emulated = cases[m].emulated, .numerics = "unknown", .store = cases[m].store, .tensors = "*[!s]"};
        expect_noise(judged(&b, b.graph, unseen), models[m], cases[m].emulated);
        fd_verdict v = judged(&b, graph, unseen);
        expect_at(&v, "blk.2.attn_out", cases[m].emulated);
        fd_verdict_free(&v);
        close_model(&b);
    }
}

Test(replay_spans, a_fault_inside_a_span_is_no_noise) {
    static const char *const faults[] = {"rope_pairing@2", "missing_qkv_bias@0", "gelu_erf@2"};
    static const char *const classes[] = {"f16", "q8"};
    int32_t n_found = 0, n = 0;
    bench b = open_bench(models[1], (recording){0});
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        fd_graph *graph = faulted(&b, faults[f]);
        for (int c = 0; c < 2; c++)
            for (int s = 0; s < 2; s++) {
                fd_verdict v = judged(&b, graph, (recording){.emulated = classes[c], .tensors = spans[s]});
                n++;
                n_found += v.status == FD_DIVERGED;
                if (v.status != FD_DIVERGED)
                    fprintf(stderr, "  %s, %s, %s: %s\n", faults[f], classes[c], spans[s],
                            fd_verdict_status_name(v.status));
                fd_verdict_free(&v);
            }
    }
    fprintf(stderr, "faults inside spans: %d of %d found\n", n_found, n);
    cr_expect_eq(n_found, n);
    close_model(&b);
}

/* Records only the streams, then what the verdict advises, then what that advises. */
Test(replay_spans, a_span_narrows_to_the_node_by_the_verdicts_own_advice) {
    static const char *const faults[] = {"rope_pairing@2", "eps_outside_root@1", "q0_only@3", "logit_scale"};
    static const char *const at[] = {"blk.2.attn_q_rope", "blk.1.attn_norm", "blk.3.attn_scores", "logits"};
    bench b = open_bench(models[1], (recording){0});
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        char globs[160] = "logits";
        int32_t n = 0;
        fd_graph *graph = faulted(&b, faults[f]);
        for (bool span = true; span && n < 5; n++) {
            fd_verdict v = judged(&b, graph, (recording){.tensors = globs});
            cr_expect_eq(v.status, FD_DIVERGED, "%s with %s", faults[f], globs);
            span = v.replay.span_first[0] != '\0';
            cr_expect_eq(span, v.replay.tensors[0] != '\0');
            if (span) {
                cr_expect(strstr(v.next, v.replay.tensors), "%s", v.next);
                snprintf(globs, sizeof globs, "%s", v.replay.tensors);
            } else {
                cr_expect_str_eq(v.divergence.node, at[f], "%s with %s", faults[f], globs);
                cr_expect(v.diagnosis.done && v.diagnosis.explanation.named, "%s: %s", faults[f],
                          unnamed_of(&v.diagnosis.explanation));
            }
            fd_verdict_free(&v);
        }
        cr_expect(n > 1 && n <= 4, "%s took %d recordings", faults[f], n);
    }
    close_model(&b);
}

/* ---- what is missing ---- */

Test(replay_spans, a_span_of_unrecorded_tensors_is_blamed_and_listed) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = faulted(&b, "q0_only@1");
    recording partly = {.emulated = "f32", .tensors = "*[!s]"}; /* no attn_scores, attn_weights, logits */
    fd_verdict v = judged(&b, faulty, partly);
    expect_at(&v, "blk.1.attn_out", "span");
    cr_expect_str_eq(v.replay.span_first, "blk.1.attn_scores");
    cr_expect_str_eq(v.replay.missing, "blk.1.attn_scores, blk.1.attn_weights");
    fd_verdict_free(&v);
    expect_noise(judged(&b, b.graph, partly), models[0], "with spans");
    close_model(&b);
}

Test(replay_spans, caches_are_rebuilt_where_their_rows_were_not_recorded) {
    static const char *const classes[] = {"f32", "f16kv", "q8", "hf-bf16"};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
            recording without = {.emulated = classes[c], .tensors = "*[!kv]"}; /* nor attn_k and attn_v */
            expect_noise(judged(&b, b.graph, without), models[m], classes[c]);
        }
        close_model(&b);
    }
}

Test(replay_spans, one_position_cannot_tell) {
    bench b = open_bench(models[0], (recording){.n_prompt = 1});
    fd_verdict v = judged(&b, b.graph, (recording){.emulated = "f32", .n_prompt = 1});
    cr_expect_eq(v.status, FD_INCOMPLETE);
    cr_expect(strstr(reason_of(&v, 0), "cannot tell"), "%s", reason_of(&v, 0));
    fd_verdict_free(&v);
    close_model(&b);
}

Test(replay_spans, without_elements_the_verdict_stays_and_says_why) {
    bench b = open_model(models[0]);
    fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_scaled);
    b.ref = record(b.graph, (recording){.fingerprints_only = true});
    fd_verdict v = judged(&b, graph, (recording){.fingerprints_only = true});
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_str_eq(v.divergence.node, "blk.2.attn_out");
    cr_expect(!v.replay.done);
    bool said = false;
    for (int32_t i = 0; i < v.notes.n; i++) said |= strstr(note_of(&v, i), "--level full") != NULL;
    cr_expect(said, "%d notes", v.notes.n);
    fd_verdict_free(&v);
    close_model(&b);
}
