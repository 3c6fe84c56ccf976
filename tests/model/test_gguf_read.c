/* Reading: what a good file says, and that no damaged one is believed. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gguf_bytes.h"
#include "model/gguf.h"

static fd_gguf *parse_good(void) {
    gguf_spec spec = gguf_good();
    gguf_bytes file = gguf_build(&spec);
    fd_gguf *gguf;
    fd_error err = {0};
    cr_assert_eq(fd_gguf_parse(file.data, file.size, &gguf, &err), FD_OK, "%s", err.message);
    return gguf;
}

/* Touches everything a caller can reach, so that a bad pointer or size shows. */
static uint64_t walk(const fd_gguf *gguf) {
    uint64_t sum = 0;
    for (size_t i = 0; i < fd_gguf_n_kv(gguf); i++) {
        const fd_gguf_kv *kv = fd_gguf_kv_at(gguf, i);
        int64_t integer;
        double number;
        fd_string string;
        size_t cursor = 0;
        for (uint64_t k = 0; k < kv->count; k++)
            sum += (fd_gguf_item_i64(kv, k, &integer) ? (uint64_t)integer : 0) +
                   (fd_gguf_item_f64(kv, k, &number) ? 1 : 0);
        while (fd_gguf_next_string(kv, &cursor, &string))
            for (size_t k = 0; k < string.size; k++) sum += (uint8_t)string.data[k];
    }
    for (size_t i = 0; i < fd_gguf_n_tensor(gguf); i++) {
        const fd_gguf_tensor *tensor = fd_gguf_tensor_at(gguf, i);
        for (uint64_t k = 0; k < tensor->bytes; k++) sum += ((const uint8_t *)tensor->data)[k];
        cr_assert_eq(fd_gguf_find_tensor(gguf, tensor->name), tensor);
    }
    return sum;
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

#define FIELD(name) offsetof(gguf_spec, name)

/* One wrong field each; the message must name what is wrong. */
static const struct damage {
    const char *name;
    size_t field;
    uint64_t value;
    const char *message;
} damages[] = {
    {"wrong magic", FIELD(magic), 0x46464646, "starts with 46 46 46 46 \"FFFF\""},
    {"git lfs pointer", FIELD(magic), 0x73726576, "Git LFS"},
    {"version 0", FIELD(version), 0, "version 0, expected 2 or 3"},
    {"version 1", FIELD(version), 1, "version 1"},
    {"version 4", FIELD(version), 4, "version 4, expected 2 or 3"},
    {"big-endian", FIELD(version), 0x03000000, "big-endian"},
    {"2^60 tensors", FIELD(n_tensor), 1ull << 60, "claims 1152921504606846976 tensors"},
    {"2^60 key-values", FIELD(n_kv), 1ull << 60, "claims 1152921504606846976 key-values"},
    {"more tensors than have room", FIELD(n_tensor), 100, "claims 100 tensors"},
    {"more key-values than have room", FIELD(n_kv), 200, "claims 200 key-values"},
    {"all ones counts", FIELD(n_kv), UINT64_MAX, "key-values"},
    {"one tensor too many", FIELD(n_tensor), 3, ""},
    {"one key-value too many", FIELD(n_kv), 6, ""},
    {"one key-value too few", FIELD(n_kv), 4, ""},
    {"empty key", FIELD(key_size), 0, "key of 0 bytes"},
    {"key beyond the limit", FIELD(key_size), 65536, "key of 65536 bytes"},
    {"key beyond the file", FIELD(key_size), 5000, "truncated at byte"},
    {"string of 2^64-1", FIELD(string_size), UINT64_MAX, "general.architecture: truncated at byte"},
    {"value type 13", FIELD(value_type), 13, "test.list"},
    {"array of arrays", FIELD(item_type), 9, "array of arrays"},
    {"item type 99", FIELD(item_type), 99, "item type id 99"},
    {"2^62 items, bytes overflow", FIELD(n_item), 1ull << 62, "4611686018427387904 items of i32"},
    {"too many items", FIELD(n_item), 1000, "1000 items of i32"},
    {"2^61 strings", FIELD(n_word), 1ull << 61, "test.words: truncated"},
    {"string beyond the file", FIELD(word_size), 1ull << 63, "test.words: truncated"},
    {"bool 2", FIELD(flag), 2, "bool is 2"},
    {"alignment 0", FIELD(alignment), 0, "general.alignment is 0"},
    {"alignment 24", FIELD(alignment), 24, "general.alignment is 24, expected a power of two"},
    {"alignment a float", FIELD(alignment_type), 6, "general.alignment: a value of type f32"},
    {"alignment past the file", FIELD(alignment), 1u << 31, "multiple of the alignment 2147483648"},
    {"equal keys", FIELD(same_keys), 1, "key test.list stands twice"},
    {"equal tensor names", FIELD(same_tensors), 1, "tensor a.weight stands twice"},
    {"newline in a name", FIELD(control), 1, "a.\\x0aweigh"},
    {"empty tensor name", FIELD(tensor[0].name_size), 0, "tensor name of 0 bytes"},
    {"tensor name of 128", FIELD(tensor[0].name_size), 128, "tensor name of 128 bytes, expected 1 to 127"},
    {"tensor name of 2^60", FIELD(tensor[1].name_size), 1ull << 60, "tensor info 1 of 2"},
    {"no dimensions", FIELD(tensor[0].n_dim), 0, "a.weight: 0 dimensions, expected 1 to 4"},
    {"five dimensions", FIELD(tensor[0].n_dim), 5, "a.weight: 5 dimensions"},
    {"2^32-1 dimensions", FIELD(tensor[0].n_dim), UINT32_MAX, "4294967295 dimensions"},
    {"dimension 0", FIELD(tensor[0].shape[0]), 0, "a.weight: dimension 0 is 0"},
    {"dimension 2^63", FIELD(tensor[0].shape[1]), 1ull << 63, "a.weight: dimension 1 is 9223372036854775808"},
    {"product overflows", FIELD(tensor[0].shape[1]), 1ull << 62, "product of its dimensions"},
    {"bytes overflow", FIELD(tensor[1].shape[0]), 1ull << 62, "exceeds 2^63 bytes"},
    {"half a block", FIELD(tensor[0].shape[0]), 48, "rows of 48 elements, expected a multiple of Q8_0's block of 32"},
    {"removed type", FIELD(tensor[0].dtype), 31, "Q4_0_4_4"},
    {"unknown type", FIELD(tensor[0].dtype), 42, "type id 42"},
    {"absurd type", FIELD(tensor[0].dtype), UINT32_MAX, "type id 4294967295"},
    {"misaligned offset", FIELD(tensor[1].offset), 240, "b.bias: offset 240, expected a multiple of the alignment 32"},
    {"same offset", FIELD(tensor[1].offset), 0, "overlap"},
    {"overlapping by 12 bytes", FIELD(tensor[1].offset), 192,
     "a.weight (data bytes 0 to 204) and b.bias (192 to 212) overlap"},
    {"offset past the file", FIELD(tensor[1].offset), 256, "truncated: tensor b.bias ends at byte"},
    {"offset near 2^64", FIELD(tensor[1].offset), UINT64_MAX - 31, "b.bias ends past 2^64"},
    {"one data byte missing", FIELD(data_bytes), 243, "truncated: tensor b.bias ends at byte"},
    {"no data", FIELD(data_bytes), 0, "truncated: tensor"},
};

Test(gguf_read, every_damaged_field_is_refused_by_name) {
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        gguf_spec spec = gguf_good();
        *(uint64_t *)((char *)&spec + damages[i].field) = damages[i].value;
        gguf_bytes file = gguf_build(&spec);
        fd_gguf *gguf = (fd_gguf *)&spec;
        fd_error err = {0};
        fd_code code = fd_gguf_parse(file.data, file.size, &gguf, &err);
        cr_expect(code == FD_ERR_INPUT || code == FD_ERR_UNSUPPORTED, "%s: code %d", damages[i].name, (int)code);
        cr_expect_null(gguf);
        cr_expect_eq(err.code, code, "%s", damages[i].name);
        cr_expect(err.message[0] && strstr(err.message, damages[i].message), "%s: said \"%s\"", damages[i].name,
                  err.message);
    }
}

