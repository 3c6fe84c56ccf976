#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "compare/report.h"
#include "tests/compare/fake_run.h"

static fd_verdict verdict_of(const fake_options *ref, const fake_options *cand) {
    fake_trace_options a = {.level = FD_TRACE_FULL, .run = *ref}, b = {.level = FD_TRACE_FULL, .run = *cand};
    fd_trace *ta = fake_trace(&a), *tb = fake_trace(&b);
    fd_compare_options options = {.graph = fake_graph()};
    fd_verdict v;
    fd_error err = {0};
    cr_assert_eq(fd_compare_traces(ta, tb, &options, &v, &err), FD_OK);
    fd_trace_close(ta);
    fd_trace_close(tb);
    return v;
}

typedef enum form { TEXT, JSON, JUNIT } form;

/* Freed by the caller. */
static char *report(const fd_verdict *v, form form) {
    char *text = NULL;
    size_t size;
    fd_error err = {0};
    FILE *to = open_memstream(&text, &size);
    if (form == TEXT) fd_report_text(to, v, false);
    if (form == JSON) cr_assert_eq(fd_report_json(to, v, &err), FD_OK, "%s", err.message);
    if (form == JUNIT) fd_report_junit(to, v);
    fclose(to);
    return text;
}

static const fake_options clean;

static void expect_text(const fd_verdict *v, const char *const *parts, size_t n) {
    char *text = report(v, TEXT);
    for (size_t i = 0; i < n; i++) cr_expect(strstr(text, parts[i]), "\"%s\" is not in:\n%s", parts[i], text);
    free(text);
}

Test(report, the_text_says_where_what_and_from_what) {
    fake_options faulty = {.edits = {{"blk.1.attn_q_rope", 3, 17, FAKE_SET, -0.25f}}};
    fd_verdict v = verdict_of(&clean, &faulty);
    static const char *const parts[] = {
        "DIVERGED at blk.1.attn_q_rope      step 0 (prefill) · position 3 · head 1 · element 1",
        "rope (pairs (2i, 2i+1), base 10000, 16 dims)",
        "inputs: blk.1.attn_q — bit-identical",
        "candidate  -0.25",
        "1 of 64 differ",
        "before it   24 tensors identical",
        "next        firstdiff inspect"};
    expect_text(&v, parts, sizeof parts / sizeof *parts);
    fd_verdict_free(&v);
}

Test(report, what_is_not_finite_is_written_out) {
    fake_options faulty = {.edits = {{"blk.0.attn_out", 3, 0, FAKE_SET, NAN}}};
    fd_verdict v = verdict_of(&clean, &faulty);
    static const char *const parts[] = {"candidate  nan", "1 NaN in the candidate alone"};
    expect_text(&v, parts, 2);
    char *text = report(&v, TEXT);
    cr_expect_null(strstr(text, "|Δ|"), "NaN has no distance:\n%s", text);
    free(text);
    fd_verdict_free(&v);
}

Test(report, identical_and_incomplete_have_their_own_first_line) {
    fd_verdict v = verdict_of(&clean, &clean);
    static const char *const same[] = {"IDENTICAL   164 tensors in 4 steps over 8 positions, every bit"};
    expect_text(&v, same, 1);
    fd_verdict_reason(&v, "the moon is missing");
    fd_verdict_decide(&v);
    static const char *const incomplete[] = {"INCOMPLETE  the moon is missing"};
    expect_text(&v, incomplete, 1);
    fd_verdict_free(&v);
}

Test(report, names_from_files_cannot_drive_a_terminal) {
    fd_verdict v = verdict_of(&clean, &clean);
    strcpy(v.cand.label, "evil\033[2J\n");
    char *text = report(&v, TEXT);
    cr_expect_null(strchr(text, '\033'));
    free(text);
    fd_verdict_free(&v);
}

