/* Files of arrays. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "dumpers/import/npy.h"
#include "dumpers/import/raw.h"
#include "dumpers/import/ranks/internal.h"
#include "dumpers/import/safetensors.h"
#include "dumpers/import/source_internal.h"
#include "dumpers/import/zip.h"

/* ---- one file in memory ---- */

static fd_code map_file(const char *path, fd_source_view *view, fd_error *err) {
    *view = (fd_source_view){0};
    return fd_file_map(path, ".npy, .npz, .safetensors or a trace", &view->mapped, &view->mapped_bytes, err);
}

void fd_source_view_close(fd_source_view *view) {
    fd_file_unmap(view->mapped, view->mapped_bytes);
    free(view->owned);
    *view = (fd_source_view){0};
}

static void close_archive(fd_source_file *file) {
    fd_zip_close(file->zip);
    file->zip = NULL;
    fd_pickle_free(&file->torch);
    fd_safetensors_free(&file->tensors);
    fd_source_view_close(&file->view);
}

void fd_source_file_free(fd_source_file *file) {
    close_archive(file);
    free(file->path);
}

/* Maps the file and parses its directory. */
static fd_code open_archive(fd_source_file *file, fd_error *err) {
    FD_TRY(map_file(file->path, &file->view, err));
    const void *data = file->view.mapped;
    size_t size = file->view.mapped_bytes;
    fd_code code = FD_OK;
    if (file->kind == FD_SOURCE_NPZ || file->kind == FD_SOURCE_TORCH)
        code = fd_zip_open(file->path, data, size, &file->zip, err);
    if (code == FD_OK && file->zip && fd_torch_is(file->zip)) {
        file->kind = FD_SOURCE_TORCH;
        code = fd_torch_list(file->path, file->zip, &file->torch, err);
    }
    if (file->kind == FD_SOURCE_SAFETENSORS) code = fd_safetensors_parse(file->path, data, size, &file->tensors, err);
    if (code != FD_OK) close_archive(file);
    return code;
}

/* The array of entry `item` of an open file. */
static fd_code open_item(const fd_source_file *file, size_t item, fd_source_view *view, fd_error *err) {
    if (file->kind == FD_SOURCE_NPY)
        return fd_npy_parse(file->path, file->view.mapped, file->view.mapped_bytes, &view->array, err);
    if (file->kind == FD_SOURCE_RAW)
        return fd_raw_parse(file->path, file->view.mapped, file->view.mapped_bytes, &view->array, err);
    const bool torch = file->kind == FD_SOURCE_TORCH;
    bool there = item < (torch ? file->torch.n : file->zip ? fd_zip_count(file->zip) : file->tensors.n);
    if (!there) return fd_fail(err, FD_ERR_INPUT, "%s: changed while it was read", file->path);
    if (file->kind == FD_SOURCE_SAFETENSORS) {
        view->array = file->tensors.items[item].array;
        return FD_OK;
    }
    if (torch) return fd_torch_array(file->path, file->zip, &file->torch.items[item], &view->array, &view->owned, err);
    const void *data;
    char name[1400];
    FD_TRY(fd_zip_extract(file->zip, item, &data, &view->owned, err));
    snprintf(name, sizeof name, "%s: %s", file->path, fd_zip_name(file->zip, item));
    return fd_npy_parse(name, data, fd_zip_bytes(file->zip, item), &view->array, err);
}

/* Of a stack of all layers, one. */
static fd_code take_part(const char *path, const fd_source_tensor *tensor, fd_array *array, fd_error *err) {
    if (tensor->part_axis >= array->rank || array->shape[tensor->part_axis] != tensor->n_part)
        return fd_fail(err, FD_ERR_INPUT, "%s: changed while it was read", path);
    *array = fd_array_at(array, tensor->part_axis, tensor->part);
    return FD_OK;
}

fd_code fd_source_view_open(const fd_source *source, size_t i, fd_source_view *out, fd_error *err) {
    if (source->ranks) return fd_joined_view(source->ranks, &source->ranks->joined[i], out, err);
    const fd_source_tensor *tensor = &source->tensors[i];
    const fd_source_file *file = &source->files[tensor->file];
    fd_source_file closed = {.path = file->path, .kind = file->kind};
    *out = (fd_source_view){0};
    if (!file->view.mapped) FD_TRY(open_archive(&closed, err));
    fd_code code = open_item(file->view.mapped ? file : &closed, tensor->item, out, err);
    if (code == FD_OK && tensor->n_part > 0) code = take_part(file->path, tensor, &out->array, err);
    if (code == FD_OK && (out->array.rank != tensor->rank ||
                          memcmp(out->array.shape, tensor->shape, sizeof(int64_t) * (size_t)tensor->rank) != 0))
        code = fd_fail(err, FD_ERR_INPUT, "%s: changed while it was read", file->path);
    out->mapped = closed.view.mapped; /* the array lies in it */
    out->mapped_bytes = closed.view.mapped_bytes;
    closed.view = (fd_source_view){0};
    close_archive(&closed);
    if (code != FD_OK) fd_source_view_close(out);
    return code;
}

/* ---- listing ---- */

