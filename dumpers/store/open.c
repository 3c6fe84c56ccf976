#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dumpers/store/reader.h"

static hid_t open_file(const char *path, unsigned flags) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, true, true);
    /* a block that a live writer is just writing is whole a moment later; HDF5's own 100 attempts take half a minute */
    if (flags & H5F_ACC_SWMR_READ) H5Pset_metadata_read_attempts(access, 8);
    hid_t file = H5Fopen(path, flags, access);
    fd_h5_release(access);
    return file;
}

/* Is the file marked as being written? Ours never are (dumpers/hdf5/driver.h), another program's may be. HDF5 File
 * Format Specification, superblock version 3: signature (8 bytes), version, size of offsets, size of lengths, flags. */
static bool marked_as_written(const char *path) {
    uint8_t head[12] = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool marked = fd >= 0 && pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head && head[8] == 3 && head[11] != 0;
    if (fd >= 0) close(fd);
    return marked;
}

/* A finished or foreign file opens plainly. One that a writer is still writing, or was killed at, is opened as a
 * reader of a single-writer file: only then HDF5 looks past the end that the superblock knew at the last flush. */
static fd_code open_trace_file(fd_trace *trace, fd_error *err) {
    int64_t complete = 1;
    FD_TRY(fd_h5_check_file(trace->path, "a trace", err));
    bool marked = marked_as_written(trace->path);
    trace->file = open_file(trace->path, H5F_ACC_RDONLY | (marked ? H5F_ACC_SWMR_READ : 0));
    if (trace->file < 0) return fd_h5_fail(err, FD_ERR_INPUT, "%s: damaged or truncated HDF5", trace->path);
    if (marked || fd_h5_get_int(trace->file, "complete", &complete) != FD_H5_FOUND || complete != 0) return FD_OK;
    H5Fclose(trace->file);
    trace->file = open_file(trace->path, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ);
    if (trace->file < 0) trace->file = open_file(trace->path, H5F_ACC_RDONLY); /* a foreign one of an older format */
    if (trace->file < 0) return fd_h5_fail(err, FD_ERR_INPUT, "%s: cannot be opened", trace->path);
    return FD_OK;
}

/* The whole file, or one group of it. */
static fd_code open_root(fd_trace *trace, const char *group, fd_error *err) {
    trace->root = H5Gopen2(trace->file, group ? group : "/", H5P_DEFAULT);
    if (trace->root >= 0) return FD_OK;
    return fd_h5_fail(err, FD_ERR_INPUT, "%s: no group %s", trace->path, group ? group : "/");
}

static fd_code read_prompt(fd_trace *trace, fd_error *err) {
    size_t length;
    if (fd_h5_get_string(trace->root, "prompt", NULL, 0, &length) != FD_H5_FOUND) return FD_OK;
    trace->info.prompt = malloc(length + 1);
    if (!trace->info.prompt) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    fd_h5_get_string(trace->root, "prompt", trace->info.prompt, length + 1, NULL);
    return FD_OK;
}

static fd_code read_info(fd_trace *trace, fd_error *err) {
    fd_trace_info *info = &trace->info;
    char schema[32], level[32];
    int64_t version, value;
    fd_h5_found found = fd_h5_get_string(trace->root, "schema", schema, sizeof schema, NULL);
    if (found != FD_H5_FOUND || strcmp(schema, FD_TRACE_SCHEMA) != 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: attribute schema is %s%s%s, expected \"" FD_TRACE_SCHEMA "\"",
                       trace->path, found == FD_H5_FOUND ? "\"" : "",
                       found == FD_H5_FOUND ? schema : "missing or no string", found == FD_H5_FOUND ? "\"" : "");
    if (fd_h5_get_int(trace->root, "version", &version) != FD_H5_FOUND || version != FD_TRACE_VERSION)
        return fd_fail(err, FD_ERR_INPUT, "%s: attribute version is %lld, expected %d", trace->path, (long long)version,
                       FD_TRACE_VERSION);
    for (size_t i = 0; i < fd_info_field_count; i++) {
        const fd_info_field *field = &fd_info_fields[i];
        if (fd_h5_get_string(trace->root, field->name, (char *)info + field->offset, field->size, NULL) == FD_H5_WRONG)
            return fd_fail(err, FD_ERR_INPUT, "%s: attribute %s is not a string", trace->path, field->name);
    }
    if (fd_h5_get_int(trace->root, "contract", &value) == FD_H5_FOUND) info->contract = (int32_t)value;
    info->complete = fd_h5_get_int(trace->root, "complete", &value) == FD_H5_ABSENT || value != 0;
    info->level = FD_TRACE_FULL;
    if (fd_h5_get_string(trace->root, "level", level, sizeof level, NULL) == FD_H5_FOUND) {
        int parsed = fd_trace_level_parse(level);
        if (parsed < 0)
            return fd_fail(err, FD_ERR_INPUT, "%s: level is \"%s\", expected full, stats or fingerprint", trace->path,
                           level);
        info->level = (fd_trace_level)parsed;
    }
    return read_prompt(trace, err);
}

