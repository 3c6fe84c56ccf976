/* A class is inferred from what a trace shows, not from the room that its bounds have: bugs in every layer of a
 * binary32 engine are no coarser class, and where nothing shows the class the verdict says that it cannot tell. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "compare/infer/evidence.h"
#include "compare/report/remarks.h"
#include "tests/compare/replay_bench.h"

/* RMSNorm over n − 1: one factor for all elements, far below what 16 bits round. */
static void mean_of_one_less(const fd_op_args *args) {
    run_clean(args);
    int64_t width = args->node->shape[0];
    float factor = (float)sqrt((double)(width - 1) / (double)width);
    for (int64_t i = 0; i < args->n_pos * width; i++) ((float *)args->out)[i] *= factor;
}

/* By a tenth of its size, without a direction: bounds of sums in 16 bits have room for that, their roundings leave a hundredth. */
static void a_tenth_off(const fd_op_args *args) {
    run_clean(args);
    float *y = args->out;
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)y[i] * (double)y[i];
    float tenth = (float)(0.1 * sqrt(squares / (double)n));
    for (int64_t i = 0; i < n; i++) y[i] += (uint32_t)(i * 2654435761) >> 31 ? tenth : -tenth;
}

static const char *const all = "*", *const partial = "*[!s]",
                         *const callbacks = "*norm,*attn_[qkv],*rope,*attn_out,*proj,*inp,*act,*down,*l_out,logits",
                         *const fused = "*norm,*attn_[qkv],*attn_out,*proj,*inp,*down,*l_out,logits";

static const struct {
    const char *suffix;
    fd_override_fn how;
    const char *at; /* where it is found, whatever is recorded */
} rounding_bugs[] = {
    {"attn_norm", mean_of_one_less, "blk.0.attn_norm"},
    {"attn_norm", rounded_to_f16, "blk.0.attn_norm"},
    {"attn_out", rounded_to_f16, "blk.0.attn_out"},
    {"l_out", rounded_to_f16, "blk.0.l_out"},
};

Test(evidence, a_small_bug_in_every_layer_of_a_binary32_engine_is_no_coarser_class) {
    const char *const recorded[] = {all, partial, fused};
    enum { N_BUG = sizeof rounding_bugs / sizeof *rounding_bugs };
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (int i = m; i < N_BUG; i += N_MODEL) { /* each on one of them */
            const char *at = rounding_bugs[i].at;
            fd_graph *graph = spoiled_everywhere(&b, rounding_bugs[i].suffix, rounding_bugs[i].how);
            recording how = {.emulated = "f32", .numerics = "unknown", .tensors = recorded[i % 3]};
            fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
            expect_at(&v, at, how.tensors);
            cr_expect_str_eq(v.replay.numerics, "f32", "%s: %s", at, v.replay.numerics);
            cr_expect_neq(v.replay.evidence.kind, FD_EVIDENCE_NONE,
                          "%s: what speaks against a coarser class is not said", at);
            fd_verdict_free(&v);
            fd_graph_free(graph);
        }
        close_model(&b);
    }
}

