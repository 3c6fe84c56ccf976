#include "dumpers/hdf5/disk_ahead.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum {
    LARGE = 64 << 20,  /* bytes of a file that is worth it */
    AHEAD = 32 << 20,  /* reserved at a time */
    WINDOW = 32 << 20, /* mapped, and the file made longer, at a time */
    PIECE = 1 << 20    /* pages made at a time: meanwhile nobody in the process maps anything */
};

void fd_disk_ahead_begin(fd_disk_ahead *a, int fd) {
    struct statfs system;
    *a = (fd_disk_ahead){.in_memory = fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC};
    pthread_mutex_init(&a->lock, NULL);
}

static void unmap(fd_disk_ahead *a) {
    if (a->window) munmap(a->window, WINDOW);
    a->window = NULL;
}

void fd_disk_ahead_end(fd_disk_ahead *a) {
    unmap(a);
    pthread_mutex_destroy(&a->lock);
}

void fd_disk_ahead_reserve(fd_disk_ahead *a, int fd, uint64_t begin, uint64_t end) {
    uint64_t reserved = atomic_load(&a->reserved);
    if (end < LARGE || end <= reserved) return;
    if (!atomic_compare_exchange_strong(&a->reserved, &reserved, end + AHEAD)) return; /* another helper does it */
    uint64_t from = reserved > begin ? reserved : begin;
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(end + AHEAD - from)) != 0)
        atomic_store(&a->reserved, UINT64_MAX); /* no more attempts */
}

/* The lock is held. The window that has a->next; false: it cannot be had. The file must reach to its end, and is made
 * longer by taking its last byte: unlike a truncation that never makes it shorter, whatever others write meanwhile. */
static bool move_window(fd_disk_ahead *a, int fd) {
    uint64_t begin = a->next / WINDOW * WINDOW;
    if (a->window && a->begin == begin) return true;
    unmap(a);
    if (fallocate(fd, 0, (off_t)(begin + WINDOW - 1), 1) != 0) return false;
    a->length = begin + WINDOW;
    void *window = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)begin);
    if (window == MAP_FAILED) return false;
    (void)madvise(window, WINDOW, MADV_DONTFORK); /* not in children; refused: there too */
    a->window = window;
    a->begin = begin;
    return true;
}

/* Memory where pages are to be made, of which the caller is a maker from here on; NULL: none. */
static char *next_pages(fd_disk_ahead *a, int fd, uint64_t end, bool *refused) {
    char *pages = NULL;
    pthread_mutex_lock(&a->lock);
    if (a->next < end) a->next = (end + PIECE - 1) / PIECE * PIECE;
    bool near = a->next < end + WINDOW / 2, moves = !a->window || a->next / WINDOW * WINDOW != a->begin;
    if (!a->refused && near && !(moves && a->n_maker > 0)) { /* others' pages are not unmapped */
        a->refused = !move_window(a, fd);
        if (!a->refused) pages = a->window + (a->next - a->begin);
    }
    if (pages) {
        a->next += PIECE;
        a->n_maker++;
    }
    *refused = a->refused;
    pthread_mutex_unlock(&a->lock);
    return pages;
}

bool fd_disk_ahead_make_pages(fd_disk_ahead *a, int fd, uint64_t end) {
    bool refused;
    if (!a->in_memory || end < LARGE) return a->in_memory;
    char *pages = next_pages(a, fd, end, &refused);
    if (!pages) return !refused;
    int error;
    do error = madvise(pages, PIECE, MADV_POPULATE_WRITE) != 0 ? errno : 0;
    while (error == EINTR || error == EAGAIN);
    pthread_mutex_lock(&a->lock);
    a->n_maker--;
    if (error != 0) a->refused = true;
    pthread_mutex_unlock(&a->lock);
    return error == 0;
}