static fd_code add_array(fd_source *source, const char *name, const fd_array *array, size_t item, fd_error *err) {
    fd_source_tensor tensor = {.type = array->type, .rank = array->rank, .file = source->n_file - 1, .item = item};
    memcpy(tensor.shape, array->shape, sizeof tensor.shape);
    return fd_source_add(source, name, &tensor, err);
}

/* Names inside an archive in a folder follow the archive's: step_3.npz holds step_3/NAME. */
static fd_code list_zip(fd_source *source, const fd_source_file *file, const char *prefix, fd_error *err) {
    const fd_zip *zip = file->zip;
    fd_code code = FD_OK;
    for (size_t i = 0; code == FD_OK && i < fd_zip_count(zip); i++) {
        char name[2300];
        fd_source_view entry = {0};
        snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "/" : "", fd_zip_name(zip, i));
        if (!fd_ends_with(name, ".npy"))
            return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\", expected .npy files alone", file->path, name);
        code = open_item(file, i, &entry, err);
        name[strlen(name) - 4] = '\0';
        if (code == FD_OK) code = add_array(source, name, &entry.array, i, err);
        free(entry.owned);
    }
    return code;
}

/* Tensors of torch.save: under the file's name a lone tensor, "/key" of a dictionary, ".0" of a tuple. */
static fd_code list_torch(fd_source *source, const fd_source_file *file, const char *name, fd_error *err) {
    fd_code code = FD_OK;
    char full[2200];
    for (size_t i = 0; code == FD_OK && i < file->torch.n; i++) {
        fd_array array;
        void *owned = NULL;
        const char *own = file->torch.items[i].name;
        const char *slash = strrchr(file->path, '/'), *base = slash ? slash + 1 : file->path;
        if (*name == '\0' && *own == '\0') /* nothing but a tensor: the file's name */
            snprintf(full, sizeof full, "%.*s", (int)strcspn(base, "."), base);
        else
            snprintf(full, sizeof full, "%s%s", name, own + (*name == '\0'));
        code = fd_torch_array(file->path, file->zip, &file->torch.items[i], &array, &owned, err);
        if (code == FD_OK) code = add_array(source, full, &array, i, err);
        free(owned);
    }
    return code;
}

/* A file with the single tensor "data" is named by its file, as the debugger does; one in a folder by both. */
static fd_code list_safetensors(fd_source *source, const fd_source_file *file, const char *name, fd_error *err) {
    const fd_safetensors *tensors = &file->tensors;
    char full[1100];
    bool single = tensors->n == 1 && strcmp(tensors->items[0].name, "data") == 0 && *name;
    fd_code code = FD_OK;
    for (size_t i = 0; code == FD_OK && i < tensors->n; i++) {
        const char *item = tensors->items[i].name;
        int n = single  ? snprintf(full, sizeof full, "%s", name)
                : *name ? snprintf(full, sizeof full, "%s/%s", name, item)
                        : snprintf(full, sizeof full, "%s", item);
        char path[1100];
        if (single && source->debugger && fd_source_debugger_name(full, path, sizeof path)) strcpy(full, path);
        code = (size_t)n < sizeof full
                   ? add_array(source, full, &tensors->items[i].array, i, err)
                   : fd_fail(err, FD_ERR_INPUT, "%s: a tensor's name is longer than 1000 bytes", file->path);
    }
    return code;
}

static fd_source_kind kind_of(const char *path, const fd_source_view *view) {
    const char *bytes = view->mapped;
    if (view->mapped_bytes >= 4 && (memcmp(bytes, "PK\3\4", 4) == 0 || memcmp(bytes, "PK\5\6", 4) == 0))
        return FD_SOURCE_NPZ;
    if (fd_ends_with(path, ".npz")) return FD_SOURCE_NPZ;
    const bool says_npy = view->mapped_bytes >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0;
    if (fd_raw_is(path) && !says_npy) return FD_SOURCE_RAW;
    return fd_ends_with(path, ".safetensors") ? FD_SOURCE_SAFETENSORS : FD_SOURCE_NPY;
}

fd_code fd_source_add_file(fd_source *source, const char *path, const char *name, fd_error *err) {
    fd_source_file *files = realloc(source->files, (source->n_file + 1) * sizeof *files);
    if (!files) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    source->files = files;
    fd_source_view view;
    FD_TRY(map_file(path, &view, err));
    fd_source_file *file = &files[source->n_file];
    *file = (fd_source_file){strdup(path), kind_of(path, &view)};
    fd_source_view_close(&view);
    if (!file->path) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    source->n_file++;
    FD_TRY(open_archive(file, err));
    fd_code code = FD_OK;
    if (file->kind == FD_SOURCE_NPZ) code = list_zip(source, file, name, err);
    if (file->kind == FD_SOURCE_TORCH) code = list_torch(source, file, name, err);
    if (file->kind == FD_SOURCE_SAFETENSORS) code = list_safetensors(source, file, name, err);
    const bool lone = file->kind == FD_SOURCE_NPY || file->kind == FD_SOURCE_RAW;
    if (lone) {
        fd_source_view array = {0};
        code = open_item(file, 0, &array, err);
        if (code == FD_OK) code = add_array(source, name, &array.array, 0, err);
    }
    if (lone || source->n_open == FD_SOURCE_OPEN_ARCHIVES)
        close_archive(file);
    else
        source->n_open++;
    return code;
}
