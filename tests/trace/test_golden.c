/* Goldens: round trip, and everything that must be refused. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dumpers/store/golden.h"
#include "dumpers/hdf5/h5.h"
#include "fixture.h"

enum { VOCAB = 11, NODES = 3, TOKENS = 6 };

static int32_t tokens[TOKENS] = {1, 5, 2, 9, 9, 3};
static float logits[TOKENS][VOCAB];
static fd_fingerprint prints[TOKENS][NODES];
static char nodes[NODES][64] = {"token_embd", "blk.0.attn_norm", "logits"};

static fd_golden sample(fd_golden_prompt prompts[2]) {
    for (int i = 0; i < TOKENS; i++)
        for (int k = 0; k < VOCAB; k++) logits[i][k] = k == 3 ? -0.0f : (float)(i * VOCAB - k) / 7.0f;
    logits[2][5] = INFINITY;
    for (int i = 0; i < TOKENS; i++)
        for (int k = 0; k < NODES; k++) prints[i][k] = (fd_fingerprint){0x8000000000000000u + (uint64_t)i, (uint64_t)k};
    prompts[0] = (fd_golden_prompt){"Hello, Welt ü", 3, TOKENS, tokens, TOKENS - 1, &logits[0][0], &prints[0][0]};
    prompts[1] = (fd_golden_prompt){NULL, 2, 2, tokens + 2, 2, &logits[2][0], &prints[2][0]};
    return (fd_golden){.producer = "test",
                       .model_name = "m",
                       .model_hash = "xxh3-128:0",
                       .arch = "llama",
                       .backend = "cpu",
                       .device = "d",
                       .numerics = "exact",
                       .contract = 1,
                       .n_vocab = VOCAB,
                       .n_node = NODES,
                       .n_generate = 3,
                       .nodes = nodes,
                       .prompts = prompts,
                       .n_prompt = 2};
}

static const char *written(void) {
    fd_golden_prompt prompts[2];
    fd_golden golden = sample(prompts);
    fd_error err = {0};
    const char *path = fixture_path("golden.h5");
    cr_assert_eq(fd_golden_write(&golden, path, &err), FD_OK, "%s", err.message);
    return path;
}

Test(golden, round_trip_keeps_every_bit) {
    fd_golden_prompt prompts[2];
    fd_golden expected = sample(prompts), *found;
    fd_error err = {0};
    cr_assert_eq(fd_golden_read(written(), &found, &err), FD_OK, "%s", err.message);
    cr_assert(found->n_prompt == 2 && found->n_vocab == VOCAB && found->n_node == NODES);
    cr_assert(found->contract == 1 && found->n_generate == 3);
    cr_assert_str_eq(found->numerics, "exact");
    cr_assert_str_eq(found->model_hash, expected.model_hash);
    for (int k = 0; k < NODES; k++) cr_assert_str_eq(found->nodes[k], nodes[k]);
    for (int i = 0; i < 2; i++) {
        const fd_golden_prompt *a = &found->prompts[i], *b = &prompts[i];
        cr_assert(a->n_prompt == b->n_prompt && a->n_token == b->n_token && a->n_pos == b->n_pos);
        cr_assert(b->text ? strcmp(a->text, b->text) == 0 : a->text == NULL);
        cr_assert_arr_eq(a->tokens, b->tokens, (size_t)b->n_token * 4);
        cr_assert_arr_eq(a->logits, b->logits, (size_t)b->n_pos * VOCAB * 4);
        cr_assert_arr_eq(a->fingerprints, b->fingerprints, (size_t)b->n_pos * NODES * 16);
    }
    fd_golden_free(found);
}

/* Each edit spoils a whole golden in one way. */
static void no_schema(hid_t f) {
    H5Adelete(f, "schema");
}
static void other_schema(hid_t f) {
    fd_h5_put_string(f, "schema", "firstdiff-trace");
}
static void other_version(hid_t f) {
    fd_h5_put_int(f, "version", 2);
}
static void incomplete(hid_t f) {
    fd_h5_put_int(f, "complete", 0);
}
static void no_hash(hid_t f) {
    H5Adelete(f, "model_hash");
}
static void other_vocab(hid_t f) {
    fd_h5_put_int(f, "n_vocab", VOCAB + 1);
}
static void no_vocab(hid_t f) {
    fd_h5_put_int(f, "n_vocab", 0);
}
static void no_nodes(hid_t f) {
    H5Ldelete(f, "nodes", H5P_DEFAULT);
}
static void no_prompt(hid_t f) {
    H5Ldelete(f, "prompts/0000", H5P_DEFAULT);
}
static void no_prompts(hid_t f) {
    H5Ldelete(f, "prompts", H5P_DEFAULT);
}
static void no_logits(hid_t f) {
    H5Ldelete(f, "prompts/0001/logits", H5P_DEFAULT);
}
static void long_prompt(hid_t f) {
    hid_t group = H5Gopen2(f, "prompts/0001", H5P_DEFAULT);
    fd_h5_put_int(group, "n_prompt", 99);
    H5Gclose(group);
}
static void huge_logits(hid_t f) { /* claims a terabyte, stores nothing */
    hsize_t dims[2] = {100000000000u / VOCAB, VOCAB}, chunk[2] = {1024, VOCAB};
    hid_t space = H5Screate_simple(2, dims, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(create, 2, chunk);
    H5Ldelete(f, "prompts/0000/logits", H5P_DEFAULT);
    H5Dclose(H5Dcreate2(f, "prompts/0000/logits", H5T_IEEE_F32LE, space, H5P_DEFAULT, create, H5P_DEFAULT));
    H5Pclose(create);
    H5Sclose(space);
}
static void group_for_tokens(hid_t f) {
    H5Ldelete(f, "prompts/0000/tokens", H5P_DEFAULT);
    H5Gclose(H5Gcreate2(f, "prompts/0000/tokens", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}

typedef struct edit_case {
    const char *name, *says;
    void (*edit)(hid_t file);
} edit_case;

Test(golden, spoiled_files_are_refused_with_their_fault) {
    const edit_case cases[] = {
        {"no schema", "schema", no_schema},
        {"another schema", "firstdiff-golden", other_schema},
        {"another version", "version", other_version},
        {"incomplete", "complete", incomplete},
        {"no hash", "model_hash", no_hash},
        {"another vocabulary", "logits", other_vocab},
        {"no vocabulary", "n_vocab", no_vocab},
        {"no nodes", "nodes", no_nodes},
        {"a prompt missing", "0000", no_prompt},
        {"no prompts", "prompts", no_prompts},
        {"logits missing", "logits", no_logits},
        {"prompt too long", "99", long_prompt},
        {"logits never written", "logits", huge_logits},
        {"tokens is a group", "tokens", group_for_tokens},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = written();
        fd_golden *golden = NULL;
        fd_error err = {0};
        hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        cases[i].edit(file);
        H5Fclose(file);
        cr_expect_eq(fd_golden_read(path, &golden, &err), FD_ERR_INPUT, "%s", cases[i].name);
        cr_expect_null(golden);
        cr_expect(strstr(err.message, cases[i].says) && strstr(err.message, "golden.h5"), "%s: %s", cases[i].name,
                  err.message);
    }
}

Test(golden, truncated_files_are_refused) {
    fd_golden *golden;
    fd_error err = {0};
    struct stat whole;
    const char *path = written();
    stat(path, &whole);
    for (off_t size = 0; size < whole.st_size; size += 1 + whole.st_size / 40) {
        written();
        cr_assert_eq(truncate(path, size), 0);
        cr_expect_eq(fd_golden_read(path, &golden, &err), FD_ERR_INPUT, "%lld bytes", (long long)size);
    }
    cr_expect_eq(fd_golden_read("/nowhere/golden.h5", &golden, &err), FD_ERR_INPUT);
}

Test(golden, what_cannot_be_written_leaves_the_old_file) {
    fd_golden_prompt prompts[2];
    fd_golden golden = sample(prompts), *found;
    fd_error err = {0};
    const char *path = written();
    golden.n_prompt = 0;
    cr_expect_eq(fd_golden_write(&golden, path, &err), FD_ERR_INPUT);
    golden = sample(prompts);
    prompts[1].n_pos = 3;
    cr_expect_eq(fd_golden_write(&golden, path, &err), FD_ERR_INPUT);
    golden = sample(prompts);
    cr_expect_eq(fd_golden_write(&golden, "/dev/full", &err), FD_ERR_IO);
    cr_expect_eq(fd_golden_write(&golden, "/nowhere/golden.h5", &err), FD_ERR_IO);
    cr_expect(strstr(err.message, "/nowhere/golden.h5"), "%s", err.message);
    cr_assert_eq(fd_golden_read(path, &found, &err), FD_OK, "%s", err.message);
    fd_golden_free(found);
}