/* With sums in 16 bits nothing would be right to the last bits, and the experts' or the FFN's errors would be smaller. */
Test(evidence, errors_larger_than_a_class_leaves_refute_it_though_its_bounds_have_room) {
    static const struct {
        const char *emulated, *suffix, *tensors, *class_, *at;
    } of[] = {
        {"f32", "ffn_down", fused, "f32", "blk.0.ffn_down"},
        {"q8", "ffn_act", "*norm,*inp,*down,*l_out,logits", "ggml-cpu-f32kv", "blk.0.ffn_down"},
    };
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        fd_graph *graph = spoiled_everywhere(&b, of[i].suffix, a_tenth_off);
        recording how = {.emulated = of[i].emulated, .numerics = "unknown", .tensors = of[i].tensors};
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        expect_at(&v, of[i].at, of[i].emulated);
        cr_expect_str_eq(v.replay.numerics, of[i].class_, "%s: %s", of[i].emulated, v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* The product after attention has attention's errors, and shows no rounding of its own. */
Test(evidence, attention_alone_shows_no_class_that_rounds_a_cache_which_was_not_recorded) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = spoiled_everywhere(&b, "attn_out", rounded_to_f16);
    recording how = {.emulated = "f32", .numerics = "unknown", .tensors = "*norm,*attn_proj,*ffn_down,logits"};
    fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
    cr_expect_neq(v.status, FD_NOISE, "%s", v.replay.numerics);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    close_model(&b);
}

/* Fused attention rounds less: beside a bug that neither class explains, its bounds would blame rows before it that are sound. */
Test(evidence, a_bug_of_decode_is_found_in_decode_beside_attention_that_rounds_its_scores) {
    bench b = open_bench(models[1], (recording){0});
    recording how = {.emulated = "hf-bf16", .numerics = "unknown", .tensors = callbacks};
    fd_verdict v = judge(b.graph, b.ref, record(faulted(&b, "mask_upper_left"), how), NULL);
    cr_expect_str_eq(v.replay.numerics, "hf-bf16", "%s", v.replay.numerics);
    cr_expect(v.divergence.step > 0, "step %d, %s", v.divergence.step, v.divergence.node);
    fd_verdict_free(&v);
    close_model(&b);
}

Test(evidence, a_class_of_16_bits_is_refuted_by_values_that_it_cannot_hold) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = faulted(&b, "eps_outside_root");
    fd_verdict v = judge(
        b.graph, b.ref, record(graph, (recording){.emulated = "f32", .numerics = "unknown", .tensors = partial}), NULL);
    expect_at(&v, "blk.0.attn_norm", "eps_outside_root");
    cr_expect(v.diagnosis.explanation.named);
    cr_expect_eq(v.replay.evidence.kind, FD_EVIDENCE_STORAGE);
    fd_verdict_free(&v);
    /* the same as said to be hf-bf16 is within its bounds: what is given is kept, and the errors' direction tells */
    v = judge(b.graph, b.ref, record(graph, (recording){.emulated = "f32", .tensors = partial}), "hf-bf16-fa");
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_str_eq(v.divergence.node, "blk.0.attn_norm");
    cr_expect(v.replay.z <= 1 && v.diagnosis.explanation.slope_rows > 0, "z %g", v.replay.z);
    cr_expect_eq(v.replay.evidence.kind, FD_EVIDENCE_NONE);
    fd_verdict_free(&v);
    close_model(&b);
}

Test(evidence, under_noise_of_an_inferred_class_stands_what_binary32_would_say) {
    bench b = open_bench(models[0], (recording){0});
    fd_verdict v = judge(b.graph, b.ref,
                         record(b.graph, (recording){.emulated = "q8", .numerics = "unknown", .tensors = fused}), NULL);
    char text[FD_REMARK_SIZE];
    cr_expect_eq(v.status, FD_NOISE, "%s", fd_reason_text(&v, 0, text));
    cr_expect(v.replay.noisiest_z <= 1.0, "%g", v.replay.noisiest_z);
    cr_expect_str_eq(v.replay.numerics, "ggml-cpu-f32kv"); /* the emulated q8 rounds activations as ggml does */
    fd_class_evidence_text(&v.replay.evidence, text);
    cr_expect(strstr(text, "f32 would not do: first at blk.0.attn_q, "), "%s", text);
    fd_verdict_free(&v);
    v = judge(b.graph, b.ref, record(b.graph, (recording){.emulated = "f32", .numerics = "unknown"}), NULL);
    cr_expect_eq(v.status, FD_NOISE);
    cr_expect_eq(v.replay.evidence.kind, FD_EVIDENCE_NONE);
    fd_verdict_free(&v);
    close_model(&b);
}

