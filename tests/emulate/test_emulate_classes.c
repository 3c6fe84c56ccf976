/* Whole runs of the bundled models: how far each class is from the truth, and what must not change a bit. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common.h"
#include "tests/emulate/emulate_case.h"
#include "tests/nmse.h"

/* NMSE of the logits against cpu:f64 on kjv-llama and kjv-qwen2; the limits are the measured values with a factor of
 * 4 to either side. The lower ones show that the class rounds at all. kjv-qwen2 has F16 weights, beside which q8 and
 * llama-cpu round activations to f16 and not to Q8_0. */
static const struct {
    const char *name;
    double low[CASE_MODELS], high[CASE_MODELS];
} ranges[] = {
    {"f32", {1.8e-14, 2e-14}, {2.8e-13, 3.2e-13}},    {"tf32", {4.6e-8, 3.4e-8}, {7.3e-7, 5.5e-7}},
    {"f16", {4e-8, 3.2e-8}, {6.4e-7, 5.2e-7}},        {"bf16", {2.7e-6, 4.5e-6}, {4.3e-5, 7.2e-5}},
    {"f16acc", {9.6e-7, 1.3e-6}, {1.6e-5, 2.1e-5}},   {"q8", {1.7e-5, 2e-8}, {2.8e-4, 3.2e-7}},
    {"f16kv", {5e-9, 1.3e-8}, {8e-8, 2.1e-7}},        {"llama-cpu", {1.5e-5, 3.2e-8}, {2.4e-4, 5.2e-7}},
    {"llama-cublas", {1.1e-6, 1.3e-6}, {1.8e-5, 2e-5}}, {"hf-bf16", {1.1e-5, 2.1e-5}, {1.8e-4, 3.3e-4}},
    {"hf-f16", {1.3e-7, 1.6e-7}, {2.2e-6, 2.6e-6}},   {"llama-cuda", {1.6e-5, 1.4e-6}, {2.6e-4, 2.3e-5}},
};
enum { N_RANGE = sizeof ranges / sizeof *ranges };

static bool in_range(double value, double low, double high) {
    return value >= low && value <= high; /* NaN is in no range */
}

Test(emulate_classes, every_class_of_the_table_has_a_range) {
    cr_expect_eq(fd_emulate_class_count(), N_RANGE);
    for (int i = 0; i < N_RANGE; i++) cr_expect(fd_emulate_class_find(ranges[i].name), "%s", ranges[i].name);
    cr_expect_null(fd_emulate_class_find("f8"));
}

Test(emulate_classes, logits_are_off_by_as_much_as_the_class_rounds) {
    for (int m = 0; m < CASE_MODELS; m++) {
        emulate_case c = case_open(m);
        float *truth = case_run(&c, c.graph, "f64", 0, CASE_TOKENS);
        float *exact = case_run(&c, c.graph, "exact", 0, CASE_TOKENS);
        for (int i = 0; i < N_RANGE; i++) {
            float *logits = case_run(&c, c.graph, ranges[i].name, 0, CASE_TOKENS);
            double error = nmse(logits, truth, case_n_logit(&c));
            cr_expect(in_range(error, ranges[i].low[m], ranges[i].high[m]), "%s %s: nmse %.3e, expected %.1e to %.1e",
                      c.model, ranges[i].name, error, ranges[i].low[m], ranges[i].high[m]);
            cr_expect_gt(bits_apart(logits, exact, case_n_logit(&c)), case_n_logit(&c) / 4, "%s", ranges[i].name);
        }
    }
}

Test(emulate_classes, a_range_refuses_nan_and_other_classes) {
    cr_expect_not(in_range(NAN, 0, 1e300));
    cr_expect_not(in_range(1e-4, ranges[0].low[0], ranges[0].high[0]));
    cr_expect_not(in_range(0, ranges[0].low[0], ranges[0].high[0]), "the exact logits are no f32 class");
}

Test(emulate_classes, prefill_equals_decode_except_with_batch_kernels) {
    for (int m = 0; m < CASE_MODELS; m++) {
        emulate_case c = case_open(m);
        for (int i = 1 - m; i < N_RANGE; i += CASE_MODELS) { /* each class on one of them, q8 on the Q8_0 one */
            float *decoded = case_run(&c, c.graph, ranges[i].name, 0, 1);
            float *whole = case_run(&c, c.graph, ranges[i].name, 0, CASE_TOKENS);
            float *pieces = case_run(&c, c.graph, ranges[i].name, 0, 9);
            int64_t apart = bits_apart(decoded, whole, case_n_logit(&c));
            if (fd_emulate_class_find(ranges[i].name)->batch_kernels)
                cr_expect_gt(apart, 0, "%s %s", c.model, ranges[i].name);
            else
                cr_expect_eq(apart, 0, "%s %s: %lld logits differ", c.model, ranges[i].name, (long long)apart);
            cr_expect_eq(bits_apart(pieces, whole, case_n_logit(&c)), 0, "%s %s", c.model, ranges[i].name);
        }
    }
}

