#include "tests/ops/shared_files.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "tests/common.h"

const char *shared_file(const char *name) {
    static char path[4096];
    const char *root = getenv("FD_SHARED");
    snprintf(path, sizeof path, "%s/%s", root ? root : FD_SOURCE_DIR "/../shared", name);
    if (access(path, R_OK) != 0) path[0] = '\0';
    return path;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **shared_files(const char *folder, const char *suffix, size_t *n) {
    const char *root = getenv("FD_SHARED");
    char *path;
    char **files = NULL;
    *n = 0;
    if (asprintf(&path, "%s/%s", root ? root : FD_SOURCE_DIR "/../shared", folder) < 0) abort();
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!fd_ends_with(entry->d_name, suffix)) continue;
        files = realloc(files, (*n + 1) * sizeof *files);
        if (!files || asprintf(&files[*n], "%s/%s", path, entry->d_name) < 0) abort();
        (*n)++;
    }
    if (dir) closedir(dir);
    free(path);
    if (*n) qsort(files, *n, sizeof *files, by_name);
    for (size_t i = 0; i < *n; i++) kept(files[i]);
    return kept(files);
}

/* "\x93NUMPY" version(2) header length(u16 in version 1) header: a Python dict with descr, fortran_order, shape */
float *read_npy(const char *path, int64_t *n_row, int64_t *n_col) {
    unsigned char start[10];
    char header[65536];
    FILE *file = fopen(path, "rb");
    float *data = NULL;
    if (!file) return NULL;
    long long rows, cols;
    if (fread(start, 1, sizeof start, file) == sizeof start && memcmp(start, "\x93NUMPY\1", 7) == 0) {
        size_t size = (size_t)start[8] | (size_t)start[9] << 8;
        if (size < sizeof header && fread(header, 1, size, file) == size) {
            header[size] = '\0';
            const char *shape = strstr(header, "'shape': (");
            if (strstr(header, "'descr': '<f4'") && strstr(header, "'fortran_order': False") && shape &&
                sscanf(shape, "'shape': (%lld,%lld", &rows, &cols) == 2 && rows > 0 && cols > 0) {
                size_t n = (size_t)(rows * cols);
                data = malloc(n * sizeof *data);
                if (fread(data, sizeof *data, n, file) != n) {
                    free(data);
                    data = NULL;
                }
                *n_row = rows;
                *n_col = cols;
            }
        }
    }
    fclose(file);
    return data;
}

int32_t *read_ids(const char *path, int32_t *n) {
    FILE *file = fopen(path, "r");
    int32_t *ids = malloc(sizeof *ids * 4096), value;
    *n = 0;
    for (int c; *n < 4096 && (c = fgetc(file)) != EOF;)
        if (isdigit(c)) {
            ungetc(c, file);
            if (fscanf(file, "%d", &value) == 1) ids[(*n)++] = value;
        }
    fclose(file);
    return ids;
}

char *read_bytes(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    char *bytes = fseek(file, 0, SEEK_END) == 0 ? malloc((size_t)ftell(file) + 1) : NULL;
    *size = (size_t)ftell(file);
    rewind(file);
    if (bytes && fread(bytes, 1, *size, file) != *size) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    return bytes;
}

void put_value(char *gguf, size_t size, const char *key, const void *value) {
    char *at = memmem(gguf, size, key, strlen(key));
    if (!at) abort();
    memcpy(at + strlen(key) + sizeof(uint32_t), value, 4); /* name, type, value */
}
