/* Reading: what a good file says, which files are none, and how long a large one takes. test_gguf_damaged.c has the
 * damaged. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gguf_bytes.h"
#include "model/gguf/gguf.h"
#include "tests/scratch.h"

static fd_gguf *parse_good(void) {
    gguf_spec spec = gguf_good();
    gguf_bytes file = gguf_build(&spec);
    fd_gguf *gguf;
    fd_error err = {0};
    cr_assert_eq(fd_gguf_parse(file.data, file.size, &gguf, &err), FD_OK, "%s", err.message);
    return gguf;
}

Test(gguf_read, good_file_is_read_as_written) {
    fd_gguf *gguf = parse_good();
    cr_expect_eq(fd_gguf_version(gguf), 3u);
    cr_expect_eq(fd_gguf_alignment(gguf), 32u);
    cr_expect_eq(fd_gguf_n_kv(gguf), 5u);
    cr_expect_eq(fd_gguf_n_tensor(gguf), 2u);
    cr_expect_null(fd_gguf_kv_at(gguf, 5));
    cr_expect_null(fd_gguf_tensor_at(gguf, 2));
    cr_expect_null(fd_gguf_find(gguf, "test.lis"));
    cr_expect_null(fd_gguf_find(gguf, "test.list2"));

    const fd_gguf_kv *list = fd_gguf_find(gguf, "test.list");
    cr_assert_not_null(list);
    int64_t item;
    for (int64_t i = 0; i < 3; i++) cr_expect(fd_gguf_item_i64(list, (uint64_t)i, &item) && item == i - 1);
    cr_expect_not(fd_gguf_item_i64(list, 3, &item));

    const fd_gguf_kv *words = fd_gguf_find(gguf, "test.words");
    cr_assert_not_null(words);
    size_t cursor = 0;
    fd_string word;
    cr_expect(fd_gguf_next_string(words, &cursor, &word) && word.size == 5 && !memcmp(word.data, "first", 5));
    cr_expect(fd_gguf_next_string(words, &cursor, &word) && word.size == 6 && !memcmp(word.data, "second", 6));
    cr_expect_not(fd_gguf_next_string(words, &cursor, &word));

    const fd_gguf_tensor *a = fd_gguf_find_tensor(gguf, "a.weight"), *b = fd_gguf_find_tensor(gguf, "b.bias");
    cr_assert(a && b);
    cr_expect(a->n_dim == 2 && a->shape[0] == 64 && a->shape[1] == 3 && a->shape[2] == 1 && a->shape[3] == 1);
    cr_expect(a->bytes == 204 && a->dtype == FD_Q8_0 && b->bytes == 20 && b->dtype == FD_F32);
    cr_expect_eq((const uint8_t *)b->data + b->bytes,
                 (const uint8_t *)fd_gguf_file_data(gguf) + fd_gguf_file_size(gguf));
    cr_expect_eq((const uint8_t *)a->data, (const uint8_t *)fd_gguf_file_data(gguf) + fd_gguf_data_offset(gguf));
    fd_gguf_close(gguf);
}

Test(gguf_read, scalars_convert_or_name_what_they_found) {
    fd_gguf *gguf = parse_good();
    fd_error err = {0};
    int64_t integer;
    double number;
    bool flag;
    fd_string string;
    cr_expect(fd_gguf_get_i64(gguf, "general.alignment", 7, &integer, &err) == FD_OK && integer == 32);
    cr_expect(fd_gguf_get_i64(gguf, "none", 7, &integer, &err) == FD_OK && integer == 7);
    cr_expect(fd_gguf_get_f64(gguf, "general.alignment", 0.5, &number, &err) == FD_OK && number == 32.0);
    cr_expect(fd_gguf_get_f64(gguf, "none", 0.5, &number, &err) == FD_OK && number == 0.5);
    cr_expect(fd_gguf_get_bool(gguf, "test.flag", false, &flag, &err) == FD_OK && flag);
    cr_expect(fd_gguf_get_bool(gguf, "none", true, &flag, &err) == FD_OK && flag);
    cr_expect(fd_gguf_get_string(gguf, "general.architecture", &string, &err) == FD_OK && string.size == 4);
    cr_expect(fd_gguf_get_string(gguf, "none", &string, &err) == FD_OK && !string.data && string.size == 0);

    cr_expect_eq(fd_gguf_get_i64(gguf, "test.list", 0, &integer, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "test.list") && strstr(err.message, "array of 3 i32") &&
                  strstr(err.message, "integer"),
              "%s", err.message);
    cr_expect_eq(fd_gguf_get_i64(gguf, "test.flag", 0, &integer, &err), FD_ERR_INPUT);
    cr_expect_eq(fd_gguf_get_f64(gguf, "general.architecture", 0, &number, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "type string, expected a number"), "%s", err.message);
    cr_expect_eq(fd_gguf_get_bool(gguf, "general.alignment", false, &flag, &err), FD_ERR_INPUT);
    cr_expect_eq(fd_gguf_get_string(gguf, "test.words", &string, &err), FD_ERR_INPUT);
    fd_gguf_close(gguf);
}

Test(gguf_read, every_number_type_converts) {
    struct {
        fd_gguf_type type;
        size_t size;
        const void *data;
        bool is_integer;
        double expected;
    } cases[] = {
        {FD_GGUF_U8, 1, &(uint8_t){200}, true, 200},
        {FD_GGUF_I8, 1, &(int8_t){-5}, true, -5},
        {FD_GGUF_U16, 2, &(uint16_t){60000}, true, 60000},
        {FD_GGUF_I16, 2, &(int16_t){-300}, true, -300},
        {FD_GGUF_U32, 4, &(uint32_t){4000000000u}, true, 4e9},
        {FD_GGUF_I32, 4, &(int32_t){-7}, true, -7},
        {FD_GGUF_I64, 8, &(int64_t){-1}, true, -1},
        {FD_GGUF_U64, 8, &(uint64_t){1ull << 62}, true, 0x1p62},
        {FD_GGUF_U64, 8, &(uint64_t){1ull << 63}, false, 0x1p63}, /* beyond i64: a number, no integer of ours */
        {FD_GGUF_F32, 4, &(float){1.5f}, false, 1.5},
        {FD_GGUF_F64, 8, &(double){1e-300}, false, 1e-300},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_gguf_kv kv = {{"k", 1}, cases[i].type, cases[i].type, 1, cases[i].data, cases[i].size};
        int64_t integer = 0;
        double number = 0;
        cr_expect_eq(fd_gguf_item_i64(&kv, 0, &integer), cases[i].is_integer, "%s", fd_gguf_type_name(kv.type));
        if (cases[i].is_integer) cr_expect_eq((double)integer, cases[i].expected, "%s", fd_gguf_type_name(kv.type));
        cr_expect(fd_gguf_item_f64(&kv, 0, &number) && number == cases[i].expected, "%s", fd_gguf_type_name(kv.type));
    }
}

