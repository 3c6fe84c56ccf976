/* An HDF5 file driver for files that must survive their writer. Besides plain reads and writes it does four things
 * that HDF5's own POSIX driver does not:
 *
 * - A write that fails (a full disk, a quota, a lost server) is noted in the target, and it and every later one is
 *   dropped and reported to HDF5 as done: the caller of HDF5 asks the target afterwards. HDF5 cannot take a half-done
 *   change back: with its own driver H5Fclose then fails, writes a superblock that does not fit the file, and the
 *   process dies of a segmentation fault at exit. Dropping the rest leaves the disk as it was at the failure, which
 *   single-writer mode keeps whole, and lets HDF5 close in peace.
 * - It places no block of metadata of up to 4 KiB across a page. A killed process ends a write between two pages, and
 *   half a block is a wrong checksum. (Larger ones come with a dataset's 8000th chunk.)
 * - It makes the file as long as the superblock will say before the superblock is written. HDF5 refuses one that is
 *   shorter.
 * - It cannot lock files, and for such a driver HDF5 does not set the superblock's flag "open for writing". A killed
 *   run would leave the flag behind, and h5py, HDFView and h5dump would refuse the file until h5clear was run.
 *   No other program writes the file meanwhile: it is made under a name of its own and moved into place.
 *
 * And it says where HDF5 puts a chunk, without writing it, so that its rows can go there past HDF5 (`placing`).
 *
 * Files it writes are ordinary HDF5 files; nothing needs the driver to read them. */
#ifndef FD_DUMPERS_HDF5_DRIVER_H
#define FD_DUMPERS_HDF5_DRIVER_H

#include <stdatomic.h>

#include "dumpers/hdf5/disk_ahead.h"
#include "dumpers/hdf5/h5.h"

typedef struct fd_h5_target {
    int fd;         /* of the open file; -1 before and after */
    int error;      /* errno of the first failed write or truncation; 0: none. Writes are dropped while it is set */
    int open_error; /* errno of the last open; 0: it succeeded */
    const void *placing;  /* not NULL: a write of data from there is left out, and its place noted */
    uint64_t placed;      /* that place, from the start of the file */
    _Atomic uint64_t end; /* of what HDF5 allocated */
    fd_disk_ahead ahead;  /* of an open file */
} fd_h5_target;

/* File access properties for writing: this driver, HDF5 1.10's format (what single-writer mode needs), strong close.
 * `target` must outlive the file. Released by the caller; negative when HDF5 refused. */
hid_t fd_h5_target_access(fd_h5_target *target);

/* As fd_h5_fail, but with the system's reason where the driver saw one. */
fd_code fd_h5_target_fail(const fd_h5_target *target, fd_error *err, const char *format, ...) FD_PRINTF(3, 4);

#endif
