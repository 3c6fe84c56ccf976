/* Golden files: a trace for each prompt, and everything that must be refused. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dumpers/store/golden.h"
#include "fixture.h"
#include "h5_edit.h"

static const fd_golden_size size = {.n_prompt = 2, .n_pos = 6};

static const fd_golden_tolerances measured = {.names = "f16 q8", .n_class = 2, .n_run = 4, .nmse = {1e-6, 3e-4}};

static fd_code write_golden(const char *path, int32_t n_prompt, fd_error *err) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_file *file;
    fd_code code = fd_trace_file_create(path, &file, err);
    for (int32_t i = 0; code == FD_OK && i < n_prompt; i++) {
        char group[16];
        fd_trace_options options = fd_golden_prompt_options(file, 5 + i, i, group);
        fixture_write(&options, graph, FD_NUMERICS_EXACT, 4 + i, 1);
    }
    if (code == FD_OK) code = fd_golden_finish(file, size, &measured, err);
    fd_graph_free(graph);
    return code;
}

static const char *written(void) {
    fd_error err = {0};
    const char *path = fixture_path("golden.h5");
    cr_assert_eq(write_golden(path, size.n_prompt, &err), FD_OK, "%s", err.message);
    return path;
}

typedef struct golden_bytes {
    char *bytes;
    size_t size;
} golden_bytes;

static golden_bytes bytes_of(const char *path) {
    struct stat there;
    cr_assert_eq(stat(path, &there), 0);
    golden_bytes whole = {malloc((size_t)there.st_size), (size_t)there.st_size};
    FILE *from = fopen(path, "rb");
    cr_assert_eq(fread(whole.bytes, 1, whole.size, from), whole.size);
    fclose(from);
    return whole;
}

static void put_bytes(const char *path, golden_bytes whole, size_t size) {
    FILE *to = fopen(path, "wb");
    cr_assert_eq(fwrite(whole.bytes, 1, size, to), size);
    fclose(to);
}

/* Reads all of it. */
static fd_code read_golden(const char *path, fd_error *err) {
    fd_golden_size found;
    fd_golden *golden;
    fd_code code = FD_OK;
    FD_TRY(fd_golden_open(path, &golden, &found, err));
    for (int32_t i = 0; i < found.n_prompt && code == FD_OK; i++) {
        fd_trace *trace;
        code = fd_golden_prompt(golden, i, &trace, err);
        fd_trace_close(trace);
    }
    fd_golden_close(golden);
    return code;
}

Test(golden, round_trip_keeps_every_bit) {
    const char *path = written();
    fd_graph *graph = fixture_graph(fixture_small);
    fd_golden_size found;
    fd_golden *golden;
    fd_error err = {0};
    cr_assert_eq(fd_golden_open(path, &golden, &found, &err), FD_OK, "%s", err.message);
    cr_expect(found.n_prompt == size.n_prompt && found.n_pos == size.n_pos);
    cr_expect(fd_golden_is_one(path));
    const fd_golden_tolerances *read = fd_golden_measured(golden);
    cr_expect(read->n_class == 2 && read->n_run == 4 && read->nmse[0] == 1e-6 && read->nmse[1] == 3e-4);
    cr_expect(fd_golden_tolerance_find(read, "q8") == 1 && fd_golden_tolerance_find(read, "q") == -1);
    for (int32_t i = 0; i < found.n_prompt; i++) {
        fd_trace *trace;
        cr_assert_eq(fd_golden_prompt(golden, i, &trace, &err), FD_OK, "%s", err.message);
        cr_expect_eq(fd_trace_n_pos(trace), 5 + i);
        cr_expect_eq(fd_trace_n_step(trace), 2);
        for (int32_t pos = 0; pos < 5 + i; pos++) {
            cr_expect_eq(fd_trace_tokens(trace)[pos], fixture_token(pos));
            fixture_check_tensor(trace, graph, "logits", pos);
            for (int32_t node = 0; node < graph->n_node; node++)
                cr_expect_not_null(fd_trace_fingerprint(trace, node, pos));
        }
        fd_trace_close(trace);
    }
    fd_golden_close(golden);
    fd_graph_free(graph);
}

