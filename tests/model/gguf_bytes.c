#include "gguf_bytes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

gguf_spec gguf_good(void) {
    return (gguf_spec){
        .magic = 0x46554747, /* "GGUF" */
        .version = 3,
        .n_tensor = 2,
        .n_kv = 5,
        .key_size = 20,
        .string_size = 4,
        .alignment_type = 4, /* u32 */
        .alignment = 32,
        .value_type = 9, /* array */
        .item_type = 5,  /* i32 */
        .n_item = 3,
        .flag = 1,
        .n_word = 2,
        .word_size = 5,
        .tensor = {{.name_size = 8, .n_dim = 2, .shape = {64, 3}, .dtype = 8, .offset = 0},
                   {.name_size = 6, .n_dim = 1, .shape = {5}, .dtype = 0, .offset = 224}},
        .data_bytes = 244,
    };
}

typedef struct buffer {
    uint8_t data[4096];
    size_t size;
} buffer;

static void put(buffer *to, const void *data, size_t size) {
    if (to->size + size > sizeof to->data) abort();
    memcpy(to->data + to->size, data, size);
    to->size += size;
}

static void put_u32(buffer *to, uint64_t value) {
    put(to, &(uint32_t){(uint32_t)value}, 4);
}
static void put_u64(buffer *to, uint64_t value) {
    put(to, &value, 8);
}

static void put_sized(buffer *to, const char *text, uint64_t claimed) {
    put_u64(to, claimed);
    put(to, text, strlen(text));
}

static void put_string(buffer *to, const char *text) {
    put_sized(to, text, strlen(text));
}

gguf_bytes gguf_build(const gguf_spec *spec) {
    buffer b = {.size = 0};
    put_u32(&b, spec->magic);
    put_u32(&b, spec->version);
    put_u64(&b, spec->n_tensor);
    put_u64(&b, spec->n_kv);

    put_sized(&b, "general.architecture", spec->key_size);
    put_u32(&b, 8);
    put_sized(&b, "test", spec->string_size);
    put_string(&b, "general.alignment");
    put_u32(&b, spec->alignment_type);
    put_u32(&b, spec->alignment);
    put_string(&b, "test.list");
    put_u32(&b, spec->value_type);
    put_u32(&b, spec->item_type);
    put_u64(&b, spec->n_item);
    for (int32_t i = 0; i < 3; i++) put_u32(&b, (uint32_t)(i - 1));
    put_string(&b, spec->same_keys ? "test.list" : "test.flag");
    put_u32(&b, 7);
    put(&b, &(uint8_t){(uint8_t)spec->flag}, 1);
    put_string(&b, "test.words");
    put_u32(&b, 9);
    put_u32(&b, 8);
    put_u64(&b, spec->n_word);
    put_sized(&b, "first", spec->word_size);
    put_string(&b, "second");

    const char *names[2] = {spec->control ? "a.\nweigh" : "a.weight", spec->same_tensors ? "a.weight" : "b.bias"};
    for (int i = 0; i < 2; i++) {
        const tensor_spec *t = &spec->tensor[i];
        put_sized(&b, names[i], spec->same_tensors ? strlen(names[i]) : t->name_size);
        put_u32(&b, t->n_dim);
        for (uint64_t d = 0; d < t->n_dim && d < 4; d++) put_u64(&b, t->shape[d]);
        put_u32(&b, t->dtype);
        put_u64(&b, t->offset);
    }
    size_t header_size = b.size;
    while (b.size % 32) put(&b, "", 1);
    for (uint64_t i = 0; i < spec->data_bytes; i++) put(&b, &(uint8_t){(uint8_t)(1 + i % 7)}, 1);
    return (gguf_bytes){guarded_copy(b.data, b.size), b.size, header_size};
}

uint8_t *guarded_copy(const void *data, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
    uint8_t *pages = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + room, page, PROT_NONE) != 0) abort();
    uint8_t *copy = pages + room - size;
    if (size) memcpy(copy, data, size);
    return copy;
}
