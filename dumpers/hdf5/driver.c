#include "dumpers/hdf5/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

typedef struct driver_file {
    H5FD_t base;  /* HDF5's part comes first */
    hid_t driver; /* the file's own reference: HDF5 gives its up before it calls close through what the id held */
    fd_h5_target *target;
    haddr_t eof; /* end of what was written */
    dev_t device;
    ino_t inode;
} driver_file;

/* What H5Pset_driver copies. */
typedef struct driver_info {
    fd_h5_target *target;
} driver_info;

static void note_failure(fd_h5_target *target) {
    if (target->error == 0) target->error = errno ? errno : EIO;
}

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t access, haddr_t maxaddr) {
    (void)maxaddr;
    fd_h5_assert_locked();
    const driver_info *info = H5Pget_driver_info(access);
    if (!info) return NULL;
    int mode = (flags & H5F_ACC_RDWR ? O_RDWR : O_RDONLY) | (flags & H5F_ACC_TRUNC ? O_TRUNC : 0) |
               (flags & H5F_ACC_CREAT ? O_CREAT : 0) | (flags & H5F_ACC_EXCL ? O_EXCL : 0) | O_CLOEXEC;
    struct stat there;
    driver_file *file = calloc(1, sizeof *file);
    int fd = file ? open(name, mode, 0666) : -1;
    if (fd < 0 || fstat(fd, &there) != 0) {
        info->target->open_error = errno;
        if (fd >= 0) close(fd);
        free(file);
        return NULL;
    }
    file->driver = H5Pget_driver(access);
    H5Iinc_ref(file->driver);
    file->target = info->target;
    file->eof = (haddr_t)there.st_size;
    file->device = there.st_dev;
    file->inode = there.st_ino;
    file->target->fd = fd;
    file->target->open_error = 0;
    atomic_store(&file->target->end, 0);
    fd_disk_ahead_begin(&file->target->ahead, fd);
    return &file->base;
}

/* What lies past the end after a failure, when HDF5's truncation was dropped. */
static void give_space_back(const fd_h5_target *target) {
    struct stat there;
    uint64_t end = target->end;
    if (fstat(target->fd, &there) != 0) return;
    if (there.st_size < (off_t)end) end = (uint64_t)there.st_size;
    if (ftruncate(target->fd, (off_t)end) != 0) return; /* nothing else to try */
}

static bool took_ahead(const fd_h5_target *target) {
    return target->ahead.reserved || target->ahead.length > 0;
}

static herr_t driver_close(H5FD_t *base) {
    driver_file *file = (driver_file *)base;
    fd_h5_assert_locked();
    if (file->target->error != 0 && took_ahead(file->target)) give_space_back(file->target);
    fd_disk_ahead_end(&file->target->ahead);
    if (close(file->target->fd) != 0) note_failure(file->target);
    file->target->fd = -1;
    H5Idec_ref(file->driver);
    free(file);
    return 0;
}

static int driver_compare(const H5FD_t *a, const H5FD_t *b) {
    const driver_file *x = (const driver_file *)a, *y = (const driver_file *)b;
    if (x->device != y->device) return x->device < y->device ? -1 : 1;
    return x->inode == y->inode ? 0 : x->inode < y->inode ? -1 : 1;
}

static herr_t driver_query(const H5FD_t *base, unsigned long *flags) {
    (void)base;
    /* Not to gather metadata: a write of several blocks could be cut between them, in the wrong order. Nor small pieces
     * of data: whole blocks come, and another copy of them would be all that it brings. */
    *flags = H5FD_FEAT_SUPPORTS_SWMR_IO;
    return 0;
}

/* Places blocks of metadata inside pages. The gap after each keeps HDF5 from growing one in place, over the page's
 * end. */
static haddr_t driver_alloc(H5FD_t *base, H5FD_mem_t type, hid_t transfer, hsize_t size) {
    enum { PAGE = 4096, GAP = 8 };
    (void)transfer;
    driver_file *file = (driver_file *)base;
    haddr_t at = file->target->end;
    fd_h5_assert_locked();
    bool small = type != H5FD_MEM_DRAW && size <= PAGE;
    if (small && at / PAGE != (at + size - 1) / PAGE) at = (at / PAGE + 1) * PAGE;
    atomic_store(&file->target->end, at + size + (small ? GAP : 0));
    return at;
}

static haddr_t driver_get_eoa(const H5FD_t *base, H5FD_mem_t type) {
    (void)type;
    return ((const driver_file *)base)->target->end;
}

