/* What libfirstdiff_trace refuses: the trace turns off, says why, keeps its finished steps, and later calls do
 * nothing. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dumpers/client/firstdiff_trace.h"
#include "dumpers/store/trace.h"
#include "fixture.h"

static float data[4096];
static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};

/* 64 bytes, of which a name may have 63 */
#define LONG "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

typedef struct bad_put {
    const char *what;
    fd_tracer_tensor tensor; /* put in a step of positions 2 and 3 */
    const char *says;
} bad_put;

#define NAMED(text)                                                                                                    \
    {                                                                                                                  \
        .name = text, .dtype = FD_TRACER_F32, .data = data, .n_dim = 2, .shape = { 2, 8 }                              \
    }
#define SHAPED(n, ...)                                                                                                 \
    {                                                                                                                  \
        .name = "x", .dtype = FD_TRACER_F32, .data = data, .n_dim = n, .shape = { __VA_ARGS__ }                        \
    }
#define STRIDED(rows, a, b)                                                                                            \
    {                                                                                                                  \
        .name = "x", .dtype = FD_TRACER_F32, .data = data, .n_dim = 2, .shape = {rows, 8}, .stride = { a, b }          \
    }
#define AT(from, n)                                                                                                    \
    { .name = "x", .dtype = FD_TRACER_F32, .data = data, .n_dim = 2, .shape = {n, 8}, .first = from, .count = n }

static const bad_put bad_puts[] = {
    {"no_name", NAMED(NULL), "without a name"},
    {"empty_name", NAMED(""), "without a name"},
    {"long_name", NAMED(LONG), "more than 63 bytes"},
    {"parent_name", NAMED(".."), "'..'"},
    {"parent_in_a_path", NAMED("a/../b"), "'/'"},
    {"parent_in_a_name", NAMED("blk..q"), "'..'"},
    {"absolute_name", NAMED("/etc"), "'/'"},
    {"hidden_name", NAMED(".x"), "begin with '.'"},
    {"control_in_name", NAMED("a\nb"), "control character"},
    {"latin1_name", NAMED("gr\xfc\xdf"), "no UTF-8"},
    {"cut_utf8_name", NAMED("a\xe2\x82"), "no UTF-8"},
    {"overlong_utf8_name", NAMED("\xc0\xaf"), "no UTF-8"},
    {"surrogate_name", NAMED("\xed\xa0\x80"), "no UTF-8"},
    {"no_dtype", {.name = "x", .data = data, .n_dim = 2, .shape = {2, 8}}, "element type 0"},
    {"unknown_dtype",
     {.name = "x", .dtype = (fd_tracer_dtype)99, .data = data, .n_dim = 2, .shape = {2, 8}},
     "element type 99"},
    {"no_data", {.name = "x", .dtype = FD_TRACER_F32, .n_dim = 2, .shape = {2, 8}}, "no data"},
    {"no_dimensions", SHAPED(0, 2), "0 dimensions"},
    {"negative_rank", SHAPED(-3, 2), "-3 dimensions"},
    {"too_many_dimensions", SHAPED(7, 2, 1, 1, 1, 1, 1), "7 dimensions"},
    {"too_deep", SHAPED(6, 2, 2, 2, 2, 2, 2), "at most 4 dimensions"},
    {"zero_in_shape", SHAPED(2, 2, 0), "[2, 0]"},
    {"negative_shape", SHAPED(2, 2, -8), "[2, -8]"},
    {"shape_overflows_64_bits", SHAPED(4, 2, INT64_MAX / 2, INT64_MAX / 2, 4), "expected 1 to 2^59 elements"},
    {"shape_overflows_31_bits", SHAPED(3, 2, 65536, 65536), "2^31-1 elements"},
    {"too_few_rows", SHAPED(2, 1, 8), "has 1 positions, expected 2"},
    {"too_many_rows", SHAPED(2, 3, 8), "has 3 positions, expected 2"},
    {"batch_of_two", SHAPED(3, 4, 2, 8), "has 4 positions, expected 2"},
    {"rows_overlap", STRIDED(2, 4, 1), "elements overlap"},
    {"elements_overlap", STRIDED(2, 2, 2), "elements overlap"},
    {"broadcast", STRIDED(2, 0, 1), "expected positive ones"},
    {"negative_stride", STRIDED(2, 8, -1), "expected positive ones"},
    {"negative_row_stride", STRIDED(2, -8, 1), "expected positive ones"},
    {"stride_overflows", STRIDED(2, INT64_MAX - 8, 1), "beyond what memory holds"},
    {"positions_beyond_the_tokens", AT(3, 2), "the tokens fed end at 4"},
    {"positions_far_beyond", AT(INT64_MAX, 2), "the tokens fed end at 4"},
    {"negative_position", AT(-1, 2), "the tokens fed end at 4"},
    {"negative_count",
     {.name = "x", .dtype = FD_TRACER_F32, .data = data, .n_dim = 2, .shape = {2, 8}, .first = 2, .count = -2},
     "the tokens fed end at 4"},
    {"positions_of_an_ended_step", AT(0, 2), "belong to steps that have ended"},
    {"keys_too_few",
     {.name = "blk.0.attn_scores", .dtype = FD_TRACER_F32, .data = data, .n_dim = 3, .shape = {2, 2, 3}},
     "3 keys, expected 4"},
    {"shape_changes",
     {.name = "known", .dtype = FD_TRACER_F32, .data = data, .n_dim = 2, .shape = {2, 9}},
     "as in its first put"},
    {"shape_transposed",
     {.name = "heads", .dtype = FD_TRACER_F32, .data = data, .n_dim = 3, .shape = {2, 4, 2}},
     "as in its first put"},
    {"dtype_changes",
     {.name = "known", .dtype = FD_TRACER_F16, .data = data, .n_dim = 2, .shape = {2, 8}},
     "as in its first put"},
};

