/* A small GGUF made byte by byte, apart from our writer, so that a test can make any field wrong.
 *
 * The file: five key-values (a string, the alignment, an i32 array, a bool, a string array) and two tensors, a.weight
 * Q8_0 [64, 3] (204 bytes at offset 0) and b.bias F32 [5] (20 bytes at offset 224). It ends with its last tensor. */
#ifndef FD_TESTS_MODEL_GGUF_BYTES_H
#define FD_TESTS_MODEL_GGUF_BYTES_H

#include <stddef.h>
#include <stdint.h>

typedef struct tensor_spec {
    uint64_t name_size; /* claimed; the name itself is always its own length */
    uint64_t n_dim, shape[4], dtype, offset;
} tensor_spec;

typedef struct gguf_spec { /* every field a u64, so that a table of cases can name one by its offset and set it */
    uint64_t magic, version, n_tensor, n_kv;
    uint64_t key_size;                         /* claimed size of the first key */
    uint64_t string_size;                      /* claimed size of the first value, a string */
    uint64_t alignment_type, alignment;        /* of general.alignment */
    uint64_t value_type, item_type, n_item;    /* of test.list */
    uint64_t flag;                             /* test.flag's byte */
    uint64_t n_word, word_size;                /* of test.words: claimed count, claimed size of the first */
    uint64_t same_keys, same_tensors, control; /* not 0: two equal keys, two equal tensor names, a newline in a name */
    tensor_spec tensor[2];
    uint64_t data_bytes; /* of the data section; 244 is right */
} gguf_spec;

gguf_spec gguf_good(void);

typedef struct gguf_bytes {
    uint8_t *data; /* ends where an unreadable page begins */
    size_t size;
    size_t header_size; /* up to the end of the tensor infos */
} gguf_bytes;

gguf_bytes gguf_build(const gguf_spec *spec);

/* A copy whose last byte is followed by an unreadable page: reading one byte too far ends the test. Never freed. */
uint8_t *guarded_copy(const void *data, size_t size);

#endif