/* The start fits in 64 bits, the end does not. */
Test(gguf_read, a_tensor_that_ends_past_2_64_is_refused) {
    gguf_spec spec = gguf_good();
    spec.tensor[1].offset = UINT64_MAX - 4095;
    spec.tensor[1].shape[0] = 1ull << 60;
    gguf_bytes file = gguf_build(&spec);
    fd_gguf *gguf;
    fd_error err = {0};
    cr_expect_eq(fd_gguf_parse(file.data, file.size, &gguf, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "b.bias ends past 2^64"), "%s", err.message);
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

Test(gguf_read, cut_short_at_every_byte_is_an_error) {
    gguf_spec spec = gguf_good();
    gguf_bytes file = gguf_build(&spec);
    for (size_t size = 0; size < file.size; size++) {
        uint8_t *copy = guarded_copy(file.data, size);
        fd_gguf *gguf;
        fd_error err = {0};
        fd_code code = fd_gguf_parse(copy, size, &gguf, &err);
        cr_expect_eq(code, FD_ERR_INPUT, "cut to %zu of %zu bytes: code %d", size, file.size, (int)code);
        cr_expect(err.message[0] != '\0');
        if (code == FD_OK) fd_gguf_close(gguf);
    }
}

/* Whatever is parsed after a change can be walked to its end: the guard page and the sanitizers watch. */
Test(gguf_read, any_changed_byte_is_refused_or_walked) {
    gguf_spec spec = gguf_good();
    gguf_bytes file = gguf_build(&spec);
    const uint8_t values[] = {0x00, 0x01, 0x09, 0x7f, 0x80, 0xff};
    size_t accepted = 0, refused = 0;
    for (size_t at = 0; at < file.header_size; at++)
        for (size_t v = 0; v < sizeof values; v++) {
            uint8_t before = file.data[at];
            file.data[at] = values[v];
            fd_gguf *gguf;
            fd_error err = {0};
            if (fd_gguf_parse(file.data, file.size, &gguf, &err) == FD_OK) {
                accepted++;
                walk(gguf);
                fd_gguf_close(gguf);
            } else {
                refused++;
                cr_expect(err.message[0] != '\0');
            }
            file.data[at] = before;
        }
    cr_expect(accepted > 0 && refused > 0); /* names may change freely, sizes may not */
}

/* ---- files ---- */

static char *scratch(const char *name, const void *data, size_t size) {
    static char path[256];
    snprintf(path, sizeof path, "/tmp/fd_gguf_read_%ld_%s", (long)getpid(), name);
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
