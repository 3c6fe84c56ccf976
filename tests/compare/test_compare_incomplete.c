/* Never "identical" when something was not looked at. */
#include <criterion/criterion.h>
#include <string.h>

#include "compare/compare.h"
#include "tests/compare/fake_run.h"
#include "tests/compare/said.h"

Test(compare_incomplete, a_missing_tensor_is_incomplete_on_either_side) {
    for (int side = 0; side < 2; side++) {
        fake_trace_options whole = {.level = FD_TRACE_FULL}, part = {.level = FD_TRACE_FULL, .tensors = "*[!p]"};
        fd_trace *a = fake_trace(side ? &part : &whole), *b = fake_trace(side ? &whole : &part);
        fd_verdict v = fake_compare(a, b, NULL);
        cr_expect_eq(v.status, FD_INCOMPLETE);
        cr_expect_eq(fd_verdict_exit_status(&v), 3);
        cr_assert_gt(v.n_missing, 0);
        cr_expect_eq(v.missing[0].why, FD_NOT_RECORDED, "the node is in both graphs");
        cr_expect_eq(v.missing[0].n_pos, 8);
        fd_verdict_free(&v);
    }
}

Test(compare_incomplete, a_name_that_one_side_alone_has_is_incomplete) {
    float values[5 * 64] = {0};
    for (int side = 0; side < 2; side++) {
        fake_trace_options one = {.level = FD_TRACE_FULL, .n_decode = -1};
        fd_trace *whole = fake_trace(&one), *foreign = foreign_trace("of_its_own", FD_F32, values, 5, 64);
        fd_verdict v = side ? fake_compare(whole, foreign, "[!o]*") : fake_compare(foreign, whole, "[!o]*");
        cr_expect_eq(v.status, FD_INCOMPLETE);
        cr_assert_eq(v.n_missing, fake_graph()->n_node + 1);
        int32_t n_required = 0;
        for (int32_t i = 0; i < v.n_missing; i++) {
            const fd_missing *m = &v.missing[i];
            bool in_whole = strcmp(m->name, "of_its_own") != 0;
            cr_expect_eq(m->why, in_whole == (side == 1) ? FD_ONLY_IN_REFERENCE : FD_ONLY_IN_CANDIDATE, "%s", m->name);
            cr_expect_eq(m->n_pos, 5, "%s", m->name);
            n_required += !m->allowed;
        }
        cr_expect_gt(n_required, 0, "of_its_own (and names that begin with o) are not allowed to be missing");
        fd_verdict_free(&v);
    }
}

