/* The vocabularies and vectors of the shared folder, and loaders for those that are no GGUF. For tests only. */
#ifndef FD_TESTS_VOCAB_FILES_H
#define FD_TESTS_VOCAB_FILES_H

#include <stdio.h>

#include "model/tokenizer/tokenizer.h"

/* Criterion says nothing of skipped tests unless asked; a test that could not look says so. */
#define SKIP_TEST(...)                                                                                                 \
    do {                                                                                                               \
        fprintf(stderr, "skipped: " __VA_ARGS__);                                                                      \
        fputc('\n', stderr);                                                                                           \
        cr_skip_test(__VA_ARGS__);                                                                                     \
    } while (0)

enum { PATH_SIZE = 1024 };

/* The path of a file in the shared folder (FD_SHARED, else ../shared beside the sources); false when it is not
 * there. */
bool shared_path(const char *name, char path[PATH_SIZE]);

/* The whole file, malloc'ed, NUL-terminated; *size without the NUL. NULL when it cannot be read. */
char *read_file(const char *path, size_t *size);

typedef struct vector_case {
    fd_string text;
    int32_t *ids;
    int32_t n_id;
} vector_case;

typedef struct vectors {
    vector_case *cases;
    int n;
    char *in, *out; /* the files */
} vectors;

/* NAME.inp and NAME.out; n is 0 when they are missing or their numbers of cases differ. */
vectors read_vectors(const char *name);
vectors read_vectors_at(const char *in, const char *out); /* by their paths */
void free_vectors(vectors *all);

/* How many cases the tokenizer gets wrong (no special tokens added or parsed); *first is the first of them, -1:
 * none. */
int count_wrong(const fd_tokenizer *tokenizer, const vectors *all, int *first);

/* The tokenizer of a GGUF in the shared folder; NULL with the message printed when it fails. */
fd_tokenizer *load_gguf(const char *path);

/* A gpt2 tokenizer from a JSON object {token: id} and a list of merges, one a line. */
fd_tokenizer *load_json(const char *encoder, const char *merges, const char *pre);

/* A gpt2 tokenizer from a tiktoken file: lines of base64 bytes and a rank. The merge that makes a token joins the two
 * parts that its bytes come to when only better ranks are merged. */
fd_tokenizer *load_tiktoken(const char *path, const char *pre);

/* Ids back to bytes; the size. */
size_t decode_ids(const fd_tokenizer *tokenizer, const int32_t *ids, int32_t n, bool special, char *to,
                  size_t capacity);

/* GPT-2's printable stand-in for a byte, as UTF-8; its length (1 or 2). */
size_t byte_character(unsigned char byte, char to[2]);

#endif
