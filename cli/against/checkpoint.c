#include "cli/against/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

typedef struct fd_checkpoint_file {
    const void *data;
    size_t size;
    fd_safetensors tensors;
} fd_checkpoint_file;

static const char *without_prefixes(const char *name) {
    static const char *const prefixes[] = {"model.",    "language_model.", "transformer.", "gpt_neox.",
                                           "backbone.", "encoder.",        "embedding."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return without_prefixes(name + strlen(prefixes[i]));
    return name;
}

static fd_code add_file(fd_checkpoint *c, const char *path, fd_error *err) {
    fd_checkpoint_file *files = realloc(c->files, (c->n_file + 1) * sizeof *files);
    if (!files) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    c->files = files;
    fd_checkpoint_file *file = &files[c->n_file++];
    *file = (fd_checkpoint_file){0};
    FD_TRY(fd_file_map(path, "a .safetensors file", &file->data, &file->size, err));
    FD_TRY(fd_safetensors_parse(path, file->data, file->size, &file->tensors, err));
    fd_checkpoint_tensor *tensors = realloc(c->tensors, (c->n + file->tensors.n + 1) * sizeof *tensors);
    if (!tensors) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    c->tensors = tensors;
    for (size_t i = 0; i < file->tensors.n; i++) {
        const fd_safetensors_item *item = &file->tensors.items[i];
        fd_array array = item->array; /* a convolution of channels by themselves: [n, 1, taps] */
        if (array.rank == 3 && array.shape[1] == 1)
            fd_array_reshape(&array, 2, (const int64_t[]){array.shape[0], array.shape[2]});
        c->tensors[c->n++] = (fd_checkpoint_tensor){item->name, without_prefixes(item->name), array};
    }
    return FD_OK;
}

static int by_short_name(const void *a, const void *b) {
    return strcmp(((const fd_checkpoint_tensor *)a)->short_name, ((const fd_checkpoint_tensor *)b)->short_name);
}

fd_code fd_checkpoint_open(const char *folder, fd_checkpoint *out, fd_error *err) {
    static const char suffix[] = ".safetensors";
    *out = (fd_checkpoint){0};
    DIR *dir = opendir(folder);
    if (!dir) return fd_fail(err, FD_ERR_INPUT, "%s: cannot read the folder: %s", folder, strerror(errno));
    fd_code code = FD_OK;
    for (struct dirent *entry; code == FD_OK && (entry = readdir(dir));) {
        size_t length = strlen(entry->d_name);
        char path[4096];
        if (length < sizeof suffix || strcmp(entry->d_name + length - (sizeof suffix - 1), suffix) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        code = add_file(out, path, err);
    }
    closedir(dir);
    if (code == FD_OK && out->n == 0)
        code = fd_fail(err, FD_ERR_INPUT, "%s: no tensors, expected the .safetensors files of a checkpoint", folder);
    if (code != FD_OK)
        fd_checkpoint_close(out);
    else
        qsort(out->tensors, out->n, sizeof *out->tensors, by_short_name);
    return code;
}

void fd_checkpoint_close(fd_checkpoint *c) {
    for (size_t i = 0; i < c->n_file; i++) {
        fd_safetensors_free(&c->files[i].tensors);
        fd_file_unmap(c->files[i].data, c->files[i].size);
    }
    free(c->files);
    free(c->tensors);
    *c = (fd_checkpoint){0};
}

const fd_checkpoint_tensor *fd_checkpoint_find(const fd_checkpoint *c, const char *short_name) {
    const fd_checkpoint_tensor wanted = {.short_name = short_name};
    return c->n ? bsearch(&wanted, c->tensors, c->n, sizeof *c->tensors, by_short_name) : NULL;
}
