#include "shared.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
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
        size_t length = strlen(entry->d_name), tail = strlen(suffix);
        if (length < tail || strcmp(entry->d_name + length - tail, suffix) != 0) continue;
        files = realloc(files, (*n + 1) * sizeof *files);
        if (!files || asprintf(&files[*n], "%s/%s", path, entry->d_name) < 0) abort();
        (*n)++;
    }
    if (dir) closedir(dir);
    free(path);
    if (*n) qsort(files, *n, sizeof *files, compare);
    return files;
}

void shared_free(char **files, size_t n) {
    for (size_t i = 0; i < n; i++) free(files[i]);
    free(files);
}
