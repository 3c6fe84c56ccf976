/* make_bad_gguf DIR: GGUF files that are each wrong in one way, and one (sound.gguf) that is not, byte by byte: the
 * library's own writer refuses to make them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bad {
    const char *name;
    const char *magic;
    uint64_t n_tensor, key_length; /* 0: the true ones */
    uint64_t columns;              /* of the first tensor; 0: 8 */
    uint64_t offset[2];            /* of the tensors' data */
    uint32_t dtype;
    size_t keep; /* bytes of the file; 0: all */
} bad;

static const bad table[] = {
    {"sound.gguf", "GGUF", 0, 0, 0, {0, 32}, 0, 0},
    {"wrong_magic.gguf", "GGML", 0, 0, 0, {0, 32}, 0, 0},
    {"truncated_header.gguf", "GGUF", 0, 0, 0, {0, 32}, 0, 60},
    {"truncated_data.gguf", "GGUF", 0, 0, 0, {0, 32}, 0, 230},
    {"empty.gguf", "GGUF", 0, 0, 0, {0, 32}, 0, 1},
    {"oversized_count.gguf", "GGUF", (uint64_t)1 << 60, 0, 0, {0, 32}, 0, 0},
    {"oversized_string.gguf", "GGUF", 0, (uint64_t)1 << 62, 0, {0, 32}, 0, 0},
    {"oversized_tensor.gguf", "GGUF", 0, 0, (uint64_t)1 << 62, {0, 32}, 0, 0},
    {"past_the_end.gguf", "GGUF", 0, 0, 0, {0, 1 << 20}, 0, 0},
    {"misaligned.gguf", "GGUF", 0, 0, 0, {0, 36}, 0, 0},
    {"overlapping.gguf", "GGUF", 0, 0, 0, {0, 0}, 0, 0},
    {"unknown_type.gguf", "GGUF", 0, 0, 0, {0, 32}, 9999, 0},
};

typedef struct bytes {
    uint8_t data[1024];
    size_t size;
} bytes;

static void put(bytes *b, const void *data, size_t size) {
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put32(bytes *b, uint32_t x) {
    put(b, &x, sizeof x);
}
static void put64(bytes *b, uint64_t x) {
    put(b, &x, sizeof x);
}

static void put_string(bytes *b, const char *text, uint64_t length) {
    put64(b, length ? length : strlen(text));
    put(b, text, strlen(text));
}

static void build(const bad *how, bytes *b) {
    b->size = 0;
    put(b, how->magic, 4);
    put32(b, 3);
    put64(b, how->n_tensor ? how->n_tensor : 2);
    put64(b, 1);
    put_string(b, "general.architecture", how->key_length);
    put32(b, 8); /* a string */
    put_string(b, "none-of-ours", 0);
    for (int i = 0; i < 2; i++) {
        put_string(b, i ? "second.weight" : "first.weight", 0);
        put32(b, 1);
        put64(b, how->columns && i == 0 ? how->columns : 8);
        put32(b, how->dtype);
        put64(b, how->offset[i]);
    }
    while (b->size % 32) b->data[b->size++] = 0;
    float values[16];
    for (int i = 0; i < 16; i++) values[i] = (float)i + 0.5f;
    put(b, values, sizeof values);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        bytes b;
        char path[4096];
        build(&table[i], &b);
        snprintf(path, sizeof path, "%s/%s", argv[1], table[i].name);
        FILE *file = fopen(path, "wb");
        size_t size = table[i].keep ? table[i].keep : b.size;
        if (!file || size > b.size || fwrite(b.data, 1, size, file) != size || fclose(file) != 0) {
            perror(path);
            return 1;
        }
    }
    return 0;
}
