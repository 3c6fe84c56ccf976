#include "dumpers/store/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static fd_code new_file(const char *path, fd_trace_file **out, fd_error *err) {
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return fd_fail(err, FD_ERR_IO, "%s: is not a regular file, expected a file or a free name", path);
    fd_trace_file *file = *out = calloc(1, sizeof *file);
    if (!file) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    file->id = -1;
    file->target.fd = -1;
    file->path = strdup(path);
    if (asprintf(&file->part, "%s.%ld.part", path, (long)getpid()) < 0) file->part = NULL;
    return file->path && file->part ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
}

static fd_code make(fd_trace_file *file, fd_error *err) {
    unlink(file->part); /* of a process with our id that was killed here */
    hid_t create = H5Pcreate(H5P_FILE_CREATE), access = fd_h5_target_access(&file->target);
    H5Pset_attr_phase_change(create, 64, 32); /* keeps the root's attributes in its header */
    /* every block where the driver puts it, none in the space of a freed one */
    H5Pset_file_space_strategy(create, H5F_FSPACE_STRATEGY_NONE, false, 1);
    file->id = H5Fcreate(file->part, H5F_ACC_EXCL, create, access);
    file->growing = file->id >= 0;
    fd_h5_release(create);
    fd_h5_release(access);
    return file->growing ? FD_OK : fd_h5_target_fail(&file->target, err, "%s: cannot create the trace", file->path);
}

fd_code fd_trace_file_create(const char *path, fd_trace_file **out, fd_error *err) {
    *out = NULL;
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = new_file(path, out, err);
    if (code == FD_OK) code = make(*out, err);
    fd_h5_end(guard);
    if (code != FD_OK) {
        fd_trace_file_abandon(*out);
        *out = NULL;
    }
    return code;
}

static fd_code put_in_place(fd_trace_file *file, fd_error *err) {
    if (rename(file->part, file->path) != 0)
        return fd_fail(err, FD_ERR_IO, "%s: cannot put the trace there: %s", file->path, strerror(errno));
    file->growing = false;
    return FD_OK;
}

fd_code fd_trace_file_publish(fd_trace_file *file, fd_error *err) {
    bool ok = fd_trace_file_close(file);
    hid_t access = fd_h5_target_access(&file->target);
    if (ok) file->id = H5Fopen(file->part, H5F_ACC_RDWR | H5F_ACC_SWMR_WRITE, access);
    fd_h5_release(access);
    if (file->id < 0) return fd_h5_target_fail(&file->target, err, "%s: cannot create the trace", file->path);
    return put_in_place(file, err);
}

bool fd_trace_file_reopen(fd_trace_file *file) {
    hid_t access = fd_h5_target_access(&file->target);
    file->id = H5Fopen(file->path, H5F_ACC_RDWR, access);
    fd_h5_release(access);
    return file->id >= 0;
}

bool fd_trace_file_close(fd_trace_file *file) {
    if (file->id < 0) return true;
    bool ok = H5Fclose(file->id) >= 0; /* strong close: what is open in it goes with it */
    file->id = -1;
    return ok && file->target.error == 0;
}

fd_code fd_trace_file_finish(fd_trace_file *file, fd_error *err) {
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = FD_OK;
    if (!fd_trace_file_close(file))
        code = fd_h5_target_fail(&file->target, err, "%s: cannot complete the trace", file->path);
    else if (file->growing)
        code = put_in_place(file, err);
    fd_h5_end(guard);
    fd_trace_file_abandon(file);
    return code;
}

void fd_trace_file_abandon(fd_trace_file *file) {
    if (!file) return;
    fd_h5_guard guard = fd_h5_begin();
    fd_trace_file_close(file);
    fd_h5_end(guard);
    if (file->growing) unlink(file->part);
    free(file->path);
    free(file->part);
    free(file);
}
