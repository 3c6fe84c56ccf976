#include "dumpers/store/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dumpers/hdf5/disk_room.h"

/* ---- one writer a file ---- */

/* A lock of the open file description: HDF5's readers use flock, which it does not concern. */
static bool lock_whole(int fd) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES);
}

static fd_code check_unlocked(const char *path, fd_error *err) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? FD_OK : fd_fail(err, FD_ERR_IO, "%s: %s", path, strerror(errno));
    bool unlocked = lock_whole(fd);
    close(fd);
    return unlocked ? FD_OK : fd_fail(err, FD_ERR_IO, "%s: another trace is being written there", path);
}

/* Whether the path still has the file that was put there. */
static bool still_ours(const fd_trace_file *file) {
    struct stat ours, there;
    return file->lock < 0 || stat(file->path, &there) != 0 ||
           (fstat(file->lock, &ours) == 0 && ours.st_ino == there.st_ino && ours.st_dev == there.st_dev);
}

static fd_code put_in_place(fd_trace_file *file, fd_error *err) {
    if (!still_ours(file)) return fd_fail(err, FD_ERR_IO, "%s: another file has taken the trace's place", file->path);
    int fd = file->exclusive ? open(file->part, O_RDWR | O_CLOEXEC) : -1;
    bool ready = !file->exclusive || (fd >= 0 && lock_whole(fd));
    if (!ready || rename(file->part, file->path) != 0) {
        fd_fail(err, FD_ERR_IO, "%s: cannot put the trace there: %s", file->path, strerror(errno));
        if (fd >= 0) close(fd);
        return err->code;
    }
    if (file->lock >= 0) close(file->lock);
    file->lock = fd;
    file->growing = false;
    return FD_OK;
}

/* ---- an empty file ---- */

static fd_code new_file(const char *path, bool exclusive, fd_trace_file **out, fd_error *err) {
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return fd_fail(err, FD_ERR_IO, "%s: is not a regular file, expected a file or a free name", path);
    fd_trace_file *file = *out = calloc(1, sizeof *file);
    if (!file) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    file->id = file->lock = -1;
    file->target.fd = -1;
    file->exclusive = exclusive;
    file->path = strdup(path);
    if (asprintf(&file->part, "%s.%ld.part", path, (long)getpid()) < 0) file->part = NULL;
    if (!file->path || !file->part) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    return exclusive ? check_unlocked(path, err) : FD_OK;
}

/* The file that is replaced keeps who may read it, from the first byte on. */
static void keep_mode(const fd_trace_file *file) {
    struct stat there;
    if (stat(file->path, &there) == 0 && S_ISREG(there.st_mode)) (void)chmod(file->part, there.st_mode & 07777);
}

static fd_code make(fd_trace_file *file, fd_error *err) {
    unlink(file->part); /* of a process with our id that was killed here */
    hid_t create = H5Pcreate(H5P_FILE_CREATE), access = fd_h5_target_access(&file->target);
    H5Pset_attr_phase_change(create, 64, 32); /* keeps the root's attributes in its header */
    /* every block where the driver puts it, none in the space of a freed one */
    H5Pset_file_space_strategy(create, H5F_FSPACE_STRATEGY_NONE, false, 1);
    file->id = H5Fcreate(file->part, H5F_ACC_EXCL, create, access);
    file->growing = file->id >= 0;
    if (file->growing) keep_mode(file);
    fd_h5_release(create);
    fd_h5_release(access);
    return file->growing ? FD_OK : fd_h5_target_fail(&file->target, err, "%s: cannot create the trace", file->path);
}

static fd_code create(const char *path, bool exclusive, fd_trace_file **out, fd_error *err) {
    *out = NULL;
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = new_file(path, exclusive, out, err);
    if (code == FD_OK) code = make(*out, err);
    fd_h5_end(guard);
    if (code != FD_OK) {
        fd_trace_file_abandon(*out);
        *out = NULL;
    }
    return code;
}

fd_code fd_trace_file_create(const char *path, fd_trace_file **out, fd_error *err) {
    return create(path, false, out, err);
}

fd_code fd_trace_file_create_exclusive(const char *path, fd_trace_file **out, fd_error *err) {
    return create(path, true, out, err);
}

/* ---- a copy that grows ---- */

static bool copy_bytes(int from, int to) {
    enum { PIECE = 1 << 20 };
    char *piece = malloc(PIECE);
    ssize_t n = piece ? 1 : -1;
    while (n > 0) {
        n = read(from, piece, PIECE);
        for (ssize_t done = 0; n > 0 && done < n;) {
            ssize_t put = write(to, piece + done, (size_t)(n - done));
            if (put <= 0) n = -1;
            done += put;
        }
    }
    free(piece);
    return n == 0;
}

static fd_code copy_file(fd_trace_file *file, fd_error *err) {
    struct stat there;
    int from = open(file->path, O_RDONLY | O_CLOEXEC);
    int to = from < 0 ? -1 : open(file->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    file->growing = to >= 0;
    if (file->growing) keep_mode(file);
    fd_code code = FD_OK;
    if (to >= 0 && fstat(from, &there) == 0) code = fd_disk_room(to, file->path, 0, there.st_size, err);
    bool copied = code == FD_OK && to >= 0 && copy_bytes(from, to);
    if (to >= 0 && close(to) != 0) copied = false;
    if (code == FD_OK && !copied)
        code = fd_fail(err, FD_ERR_IO, "%s: cannot be copied to add a tensor: %s", file->path, strerror(errno));
    if (from >= 0) close(from);
    return code;
}

fd_code fd_trace_file_begin_copy(fd_trace_file *file, fd_error *err) {
    FD_TRY(copy_file(file, err));
    hid_t access = fd_h5_target_access(&file->target);
    file->id = H5Fopen(file->part, H5F_ACC_RDWR, access);
    fd_h5_release(access);
    if (file->id >= 0) return FD_OK;
    return fd_h5_target_fail(&file->target, err, "%s: cannot be opened to add a tensor", file->path);
}

/* ---- its place ---- */

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
    if (file->lock >= 0) close(file->lock);
    free(file->path);
    free(file->part);
    free(file);
}
