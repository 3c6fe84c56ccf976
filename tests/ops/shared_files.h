/* Data outside the repository ($FD_SHARED, else ../shared) and the .npy files there. */
#ifndef FD_TESTS_OPS_SHARED_FILES_H
#define FD_TESTS_OPS_SHARED_FILES_H

#include <stddef.h>
#include <stdint.h>

/* The path of a file there; "" when it does not exist. Static memory, overwritten by the next call. */
const char *shared_file(const char *name);

/* Paths of the files FOLDER/…SUFFIX there, sorted; *n of them, 0 when the folder is not there. Kept until the test
 * ends. */
char **shared_files(const char *folder, const char *suffix, size_t *n);

/* Reads a C-ordered little-endian f32 .npy of two dimensions, malloc'ed; NULL when the file is anything else. */
float *read_npy(const char *path, int64_t *n_row, int64_t *n_col);

/* Integers separated by anything else, malloc'ed. */
int32_t *read_ids(const char *path, int32_t *n);

/* A whole file, malloc'ed. NULL when it cannot be read. */
char *read_bytes(const char *path, size_t *size);

/* Writes the four bytes of a scalar key's value (u32, i32, f32) into a GGUF's bytes. Aborts when there is no such
 * key. */
void put_value(char *gguf, size_t size, const char *key, const void *value);

#endif
