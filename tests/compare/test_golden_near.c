/* Goldens of other numerics, and of another engine, within a tolerance. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare/diff/golden_near.h"
#include "tests/compare/golden_bench.h"

static fd_golden_near near(const fd_trace *golden, const fake_options *run, double limit) {
    fd_golden_near result;
    fd_error err = {0};
    fd_exec *exec = fake_exec(run);
    cr_expect_eq(fd_golden_check_near(exec, golden, limit, &result, &err), FD_OK, "%s", err.message);
    fd_exec_free(exec);
    return result;
}

Test(golden_near, int8_activations_have_a_wider_limit) {
    static const char *const narrow[] = {"exact", "fast", "emulate-f16", "unheard-of"};
    static const char *const wide[] = {"q8act", "fast-int8", "emulate-llama-cpu:3"};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        cr_expect_eq(fd_golden_near_limit(narrow[i]), FD_GOLDEN_NEAR_LIMIT, "%s", narrow[i]);
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        cr_expect_eq(fd_golden_near_limit(wide[i]), FD_GOLDEN_NEAR_LIMIT_INT8, "%s", wide[i]);
}

Test(golden_near, only_logits_beyond_the_limit_fail_and_nan_does) {
    fd_trace *g = golden_of_clean();
    fd_golden_near r = near(g, &clean_run, 0);
    cr_expect(r.near && r.worst == 0 && r.n_flip == 0);
    fake_options ulp = {.edits = {{"logits", 2, 3, FAKE_ULP, 0}}};
    r = near(g, &ulp, FD_GOLDEN_NEAR_LIMIT);
    cr_expect(r.near && r.worst > 0 && r.pos == 2, "an ulp is near: %g at %d", r.worst, r.pos);
    fake_options far = {.edits = {{"logits", N_PROMPT, 9, FAKE_SET, 50}}};
    r = near(g, &far, FD_GOLDEN_NEAR_LIMIT);
    cr_expect(!r.near && r.worst > FD_GOLDEN_NEAR_LIMIT && r.pos == N_PROMPT, "%g at %d", r.worst, r.pos);
    cr_expect_eq(r.n_flip, 1, "the greedy token follows the logit");
    fake_options nan = {.edits = {{"logits", 1, 0, FAKE_SET, NAN}}};
    r = near(g, &nan, INFINITY);
    cr_expect(!r.near && r.pos == 1, "NaN is near nothing");
    fd_trace_close(g);
}

/* ---- measured tolerances ---- */

Test(golden_near, a_class_has_the_limit_that_was_measured_for_it) {
    static const fd_golden_tolerances measured = {
        .names = "f16 llama-cpu q8", .n_class = 3, .n_run = 4, .nmse = {1e-6, 2e-4, 3e-4}};
    static const struct {
        const char *numerics, *class_;
        double nmse;
    } cases[] = {{"f16", "f16", 1e-6},
                 {"emulate-f16:7", "f16", 1e-6},
                 {"fast", "f16", 1e-6},
                 {"q8act", "q8", 3e-4},
                 {"llama-cpu", "llama-cpu", 2e-4}};
    char class_[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double limit = fd_golden_measured_limit(&measured, cases[i].numerics, class_);
        cr_expect_eq(limit, FD_GOLDEN_MEASURED_FACTOR * cases[i].nmse, "%s: %g", cases[i].numerics, limit);
        cr_expect_str_eq(class_, cases[i].class_);
    }
    static const char *const others[] = {"bf16", "emulate-f32", "unheard-of", "f1", ""};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cr_expect_lt(fd_golden_measured_limit(&measured, others[i], class_), 0, "%s", others[i]);
}

Test(golden_near, what_a_golden_does_not_keep_is_not_compared_and_nothing_kept_is_no_pass) {
    fd_trace *g = golden_of(clean_info(), without_first_logit);
    fake_options other = {.edits = {{"logits", 1, 0, FAKE_SET, 50}}};
    cr_expect(near(g, &other, FD_GOLDEN_NEAR_LIMIT).near);
    fd_trace_close(g);
    g = golden_of(clean_info(), without_logits);
    fd_golden_near r = near(g, &clean_run, INFINITY);
    cr_expect(!r.near && r.pos == 1);
    fd_trace_close(g);
}

Test(golden_near, another_engines_run_is_compared_as_far_as_its_tokens_are_the_goldens) {
    fd_trace *g = golden_of_clean(), *same = golden_of_clean(), *other = golden_of(clean_info(), other_token),
             *wrong = golden_of(clean_info(), other_logit), *none = golden_of(clean_info(), without_logits);
    fd_golden_near r;
    fd_error err = {0};
    cr_expect_eq(fd_golden_check_trace(same, g, 0, &r, &err), FD_OK, "%s", err.message);
    cr_expect(r.near && r.n_pos == N_POS && r.parted == -1);
    cr_expect_eq(fd_golden_check_trace(other, g, 0, &r, &err), FD_OK);
    cr_expect(r.near && r.n_pos == N_PROMPT + 1 && r.parted == N_PROMPT + 1);
    cr_expect_eq(fd_golden_check_trace(wrong, g, FD_GOLDEN_NEAR_LIMIT, &r, &err), FD_OK);
    cr_expect(!r.near && r.pos == 1);
    cr_expect_eq(fd_golden_check_trace(none, g, INFINITY, &r, &err), FD_OK);
    cr_expect(!r.near && r.pos == 1, "a run's NaN is near nothing");
    fd_trace_close(g);
    fd_trace_close(same);
    fd_trace_close(other);
    fd_trace_close(wrong);
    fd_trace_close(none);
}