static fd_code dataset_length(const fd_trace *trace, const char *name, int32_t *out, fd_error *err) {
    fd_h5_shape shape = {0};
    hid_t set = fd_h5_has(trace->root, name) ? H5Dopen2(trace->root, name, H5P_DEFAULT) : -1;
    bool ok = set >= 0 && fd_h5_shape_of(set, &shape) && shape.rank == 1 && shape.dim[0] < INT32_MAX;
    fd_h5_release(set);
    if (!ok) return fd_fail(err, FD_ERR_INPUT, "%s: no list /%s of rank 1", trace->path, name);
    *out = (int32_t)shape.dim[0];
    return FD_OK;
}

/* Checks that the steps follow one another and returns the positions they cover. */
static fd_code check_steps(const fd_trace *trace, const fd_step_row *rows, int32_t n, int32_t n_token, int32_t *n_pos,
                           fd_error *err) {
    *n_pos = 0;
    for (int32_t i = 0; i < n; i++) {
        if (rows[i].first != *n_pos || rows[i].count < 1 || rows[i].count > n_token - *n_pos || rows[i].kind < 0 ||
            rows[i].kind > FD_STEP_VERIFY || rows[i].level < 0 || rows[i].level > FD_TRACE_FULL)
            return fd_fail(err, FD_ERR_INPUT,
                           "%s: step %d: first %d, count %d, kind %d, level %d; %d of %d tokens before it", trace->path,
                           i, rows[i].first, rows[i].count, rows[i].kind, rows[i].level, *n_pos, n_token);
        *n_pos += rows[i].count;
    }
    if (trace->info.complete && *n_pos != n_token)
        return fd_fail(err, FD_ERR_INPUT, "%s: steps cover %d positions, expected %d (as /tokens)", trace->path, *n_pos,
                       n_token);
    return FD_OK;
}

static fd_code read_step_rows(const fd_trace *trace, int32_t n, fd_step_row *rows, fd_error *err) {
    for (int32_t i = 0; i < n; i++) rows[i] = (fd_step_row){-1, -1, FD_STEP_PREFILL, (int32_t)trace->info.level};
    hid_t set = H5Dopen2(trace->root, "steps", H5P_DEFAULT), type = fd_step_row_type();
    bool ok = n == 0 || H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) >= 0;
    fd_h5_release(type);
    fd_h5_release(set);
    return ok ? FD_OK
              : fd_h5_fail(err, FD_ERR_INPUT, "%s: steps: expected a table of first, count, kind, level", trace->path);
}

