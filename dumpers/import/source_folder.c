/* Folders of files. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/limits.h"
#include "base/text.h"
#include "dumpers/import/raw.h"
#include "dumpers/import/source_internal.h"

enum { MAX_DEPTH = 16 };

static bool is_pickle(const char *name) {
    static const char *const suffixes[] = {".pt", ".pth", ".pkl", ".pickle"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (fd_ends_with(name, suffixes[i])) return true;
    return false;
}

/* An archive, as torch.save writes since PyTorch 1.6. */
static bool is_zip(const char *path) {
    char magic[4] = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    bool found = fread(magic, 1, 4, file) == 4 && memcmp(magic, "PK\3\4", 4) == 0;
    fclose(file);
    return found;
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
        if (fd_ends_with(names[i], "_debug_tree_FULL_TENSORS.json")) source->debugger = true;
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
        if (!is_zip(path)) {
            if (source->n_pickle++ == 0) source->pickle = strdup(path);
            return FD_OK;
        }
    }
    if (depth == 1 && strcmp(path + root, "tokens.txt") == 0) {
        source->tokens_file = strdup(path);
        return source->tokens_file ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    }
    const bool known = fd_ends_with(path, ".npy") || fd_ends_with(path, ".safetensors") || fd_ends_with(path, ".npz");
    if (!known && !is_pickle(path) && !(source->raw && fd_raw_is(path))) return FD_OK;
    const size_t keep = (size_t)(strrchr(path, '.') - path) - root;
    if (keep >= sizeof name) return fd_fail(err, FD_ERR_INPUT, "%s: a name of more than 1000 bytes", path);
    memcpy(name, path + root, keep);
    name[keep] = '\0';
    return fd_source_add_file(source, path, name, err);
}

/* An archive that is all there is, and says no step or rank by its name: as if it were given itself. */
static fd_code name_as_alone(fd_source *source, const char *root, fd_error *err) {
    const char *path = source->files[0].path, *stem = path + strlen(root) + 1;
    const size_t length = (size_t)(strrchr(stem, '.') - stem);
    for (size_t i = 0; i < source->n; i++)
        if (strncmp(source->tensors[i].name, stem, length) != 0 || source->tensors[i].name[length] != '/') return FD_OK;
    char *again = strdup(path);
    if (!again) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    for (size_t i = 0; i < source->n; i++) free(source->tensors[i].name);
    fd_source_file_free(&source->files[0]);
    source->n = source->n_file = source->n_open = 0;
    fd_code code = fd_source_add_file(source, again, "", err);
    free(again);
    return code;
}

fd_code fd_source_add_folder(fd_source *source, const char *path, fd_error *err) {
    FD_TRY(add_children(source, path, strlen(path) + 1, 0, err));
    if (source->n_pickle > 0)
        return fd_fail(
            err, FD_ERR_INPUT,
            "%s: %zu PyTorch files (%s) that are pickles alone, which run code when loaded: refused; convert each: "
            "x = torch.load(name, weights_only=True); x = x[\"value\"] if isinstance(x, dict) else x; "
            "numpy.save(os.path.splitext(name)[0], (x.float() if x.is_floating_point() else x).cpu().numpy())",
            path, source->n_pickle, source->pickle ? source->pickle : "?");
    if (source->n > 0 && source->n_file == 1 && !source->says_steps && source->n_rank == 0)
        return name_as_alone(source, path, err);
    if (source->n > 0) return FD_OK;
    if (source->debugger)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: the debugger's tree holds its tensors as text: record again with use_repr=False", path);
    if (!source->raw) {
        source->raw = true;
        free(source->tokens_file); /* it is found again */
        source->tokens_file = NULL;
        return fd_source_add_folder(source, path, err);
    }
    return fd_fail(
        err, FD_ERR_INPUT,
        "%s: no arrays in it, expected .npy, .npz, .safetensors or .pt files, or raw numbers named .f32, .f16, "
        ".bf16, .f64 (.bin: f32)",
        path);
}