Test(gguf_read, version_2_is_read) {
    gguf_spec spec = gguf_good();
    spec.version = 2;
    gguf_bytes file = gguf_build(&spec);
    fd_gguf *gguf;
    fd_error err = {0};
    cr_assert_eq(fd_gguf_parse(file.data, file.size, &gguf, &err), FD_OK, "%s", err.message);
    cr_expect_eq(fd_gguf_version(gguf), 2u);
    fd_gguf_close(gguf);
}

/* ---- files ---- */

static char *scratch(const char *name, const void *data, size_t size) {
    static char path[SCRATCH_PATH];
    char own[48];
    snprintf(own, sizeof own, "fd_gguf_read_%ld_%s", (long)getpid(), name);
    scratch_path(path, own);
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(data, 1, size, file) == size && fclose(file) == 0);
    return path;
}

Test(gguf_read, unusable_files_are_refused_with_what_was_found) {
    struct {
        const char *data;
        size_t size;
        const char *message;
    } cases[] = {
        {"", 0, "an empty file"},
        {"GG", 2, "2 bytes long"},
        {"PK\x03\x04rest", 8, "50 4b 03 04"},
        {"<!DOCTYPE html>", 15, "a web page"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = scratch("bad", cases[i].data, cases[i].size);
        fd_gguf *gguf;
        fd_error err = {0};
        cr_expect_eq(fd_gguf_open(path, &gguf, &err), FD_ERR_INPUT);
        cr_expect(strstr(err.message, path) && strstr(err.message, cases[i].message), "%s", err.message);
        unlink(path);
    }
    fd_gguf *gguf;
    fd_error err = {0};
    cr_expect_eq(fd_gguf_open("/tmp", &gguf, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "/tmp: a directory"), "%s", err.message);
    cr_expect_eq(fd_gguf_open("/tmp/no/such.gguf", &gguf, &err), FD_ERR_IO);
    cr_expect(strstr(err.message, "No such file"), "%s", err.message);
    char *pipe = scratch("pipe", "", 0);
    cr_assert(unlink(pipe) == 0 && mkfifo(pipe, 0600) == 0);
    cr_expect_eq(fd_gguf_open(pipe, &gguf, &err), FD_ERR_INPUT); /* and does not wait for a writer */
    cr_expect(strstr(err.message, "not a regular file"), "%s", err.message);
    unlink(pipe);
}

Test(gguf_read, mapped_file_equals_parsed_memory) {
    gguf_spec spec = gguf_good();
    gguf_bytes file = gguf_build(&spec);
    char *path = scratch("good", file.data, file.size);
    fd_gguf *gguf;
    fd_error err = {0};
    cr_assert_eq(fd_gguf_open(path, &gguf, &err), FD_OK, "%s", err.message);
    cr_expect_eq(fd_gguf_file_size(gguf), file.size);
    cr_expect_eq(memcmp(fd_gguf_file_data(gguf), file.data, file.size), 0);
    fd_gguf_close(gguf);
    unlink(path);
}

/* ---- size ---- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint8_t *append_u64(uint8_t *to, uint64_t value) {
    return (uint8_t *)memcpy(to, &value, 8) + 8;
}
static uint8_t *append_u32(uint8_t *to, uint32_t value) {
    return (uint8_t *)memcpy(to, &value, 4) + 4;
}
static uint8_t *append_string(uint8_t *to, const char *text) {
    to = append_u64(to, strlen(text));
    return (uint8_t *)memcpy(to, text, strlen(text)) + strlen(text);
}

/* qwen2's numbers: 151,936 tokens, 151,387 merges; and 5,000 tensors, more than any model of today has. */
Test(gguf_read, large_vocabulary_parses_in_50_ms) {
    enum { N_TOKEN = 151936, N_MERGE = 151387, N_TENSOR = 5000 };
    const size_t capacity = 24u << 20;
    uint8_t *file = malloc(capacity), *at = file;
    cr_assert_not_null(file);
    at = (uint8_t *)memcpy(at, "GGUF", 4) + 4;
    at = append_u32(at, 3);
    at = append_u64(at, N_TENSOR);
    at = append_u64(at, 2);
    const char *keys[2] = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"};
    const uint64_t counts[2] = {N_TOKEN, N_MERGE};
    char text[64];
    for (int k = 0; k < 2; k++) {
        at = append_u64(append_u32(append_u32(append_string(at, keys[k]), 9), 8), counts[k]);
        for (uint64_t i = 0; i < counts[k]; i++) {
            snprintf(text, sizeof text, k ? "left%" PRIu64 " right%" PRIu64 : "token%" PRIu64 ".%" PRIu64, i, i * 7);
            at = append_string(at, text);
        }
    }
    for (uint64_t i = 0; i < N_TENSOR; i++) {
        snprintf(text, sizeof text, "blk.%" PRIu64 ".ffn_gate_exps.weight", i * 7919 % N_TENSOR);
        at = append_u64(append_u32(append_u64(append_u32(append_string(at, text), 1), 8), FD_F32), i * 32);
    }
    size_t header = (size_t)(at - file), size = (header + 31) / 32 * 32 + N_TENSOR * 32;
    cr_assert(size <= capacity);
    memset(at, 0, size - header);
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
        fd_gguf *gguf;
        fd_error err = {0};
        double start = seconds();
        cr_assert_eq(fd_gguf_parse(file, size, &gguf, &err), FD_OK, "%s", err.message);
        double took = seconds() - start;
        best = took < best ? took : best;
        cr_expect_not_null(fd_gguf_find_tensor(gguf, "blk.4999.ffn_gate_exps.weight"));
        cr_expect_null(fd_gguf_find_tensor(gguf, "blk.5000.ffn_gate_exps.weight"));
        fd_gguf_close(gguf);
    }
    free(file);
    cr_expect(best <= 0.050, "took %.1f ms", best * 1e3);
}