Test(emulate_classes, seeds_differ_and_are_as_far_from_the_truth) {
    static const char *const seeded[][3] = {
        {"f32", "f32:1", "f32:2"}, {"bf16", "bf16:1", "bf16:2"}, {"f16acc", "f16acc:1", "f16acc:2"}};
    emulate_case c = case_open(1);
    float *truth = case_run(&c, c.graph, "f64", 0, CASE_TOKENS);
    for (int i = 0; i < 3; i++) {
        float *logits[3];
        double error[3];
        for (int s = 0; s < 3; s++) {
            logits[s] = case_run(&c, c.graph, seeded[i][s], 0, CASE_TOKENS);
            error[s] = nmse(logits[s], truth, case_n_logit(&c));
        }
        for (int s = 0; s < 3; s++) {
            cr_expect_gt(bits_apart(logits[s], logits[(s + 1) % 3], case_n_logit(&c)), 0, "%s", seeded[i][s]);
            cr_expect(in_range(error[s] / error[0], 0.1, 10), "%s: %g against %g", seeded[i][s], error[s], error[0]);
        }
    }
}

static fd_code count(void *user, const fd_observation *o, fd_error *err) {
    (void)err;
    int *shown = user;
    *shown += o->dtype == FD_F32 && o->n_pos == CASE_TOKENS;
    return FD_OK;
}

Test(emulate_classes, threads_observers_and_resets_change_no_bit) {
    static const char *const names[] = {"f32", "hf-bf16", "llama-cuda", "llama-cublas", "q8"};
    emulate_case c = case_open(0);
    int64_t n_vocab = c.graph->hparams.n_vocab;
    for (int i = 0; i < 4; i++) {
        int shown = 0;
        float *one = case_run(&c, c.graph, names[i], 1, CASE_TOKENS);
        fd_exec *exec = case_exec(c.graph, names[i], 3);
        float *three = case_logits(&c, exec, CASE_TOKENS);
        fd_exec_set_observer(exec, (fd_observer){.observe = count, .user = &shown});
        float *watched = case_logits(&c, exec, CASE_TOKENS);
        fd_exec_set_observer(exec, (fd_observer){0});
        fd_exec_reset(exec);
        float *last = kept(malloc(sizeof *last * (size_t)n_vocab));
        fd_batch b = {.tokens = c.tokens, .n_tok = CASE_TOKENS, .logits = last};
        fd_error err = {0};
        cr_assert_eq(fd_exec_forward(exec, &b, &err), FD_OK, "%s", err.message);
        cr_expect_eq(bits_apart(three, one, case_n_logit(&c)), 0, "%s: threads", names[i]);
        cr_expect_eq(bits_apart(watched, one, case_n_logit(&c)), 0, "%s: observer", names[i]);
        cr_expect_eq(bits_apart(last, one + (CASE_TOKENS - 1) * n_vocab, n_vocab), 0, "%s: last row", names[i]);
        cr_expect_eq(shown, c.graph->n_node, "%s: %d of %d nodes shown", names[i], shown, c.graph->n_node);
        fd_exec_free(exec);
    }
}

Test(emulate_classes, it_says_what_it_is) {
    static const struct {
        const char *text, *name, *kv_type;
    } cases[] = {{"f32", "emulate-f32", "f32"},
                 {"f16kv:12", "emulate-f16kv:12", "f16"},
                 {"hf-bf16", "emulate-hf-bf16", "bf16"},
                 {"exact", "exact", "f32"},
                 {"f64", "f64", "f64"}};
    emulate_case c = case_open(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_exec *exec = case_exec(c.graph, cases[i].text, 1);
        cr_expect_str_eq(fd_exec_numerics_name(exec), cases[i].name);
        cr_expect_str_eq(fd_exec_kv_type(exec), cases[i].kv_type);
        fd_exec_free(exec);
    }
}

Test(emulate_classes, wrong_names_and_options_are_refused) {
    static const struct {
        const char *text, *says;
    } cases[] = {{"f8", "unknown; known: f32, tf32"},
                 {"", "unknown"},
                 {"f32:", "seed"},
                 {"f32:x", "seed"},
                 {"f32:-1", "seed"},
                 {"f32:1234567890123456789", "seed"},
                 {"f32x", "unknown"},
                 {"f32:1:2", "seed"}};
    fd_emulate_options options;
    fd_error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        options = (fd_emulate_options){0};
        cr_expect_eq(fd_emulate_parse(cases[i].text, strlen(cases[i].text), &options, &err), FD_ERR_INPUT);
        cr_expect(strstr(err.message, cases[i].says), "%s: %s", cases[i].text, err.message);
    }
    cr_expect_eq(fd_emulate_parse("q8:42+fault", 5, &options, &err), FD_OK);
    cr_expect_str_eq(options.class_->name, "q8");
    cr_expect_eq(options.seed, 42);

    emulate_case c = case_open(1);
    fd_exec *exec;
    options = (fd_emulate_options){.class_ = fd_emulate_class_find("f32"), .n_ctx = 0};
    cr_expect_eq(fd_emulate_new(c.graph, &options, &exec, &err), FD_ERR_INPUT);
    options = (fd_emulate_options){.class_ = fd_emulate_class_find("f32"), .n_ctx = 1, .n_thread = -1};
    cr_expect_eq(fd_emulate_new(c.graph, &options, &exec, &err), FD_ERR_INPUT);
}