Test(compare_incomplete, missing_tensors_can_be_allowed_by_name_alone) {
    static const struct {
        const char *allow;
        fd_verdict_status status;
    } cases[] = {{"*p", FD_IDENTICAL}, {"*_up", FD_INCOMPLETE}, {"logits", FD_INCOMPLETE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_trace_options whole = {.level = FD_TRACE_FULL}, part = {.level = FD_TRACE_FULL, .tensors = "*[!p]"};
        fd_verdict v = fake_compare(fake_trace(&whole), fake_trace(&part), cases[i].allow);
        cr_expect_eq(v.status, cases[i].status, "--allow-missing '%s'", cases[i].allow);
        cr_expect(v.n_missing > 0, "allowed or not, it is listed");
        fd_verdict_free(&v);
    }
}

Test(compare_incomplete, allowing_everything_to_be_missing_is_nothing_to_compare) {
    fake_trace_options q = {.level = FD_TRACE_FULL, .tensors = "*attn_q"},
                       k = {.level = FD_TRACE_FULL, .tensors = "*attn_k"};
    fd_verdict v = fake_compare(fake_trace(&q), fake_trace(&k), "*");
    cr_expect_eq(v.counts.n_compared, 0);
    cr_expect_eq(v.status, FD_INCOMPLETE);
    fd_verdict_free(&v);
}

Test(compare_incomplete, a_truncated_trace_is_incomplete) {
    fake_trace_options cand = {.level = FD_TRACE_FULL, .abandon_after = 2};
    fd_verdict v = fake_against_clean(FD_TRACE_FULL, &cand);
    cr_expect_eq(v.status, FD_INCOMPLETE);
    cr_expect(!v.cand.complete);
    cr_expect_eq(v.counts.n_pos, 6);
    cr_expect_eq(v.counts.n_before, v.counts.n_compared);
    fd_verdict_free(&v);
}

Test(compare_incomplete, a_trace_cut_off_after_its_last_step_is_incomplete) {
    for (int side = 0; side < 2; side++) {
        fake_trace_options cut = {.level = FD_TRACE_FULL, .abandon_after = 4}, clean = {.level = FD_TRACE_FULL};
        fd_trace *a = fake_trace(&clean), *b = fake_trace(&cut);
        fd_verdict v = side ? fake_compare(b, a, NULL) : fake_compare(a, b, NULL);
        cr_expect_eq(v.counts.n_pos, 8);
        cr_expect_eq(v.n_missing, 0, "every tensor is there");
        cr_expect_eq(v.status, FD_INCOMPLETE, "but the run did not say that it ended");
        fd_verdict_free(&v);
    }
}

Test(compare_incomplete, a_divergence_in_a_truncated_trace_is_a_divergence) {
    fake_trace_options cand = {
        .level = FD_TRACE_FULL, .abandon_after = 2, .run.edits = {{"blk.0.attn_out", 3, 1, FAKE_ULP, 0}}};
    fd_verdict v = fake_against_clean(FD_TRACE_FULL, &cand);
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect(v.reasons.n > 0, "the incompleteness is stated all the same");
    fd_verdict_free(&v);
}

Test(compare_incomplete, fewer_positions_are_incomplete) {
    fake_trace_options cand = {.level = FD_TRACE_FULL, .n_decode = 1};
    fd_verdict v = fake_against_clean(FD_TRACE_FULL, &cand);
    cr_expect_eq(v.status, FD_INCOMPLETE);
    fd_verdict_free(&v);
}

Test(compare_incomplete, fingerprints_of_other_numerics_are_not_compared) {
    fake_trace_options cand = {.level = FD_TRACE_FINGERPRINT, .contract = FD_CONTRACT_VERSION + 1};
    fd_verdict v = fake_against_clean(FD_TRACE_FULL, &cand);
    cr_expect_eq(v.status, FD_INCOMPLETE, "equal fingerprints of another contract prove nothing");
    cr_expect_eq(v.counts.n_compared, 0);
    fd_verdict_free(&v);
}

Test(compare_incomplete, different_models_are_not_compared) {
    static const fake_trace_options others[] = {{.level = FD_TRACE_FULL, .model_hash = "xxh3-128:1"},
                                                {.level = FD_TRACE_FULL, .arch = "qwen2"}};
    for (int i = 0; i < 2; i++) {
        fd_verdict v = fake_against_clean(FD_TRACE_FULL, &others[i]);
        cr_expect_eq(v.status, FD_INCOMPLETE);
        cr_expect_eq(v.counts.n_compared, 0);
        cr_expect(strstr(reason_of(&v, 0), "different models"), "%s", reason_of(&v, 0));
        fd_verdict_free(&v);
    }
}

Test(compare_incomplete, prompts_that_differ_are_no_comparison) {
    static const char *const text = "In the beginning";
    const struct {
        const char *ref, *cand;
        fd_verdict_status status;
        const char *said;
    } cases[] = {{NULL, NULL, FD_INCOMPLETE, "not recorded on both sides"},
                 {text, NULL, FD_INCOMPLETE, "not recorded on both sides"},
                 {text, "In the end", FD_INCOMPLETE, "the prompts differ from position 3 on"},
                 {text, text, FD_DIVERGED, "the tokenizers differ"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_trace_options options[2] = {{.level = FD_TRACE_FULL, .prompt = cases[i].ref},
                                         {.level = FD_TRACE_FULL, .prompt = cases[i].cand, .token_at = 3, .token = 1}};
        fd_trace *ref = fake_trace(&options[0]), *cand = fake_trace(&options[1]);
        fd_compare_options how = {0};
        fd_verdict v;
        fd_error err = {0};
        cr_assert_eq(fd_compare_traces(ref, cand, &how, &v, &err), FD_OK, "%s", err.message);
        cr_expect_eq(v.status, cases[i].status, "case %zu", i);
        bool diverged = v.status == FD_DIVERGED;
        cr_expect_eq(v.divergence.kind, diverged ? FD_DIVERGED_TOKENS : FD_NO_DIVERGENCE);
        cr_expect(strstr(diverged ? note_of(&v, v.notes.n - 1) : reason_of(&v, v.reasons.n - 1), cases[i].said),
                  "case %zu", i);
        fd_verdict_free(&v);
        fd_trace_close(ref);
        fd_trace_close(cand);
    }
}