static void check_two_positions(const char *path) {
    fd_error err = {0};
    float row[8];
    fd_trace *trace = fixture_open(path);
    cr_expect_eq(fd_trace_n_pos(trace), 2);
    cr_expect_not(fd_trace_get_info(trace)->complete);
    cr_expect_eq(fd_trace_read(trace, fd_trace_find(trace, "known"), 1, row, NULL, &err), FD_OK, "%s", err.message);
    fd_trace_close(trace);
}

static fd_tracer *two_positions(const char *path) {
    fd_tracer_tensor heads = SHAPED(3, 2, 2, 4);
    heads.name = "heads";
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    fd_tracer_step(tracer, tokens, 2);
    fd_tracer_put_f32(tracer, "known", data, 2, 8);
    fd_tracer_put(tracer, &heads);
    cr_assert_eq(fd_tracer_step(tracer, tokens + 2, 2), 0, "%s", fd_tracer_error(tracer));
    return tracer;
}

Test(tracer_bad, every_bad_put_is_named_and_turns_the_trace_off) {
    const char *path = fixture_path("tracer_bad.h5");
    for (size_t i = 0; i < sizeof bad_puts / sizeof *bad_puts; i++) {
        const bad_put *c = &bad_puts[i];
        char message[1024];
        fd_tracer *tracer = two_positions(path);
        cr_expect_null(fd_tracer_error(tracer));
        cr_expect_neq(fd_tracer_put(tracer, &c->tensor), 0, "%s: taken", c->what);
        cr_assert_not_null(fd_tracer_error(tracer), "%s: no error", c->what);
        cr_expect(strstr(fd_tracer_error(tracer), c->says), "%s: \"%s\", expected \"%s\"", c->what,
                  fd_tracer_error(tracer), c->says);
        /* off: good calls change nothing, and the first failure stays */
        cr_expect_neq(fd_tracer_put_f32(tracer, "known", data, 2, 8), 0, "%s", c->what);
        cr_expect_neq(fd_tracer_step(tracer, tokens, 1), 0, "%s", c->what);
        cr_expect_neq(fd_tracer_close(tracer, message, sizeof message), 0, "%s", c->what);
        cr_expect(strstr(message, c->says), "%s: close says \"%s\"", c->what, message);
        check_two_positions(path);
    }
}

