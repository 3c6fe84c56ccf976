/* What is left out of a refuted class's case would not have saved it: neither bounds and samples of rounding, nor what its roundings
 * leave as a rule. */
#include <criterion/criterion.h>

#include "compare/infer/try_classes.h"
#include "reference_cpu/reference.h"
#include "tests/compare/replay_bench.h"

static const struct {
    const char *emulated, *tensors;
    int fewest; /* classes of which a part suffices */
} runs[] = {
    {"llama-cpu", "*l_out,logits", 3},
    {"f32", "*norm,*attn_[qkv],*attn_out,*proj,*inp,*down,*l_out,logits", 0}, /* no other is tried */
    {"f16", "*l_out,logits", 3},
};

static void expect_same_judgement(const fd_class_case *part, const fd_class_case *whole) {
    const char *name = whole->numerics->name;
    cr_expect_not(whole->part, "%s", name);
    cr_expect_not(fd_case_leaves_nothing(whole), "%s", name);
    cr_expect_eq(whole->n_rounded, part->n_rounded, "%s", name);
    cr_expect_leq(whole->n_needed, part->n_needed, "%s", name);
    cr_expect_geq(whole->n_beyond, part->n_beyond, "%s", name);
    cr_expect_eq(whole->n_judged, part->n_judged, "%s", name);
    cr_expect_eq(whole->n_through, part->n_through, "%s", name);
    cr_expect_eq(whole->n_left, part->n_left, "%s", name);
    cr_expect_eq(whole->n_rows_left, part->n_rows_left, "%s", name);
}

Test(class_parts, a_class_that_is_refuted_by_a_part_is_refuted_by_all_of_it) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        fd_trace *cand = record(
            b.graph, (recording){.emulated = runs[i].emulated, .numerics = "unknown", .tensors = runs[i].tensors});
        const fd_attribution_options how = {
            .graph = b.graph, .cand = cand, .n_pos = fd_trace_n_pos(cand), .op = fd_reference_op};
        fd_evidence seen;
        static fd_class_cases cases;
        fd_error err = {0};
        int n_part = 0;
        must(fd_evidence_open(b.graph, cand, how.n_pos, &seen, &err), &err);
        must(fd_try_classes(&how, &seen, &cases, &err), &err);
        for (int32_t k = 0; k < cases.n; k++) {
            const fd_class_case part = cases.at[k];
            if (!part.part) continue;
            n_part++;
            cr_expect(cases.refuted[k], "%s", part.numerics->name);
            must(fd_class_case_complete(&how, &cases.at[k], &err), &err);
            expect_same_judgement(&part, &cases.at[k]);
            cr_expect(!fd_class_leaves_nothing(part.numerics) || fd_case_refuted(&cases.at[k]) ||
                          fd_case_rows_refute(&cases.at[k]),
                      "%s", part.numerics->name);
        }
        cr_expect_geq(n_part, runs[i].fewest, "%s, %s: %d of %d classes", runs[i].emulated, runs[i].tensors, n_part,
                      cases.n);
        for (int32_t k = 0; k < cases.n; k++) fd_class_case_free(&cases.at[k]);
        fd_evidence_close(&seen);
        fd_trace_close(cand);
    }
    close_model(&b);
}

Test(class_parts, bounds_that_are_not_asked_for_are_zero_and_change_no_value) {
    bench b = open_bench(models[0], (recording){0});
    fd_trace *cand =
        record(b.graph, (recording){.emulated = "llama-cpu", .numerics = "unknown", .tensors = "*l_out,logits"});
    fd_evidence seen;
    fd_class_case of[2];
    fd_error err = {0};
    const fd_numerics_class *class_ = fd_numerics_class_find("ggml-cpu");
    must(fd_evidence_open(b.graph, cand, fd_trace_n_pos(cand), &seen, &err), &err);
    for (int alone = 0; alone < 2; alone++) {
        must(fd_class_case_open(&seen, class_, &of[alone], &err), &err);
        of[alone].values_alone = alone;
        const fd_attribution_options how = {.graph = b.graph,
                                            .cand = cand,
                                            .n_pos = fd_trace_n_pos(cand),
                                            .op = fd_reference_op,
                                            .numerics = class_,
                                            .rows_alone = true,
                                            .values_alone = alone,
                                            .on_row = fd_evidence_add,
                                            .user = &of[alone]};
        fd_attribution unused;
        must(fd_attribute_errors(&how, &unused, &err), &err);
        fd_attribution_free(&unused);
    }
    int n = 0;
    for (int64_t i = 0; i < (int64_t)b.graph->n_node * seen.n_slot; i++) {
        const fd_evidence_row *bounded = &of[0].rows[i], *alone = &of[1].rows[i];
        cr_assert_eq(bounded->z < 0, alone->z < 0);
        if (bounded->z < 0) continue;
        n++;
        cr_expect_eq(alone->tau, 0);
        cr_expect_gt(bounded->tau, 0);
        cr_expect_eq(alone->error, bounded->error);
        cr_expect_eq(alone->remains, bounded->remains);
        cr_expect_eq(alone->through, bounded->through);
    }
    cr_expect_gt(n, 20);
    for (int alone = 0; alone < 2; alone++) fd_class_case_free(&of[alone]);
    fd_evidence_close(&seen);
    fd_trace_close(cand);
    close_model(&b);
}

/* Lists of classes have room for this many; others would be left out without a word. */
Test(class_parts, all_classes_have_a_place_in_every_list_of_them) {
    int32_t n = 0;
    while (fd_numerics_class_at(n)) n++;
    cr_expect_leq(n, FD_MOST_CLASSES, "%d", n);
}

/* Without a direction. */
static void a_thousandth_off(const fd_op_args *args) {
    run_clean(args);
    float *y = args->out;
    const int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)y[i] * (double)y[i];
    const float by = (float)(1e-3 * sqrt(squares / (double)n));
    for (int64_t i = 0; i < n; i++) y[i] += (uint32_t)(i * 2654435761) >> 31 ? by : -by;
}

/* Classes of binary16 and TF32 factors have room for it; but they would have rounded the other layers' products as well, whose outputs are
 * right to the last bits. */
Test(class_parts, a_bug_in_one_layer_is_no_class_where_layer_outputs_alone_were_recorded) {
    bench b = open_bench(models[0], (recording){0});
    recording how = {.emulated = "f32", .numerics = "unknown", .tensors = "*l_out"};
    fd_verdict v = judge(b.graph, b.ref, record(spoiled(&b, "blk.2.attn_proj", a_thousandth_off), how), NULL);
    expect_at(&v, "blk.2.l_out", v.replay.numerics);
    fd_verdict_free(&v);
    close_model(&b);
}
