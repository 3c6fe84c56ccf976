/* Disk space and pages of a growing file, ahead of what is written. A file's lock lets one write into it at a time, and is
 * held while the write looks for space and makes pages for it: more than half of the write's time. So both are taken
 * before, in large pieces.
 *
 * - Space, by one thread: fallocate, which needs the lock as well, but for less time.
 * - In a file system in memory pages are most of it, and several threads make them without the lock, through a mapping of
 *   the file. Nothing is ever looked at or written through it, so that neither a full disk nor a file that somebody cuts
 *   short raises SIGBUS: madvise says what is wrong, and the write after it says it to the user. On ext4 the same takes
 *   three times as long as writes do, because it makes small pages where they make large ones.
 *
 * Closing the file gives back what was not needed. What cannot be taken is left to the writes. */
#ifndef FD_DUMPERS_HDF5_DISK_AHEAD_H
#define FD_DUMPERS_HDF5_DISK_AHEAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct fd_disk_ahead {
    _Atomic uint64_t
        reserved;         /* space was taken up to there, beyond the end too. 0: no; UINT64_MAX: no more attempts */
    bool in_memory;       /* the file system */
    pthread_mutex_t lock; /* of what follows, and of the file's length */
    uint64_t length;      /* the file was made that long for pages beyond the end; 0: it was not */
    char *window;         /* mapped; NULL: not */
    uint64_t begin, next; /* of the window; of the pages that nobody has made or makes */
    int n_maker;          /* threads that make pages in it */
    bool refused;         /* no more attempts */
} fd_disk_ahead;

void fd_disk_ahead_begin(fd_disk_ahead *ahead, int fd);
/* No thread makes pages any more. The file stays as long as it is. */
void fd_disk_ahead_end(fd_disk_ahead *ahead);

/* Before [begin, end) of the file is written: space. Any thread that no limit's signal ends. */
void fd_disk_ahead_reserve(fd_disk_ahead *ahead, int fd, uint64_t begin, uint64_t end);
/* The same: pages. False: none can be made here, reserve. */
bool fd_disk_ahead_make_pages(fd_disk_ahead *ahead, int fd, uint64_t end);

#endif