/* One attention output in a layer was reached through an unrecorded cache and is right: that says nothing of 22 products. */
Test(evidence, to_leave_nothing_a_class_explains_most_of_what_was_recorded) {
    static const struct {
        const char *what, *class_;
        fd_class_case found;
        bool leaves_nothing;
    } of[] = {
        {"all", "f32", {.n_through = 4}, true},
        {"a bug at one of ten tensors a layer", "f32", {.n_through = 3, .n_direct = 30, .n_failed = 3}, true},
        {"what every product rounds", "f32", {.n_through = 3, .n_direct = 54, .n_failed = 22}, false},
        {"a bug at the only other tensor, where all that is reached through others is repeated",
         "ggml-cpu",
         {.n_through = 6, .n_direct = 1, .n_failed = 1, .remains = -15, .finest_remains = -5},
         true},
        {"the same, not all of it",
         "ggml-cpu",
         {.n_through = 6, .n_left = 1, .n_direct = 1, .n_failed = 1, .remains = -15, .finest_remains = -5},
         false},
        {"the same, little less than the finest leaves",
         "ggml-cpu",
         {.n_through = 6, .n_direct = 1, .n_failed = 1, .remains = -9, .finest_remains = -5},
         false},
        {"more departs than was reached",
         "ggml-cpu",
         {.n_through = 2, .n_direct = 3, .n_failed = 3, .remains = -15, .finest_remains = -5},
         false},
        {"nothing was computed through others", "f32", {.n_direct = 54}, false},
        {"half of them: attention, where the FFN is right", "f32", {.n_through = 4, .n_left = 2}, true},
        {"more than half", "f32", {.n_through = 4, .n_left = 3}, false},
        {"a class with room", "f16", {.n_through = 4}, false},
        {"a 500th of the finest's",
         "ggml-cpu",
         {.n_through = 4, .loses_to_steps = true, .remains = -11, .finest_remains = -5},
         true},
        {"what the finest leaves",
         "ggml-cpu",
         {.n_through = 4, .loses_to_steps = true, .remains = -5, .finest_remains = -5},
         false},
        {"NaN", "ggml-cpu", {.n_through = 4, .loses_to_steps = true, .remains = NAN, .finest_remains = -5}, false},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        fd_class_case c = of[i].found;
        c.numerics = fd_numerics_class_find(of[i].class_);
        cr_expect_eq(fd_case_leaves_nothing(&c), of[i].leaves_nothing, "%s", of[i].what);
    }
}

/* Replay repeats int8 blocks: of a layer, or of the whole model, it leaves a millionth. No other class does. */
Test(evidence, a_class_that_leaves_nothing_is_decided_from_layer_outputs_or_logits) {
    static const char *const recorded[] = {"logits", "*l_out,logits"};
    static const char *const engines[][2] = {{"q8", "ggml-cpu-f32kv"}, {"f32", "f32"}, {"f16kv", "f16kv"}};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 6; i++) {
        recording how = {.emulated = engines[i / 2][0], .numerics = "unknown", .tensors = recorded[i % 2]};
        fd_verdict v = judge(b.graph, b.ref, record(b.graph, how), NULL);
        char text[FD_REMARK_SIZE];
        cr_expect_eq(v.status, FD_NOISE, "%s from %s: %s", how.emulated, how.tensors, fd_reason_text(&v, 0, text));
        cr_expect_str_eq(v.replay.numerics, engines[i / 2][1], "%s from %s: %s", how.emulated, how.tensors,
                         v.replay.numerics);
        cr_expect_not(v.replay.evidence.undecided);
        fd_verdict_free(&v);
    }
    close_model(&b);
}

