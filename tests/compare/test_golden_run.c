#include <criterion/criterion.h>
#include <hdf5.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare/diff/golden.h"
#include "compare/diff/golden_near.h"
#include "compare/diff/record.h"
#include "dumpers/store/golden.h"
#include "tests/compare/fake_run.h"

enum { N_PROMPT = 4, N_GENERATE = 3, N_POS = N_PROMPT + N_GENERATE - 1 };

static const fake_options clean;

static fd_trace_info clean_info(void) {
    return (fd_trace_info){.numerics = "exact", .contract = FD_CONTRACT_VERSION, .model_hash = "xxh3-128:a"};
}

static fd_code record(const char *path, const fake_options *run, fd_trace_info info, fd_error *err) {
    int32_t tokens[N_POS];
    for (int32_t p = 0; p < N_PROMPT; p++) tokens[p] = fake_token(p);
    fd_trace_options options = fd_golden_options(path, N_POS);
    fd_trace_writer *to;
    fd_recording what = {.exec = fake_exec(run), .tokens = tokens, .n_token = N_PROMPT, .n_pos = N_POS, .whole = true};
    cr_assert_eq(fd_trace_create(&options, &info, fake_graph(), FD_NUMERICS_EXACT, &to, err), FD_OK, "%s",
                 err->message);
    fd_code code = fd_record(&what, to, err);
    if (code == FD_OK)
        code = fd_trace_finish(to, err);
    else
        fd_trace_abandon(to);
    fd_exec_free(what.exec);
    return code;
}

/* A golden of a clean run, changed by `edit` if that is not NULL. */
static fd_trace *golden_of(fd_trace_info info, void (*edit)(hid_t file)) {
    char path[] = "/tmp/firstdiff-golden-XXXXXX";
    fd_trace *golden;
    fd_error err = {0};
    close(mkstemp(path));
    cr_assert_eq(record(path, &clean, info, &err), FD_OK, "%s", err.message);
    if (edit) {
        hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        edit(file);
        H5Fclose(file);
    }
    cr_assert_eq(fd_trace_open(path, &golden, &err), FD_OK, "%s", err.message);
    unlink(path);
    return golden;
}

static fd_trace *golden_of_clean(void) {
    return golden_of(clean_info(), NULL);
}

static fd_golden_result check(const fd_trace *golden, const fake_options *run, fd_code expected) {
    fd_golden_result result;
    fd_error err = {0};
    fd_exec *exec = fake_exec(run);
    cr_expect_eq(fd_golden_check(exec, golden, &result, &err), expected, "%s", err.message);
    fd_exec_free(exec);
    return result;
}

Test(golden_run, a_clean_run_passes) {
    fd_trace *g = golden_of_clean();
    cr_expect_eq(fd_trace_n_pos(g), N_POS);
    cr_expect_eq(fd_trace_n_step(g), N_GENERATE);
    fd_golden_result r = check(g, &clean, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_SAME);
    cr_expect_eq(r.n_same, N_GENERATE * fake_graph()->n_node);
    fd_trace_close(g);
}

Test(golden_run, one_ulp_fails_at_its_node_in_every_node) {
    const fd_graph *graph = fake_graph();
    fd_trace *g = golden_of_clean();
    for (int32_t i = 0; i < graph->n_node; i++) {
        int32_t pos = i % 2 ? 2 : 5;
        fake_options faulty = {.edits = {{graph->nodes[i].name, pos, 0, FAKE_ULP, 0}}};
        fd_golden_result r = check(g, &faulty, FD_OK);
        cr_expect_eq(r.kind, FD_GOLDEN_TENSOR, "%s", graph->nodes[i].name);
        cr_expect_str_eq(r.node, graph->nodes[i].name);
        cr_expect_eq(r.pos, pos, "%s", graph->nodes[i].name);
        cr_expect_eq(r.step, pos < N_PROMPT ? 0 : 2, "%s", graph->nodes[i].name);
        cr_expect_eq(r.n_same, r.step * graph->n_node + i, "%s", graph->nodes[i].name);
        cr_expect_eq(r.logits_differ, i == graph->n_node - 1, "%s", graph->nodes[i].name);
    }
    fd_trace_close(g);
}

Test(golden_run, logits_that_differ_are_shown) {
    fd_trace *g = golden_of_clean();
    fake_options faulty = {.edits = {{"logits", N_PROMPT - 1, 9, FAKE_SET, 50}, {"blk.0.attn_q", 3, 0, FAKE_ULP, 0}}};
    fd_golden_result r = check(g, &faulty, FD_OK);
    cr_expect_str_eq(r.node, "blk.0.attn_q", "the first tensor is named");
    cr_expect(r.logits_differ);
    cr_expect_eq(r.logit_pos, N_PROMPT - 1);
    cr_expect_eq(r.logit_id, 9);
    cr_expect_eq(r.logit_now, 50.0f);
    cr_expect_eq(r.n_logit_differ, 1);
    cr_expect(r.choice_differs);
    cr_expect_eq(r.choice_now, 9);
    fd_trace_close(g);
}

Test(golden_run, a_nan_is_a_difference) {
    fd_trace *g = golden_of_clean();
    fake_options faulty = {.edits = {{"logits", -1, 9, FAKE_SET, NAN}}};
    fd_golden_result r = check(g, &faulty, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_TENSOR);
    cr_expect(isnan(r.logit_now));
    fd_trace_close(g);
}