static herr_t driver_set_eoa(H5FD_t *base, H5FD_mem_t type, haddr_t address) {
    (void)type;
    atomic_store(&((driver_file *)base)->target->end, address);
    return 0;
}

static haddr_t driver_get_eof(const H5FD_t *base, H5FD_mem_t type) {
    (void)type;
    return ((const driver_file *)base)->eof;
}

static herr_t driver_read(H5FD_t *base, H5FD_mem_t type, hid_t transfer, haddr_t address, size_t size, void *buffer) {
    (void)type, (void)transfer;
    const driver_file *file = (const driver_file *)base;
    char *at = buffer;
    fd_h5_assert_locked();
    while (size > 0) {
        ssize_t n = pread(file->target->fd, at, size, (off_t)address);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) { /* allocated, not yet written */
            memset(at, 0, size);
            return 0;
        }
        at += n;
        address += (haddr_t)n;
        size -= (size_t)n;
    }
    return 0;
}

static bool write_all(int fd, const char *data, size_t size, off_t address) {
    while (size > 0) {
        ssize_t n = pwrite(fd, data, size, address);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        data += n;
        address += n;
        size -= (size_t)n;
    }
    return true;
}

/* Helpers make the file longer meanwhile, and pages ahead of its end stay until it is closed. */
static void set_length(driver_file *file, bool cut) {
    fd_h5_target *target = file->target;
    pthread_mutex_lock(&target->ahead.lock);
    if (target->error == 0 && (cut || target->ahead.length < target->end) &&
        ftruncate(target->fd, (off_t)target->end) != 0)
        note_failure(target);
    file->eof = target->end;
    pthread_mutex_unlock(&target->ahead.lock);
}

static herr_t driver_write(H5FD_t *base, H5FD_mem_t type, hid_t transfer, haddr_t address, size_t size,
                           const void *buffer) {
    (void)transfer;
    driver_file *file = (driver_file *)base;
    fd_h5_target *target = file->target;
    fd_h5_assert_locked();
    if (type == H5FD_MEM_DRAW && target->placing && buffer == target->placing) {
        /* beyond the end of what was written: the next truncation makes the file reach there */
        target->placed = address;
        return 0;
    }
    /* HDF5 refuses a file that is shorter than its superblock says, and at a close writes the superblock first */
    if (type == H5FD_MEM_SUPER && file->eof < target->end && target->error == 0) set_length(file, false);
    if (target->error == 0 && !write_all(target->fd, buffer, size, (off_t)address)) note_failure(target);
    if (address + size > file->eof) file->eof = address + size;
    return 0;
}

static herr_t driver_truncate(H5FD_t *base, hid_t transfer, hbool_t closing) {
    (void)transfer;
    driver_file *file = (driver_file *)base;
    bool cut = closing && took_ahead(file->target);
    if (file->target->end != file->eof || cut) set_length(file, cut);
    return 0;
}

/* No lock and unlock: HDF5 marks a file as open for writing only where the driver can lock it (H5F_open). */
static const H5FD_class_t driver = {
#if H5_VERSION_GE(1, 13, 0)
    .version = H5FD_CLASS_VERSION,
    .value = 487, /* of the range for testing; only H5Pset_driver_by_value would use it */
#endif
    .name = "firstdiff",
    .maxaddr = (haddr_t)INT64_MAX,
    .fc_degree = H5F_CLOSE_WEAK,
    .fapl_size = sizeof(driver_info),
    .open = driver_open,
    .close = driver_close,
    .cmp = driver_compare,
    .query = driver_query,
    .alloc = driver_alloc,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eof,
    .read = driver_read,
    .write = driver_write,
    .truncate = driver_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

hid_t fd_h5_target_access(fd_h5_target *target) {
    hid_t id = H5FDregister(&driver), access = H5Pcreate(H5P_FILE_ACCESS);
    driver_info info = {target};
    target->fd = -1;
    target->open_error = 0;
    bool ok = id >= 0 && access >= 0 && H5Pset_driver(access, id, &info) >= 0 &&
              H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
              H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0;
    if (id >= 0) H5FDunregister(id); /* the property list and the file hold it from here on */
    if (ok) return access;
    fd_h5_release(access);
    return -1;
}

fd_code fd_h5_target_fail(const fd_h5_target *target, fd_error *err, const char *format, ...) {
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    int reason = target->error ? target->error : target->open_error;
    return reason ? fd_fail(err, FD_ERR_IO, "%s: %s", message, strerror(reason))
                  : fd_h5_fail(err, FD_ERR_IO, "%s", message);
}