Test(evidence, a_class_that_only_has_room_is_not_decided) {
    static const char *const recorded[] = {"logits", "*l_out,logits"};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 2; i++) {
        recording how = {.emulated = "f16", .numerics = "unknown", .tensors = recorded[i]};
        fd_verdict v = judge(b.graph, b.ref, record(b.graph, how), NULL);
        cr_expect_eq(v.status, FD_INCOMPLETE, "%s: %s", recorded[i], fd_verdict_status_name(v.status));
        char text[FD_REMARK_SIZE];
        cr_expect(v.replay.evidence.undecided, "%s", recorded[i]);
        cr_expect(strstr(fd_reason_text(&v, 0, text), "cannot tell whether"), "%s: %s", recorded[i], text);
        cr_expect_eq(v.replay.evidence.kind, FD_EVIDENCE_STRICTER);
        fd_verdict_free(&v);
        v = judge(b.graph, b.ref, record(b.graph, how), "f16");
        cr_expect_eq(v.status, FD_NOISE, "given, it is noise: %s", recorded[i]);
        fd_verdict_free(&v);
    }
    close_model(&b);
}

/* Asked of every tensor once: through twenty layers there are a million ways. */
Test(evidence, attention_is_on_the_way_where_its_tensors_were_not_recorded) {
    static const struct {
        const char *recorded, *node;
        bool through;
    } ways[] = {
        {"*", "blk.1.attn_proj", false},
        {"*l_out,logits", "blk.1.l_out", true},
        {"*attn_proj,*l_out,logits", "blk.1.attn_proj", true},
        {"*attn_proj,*l_out,logits", "blk.1.l_out", false},
        {"*attn_out,*ffn_down", "blk.1.ffn_down", false},
        {"logits", "logits", true},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        bench b = open_bench(models[0], (recording){.tensors = ways[i].recorded});
        fd_evidence e;
        fd_error err = {0};
        must(fd_evidence_open(b.graph, b.ref, fd_trace_n_pos(b.ref), &e, &err), &err);
        cr_expect_eq(e.through_attention[fd_graph_find(b.graph, ways[i].node)], ways[i].through, "%s of %s",
                     ways[i].node, ways[i].recorded);
        fd_evidence_close(&e);
        close_model(&b);
    }
}

/* An engine of mixed precision rounds every product. */
Test(evidence, products_with_24_bits_are_no_engine_of_mixed_precision_unless_two_other_ops_round) {
    static const struct {
        const char *recorded, *narrow[2];
        bool wide;
    } engines[] = {
        {"*attn_proj,*ffn_down", {0}, true},
        {"*attn_proj,*ffn_down", {"blk.0.attn_proj"}, false},
        {"*attn_proj,*rope,*attn_out", {"rope", "attn_out"}, false},
        {"*attn_proj,*rope,*attn_out", {"rope"}, true}, /* of one op it is a bug's, and so in one layer */
        {"*attn_proj,*rope,*attn_out", {"rope", "blk.0.attn_out"}, true},
        {"*attn_norm,*l_out,logits", {0}, false}, /* sums and norms may well be binary32 there */
    };
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        bench b = open_bench(models[0], (recording){.tensors = engines[i].recorded});
        fd_evidence e;
        fd_error err = {0};
        must(fd_evidence_open(b.graph, b.ref, fd_trace_n_pos(b.ref), &e, &err), &err);
        for (int32_t k = 0; k < b.graph->n_node; k++) {
            e.stored[k] = e.seen[k] = fd_trace_has_data(b.ref, b.graph->nodes[k].name);
            bool narrow = false;
            for (int j = 0; j < 2 && engines[i].narrow[j]; j++)
                narrow |= strstr(b.graph->nodes[k].name, engines[i].narrow[j]) != NULL;
            e.wide[2 * k] = e.wide[2 * k + 1] = !narrow;
        }
        cr_expect_eq(fd_evidence_nothing_is_narrow(&e, fd_numerics_class_find("mixed-f16")), engines[i].wide, "%zu", i);
        fd_evidence_close(&e);
        close_model(&b);
    }
}
