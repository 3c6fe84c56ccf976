#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/golden_schema.h"

enum { MAX_NODES = 1 << 20, MAX_VOCAB = 1 << 26 };

void fd_golden_free(fd_golden *golden) {
    if (!golden) return;
    for (int32_t i = 0; golden->prompts && i < golden->n_prompt; i++) {
        free(golden->prompts[i].text);
        free(golden->prompts[i].tokens);
        free(golden->prompts[i].logits);
        free(golden->prompts[i].fingerprints);
    }
    free(golden->prompts);
    free(golden->nodes);
    free(golden);
}

/* A whole dataset of `rank`; dims[i] of 0 is any length of at least one, and receives it. */
static fd_code get_array(hid_t group, const char *where, const char *name, hid_t type, size_t element_bytes, int rank,
                         hsize_t *dims, void **out, fd_error *err) {
    fd_h5_shape shape = {0};
    char text[128];
    *out = NULL;
    hid_t set = fd_h5_has(group, name) ? H5Dopen2(group, name, H5P_DEFAULT) : -1;
    if (set < 0) return fd_fail(err, FD_ERR_INPUT, "%s: no dataset %s", where, name);
    bool same = fd_h5_shape_of(set, &shape) && shape.rank == rank;
    hsize_t bytes = element_bytes;
    for (int i = 0; same && i < rank; i++) {
        same = dims[i] == 0 ? shape.dim[i] > 0 && shape.dim[i] < INT32_MAX : shape.dim[i] == dims[i];
        dims[i] = shape.dim[i];
        bytes *= shape.dim[i];
    }
    fd_code code = FD_OK;
    if (!same)
        code = fd_fail(err, FD_ERR_INPUT, "%s: %s: shape %s does not fit the rest of the file", where, name,
                       fd_h5_shape_text(&shape, text));
    else if (H5Dget_storage_size(set) < bytes)
        code = fd_fail(err, FD_ERR_INPUT, "%s: %s: %llu bytes stored, expected %llu", where, name,
                       (unsigned long long)H5Dget_storage_size(set), (unsigned long long)bytes);
    else if (!(*out = malloc((size_t)bytes)))
        code = fd_fail(err, FD_ERR_MEMORY, "%s: %s: out of memory", where, name);
    else if (H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, *out) < 0)
        code = fd_h5_fail(err, FD_ERR_INPUT, "%s: %s: cannot be read", where, name);
    fd_h5_release(set);
    return code;
}

static fd_code get_prompt(fd_golden *golden, hid_t group, const char *where, fd_golden_prompt *prompt, fd_error *err) {
    int64_t n_prompt;
    size_t length;
    if (fd_h5_get_string(group, "text", NULL, 0, &length) == FD_H5_FOUND) {
        if (!(prompt->text = malloc(length + 1))) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", where);
        fd_h5_get_string(group, "text", prompt->text, length + 1, NULL);
    }
    hsize_t n_token = 0, logits[] = {0, (hsize_t)golden->n_vocab}, prints[] = {0, (hsize_t)golden->n_node, 2};
    void *data;
    FD_TRY(get_array(group, where, "tokens", H5T_NATIVE_INT32, 4, 1, &n_token, &data, err));
    prompt->tokens = data;
    prompt->n_token = (int32_t)n_token;
    fd_code code = get_array(group, where, "logits", H5T_NATIVE_FLOAT, 4, 2, logits, &data, err);
    prompt->logits = data;
    FD_TRY(code);
    prompt->n_pos = (int32_t)logits[0];
    prints[0] = logits[0];
    code = get_array(group, where, "fingerprints", H5T_NATIVE_UINT64, 8, 3, prints, &data, err);
    prompt->fingerprints = data;
    FD_TRY(code);
    if (fd_h5_get_int(group, "n_prompt", &n_prompt) != FD_H5_FOUND || n_prompt < 1 || n_prompt > prompt->n_token ||
        prompt->n_pos > prompt->n_token)
        return fd_fail(err, FD_ERR_INPUT, "%s: %lld prompt tokens, %d tokens, %d positions", where, (long long)n_prompt,
                       prompt->n_token, prompt->n_pos);
    prompt->n_prompt = (int32_t)n_prompt;
    return FD_OK;
}

