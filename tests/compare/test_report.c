#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "compare/report/report.h"
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

typedef enum form { TEXT, JSON, JUNIT, HTML } form;

/* Freed by the caller. */
static char *report(const fd_verdict *v, form form) {
    char *text = NULL;
    size_t size;
    fd_error err = {0};
    FILE *to = open_memstream(&text, &size);
    if (form == TEXT) fd_report_text(to, v, false);
    if (form == JSON) cr_assert_eq(fd_report_json(to, v, &err), FD_OK, "%s", err.message);
    if (form == JUNIT) fd_report_junit(to, v);
    if (form == HTML) cr_assert_eq(fd_report_html(to, v, &err), FD_OK, "%s", err.message);
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
    fd_verdict_reason(&v, (fd_remark){FD_REASON_TOKENS_UNRECORDED});
    fd_verdict_decide(&v);
    static const char *const incomplete[] = {"INCOMPLETE  the tokens are not recorded on both sides"};
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
    fd_verdict_note(&v, (fd_remark){FD_NOTE_NO_ELEMENTS, .text = "\xff"});
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
    fd_verdict_reason(&v, (fd_remark){FD_REASON_NOT_SEEN, .n = {1}});
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

/* ---- weights and choices ---- */

static fd_verdict with_weights(void) {
    fd_verdict v = verdict_of(&clean, &clean);
    fd_verdict_weights w = {.compared = true,
                            .against_model = true,
                            .n_same = 50,
                            .n_differ = 7,
                            .name = "blk.2.attn_q.weight",
                            .node = "blk.2.attn_q",
                            .dtype = "Q8_0",
                            .expected_dtype = "Q8_0",
                            .n_row = 256,
                            .n_col = 128,
                            .expected_n_row = 256,
                            .expected_n_col = 128,
                            .rows_per_hash = 1,
                            .first_row = 120,
                            .n_row_differ = 136,
                            .n_zero_row = 135,
                            .n_trailing_zero_row = 135,
                            .named = true,
                            .fault = "bytes_read_short",
                            .summary = "half is read",
                            .n_explained = 7};
    v.weights = w;
    v.status = FD_DIVERGED;
    v.divergence = (fd_divergence){.kind = FD_DIVERGED_WEIGHTS, .node = "blk.2.attn_q", .layer = 2};
    return v;
}

Test(report, weights_stand_first_in_every_form) {
    fd_verdict v = with_weights();
    static const char *const parts[] = {"DIVERGED at weight blk.2.attn_q.weight      row 120 of 256",
                                        "Q8_0 [256, 128], the candidate's is not the model's      read by blk.2.attn_q",
                                        "136 of 256 differ, first row 120, 135 trailing rows are zero (0 in the model)",
                                        "7 differ, 50 agree with the model",
                                        "half is read  (bytes_read_short)      every hash of 7 of 7 weights"};
    expect_text(&v, parts, sizeof parts / sizeof *parts);
    char *text = report(&v, JUNIT);
    cr_expect(strstr(text, "failures=\"1\"") && strstr(text, "DIVERGED at weight blk.2.attn_q.weight"), "%s", text);
    free(text);
    text = report(&v, JSON);
    json_t *root = json_loads(text, 0, NULL), *w = json_object_get(root, "weights");
    cr_assert(root && w);
    cr_expect_str_eq(json_string_value(json_object_get(w, "name")), "bytes_read_short");
    cr_expect_eq(json_integer_value(json_object_get(w, "differ")), 7);
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(w, "held"), "trailing_zero_rows")), 135);
    cr_expect_str_eq(json_string_value(json_object_get(json_object_get(root, "divergence"), "kind")), "weights");
    json_decref(root);
    free(text);
    text = report(&v, HTML);
    cr_expect(strstr(text, "<h1 class=\"DIVERGED\">DIVERGED at weight"), "%s", text);
    free(text);
    v.weights.n_col = v.weights.n_row = 128;
    v.weights.named = false;
    static const char *const others[] = {
        "Q8_0 [128, 128] in the candidate, Q8_0 [256, 128] in the model",
        "not named   no explanation of the table has the hashes of blk.2.attn_q.weight"};
    expect_text(&v, others, 2);
    fd_verdict_free(&v);
}

Test(report, equal_weights_are_counted_and_nothing_else) {
    fd_verdict v = verdict_of(&clean, &clean);
    v.weights = (fd_verdict_weights){.compared = true, .n_same = 57};
    char *text = report(&v, JSON);
    json_t *root = json_loads(text, 0, NULL), *w = json_object_get(root, "weights");
    cr_expect_eq(json_integer_value(json_object_get(w, "same")), 57);
    cr_expect_eq(json_integer_value(json_object_get(w, "differ")), 0);
    cr_expect_null(json_object_get(w, "first"));
    cr_expect_str_eq(json_string_value(json_object_get(root, "status")), "identical");
    json_decref(root);
    free(text);
    fd_verdict_free(&v);
}

/* ---- the page ---- */

Test(report, nothing_from_a_file_becomes_markup_of_the_page) {
    static const char hostile[] = "</script><img src=x onerror=alert(1)>\"\\'&";
    fake_options faulty = {.edits = {{"blk.1.attn_q_rope", 3, 17, FAKE_SET, -0.25f}}};
    fd_verdict v = verdict_of(&clean, &faulty);
    snprintf(v.cand.label, sizeof v.cand.label, "%s", hostile);
    v.map = (fd_verdict_map){.n_node = 1, .n_pos = 3, .most_heads = 2};
    v.map.cells = calloc(1, sizeof *v.map.cells);
    v.map.by_pos = malloc(3 * sizeof(float));
    v.map.by_head = malloc(2 * sizeof(float));
    cr_assert(v.map.cells && v.map.by_pos && v.map.by_head);
    snprintf(v.map.cells[0].name, sizeof v.map.cells[0].name, "%s", hostile);
    snprintf(v.map.cells[0].finding, sizeof v.map.cells[0].finding, "NOISE");
    v.map.cells[0].n_head = 2;
    v.map.by_pos[0] = -1, v.map.by_pos[1] = INFINITY, v.map.by_pos[2] = 0.25f;
    v.map.by_head[0] = 0, v.map.by_head[1] = 1e6f;
    char *text = report(&v, HTML);
    int32_t n_script = 0;
    for (const char *p = text; (p = strstr(p, "</script>")) != NULL; p++) n_script++;
    cr_expect_eq(n_script, 1, "%s", text);
    cr_expect_null(strstr(text, "<img"));
    cr_expect(strstr(text, "pos:[-1,1e999,0.25],head:[0,1e+06]"), "%s", text);
    cr_expect(strstr(text, "\\u003c/script\\u003e"), "%s", text);
    cr_expect_null(strstr(text, "src=\"http"), "the page needs no network");
    free(text);
    fd_verdict_free(&v);
}

Test(report, a_page_without_replay_says_so) {
    fd_verdict v = verdict_of(&clean, &clean);
    char *text = report(&v, HTML);
    cr_expect(strstr(text, "No op was replayed") && !strstr(text, "<script"), "%s", text);
    cr_expect(strstr(text, "</html>"));
    free(text);
    fd_verdict_free(&v);
}
