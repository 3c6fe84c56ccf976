#include "dumpers/hdf5/reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "dumpers/hdf5/reader_internal.h"

bool fd_h5_reader_call(fd_h5_reader *reader, fd_h5_op op, const char *object) {
    const fd_h5_reader *owner = reader->owner;
    if (fd_wall_death(owner->wall) || strlen(object) >= sizeof reader->at) return false;
    owner->x->op = op;
    strcpy(owner->x->object, object);
    strcpy(reader->at, op == FD_H5_OPEN ? "" : object);
    snprintf(owner->x->group, sizeof owner->x->group, "%s", reader->group ? reader->group : "");
    return fd_wall_call(owner->wall, (double)fd_limit_of(FD_LIMIT_HDF5_SECONDS));
}

/* ---- the library ---- */

/* False, with *opened said, when HDF5 refuses. */
static fd_code start(fd_h5_reader *reader, bool live, bool *opened, fd_error *err) {
    fd_wall_stop(reader->wall);
    reader->wall = NULL;
    fd_h5_guard guard = fd_h5_begin(); /* no other thread of ours is inside HDF5 while the process is copied */
    fd_code code = fd_wall_start(sizeof(fd_h5_exchange), fd_h5_serve, &reader->wall, err);
    fd_h5_end(guard);
    FD_TRY(code);
    reader->x = fd_wall_page(reader->wall);
    reader->x->live = reader->live = live;
    reader->x->memory = (size_t)fd_limit_of(FD_LIMIT_HDF5_MEMORY);
    *opened = fd_h5_reader_call(reader, FD_H5_OPEN, reader->path) && reader->x->ok;
    return FD_OK;
}

/* A finished or foreign file opens plainly. One that a writer is still writing, or was killed at, is opened as a reader
 * of a single-writer file: only then HDF5 looks past the end that the superblock knew at the last flush. */
static fd_code open_file(fd_h5_reader *reader, fd_error *err) {
    bool opened;
    FD_TRY(start(reader, reader->marked, &opened, err));
    if (opened && !reader->marked && reader->x->n) {
        FD_TRY(start(reader, true, &opened, err));
        if (!opened && !fd_wall_death(reader->wall))
            FD_TRY(start(reader, false, &opened, err)); /* a foreign one of an older format */
    }
    if (opened) return FD_OK;
    if (reader->group && reader->x->value)
        return fd_h5_reader_fail(reader, err, FD_ERR_INPUT, "%s: no group %s", reader->path, reader->group);
    return fd_h5_reader_fail(reader, err, FD_ERR_INPUT, "%s: damaged or truncated HDF5", reader->path);
}

bool fd_h5_reader_library(fd_h5_reader *reader) {
    fd_h5_reader *owner = reader->owner;
    if (owner->refused.code != FD_OK) return false;
    if (owner->wall) return !fd_wall_death(owner->wall);
    return open_file(owner, &owner->refused) == FD_OK;
}

/* ---- the file ---- */

/* True when the file is complete, as far as that is known without the library. */
static bool is_complete(fd_h5_reader *reader) {
    fd_h5_question question = {FD_H5_INTEGER, "", "complete", 0};
    fd_h5_answer answer;
    return !reader->marked && fd_h5_plain_ask(&reader->plain, &question, NULL, &answer) &&
           (answer.found == FD_H5_ABSENT || (answer.found == FD_H5_FOUND && answer.value != 0));
}

fd_code fd_h5_reader_open(const char *path, const char *group, const char *expected, fd_h5_reader **out,
                          fd_error *err) {
    fd_h5_bytes bytes = {.fd = -1};
    bool marked;
    *out = NULL;
    FD_TRY(fd_h5_open_file(path, expected, &bytes, &marked, err));
    fd_h5_reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        close(bytes.fd);
        return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    }
    reader->owner = reader;
    reader->path = strdup(path);
    reader->group = group ? strdup(group) : NULL;
    reader->marked = marked;
    reader->fd = bytes.fd;
    reader->size = bytes.size;
    fd_h5_plain_open(&reader->plain, &bytes, group);
    fd_code code = FD_OK;
    if (!reader->path || (group && !reader->group))
        code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    else if (!is_complete(reader))
        code = open_file(reader, err);
    if (reader->live) reader->plain.bytes.size = 0; /* it may change between two looks: one side reads it all */
    if (code == FD_OK)
        *out = reader;
    else
        fd_h5_reader_close(reader);
    return code;
}

fd_code fd_h5_reader_open_inside(fd_h5_reader *file, const char *group, fd_h5_reader **out, fd_error *err) {
    *out = NULL;
    if (!fd_h5_reader_has(file, group))
        return fd_h5_reader_fail(file, err, FD_ERR_INPUT, "%s: no group %s", file->path, group);
    fd_h5_reader *reader = calloc(1, sizeof *reader);
    if (!reader) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", file->path);
    reader->owner = file;
    reader->path = strdup(file->path);
    reader->group = strdup(group);
    reader->fd = -1;
    reader->size = file->size;
    if (!reader->path || !reader->group) {
        fd_h5_reader_close(reader);
        return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", file->path);
    }
    fd_h5_plain_open(&reader->plain, &file->plain.bytes, group);
    *out = reader;
    return FD_OK;
}

void fd_h5_reader_close(fd_h5_reader *reader) {
    if (!reader) return;
    fd_wall_stop(reader->wall);
    fd_h5_reader_forget(reader);
    fd_h5_plain_close(&reader->plain);
    if (reader->fd >= 0) close(reader->fd);
    free(reader->path);
    free(reader->group);
    free(reader);
}

const fd_h5_bytes *fd_h5_reader_bytes(const fd_h5_reader *reader) {
    return reader->plain.bytes.size ? &reader->plain.bytes : NULL;
}

fd_h5_inflated *fd_h5_reader_inflated(const fd_h5_reader *reader) {
    return reader->plain.bytes.size ? reader->plain.inflated : NULL;
}

uint64_t fd_h5_reader_size(const fd_h5_reader *reader) {
    return reader->size;
}

void fd_h5_reader_leave_to_library(fd_h5_reader *reader) {
    reader->plain.bytes.size = 0;
}

/* ---- what failed ---- */

/* Whether the library refused the file or died; *err then says so. */
static bool failed(const fd_h5_reader *reader, fd_error *err) {
    const fd_h5_reader *owner = reader->owner;
    bool dead = owner->wall && fd_wall_death(owner->wall);
    if (dead)
        fd_fail(err, FD_ERR_INPUT, "%s: damaged: the HDF5 library failed at /%s: %s", reader->path, reader->at,
                fd_wall_death(owner->wall));
    else if (owner->refused.code != FD_OK && err != &owner->refused)
        *err = owner->refused;
    else
        return false;
    return true;
}

fd_code fd_h5_reader_fail(const fd_h5_reader *reader, fd_error *err, fd_code code, const char *format, ...) {
    if (failed(reader, err)) return err->code;
    char message[512], reason[sizeof reader->owner->x->reason] = "";
    if (reader->owner->wall) memcpy(reason, reader->owner->x->reason, sizeof reason);
    reason[sizeof reason - 1] = '\0';
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return reason[0] ? fd_fail(err, code, "%s: HDF5: %s", message, reason) : fd_fail(err, code, "%s", message);
}

fd_code fd_h5_reader_survived(const fd_h5_reader *reader, fd_code code, fd_error *err) {
    return reader && failed(reader, err) ? err->code : code;
}