Test(report, json_identifies_bits_and_has_no_nan) {
    fake_options faulty = {.edits = {{"blk.0.attn_out", 3, 0, FAKE_SET, NAN}, {"blk.0.attn_out", 3, 1, FAKE_ULP, 0}}};
    fd_verdict v = verdict_of(&clean, &faulty);
    char *text = report(&v, JSON);
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    cr_assert(root, "%s:\n%s", error.text, text);
    json_t *d = json_object_get(root, "divergence"), *values = json_object_get(d, "values");
    json_t *first = json_object_get(values, "first"), *cand = json_object_get(first, "candidate");
    cr_expect_str_eq(json_string_value(json_object_get(root, "status")), "diverged");
    cr_expect_eq(json_integer_value(json_object_get(root, "exit_status")), 1);
    cr_expect_str_eq(json_string_value(json_object_get(d, "node")), "blk.0.attn_out");
    cr_expect(json_is_true(json_object_get(d, "introduced_here")));
    cr_expect(json_is_null(json_object_get(cand, "value")));
    cr_expect_str_eq(json_string_value(json_object_get(cand, "bits")), "0x7fc00000");
    cr_expect(json_is_null(json_object_get(first, "ulp")));
    json_t *largest = json_object_get(values, "largest");
    cr_expect_eq(json_integer_value(json_object_get(largest, "ulp")), 1);
    cr_expect_eq(json_integer_value(json_object_get(values, "nan_new")), 1);
    json_decref(root);
    free(text);
    fd_verdict_free(&v);
}

Test(report, json_survives_text_that_is_not_utf8) {
    fd_verdict v = verdict_of(&clean, &clean);
    strcpy(v.cand.label, "caf\xe9.h5");
    fd_verdict_note(&v, "\xff");
    char *text = report(&v, JSON);
    json_t *root = json_loads(text, 0, NULL);
    cr_expect(root);
    json_decref(root);
    free(text);
    fd_verdict_free(&v);
}

Test(report, junit_fails_where_the_verdict_does) {
    fake_options faulty = {.edits = {{"blk.0.attn_out", 3, 0, FAKE_ULP, 0}}};
    fd_verdict v = verdict_of(&clean, &faulty);
    char *text = report(&v, JUNIT);
    cr_expect(strstr(text, "tests=\"5\" failures=\"1\" errors=\"0\""), "%s", text);
    cr_expect(strstr(text, "<failure message=\"DIVERGED at blk.0.attn_out"), "%s", text);
    free(text);
    fd_verdict_free(&v);
    v = verdict_of(&clean, &clean);
    text = report(&v, JUNIT);
    cr_expect(strstr(text, "failures=\"0\" errors=\"0\""), "%s", text);
    free(text);
    fd_verdict_reason(&v, "half of it is missing");
    fd_verdict_decide(&v);
    text = report(&v, JUNIT);
    cr_expect(strstr(text, "errors=\"1\""), "an incomplete comparison is no pass: %s", text);
    free(text);
    fd_verdict_free(&v);
}

Test(report, xml_is_escaped) {
    fd_junit_case one = {"a<b>&\"c\x01\xff\xc3\xa9", FD_JUNIT_FAILED, "line\nbreak"};
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    fd_junit_write(to, "s", &one, 1);
    fclose(to);
    cr_expect(strstr(text, "a&lt;b&gt;&amp;&quot;c\xef\xbf\xbd\xef\xbf\xbd\xc3\xa9"), "%s", text);
    cr_expect(strstr(text, "line&#10;break"), "%s", text);
    free(text);
}

Test(report, values_are_printed_so_that_they_identify_the_bits) {
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1f, "0.100000001"}, {0.1, "0.10000000000000001"}, {-0.0, "-0"}, {NAN, "nan"}, {-NAN, "nan"},
                 {INFINITY, "inf"},     {-INFINITY, "-inf"},          {1, "1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[40];
        fd_value_text(cases[i].value, text, sizeof text);
        cr_expect_str_eq(text, cases[i].text);
    }
}
