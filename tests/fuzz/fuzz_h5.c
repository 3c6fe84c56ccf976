/* Fuzzes what reads HDF5 files past the library: 8 bytes of an object header's address, then the file. Its groups,
 * attributes, lists and tables are asked for; every chunk that is found must lie in the file. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/index.h"
#include "dumpers/hdf5/plain.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct row {
    int32_t first;
    char text[8];
    int32_t last;
} row;
static const fd_h5_member members[] = {
    {"first", offsetof(row, first), 0}, {"text", offsetof(row, text), 8}, {"last", offsetof(row, last), 0}};
static const fd_h5_type table = {FD_H5_NO_NUMBER, sizeof(row), members, 3};

/* Rows of a dataset as each type, where there are not too many. */
static void read_rows(fd_h5_plain *plain, const char *object, const fd_h5_shape *shape) {
    static const fd_h5_type *const types[] = {&fd_h5_words, &fd_h5_i32, &fd_h5_u64, &fd_h5_f32, &fd_h5_f64, &table};
    enum { MOST = 1024 };
    fd_h5_block block = {object, NULL, *shape, {.rank = shape->rank}, *shape};
    uint64_t elements = 1;
    for (int k = 0; k < shape->rank; k++) {
        elements = shape->dim[k] > MOST ? MOST + 1 : elements > MOST ? elements : elements * shape->dim[k];
        if (shape->dim[k] > 2) block.start.dim[k] = 1, block.count.dim[k] -= 2;
    }
    for (size_t i = 0; elements <= MOST && i < sizeof types / sizeof *types; i++) {
        block.type = types[i];
        void *rows = malloc(MOST * types[i]->bytes); /* its end is watched */
        if (rows) (void)fd_h5_plain_rows(plain, &block, rows);
        free(rows);
    }
}

/* Everything that is asked of a file without the library. */
static void ask(const fd_h5_bytes *bytes, uint64_t address) {
    static const char *const objects[] = {"", "x", "tokens", "steps", "tensors/x"};
    uint64_t hashes[8];
    char text[64];
    fd_h5_plain plain;
    fd_h5_answer answer;
    size_t n;
    fd_h5_plain_open(&plain, bytes, address % 7 == 0 ? "tensors" : NULL);
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        for (fd_h5_kind kind = FD_H5_HAS; kind <= FD_H5_STORED; kind++)
            (void)fd_h5_plain_ask(&plain, &(fd_h5_question){kind, objects[i], "", 0}, NULL, &answer);
        (void)fd_h5_plain_ask(&plain, &(fd_h5_question){FD_H5_HASHES, objects[i], "", sizeof hashes}, hashes, &answer);
        fd_h5_question question = {FD_H5_TEXT, objects[i], "dtype", sizeof text};
        if (fd_h5_plain_ask(&plain, &question, text, &answer) && answer.found == FD_H5_FOUND)
            assert(memchr(text, '\0', sizeof text));
        (void)fd_h5_plain_ask(&plain, &(fd_h5_question){FD_H5_INTEGER, objects[i], "seq", 0}, NULL, &answer);
        question = (fd_h5_question){FD_H5_DATASET, objects[i], "", 0};
        if (fd_h5_plain_ask(&plain, &question, NULL, &answer) && answer.found == FD_H5_FOUND)
            read_rows(&plain, objects[i], &answer.dataset.shape);
    }
    free(fd_h5_plain_links(&plain, "", 1 << 12, &n));
    free(fd_h5_plain_links(&plain, "tensors", 1 << 12, &n));
    fd_h5_plain_close(&plain);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t address;
    if (size < sizeof address) return 0;
    memcpy(&address, data, sizeof address);
    fd_h5_bytes bytes = {-1, data + sizeof address, size - sizeof address};
    fd_h5_object object;
    static fd_h5_nearby nearby;
    nearby.headers.n = nearby.strings.n = 0;
    ask(&bytes, address);
    if (!fd_h5_object_read(&bytes, &nearby, address, &object)) return 0;
    int64_t n = fd_h5_chunk_count(&object.shape, &object.layout, 1 << 16);
    fd_h5_chunk *chunks = n >= 0 ? malloc((size_t)n * sizeof *chunks + 1) : NULL;
    if (chunks && fd_h5_find_chunks(&bytes, &object.shape, &object.layout, chunks))
        for (int64_t i = 0; i < n; i++) {
            uint8_t byte;
            if (chunks[i].address == FD_H5_NOWHERE) continue;
            assert(fd_h5_bytes_read(&bytes, chunks[i].address, 0, &byte));
            assert(chunks[i].bytes <= bytes.size - chunks[i].address);
#ifdef FD_FUZZ_PLANTED /* the mutant: a chunk is read to where the next element would lie; tests/fuzz/run checks that it is found */
            byte = bytes.data[bytes.size + (chunks[i].address != 0)];
            if (byte == 77) abort();
#endif
        }
    free(chunks);
    return 0;
}