/* The first element of a dataset at a position. */
static void put_element(hid_t file, const char *name, hsize_t pos, hid_t type, const void *value) {
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(set), one = H5Screate(H5S_SCALAR);
    hsize_t start[2] = {pos, 0}, count[2] = {1, 1};
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL);
    cr_assert_geq(H5Dwrite(set, type, one, space, H5P_DEFAULT, value), 0);
    H5Sclose(one);
    H5Sclose(space);
    H5Dclose(set);
}

static void other_logit(hid_t file) {
    put_element(file, "tensors/logits", 1, H5T_NATIVE_FLOAT, &(float){7});
}
static void other_token(hid_t file) {
    put_element(file, "tokens", N_PROMPT + 1, H5T_NATIVE_INT32, &(int32_t){31});
}

static void without_first_logit(hid_t file) {
    put_element(file, "tensors/logits", 1, H5T_NATIVE_FLOAT, &(float){NAN});
}
/* None of position 1. */
static void without_logits(hid_t file) {
    hid_t set = H5Dopen2(file, "tensors/logits", H5P_DEFAULT), space = H5Dget_space(set);
    hsize_t dims[2], start[2] = {1, 0};
    H5Sget_simple_extent_dims(space, dims, NULL);
    dims[0] = 1;
    float *row = malloc(sizeof *row * dims[1]);
    for (hsize_t i = 0; i < dims[1]; i++) row[i] = NAN;
    hid_t one = H5Screate_simple(2, dims, NULL);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, dims, NULL);
    cr_assert_geq(H5Dwrite(set, H5T_NATIVE_FLOAT, one, space, H5P_DEFAULT, row), 0);
    free(row);
    H5Sclose(one);
    H5Sclose(space);
    H5Dclose(set);
}

Test(golden_run, recorded_logits_and_tokens_are_held_against_the_run) {
    fd_trace *g = golden_of(clean_info(), other_logit);
    fd_golden_result r = check(g, &clean, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_LOGITS);
    cr_expect(r.logit_golden == 7 && r.logit_pos == 1);
    fd_trace_close(g);

    g = golden_of(clean_info(), other_token);
    r = check(g, &clean, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_CHOICE, "the token was not the greedy one");
    cr_expect_eq(r.pos, N_PROMPT + 1);
    fd_trace_close(g);
}

Test(golden_run, a_tensor_that_is_not_shown_is_no_pass) {
    fd_trace *g = golden_of_clean();
    fake_options lacking = {.skip_node = "blk.0.ffn_up"};
    check(g, &lacking, FD_ERR_INCOMPLETE);
    fd_trace_close(g);
}

Test(golden_run, nothing_is_recorded_of_a_run_with_nan_or_holes) {
    static const fake_options bad[] = {{.edits = {{"logits", 3, 0, FAKE_SET, NAN}}}, {.skip_node = "blk.0.ffn_up"}};
    static const fd_code codes[] = {FD_ERR_INPUT, FD_ERR_INCOMPLETE};
    for (int i = 0; i < 2; i++) {
        char path[] = "/tmp/firstdiff-golden-XXXXXX";
        fd_error err = {0};
        close(mkstemp(path));
        cr_expect_eq(record(path, &bad[i], clean_info(), &err), codes[i], "%s", err.message);
        unlink(path);
    }
}

Test(golden_run, goldens_of_something_else_are_refused) {
    enum { RENAMED = 4 };
    fd_graph as_it_is = *fake_graph(), renamed = as_it_is, shorter = as_it_is, other_vocab = as_it_is;
    fd_node *nodes = malloc(sizeof *nodes * (size_t)as_it_is.n_node);
    memcpy(nodes, as_it_is.nodes, sizeof *nodes * (size_t)as_it_is.n_node);
    strcpy(nodes[RENAMED].name, "blk.0.other");
    renamed.nodes = nodes;
    shorter.n_node--;
    other_vocab.hparams.n_vocab++;
    const struct {
        fd_trace_info info;
        const fd_graph *graph;
        const char *hash, *message;
        fd_code code;
    } cases[] = {
        {clean_info(), &as_it_is, "xxh3-128:a", "", FD_OK},
        {clean_info(), &as_it_is, "xxh3-128:b", "another model", FD_ERR_INPUT},
        {{.numerics = "exact", .contract = FD_CONTRACT_VERSION + 1, .model_hash = "xxh3-128:a"},
         &as_it_is,
         "xxh3-128:a",
         "contract",
         FD_ERR_INCOMPLETE},
        {{.numerics = "fast", .model_hash = "xxh3-128:a"}, &as_it_is, "xxh3-128:a", "numerics", FD_ERR_INCOMPLETE},
        {clean_info(), &renamed, "xxh3-128:a", "blk.0.other", FD_ERR_INCOMPLETE},
        {clean_info(), &shorter, "xxh3-128:a", "nodes", FD_ERR_INCOMPLETE},
        {clean_info(), &other_vocab, "xxh3-128:a", "vocabulary", FD_ERR_INPUT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_trace *g = golden_of(cases[i].info, NULL);
        fd_error err = {0};
        cr_expect_eq(fd_golden_usable(g, cases[i].graph, cases[i].hash, &err), cases[i].code, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].message), "case %zu: %s", i, err.message);
        fd_trace_close(g);
    }
    free(nodes);
}

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
    fd_golden_near r = near(g, &clean, 0);
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
    fd_golden_near r = near(g, &clean, INFINITY);
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