Test(golden, spoiled_files_are_refused_with_their_fault) {
    static const h5_edit cases[] = {
        {"no schema", "schema", NO_ATTRIBUTE, "/", "schema"},
        {"a trace's schema", "expected \"firstdiff-golden\"", SAYS, "/", "schema", "firstdiff-trace"},
        {"an older version", "record it again", IS, "/", "version", .shape = {1}},
        {"a later version", "version 3", IS, "/", "version", .shape = {3}},
        {"no count", "0 prompts", NO_ATTRIBUTE, "/", "n_prompt"},
        {"no length", "0 positions", IS, "/", "n_pos", .shape = {0}},
        {"more prompts", "prompts/0002", IS, "/", "n_prompt", .shape = {3}},
        {"no prompt", "prompts/0000", DELETED, "prompts/0000"},
        {"no prompts", "prompts/0000", DELETED, "prompts"},
        {"tolerances without classes", "tolerances", NO_ATTRIBUTE, "tolerances", "classes"},
        {"tolerances of more classes", "tolerances", SAYS, "tolerances", "classes", "f16 q8 bf16"},
        {"tolerances of no run", "tolerances", IS, "tolerances", "runs", .shape = {0}},
        {"a group for tolerances", "tolerances", A_GROUP, "tolerances"},
        {"a group for tokens", "tokens", A_GROUP, "prompts/0000/tokens"},
    };
    const char *path = written();
    golden_bytes whole = bytes_of(path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_error err = {0};
        put_bytes(path, whole, whole.size);
        h5_apply(path, &cases[i]);
        cr_expect_eq(read_golden(path, &err), FD_ERR_INPUT, "%s", cases[i].name);
        cr_expect(strstr(err.message, cases[i].says) && strstr(err.message, "golden.h5"), "%s: %s", cases[i].name,
                  err.message);
    }
    free(whole.bytes);
}

Test(golden, truncated_files_are_refused) {
    fd_error err = {0};
    const char *path = written();
    golden_bytes whole = bytes_of(path);
    for (size_t cut = 0; cut < whole.size; cut += 1 + whole.size / 40) {
        put_bytes(path, whole, cut);
        cr_expect_eq(read_golden(path, &err), FD_ERR_INPUT, "%zu bytes", cut);
    }
    free(whole.bytes);
    cr_expect_eq(read_golden("/nowhere/golden.h5", &err), FD_ERR_INPUT);
}

Test(golden, what_cannot_be_written_leaves_the_old_file) {
    fd_error err = {0};
    fd_trace_file *file;
    const char *path = written();
    cr_assert_eq(fd_trace_file_create(path, &file, &err), FD_OK, "%s", err.message);
    fd_trace_file_abandon(file);
    cr_expect_eq(read_golden(path, &err), FD_OK, "%s", err.message);
    cr_expect_eq(write_golden("/dev/full", 1, &err), FD_ERR_IO);
    cr_expect_eq(write_golden("/nowhere/golden.h5", 1, &err), FD_ERR_IO);
    cr_expect(strstr(err.message, "/nowhere/golden.h5"), "%s", err.message);
}

Test(golden, of_a_large_vocabulary_runs_of_ids_and_the_best_are_kept) {
    enum { N = 40000, BEST = 7777 };
    float *logits = malloc(sizeof *logits * N);
    fd_top_logits top = {.id = {BEST, 3, -1}, .logit = {9, 8}};
    for (int i = 0; i < N; i++) logits[i] = (float)i;
    cr_expect(fd_golden_thins(N) && fd_golden_thins(FD_GOLDEN_MOST_LOGITS + 1) &&
              !fd_golden_thins(FD_GOLDEN_MOST_LOGITS));
    fd_golden_thin(logits, N, &top);
    int n_kept = 0, last = -1;
    for (int i = 0; i < N; i++) {
        if (isnan(logits[i])) continue;
        n_kept++;
        cr_expect(i == BEST || i == 3 || logits[i] == (float)i);
        cr_expect_leq(i - last, N / FD_GOLDEN_LOGIT_RUNS, "no part of the vocabulary is left out");
        last = i;
    }
    cr_expect_eq(n_kept, FD_GOLDEN_LOGIT_RUNS * FD_GOLDEN_LOGIT_RUN + 1, "%d", n_kept);
    cr_expect(logits[BEST] == 9 && logits[3] == 8);
    free(logits);
}
