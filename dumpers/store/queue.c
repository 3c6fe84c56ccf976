#include "dumpers/store/queue_threads.h"

#include <stdlib.h>
#include <sys/mman.h>

enum {
    LEAST_MEMORY = 64 << 10,
    LARGE_PAGE = 2 << 20,
    WAKE = 256 << 10, /* bytes put before helpers are woken in the middle of a step: a wake costs a system call */
};

/* ---- failures ---- */

fd_code fd_queue_fail(fd_queue *q, const fd_error *err) {
    pthread_mutex_lock(&q->lock);
    if (q->failure.code == FD_OK) q->failure = *err;
    fd_code code = q->failure.code;
    atomic_store(&q->failed, true);
    pthread_mutex_unlock(&q->lock);
    return code;
}

fd_code fd_queue_failed(fd_queue *q, fd_error *err) {
    if (!atomic_load_explicit(&q->failed, memory_order_acquire)) return FD_OK;
    pthread_mutex_lock(&q->lock);
    *err = q->failure;
    pthread_mutex_unlock(&q->lock);
    return err->code;
}

/* ---- the caller's side ---- */

bool fd_queue_fits(const fd_queue *q, size_t bytes) {
    return bytes + 2 * sizeof(fd_queue_item) <= q->capacity / 4;
}

/* The lock is held. Waits until something has been written, or writes something. */
static void make_room(fd_queue *q) {
    if (!q->threaded) {
        fd_queue_write_batch(q);
        return;
    }
    q->caller_waits = true;
    pthread_cond_signal(&q->items);
    pthread_cond_wait(&q->room, &q->lock);
    q->caller_waits = false;
}

/* Where the next `size` bytes are, if they are free. What was used before is used again where there is enough of it:
 * fresh memory costs the caller a page fault, and used memory may be in the cache. A caller that has waited gets all
 * of it: the more steps go together, the fewer blocks of HDF5's are written. */
static uint64_t next_place(const fd_queue *q, size_t size) {
    uint64_t at = q->head % q->capacity, tail = q->tail % q->capacity;
    bool same_lap = q->head / q->capacity == q->tail / q->capacity;
    bool reuse = !q->outrun && same_lap && at + size > q->touched && tail >= size && tail >= q->touched / 2;
    return at + size > q->capacity || reuse ? q->head + q->capacity - at : q->head;
}

fd_queue_item *fd_queue_take(fd_queue *q, size_t bytes) {
    const size_t align = _Alignof(fd_queue_item);
    size_t size = (sizeof(fd_queue_item) + bytes + align - 1) / align * align;
    uint64_t begin;
    pthread_mutex_lock(&q->lock);
    for (;; q->outrun = q->threaded, make_room(q)) {
        if (q->head == q->tail) q->head = q->tail = 0;
        begin = next_place(q, size);
        if (begin + size - q->tail <= q->capacity) break;
    }
    q->head = begin + size;
    size_t at = (size_t)(begin % q->capacity);
    if (at + size > q->touched) q->touched = at + size;
    pthread_mutex_unlock(&q->lock);
    fd_queue_item *item = (fd_queue_item *)(void *)(q->ring + at);
    *item = (fd_queue_item){.begin = begin, .end = begin + size};
    return item;
}

static bool too_much_outside(const fd_queue *q, const fd_queue_item *item) {
    return item->outside > 0 && q->outside > 0 && q->outside + item->outside > q->options.outside;
}

void fd_queue_put(fd_queue *q, fd_queue_item *item) {
    if (!q->call.prepare) item->prepared = true;
    pthread_mutex_lock(&q->lock);
    while (too_much_outside(q, item) || (item->ends_step && q->n_step >= q->options.max_steps)) make_room(q);
    *(q->newest ? &q->newest->next : &q->oldest) = item;
    q->newest = item;
    if (!q->unprepared && !item->prepared) q->unprepared = item;
    q->n_at_once += item->at_once;
    q->n_step += item->ends_step;
    q->outside += item->outside;
    q->quiet += (size_t)(item->end - item->begin);
    if (q->unprepared && q->n_sleeping > 0 && (item->at_once || q->quiet >= WAKE)) {
        pthread_cond_broadcast(&q->work);
        q->quiet = 0;
    }
    if (q->writer_sleeps && fd_queue_worth_writing(q)) pthread_cond_signal(&q->items);
    while (!q->threaded && fd_queue_worth_writing(q)) fd_queue_write_batch(q);
    pthread_mutex_unlock(&q->lock);
}

void fd_queue_drain(fd_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->drain = true;
    while (q->oldest || q->busy) make_room(q);
    q->drain = false;
    pthread_mutex_unlock(&q->lock);
}

/* ---- life ---- */

/* Pages of its own, of which the kernel makes those that are used: a malloc that fills what it returns (MALLOC_PERTURB_) would
 * touch all of them. NULL: out of memory. */
static char *map_ring(size_t bytes) {
    const size_t more = bytes >= LARGE_PAGE ? LARGE_PAGE : 0; /* so that it begins with a large page */
    char *all = mmap(NULL, bytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED || !more) return all == MAP_FAILED ? NULL : all;
    const size_t before = -(uintptr_t)all % LARGE_PAGE;
    if (before > 0) munmap(all, before);
    if (before < more) munmap(all + before + bytes, more - before);
    /* a fault for each page of 4 KiB would cost the caller more than the copy; refused: small pages */
    (void)madvise(all + before, bytes, MADV_HUGEPAGE);
    return all + before;
}

bool fd_queue_start(fd_queue *q, const fd_queue_options *options, const fd_queue_work *work) {
    const size_t align = _Alignof(fd_queue_item);
    *q = (fd_queue){.call = *work, .options = *options, .max_in_tasks = FD_QUEUE_IN_TASKS};
    if (q->options.n_helper > FD_QUEUE_MAX_HELPERS) q->options.n_helper = FD_QUEUE_MAX_HELPERS;
    q->capacity = (options->memory < LEAST_MEMORY ? LEAST_MEMORY : options->memory) / align * align;
    if (q->capacity > LARGE_PAGE) q->capacity = q->capacity / LARGE_PAGE * LARGE_PAGE;
    q->ring = map_ring(q->capacity);
    if (!q->ring) return false;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_t *const conditions[] = {&q->work, &q->items, &q->prepared, &q->room, &q->tasks_done};
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++) pthread_cond_init(conditions[i], NULL);
    q->threaded = fd_queue_start_threads(q);
    return true;
}

void fd_queue_stop(fd_queue *q) {
    if (!q->ring) return;
    fd_queue_drain(q);
    if (q->threaded) {
        pthread_mutex_lock(&q->lock);
        q->stop = true;
        pthread_cond_broadcast(&q->work);
        pthread_cond_signal(&q->items);
        pthread_mutex_unlock(&q->lock);
        pthread_join(q->writer, NULL);
        for (int i = 0; i < q->n_helper; i++) pthread_join(q->helpers[i], NULL);
        q->threaded = false;
    }
    pthread_cond_t *const conditions[] = {&q->work, &q->items, &q->prepared, &q->room, &q->tasks_done};
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++) pthread_cond_destroy(conditions[i]);
    pthread_mutex_destroy(&q->lock);
    munmap(q->ring, q->capacity);
    q->ring = NULL;
}