static fd_code read_steps(fd_trace *trace, int32_t n_token, fd_error *err) {
    int32_t n = 1;
    bool given = fd_h5_has(trace->root, "steps");
    if (given) FD_TRY(dataset_length(trace, "steps", &n, err));
    /* a single prefill for a trace that does not say */
    fd_step_row one = {0, n_token, FD_STEP_PREFILL, FD_TRACE_FULL},
                *rows = given ? malloc((size_t)n * sizeof *rows + 1) : &one;
    if (!given && n_token == 0) n = 0;
    trace->steps = malloc((size_t)n * sizeof *trace->steps + 1);
    fd_code code = rows && trace->steps ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    if (code == FD_OK && given) code = read_step_rows(trace, n, rows, err);
    if (code == FD_OK) code = check_steps(trace, rows, n, n_token, &trace->n_pos, err);
    if (code == FD_OK && !(trace->level = malloc((size_t)trace->n_pos + 1)))
        code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    for (int32_t i = 0; code == FD_OK && i < n; i++) {
        trace->steps[i] = (fd_trace_step){rows[i].first, rows[i].count, (fd_step_kind)rows[i].kind};
        memset(trace->level + rows[i].first, rows[i].level, (size_t)rows[i].count);
    }
    trace->n_step = n;
    if (given) free(rows);
    return code;
}

/* A file that somebody may still be writing is left to the library. */
static void open_bytes(fd_trace *trace) {
    struct stat there;
    trace->bytes.fd = open(trace->path, O_RDONLY | O_CLOEXEC);
    if (trace->bytes.fd < 0 || fstat(trace->bytes.fd, &there) != 0) return;
    trace->bytes.size = (uint64_t)there.st_size;
    trace->plain = trace->info.complete && !marked_as_written(trace->path) && fd_h5_plain_file(&trace->bytes);
}

static fd_code load(fd_trace *trace, const char *group, fd_error *err) {
    int32_t n_token;
    void *tokens;
    FD_TRY(open_trace_file(trace, err));
    FD_TRY(open_root(trace, group, err));
    FD_TRY(read_info(trace, err));
    open_bytes(trace);
    FD_TRY(dataset_length(trace, "tokens", &n_token, err));
    FD_TRY(read_steps(trace, n_token, err));
    FD_TRY(fd_trace_load_rows(trace, "tokens", H5T_NATIVE_INT32, 4, 0, NULL, trace->n_pos, &tokens, err));
    trace->tokens = tokens;
    FD_TRY(fd_trace_load_nodes(trace, err));
    return fd_trace_load_tables(trace, err);
}

static fd_code open_trace(const char *path, const char *group, size_t memory, fd_trace **out, fd_error *err) {
    *out = NULL;
    fd_trace *trace = calloc(1, sizeof *trace);
    if (!trace) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    trace->file = trace->root = -1;
    trace->bytes.fd = -1;
    trace->memory = memory;
    trace->path = strdup(path);
    trace->places_bytes = calloc(1, sizeof *trace->places_bytes);
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = trace->path && trace->places_bytes ? load(trace, group, err)
                                                      : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    fd_h5_end(guard);
    if (code == FD_OK) {
        *err = (fd_error){0};
        *out = trace;
    } else {
        fd_trace_close(trace);
    }
    return code;
}

fd_code fd_trace_open_within(const char *path, size_t memory, fd_trace **out, fd_error *err) {
    return open_trace(path, NULL, memory, out, err);
}

fd_code fd_trace_open_group(const char *path, const char *group, fd_trace **out, fd_error *err) {
    return open_trace(path, group, SIZE_MAX, out, err);
}

fd_code fd_trace_open(const char *path, fd_trace **out, fd_error *err) {
    return open_trace(path, NULL, SIZE_MAX, out, err);
}

void fd_trace_close(fd_trace *trace) {
    if (!trace) return;
    fd_h5_guard guard = fd_h5_begin();
    for (int32_t i = 0; trace->sets && i < trace->n_node; i++) fd_trace_set_close(&trace->sets[i]);
    fd_h5_release(trace->root);
    if (trace->file >= 0) H5Fclose(trace->file);
    fd_h5_end(guard);
    if (trace->bytes.fd >= 0) close(trace->bytes.fd);
    free(trace->places_bytes);
    free(trace->by_name);
    free(trace->path);
    free(trace->info.prompt);
    free(trace->tokens);
    free(trace->steps);
    free(trace->level);
    free(trace->nodes);
    free(trace->sets);
    fd_trace_table_free(trace->fingerprints);
    fd_trace_table_free(trace->stats);
    free(trace->health);
    free(trace->entropy);
    free(trace->sink);
    free(trace);
}
