/* Files and folders of arrays. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "dumpers/import/npy.h"
#include "dumpers/import/ranks/internal.h"
#include "dumpers/import/safetensors.h"
#include "dumpers/import/source_internal.h"
#include "dumpers/import/zip.h"

enum { MAX_DEPTH = 16 };

static bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

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
    if (file->kind == FD_SOURCE_NPZ) code = fd_zip_open(file->path, data, size, &file->zip, err);
    if (file->kind == FD_SOURCE_SAFETENSORS) code = fd_safetensors_parse(file->path, data, size, &file->tensors, err);
    if (code != FD_OK) close_archive(file);
    return code;
}

/* The array of entry `item` of an open file. */
static fd_code open_item(const fd_source_file *file, size_t item, fd_source_view *view, fd_error *err) {
    if (file->kind == FD_SOURCE_NPY)
        return fd_npy_parse(file->path, file->view.mapped, file->view.mapped_bytes, &view->array, err);
    bool there = item < (file->zip ? fd_zip_count(file->zip) : file->tensors.n);
    if (!there) return fd_fail(err, FD_ERR_INPUT, "%s: changed while it was read", file->path);
    if (file->kind == FD_SOURCE_SAFETENSORS) {
        view->array = file->tensors.items[item].array;
        return FD_OK;
    }
    const void *data;
    char name[1400];
    FD_TRY(fd_zip_extract(file->zip, item, &data, &view->owned, err));
    snprintf(name, sizeof name, "%s: %s", file->path, fd_zip_name(file->zip, item));
    return fd_npy_parse(name, data, fd_zip_bytes(file->zip, item), &view->array, err);
}

fd_code fd_source_view_open(const fd_source *source, size_t i, fd_source_view *out, fd_error *err) {
    if (source->ranks) return fd_joined_view(source->ranks, &source->ranks->joined[i], out, err);
    const fd_source_tensor *tensor = &source->tensors[i];
    const fd_source_file *file = &source->files[tensor->file];
    fd_source_file closed = {.path = file->path, .kind = file->kind};
    *out = (fd_source_view){0};
    if (!file->view.mapped) FD_TRY(open_archive(&closed, err));
    fd_code code = open_item(file->view.mapped ? file : &closed, tensor->item, out, err);
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

static bool is_torch(const fd_zip *zip) {
    for (size_t i = 0; i < fd_zip_count(zip); i++)
        if (ends_with(fd_zip_name(zip, i), "/data.pkl") || ends_with(fd_zip_name(zip, i), ".pkl")) return true;
    return false;
}

/* Names inside an archive in a folder follow the archive's: step_3.npz holds step_3/NAME. */
static fd_code list_zip(fd_source *source, const fd_source_file *file, const char *prefix, fd_error *err) {
    const fd_zip *zip = file->zip;
    if (is_torch(zip))
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: a PyTorch file: its pickle runs code when loaded: refused; save the tensors with "
                       "numpy.save(…) or safetensors.torch.save_file(…)",
                       file->path);
    fd_code code = FD_OK;
    for (size_t i = 0; code == FD_OK && i < fd_zip_count(zip); i++) {
        char name[2300];
        fd_source_view entry = {0};
        snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "/" : "", fd_zip_name(zip, i));
        if (!ends_with(name, ".npy"))
            return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\", expected .npy files alone", file->path, name);
        code = open_item(file, i, &entry, err);
        name[strlen(name) - 4] = '\0';
        if (code == FD_OK) code = add_array(source, name, &entry.array, i, err);
        free(entry.owned);
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
    if (ends_with(path, ".npz")) return FD_SOURCE_NPZ;
    return ends_with(path, ".safetensors") ? FD_SOURCE_SAFETENSORS : FD_SOURCE_NPY;
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
    if (file->kind == FD_SOURCE_SAFETENSORS) code = list_safetensors(source, file, name, err);
    if (file->kind == FD_SOURCE_NPY) {
        fd_source_view array = {0};
        code = open_item(file, 0, &array, err);
        if (code == FD_OK) code = add_array(source, name, &array.array, 0, err);
    }
    if (file->kind == FD_SOURCE_NPY || source->n_open == FD_SOURCE_OPEN_ARCHIVES)
        close_archive(file);
    else
        source->n_open++;
    return code;
}

