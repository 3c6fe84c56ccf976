/* Hashes of weights in two traces, without the model: they differ, and there is no name for it. */
#include <criterion/criterion.h>
#include <string.h>

#include "compare/compare.h"
#include "compare/weights/weights.h"
#include "tests/compare/replay_bench.h"
#include "tests/compare/said.h"

static fd_trace *record_weights(const fd_graph *graph, const fd_graph *model) {
    return record(graph, (recording){.weights = model, .n_prompt = 2});
}

static fd_verdict compare_only(const fd_trace *ref, fd_trace *cand) {
    fd_compare_options how = {0};
    fd_verdict v;
    fd_error err = {0};
    must(fd_compare_traces(ref, cand, &how, &v, &err), &err);
    must(fd_weights_of_traces(ref, cand, &v, &err), &err);
    fd_trace_close(cand);
    return v;
}

Test(weights_of_traces, differ_without_a_model_but_have_no_name) {
    bench b = open_model(models[0]);
    fd_trace *ref = record_weights(b.graph, b.graph);
    const fd_graph *faulty = faulted(&b, "k_v_swapped@3");
    fd_verdict v = compare_only(ref, record_weights(faulty, b.graph));
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_eq(v.weights.n_differ, 2);
    cr_expect(!v.weights.against_model && !v.weights.named && strstr(weights_unnamed_of(&v), "--model"));
    cr_expect_str_eq(match_of(&v), "all 128 rows are those of blk.3.attn_v.weight");
    cr_expect_str_eq(v.divergence.node, "blk.3.attn_k", "what the wrong weight did");
    fd_verdict_free(&v);
    v = compare_only(ref, record_weights(b.graph, b.graph));
    cr_expect_eq(v.status, FD_IDENTICAL);
    cr_expect(v.weights.compared && v.weights.n_differ == 0);
    fd_verdict_free(&v);
    fd_trace_close(ref);
    close_model(&b);
}

Test(weights_of_traces, a_tied_output_of_its_own_is_told_from_the_table) {
    bench b = open_model(models[1]);
    fd_trace *ref = record_weights(b.graph, b.graph);
    const fd_graph *faulty = faulted(&b, "tied_output_zero");
    if (!faulty) cr_skip_test("the model is not tied");
    fd_verdict v = compare_only(ref, record_weights(faulty, b.graph));
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_eq(v.weights.n_differ, 1);
    cr_expect_eq(v.weights.n_trailing_zero_row, v.weights.n_row);
    fd_verdict_free(&v);
    fd_trace_close(ref);
    close_model(&b);
}
