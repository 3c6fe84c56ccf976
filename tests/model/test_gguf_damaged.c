/* No damaged GGUF is believed: what is wrong is named, and what is accepted can be read to its end. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_bytes.h"
#include "model/gguf/gguf.h"

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

Test(gguf_damaged, every_damaged_field_is_refused_by_name) {
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
Test(gguf_damaged, a_tensor_that_ends_past_2_64_is_refused) {
    gguf_spec spec = gguf_good();
    spec.tensor[1].offset = UINT64_MAX - 4095;
    spec.tensor[1].shape[0] = 1ull << 60;
    gguf_bytes file = gguf_build(&spec);
    fd_gguf *gguf;
    fd_error err = {0};
    cr_expect_eq(fd_gguf_parse(file.data, file.size, &gguf, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "b.bias ends past 2^64"), "%s", err.message);
}

Test(gguf_damaged, cut_short_at_every_byte_is_an_error) {
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
Test(gguf_damaged, any_changed_byte_is_refused_or_walked) {
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
