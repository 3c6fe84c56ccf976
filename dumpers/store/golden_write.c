#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dumpers/store/golden_schema.h"
#include "dumpers/hdf5/driver.h"

#define FIELD(member)                                                                                                  \
    { #member, offsetof(fd_golden, member), sizeof(((fd_golden *)0)->member) }
const fd_golden_field fd_golden_texts[7] = {FIELD(producer), FIELD(model_name), FIELD(model_hash), FIELD(arch),
                                            FIELD(backend),  FIELD(device),     FIELD(numerics)};
const fd_golden_field fd_golden_numbers[3] = {FIELD(contract), FIELD(n_vocab), FIELD(n_generate)};
#undef FIELD

hid_t fd_golden_name_type(void) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, FD_GOLDEN_NAME);
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    return type;
}

static bool put_array(hid_t group, const char *name, hid_t file_type, hid_t memory_type, int rank, const hsize_t *dims,
                      const void *data) {
    hid_t space = H5Screate_simple(rank, dims, NULL);
    hid_t set = H5Dcreate2(group, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = set >= 0 && H5Dwrite(set, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0;
    fd_h5_release(set);
    fd_h5_release(space);
    return ok;
}

static bool put_prompt(const fd_golden *golden, hid_t prompts, int32_t i) {
    const fd_golden_prompt *prompt = &golden->prompts[i];
    char name[16];
    snprintf(name, sizeof name, "%04d", i);
    hid_t group = H5Gcreate2(prompts, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    hsize_t n_token = (hsize_t)prompt->n_token, n_pos = (hsize_t)prompt->n_pos;
    hsize_t logits[] = {n_pos, (hsize_t)golden->n_vocab}, prints[] = {n_pos, (hsize_t)golden->n_node, 2};
    bool ok = group >= 0 && (!prompt->text || fd_h5_put_string(group, "text", prompt->text)) &&
              fd_h5_put_int(group, "n_prompt", prompt->n_prompt) &&
              put_array(group, "tokens", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, &n_token, prompt->tokens) &&
              put_array(group, "logits", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 2, logits, prompt->logits) &&
              put_array(group, "fingerprints", H5T_STD_U64LE, H5T_NATIVE_UINT64, 3, prints, prompt->fingerprints);
    fd_h5_release(group);
    return ok;
}

static bool put_all(const fd_golden *golden, hid_t file) {
    bool ok = fd_h5_put_string(file, "schema", FD_GOLDEN_SCHEMA) && fd_h5_put_int(file, "version", FD_GOLDEN_VERSION) &&
              fd_h5_put_int(file, "complete", 0);
    for (size_t i = 0; ok && i < sizeof fd_golden_texts / sizeof *fd_golden_texts; i++)
        ok = fd_h5_put_string(file, fd_golden_texts[i].name, (const char *)golden + fd_golden_texts[i].offset);
    for (size_t i = 0; ok && i < sizeof fd_golden_numbers / sizeof *fd_golden_numbers; i++)
        ok = fd_h5_put_int(file, fd_golden_numbers[i].name,
                           *(const int32_t *)(const void *)((const char *)golden + fd_golden_numbers[i].offset));
    hsize_t n_node = (hsize_t)golden->n_node;
    hid_t name = fd_golden_name_type();
    ok = ok && put_array(file, "nodes", name, name, 1, &n_node, golden->nodes);
    fd_h5_release(name);
    hid_t prompts = ok ? H5Gcreate2(file, "prompts", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT) : -1;
    for (int32_t i = 0; i < golden->n_prompt && prompts >= 0 && ok; i++) ok = put_prompt(golden, prompts, i);
    ok = ok && prompts >= 0;
    fd_h5_release(prompts);
    return ok && H5Fflush(file, H5F_SCOPE_LOCAL) >= 0 && fd_h5_put_int(file, "complete", 1);
}

static fd_code check(const fd_golden *golden, const char *path, fd_error *err) {
    if (golden->n_prompt < 1 || golden->n_prompt > FD_GOLDEN_MAX_PROMPTS || golden->n_node < 1 || golden->n_vocab < 1)
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: a golden of %d prompts, %d nodes, %d tokens in the vocabulary; expected 1 to %d "
                       "prompts and at least one of the others",
                       path, golden->n_prompt, golden->n_node, golden->n_vocab, FD_GOLDEN_MAX_PROMPTS);
    for (int32_t i = 0; i < golden->n_prompt; i++) {
        const fd_golden_prompt *p = &golden->prompts[i];
        if (p->n_prompt < 1 || p->n_prompt > p->n_token || p->n_pos < 1 || p->n_pos > p->n_token)
            return fd_fail(err, FD_ERR_INPUT, "%s: prompt %d: %d prompt tokens, %d tokens, %d positions", path, i,
                           p->n_prompt, p->n_token, p->n_pos);
    }
    return FD_OK;
}

/* Writes the file `part`; HDF5's words about a failure are in err. */
static fd_code write_part(const fd_golden *golden, const char *part, const char *path, fd_error *err) {
    fd_h5_target target = {-1, 0, 0};
    hid_t access = fd_h5_target_access(&target);
    hid_t file = H5Fcreate(part, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    fd_h5_release(access);
    bool ok = file >= 0 && put_all(golden, file) && target.error == 0;
    fd_code code = ok ? FD_OK : fd_h5_target_fail(&target, err, "%s: cannot write the golden", path);
    bool closed = file < 0 || (H5Fclose(file) >= 0 && target.error == 0);
    return code != FD_OK || closed ? code : fd_h5_target_fail(&target, err, "%s: cannot write the golden", path);
}

/* The name that it is written under until it is whole; freed by the caller. Refuses a path where no file can stand. */
static fd_code part_of(const char *path, char **out, fd_error *err) {
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return fd_fail(err, FD_ERR_IO, "%s: is not a regular file, expected a file or a free name", path);
    if (asprintf(out, "%s.%ld.part", path, (long)getpid()) >= 0) return FD_OK;
    return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
}

fd_code fd_golden_can_write(const char *path, fd_error *err) {
    char *part;
    FD_TRY(part_of(path, &part, err));
    int fd = open(part, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    fd_code code = fd >= 0 ? FD_OK : fd_fail(err, FD_ERR_IO, "%s: cannot write the golden: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    if (fd >= 0) unlink(part);
    free(part);
    return code;
}

fd_code fd_golden_write(const fd_golden *golden, const char *path, fd_error *err) {
    char *part;
    FD_TRY(check(golden, path, err));
    FD_TRY(part_of(path, &part, err));
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = write_part(golden, part, path, err);
    fd_h5_end(guard);
    if (code == FD_OK && rename(part, path) != 0)
        code = fd_fail(err, FD_ERR_IO, "%s: cannot put the golden there: %s", path, strerror(errno));
    if (code != FD_OK) unlink(part);
    free(part);
    return code;
}
