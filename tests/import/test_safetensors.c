/* .safetensors: headers that say the truth, and headers that lie. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "dumpers/import/safetensors.h"

typedef struct file {
    uint8_t bytes[1024];
    size_t size;
} file;

static file make(const char *header, size_t n_element) {
    file f = {.size = 8 + strlen(header) + n_element};
    uint64_t length = strlen(header);
    memcpy(f.bytes, &length, 8);
    memcpy(f.bytes + 8, header, length);
    for (size_t i = 0; i < n_element; i++) f.bytes[8 + length + i] = (uint8_t)i;
    return f;
}

#define TENSOR(dtype, shape, from, to)                                                                                 \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

Test(safetensors, reads_tensors_in_order_of_place) {
    file f = make("{\"__metadata__\":{\"format\":\"pt\"},\"b\":" TENSOR("U8", "[2]", 4, 6) ",\"a\":" TENSOR(
                      "I16", "[2,1]", 0, 4) ",\"none\":" TENSOR("F32", "[0,3]", 6, 6) "}",
                  6);
    fd_safetensors t;
    fd_error err = {0};
    cr_assert_eq(fd_safetensors_parse("x", f.bytes, f.size, &t, &err), FD_OK, "%s", err.message);
    cr_assert_eq(t.n, 3);
    cr_assert_str_eq(t.items[0].name, "a");
    double values[2];
    fd_array_fetch(&t.items[0].array, values);
    cr_assert_eq(values[0], 0x0100);
    cr_assert_eq(values[1], 0x0302);
    cr_assert_str_eq(t.items[1].name, "b");
    fd_array_fetch(&t.items[1].array, values);
    cr_assert_eq(values[1], 5);
    fd_safetensors_free(&t);
}

Test(safetensors, every_type_has_its_size) {
    static const struct {
        const char *dtype;
        size_t bytes;
    } types[] = {{"F16", 2}, {"BF16", 2}, {"F32", 4}, {"F64", 8}, {"I8", 1},  {"I16", 2}, {"I32", 4},
                 {"I64", 8}, {"U8", 1},   {"U16", 2}, {"U32", 4}, {"U64", 8}, {"BOOL", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char header[200];
        snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%zu]}}",
                 types[i].dtype, 3 * types[i].bytes);
        file f = make(header, 3 * types[i].bytes);
        fd_safetensors t;
        fd_error err = {0};
        cr_assert_eq(fd_safetensors_parse("x", f.bytes, f.size, &t, &err), FD_OK, "%s: %s", types[i].dtype,
                     err.message);
        cr_assert_eq((size_t)t.items[0].array.stride[0], types[i].bytes);
        fd_safetensors_free(&t);
    }
}

static const struct {
    const char *name, *header;
    size_t n;
    const char *message;
} bad[] = {
    {"overlap", "{\"a\":" TENSOR("U8", "[4]", 0, 4) ",\"b\":" TENSOR("U8", "[4]", 2, 6) "}", 6, "overlaps"},
    {"a hole", "{\"a\":" TENSOR("U8", "[2]", 0, 2) ",\"b\":" TENSOR("U8", "[2]", 4, 6) "}", 6, "does not follow"},
    {"bytes behind", "{\"a\":" TENSOR("U8", "[2]", 0, 2) "}", 6, "6 bytes of elements"},
    {"out of range", "{\"a\":" TENSOR("U8", "[8]", 0, 8) "}", 6, "not two places"},
    {"backwards", "{\"a\":" TENSOR("U8", "[2]", 4, 2) "}", 6, "not two places"},
    {"negative", "{\"a\":" TENSOR("U8", "[2]", -2, 0) "}", 6, "not two places"},
    {"a length that lies", "{\"a\":" TENSOR("F32", "[2]", 0, 6) "}", 6, "has other"},
    {"a shape that overflows", "{\"a\":" TENSOR("F64", "[4294967296,4294967296]", 0, 6) "}", 6, "has other"},
    {"a negative size", "{\"a\":" TENSOR("U8", "[-6]", 0, 6) "}", 6, "shape is no list"},
    {"a size that is no integer", "{\"a\":" TENSOR("U8", "[6.0]", 0, 6) "}", 6, "shape is no list"},
    {"nine axes", "{\"a\":" TENSOR("U8", "[1,1,1,1,1,1,1,1,6]", 0, 6) "}", 6, "shape is no list"},
    {"an unknown type", "{\"a\":" TENSOR("F8_E4M3", "[6]", 0, 6) "}", 6, "dtype F8_E4M3"},
    {"a name twice", "{\"a\":" TENSOR("U8", "[6]", 0, 6) ",\"a\":" TENSOR("U8", "[6]", 0, 6) "}", 6, "duplicate"},
    {"no object", "[1]", 6, "no JSON object"},
    {"no JSON", "{\"a\":", 6, "header"},
    {"no fields", "{\"a\":1}", 6, "dtype missing"},
};

Test(safetensors, refuses) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        file f = make(bad[i].header, bad[i].n);
        fd_safetensors t;
        fd_error err = {0};
        cr_assert_eq(fd_safetensors_parse("x.st", f.bytes, f.size, &t, &err), FD_ERR_INPUT, "%s", bad[i].name);
        cr_assert(strstr(err.message, bad[i].message) && strstr(err.message, "x.st"), "%s: %s", bad[i].name,
                  err.message);
    }
}

Test(safetensors, every_truncation_and_a_lying_header_length_are_refused) {
    file f = make("{\"a\":" TENSOR("U8", "[6]", 0, 6) "}", 6);
    fd_safetensors t;
    fd_error err = {0};
    for (size_t keep = 0; keep < f.size; keep++)
        cr_assert_eq(fd_safetensors_parse("x", f.bytes, keep, &t, &err), FD_ERR_INPUT, "%zu bytes", keep);
    memset(f.bytes, 0xff, 8);
    cr_assert_eq(fd_safetensors_parse("x", f.bytes, f.size, &t, &err), FD_ERR_INPUT);
}