Test(tracer_bad, good_neighbours_of_the_bad_are_taken) {
    const char *path = fixture_path("tracer_good.h5");
    static const fd_tracer_tensor good[] = {
        NAMED("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"),
        NAMED("grüße.€.𝄞"),
        NAMED("a.b."),
        SHAPED(3, 1, 2, 8), /* a batch axis */
        AT(2, 2),
        AT(3, 1),
        AT(0, 4), /* all there is, of which this step's are taken */
        {.name = "strided", .dtype = FD_TRACER_F32, .data = data, .n_dim = 2, .shape = {2, 8}, .stride = {1, 2}},
        {.name = "one_row",
         .dtype = FD_TRACER_F32,
         .data = data,
         .n_dim = 2,
         .shape = {1, 8},
         .stride = {-5, 1},
         .first = 2,
         .count = 1}, /* the stride of a single row says nothing */
        {.name = "blk.0.attn_scores", .dtype = FD_TRACER_F32, .data = data, .n_dim = 3, .shape = {2, 2, 4}},
        {.name = "heads", .dtype = FD_TRACER_F32, .data = data, .n_dim = 2, .shape = {2, 8}}, /* flat */
    };
    fd_tracer *tracer = two_positions(path);
    char message[1024];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        cr_assert_eq(fd_tracer_put(tracer, &good[i]), 0, "%zu: %s", i, fd_tracer_error(tracer));
    cr_assert_eq(fd_tracer_close(tracer, message, sizeof message), 0, "%s", message);
}

Test(tracer_bad, calls_out_of_order) {
    const char *path = fixture_path("tracer_order.h5");
    char message[1024];
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    cr_expect_neq(fd_tracer_put_f32(tracer, "x", data, 1, 8), 0);
    cr_expect(strstr(fd_tracer_error(tracer), "before the first fd_tracer_step"));
    cr_expect_neq(fd_tracer_close(tracer, message, sizeof message), 0);

    tracer = two_positions(path);
    cr_expect_eq(fd_tracer_close(tracer, message, sizeof message), 0, "%s", message);
    for (int i = 0; i < 3; i++) { /* after close */
        cr_expect_neq(fd_tracer_put_f32(tracer, "x", data, 1, 8), 0);
        cr_expect_neq(fd_tracer_step(tracer, tokens, 1), 0);
        cr_expect_null(fd_tracer_error(tracer));
        cr_expect_eq(fd_tracer_close(tracer, message, sizeof message), 0);
    }
    static const struct {
        const int32_t *tokens;
        int32_t n;
    } steps[] = {{tokens, 0}, {tokens, -1}, {NULL, 1}};
    for (int i = 0; i < 3; i++) {
        tracer = two_positions(path);
        cr_expect_neq(fd_tracer_step(tracer, steps[i].tokens, steps[i].n), 0);
        cr_expect_neq(fd_tracer_close(tracer, message, sizeof message), 0);
        cr_expect(strstr(message, "a step of"), "%s", message);
    }
    cr_expect_eq(fd_tracer_put(NULL, NULL), 0);
    tracer = two_positions(path);
    cr_expect_neq(fd_tracer_put(tracer, NULL), 0);
    char one[1] = {'x'};
    cr_expect_neq(fd_tracer_close(tracer, one, 1), 0);
    cr_expect_eq(one[0], '\0');
    cr_expect_neq(fd_tracer_close(tracer, NULL, 0), 0);
}

Test(tracer_bad, a_step_without_tensors_is_a_step) {
    const char *path = fixture_path("tracer_empty.h5");
    char message[1024];
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    cr_assert_eq(fd_tracer_close(tracer, message, sizeof message), 0, "%s", message);
    fd_trace *trace = fixture_open(path);
    cr_expect_eq(fd_trace_n_pos(trace), 0);
    fd_trace_close(trace);
    tracer = fd_tracer_open(path, NULL);
    fd_tracer_step(tracer, tokens, 3);
    fd_tracer_step(tracer, tokens + 3, 1);
    fd_tracer_put_f32(tracer, "x", data, 1, 8);
    cr_assert_eq(fd_tracer_close(tracer, message, sizeof message), 0, "%s", message);
    trace = fixture_open(path);
    cr_expect_eq(fd_trace_n_pos(trace), 4);
    cr_expect_eq(fd_trace_n_node(trace), 1);
    fd_trace_close(trace);
}