static fd_code get_head(fd_golden *golden, hid_t file, const char *path, fd_error *err) {
    char schema[32];
    int64_t value;
    if (fd_h5_get_string(file, "schema", schema, sizeof schema, NULL) != FD_H5_FOUND ||
        strcmp(schema, FD_GOLDEN_SCHEMA) != 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: schema is \"%s\", expected \"" FD_GOLDEN_SCHEMA "\"", path, schema);
    if (fd_h5_get_int(file, "version", &value) != FD_H5_FOUND || value != FD_GOLDEN_VERSION)
        return fd_fail(err, FD_ERR_INPUT, "%s: version is %lld, expected %d", path, (long long)value,
                       FD_GOLDEN_VERSION);
    if (fd_h5_get_int(file, "complete", &value) != FD_H5_FOUND || value != 1)
        return fd_fail(err, FD_ERR_INPUT, "%s: the golden is not complete", path);
    for (size_t i = 0; i < sizeof fd_golden_texts / sizeof *fd_golden_texts; i++) {
        const fd_golden_field *field = &fd_golden_texts[i];
        if (fd_h5_get_string(file, field->name, (char *)golden + field->offset, field->size, NULL) != FD_H5_FOUND)
            return fd_fail(err, FD_ERR_INPUT, "%s: no text attribute %s", path, field->name);
    }
    for (size_t i = 0; i < sizeof fd_golden_numbers / sizeof *fd_golden_numbers; i++) {
        const fd_golden_field *field = &fd_golden_numbers[i];
        if (fd_h5_get_int(file, field->name, &value) != FD_H5_FOUND || value < 0 || value > INT32_MAX)
            return fd_fail(err, FD_ERR_INPUT, "%s: no number attribute %s", path, field->name);
        int32_t number = (int32_t)value;
        memcpy((char *)golden + field->offset, &number, sizeof number);
    }
    if (golden->n_vocab < 1 || golden->n_vocab > MAX_VOCAB)
        return fd_fail(err, FD_ERR_INPUT, "%s: n_vocab is %d", path, golden->n_vocab);
    return FD_OK;
}

static fd_code get_nodes(fd_golden *golden, hid_t file, const char *path, fd_error *err) {
    hsize_t n_node = 0;
    void *names;
    hid_t type = fd_golden_name_type();
    fd_code code = get_array(file, path, "nodes", type, FD_GOLDEN_NAME, 1, &n_node, &names, err);
    fd_h5_release(type);
    golden->nodes = names;
    FD_TRY(code);
    if (n_node > MAX_NODES) return fd_fail(err, FD_ERR_INPUT, "%s: %llu nodes", path, (unsigned long long)n_node);
    golden->n_node = (int32_t)n_node;
    for (int32_t i = 0; i < golden->n_node; i++) golden->nodes[i][FD_GOLDEN_NAME - 1] = '\0';
    return FD_OK;
}

static fd_code get_prompts(fd_golden *golden, hid_t file, const char *path, fd_error *err) {
    H5G_info_t info = {0};
    hid_t prompts = fd_h5_has(file, "prompts") ? H5Gopen2(file, "prompts", H5P_DEFAULT) : -1;
    bool ok =
        prompts >= 0 && H5Gget_info(prompts, &info) >= 0 && info.nlinks >= 1 && info.nlinks <= FD_GOLDEN_MAX_PROMPTS;
    if (ok) golden->prompts = calloc(info.nlinks, sizeof *golden->prompts);
    fd_code code = FD_OK;
    if (!ok)
        code = fd_fail(err, FD_ERR_INPUT, "%s: %llu prompts, expected 1 to %d", path, (unsigned long long)info.nlinks,
                       FD_GOLDEN_MAX_PROMPTS);
    else if (!golden->prompts)
        code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    for (hsize_t i = 0; code == FD_OK && i < info.nlinks; i++) {
        char name[16], where[512];
        snprintf(name, sizeof name, "%04d", (int)i);
        snprintf(where, sizeof where, "%s: prompts/%s", path, name);
        hid_t group = fd_h5_has(prompts, name) ? H5Gopen2(prompts, name, H5P_DEFAULT) : -1;
        golden->n_prompt = (int32_t)i + 1;
        code = group >= 0 ? get_prompt(golden, group, where, &golden->prompts[i], err)
                          : fd_fail(err, FD_ERR_INPUT, "%s: no such group", where);
        fd_h5_release(group);
    }
    fd_h5_release(prompts);
    return code;
}

fd_code fd_golden_read(const char *path, fd_golden **out, fd_error *err) {
    *out = NULL;
    fd_golden *golden = calloc(1, sizeof *golden);
    if (!golden) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = fd_h5_check_file(path, "a golden", err);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, true, true);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    hid_t file = code == FD_OK ? H5Fopen(path, H5F_ACC_RDONLY, access) : -1;
    if (code == FD_OK && file < 0) code = fd_h5_fail(err, FD_ERR_INPUT, "%s: damaged or truncated HDF5", path);
    fd_h5_release(access);
    if (code == FD_OK) code = get_head(golden, file, path, err);
    if (code == FD_OK) code = get_nodes(golden, file, path, err);
    if (code == FD_OK) code = get_prompts(golden, file, path, err);
    if (file >= 0) H5Fclose(file);
    fd_h5_end(guard);
    if (code == FD_OK)
        *out = golden;
    else
        fd_golden_free(golden);
    return code;
}