static bool is_pickle(const char *name) {
    static const char *const suffixes[] = {".pt", ".pth", ".pkl", ".pickle"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (ends_with(name, suffixes[i])) return true;
    return false;
}

/* Its tensor lies next to it as .npy, which is read instead. */
static bool converted(const char *path) {
    char *npy;
    struct stat there;
    int n = (int)(strrchr(path, '.') - path);
    if (asprintf(&npy, "%.*s.npy", n, path) < 0) return false;
    bool found = stat(npy, &there) == 0 && S_ISREG(there.st_mode);
    free(npy);
    return found;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a folder, sorted, so that errors and order do not depend on the file system. */
static fd_code list_folder(const char *path, char ***names, size_t *n, fd_error *err) {
    DIR *dir = opendir(path);
    *names = NULL;
    *n = 0;
    if (!dir) return fd_fail(err, FD_ERR_INPUT, "%s: %s", path, strerror(errno));
    fd_code code = FD_OK;
    for (struct dirent *entry; code == FD_OK && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        char **more = realloc(*names, (*n + 1) * sizeof *more), *name = more ? strdup(entry->d_name) : NULL;
        if (more) *names = more;
        if (!name)
            code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
        else if (*n == (size_t)fd_limit_of(FD_LIMIT_TENSORS))
            code = fd_limit_exceeded(err, FD_LIMIT_TENSORS, "%s: more files", path);
        if (code == FD_OK)
            (*names)[(*n)++] = name;
        else
            free(name);
    }
    closedir(dir);
    if (*n) qsort(*names, *n, sizeof **names, by_name);
    return code;
}

static fd_code add_entry(fd_source *source, const char *path, size_t root, int depth, fd_error *err);

static fd_code add_children(fd_source *source, const char *path, size_t root, int depth, fd_error *err) {
    char **names;
    size_t n;
    fd_code code = list_folder(path, &names, &n, err);
    for (size_t i = 0; depth == 0 && i < n; i++)
        if (ends_with(names[i], "_debug_tree_FULL_TENSORS.json")) source->debugger = true;
    for (size_t i = 0; code == FD_OK && i < n; i++) {
        char *child;
        if (asprintf(&child, "%s/%s", path, names[i]) < 0) {
            code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
            break;
        }
        code = add_entry(source, child, root, depth + 1, err);
        free(child);
    }
    for (size_t i = 0; i < n; i++) free(names[i]);
    free(names);
    return code;
}

static fd_code add_entry(fd_source *source, const char *path, size_t root, int depth, fd_error *err) {
    struct stat link, there;
    char name[1100];
    if (lstat(path, &link) != 0 || stat(path, &there) != 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s", path, strerror(errno));
    if (S_ISDIR(there.st_mode) && S_ISLNK(link.st_mode))
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: a symbolic link to a folder, which is not followed; name the folder itself", path);
    if (S_ISDIR(there.st_mode) && depth >= MAX_DEPTH)
        return fd_fail(err, FD_ERR_INPUT, "%s: folders deeper than %d", path, MAX_DEPTH);
    if (S_ISDIR(there.st_mode)) return add_children(source, path, root, depth, err);
    if (is_pickle(path)) {
        if (converted(path)) return FD_OK;
        if (source->n_pickle++ == 0) source->pickle = strdup(path);
        return FD_OK;
    }
    if (depth == 1 && strcmp(path + root, "tokens.txt") == 0) {
        source->tokens_file = strdup(path);
        return source->tokens_file ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    }
    bool npy = ends_with(path, ".npy"), safetensors = ends_with(path, ".safetensors"), npz = ends_with(path, ".npz");
    if (!npy && !safetensors && !npz) return FD_OK;
    size_t keep = strlen(path) - root - (npy || npz ? 4 : 12);
    if (keep >= sizeof name) return fd_fail(err, FD_ERR_INPUT, "%s: a name of more than 1000 bytes", path);
    memcpy(name, path + root, keep);
    name[keep] = '\0';
    return fd_source_add_file(source, path, name, err);
}

fd_code fd_source_add_folder(fd_source *source, const char *path, fd_error *err) {
    FD_TRY(add_children(source, path, strlen(path) + 1, 0, err));
    if (source->n_pickle > 0)
        return fd_fail(
            err, FD_ERR_INPUT,
            "%s: %zu PyTorch files (%s): pickles run code when loaded: refused; convert each: "
            "x = torch.load(name, weights_only=True); x = x[\"value\"] if isinstance(x, dict) else x; "
            "numpy.save(os.path.splitext(name)[0], (x.float() if x.is_floating_point() else x).cpu().numpy())",
            path, source->n_pickle, source->pickle ? source->pickle : "?");
    if (source->n > 0) return FD_OK;
    if (source->debugger)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: the debugger's tree holds its tensors as text: record again with use_repr=False", path);
    return fd_fail(err, FD_ERR_INPUT, "%s: no .npy, .npz or .safetensors file in it", path);
}