/* ---- files ---- */

static void check_refused(const char *path, const fd_tracer_options *options, const char *says) {
    char message[1024];
    fd_tracer *tracer = fd_tracer_open(path, options);
    cr_assert_not_null(tracer);
    cr_expect_neq(fd_tracer_step(tracer, tokens, 1), 0);
    cr_expect_neq(fd_tracer_put_f32(tracer, "x", data, 1, 8), 0);
    cr_expect_neq(fd_tracer_close(tracer, message, sizeof message), 0);
    cr_expect(strstr(message, says), "\"%s\", expected \"%s\"", message, says);
}

Test(tracer_bad, files_that_cannot_be) {
    check_refused("", NULL, "no file name");
    check_refused("/nonexistent/directory/t.h5", NULL, "No such file");
    check_refused(fixture_path("."), NULL, "not a regular file");
    check_refused("/dev/full", NULL, "not a regular file");
    fd_tracer_options options = {.model_file = "/nonexistent.gguf"};
    check_refused(fixture_path("tracer_model.h5"), &options, "/nonexistent.gguf");
    options.model_file = "/";
    check_refused(fixture_path("tracer_model.h5"), &options, "cannot be read");
    cr_expect_eq(access(fixture_path("tracer_model.h5"), F_OK), -1, "a file was left behind");
    options.model_file = fixture_path("tracer_model.gguf");
    FILE *model = fopen(options.model_file, "w");
    fputs("not much of a model", model);
    fclose(model);
    check_refused(options.model_file, &options, "is the model");
    cr_expect_eq(access(options.model_file, F_OK), 0, "the model is gone");
}

Test(tracer_bad, what_lay_there_stays_when_the_trace_cannot_start) {
    if (geteuid() == 0) cr_skip("root may write anywhere");
    const char *path = fixture_path("closed_directory/t.h5"), *directory = fixture_path("closed_directory");
    mkdir(directory, 0555);
    check_refused(path, NULL, "Permission denied");
    rmdir(directory);
}

Test(tracer_bad, two_traces_on_one_path) {
    const char *path = fixture_path("tracer_twice.h5");
    fd_tracer *first = two_positions(path);
    check_refused(path, NULL, "another trace is being written there");
    fd_tracer_put_f32(first, "late", data, 2, 8); /* grows: the file is replaced by its successor, still locked */
    cr_assert_eq(fd_tracer_step(first, tokens, 1), 0, "%s", fd_tracer_error(first));
    check_refused(path, NULL, "another trace is being written there");
    char message[1024];
    cr_assert_eq(fd_tracer_close(first, message, sizeof message), 0, "%s", message);
    fd_tracer *second = two_positions(path); /* free again */
    cr_assert_eq(fd_tracer_close(second, message, sizeof message), 0, "%s", message);
}

Test(tracer_bad, a_file_that_took_the_place_is_not_overwritten) {
    const char *path = fixture_path("tracer_taken.h5"), *other = fixture_path("tracer_taken.other");
    fd_tracer *tracer = two_positions(path);
    FILE *file = fopen(other, "w");
    fputs("mine", file);
    fclose(file);
    cr_assert_eq(rename(other, path), 0);
    fd_tracer_put_f32(tracer, "late", data, 2, 8);
    char message[1024], kept[8] = "";
    cr_expect_neq(fd_tracer_close(tracer, message, sizeof message), 0);
    cr_expect(strstr(message, path), "%s", message);
    file = fopen(path, "r");
    cr_expect_not_null(fgets(kept, sizeof kept, file));
    cr_expect_str_eq(kept, "mine");
    fclose(file);
}
