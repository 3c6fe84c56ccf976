#include "dumpers/store/queue.h"

#include <H5public.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    LEAST_MEMORY = 64 << 10,
    LARGE_PAGE = 2 << 20,
    WAKE = 256 << 10, /* bytes put before helpers are woken in the middle of a step: a wake costs a system call */
    TAKE = 256 << 10  /* bytes that a helper takes at a time */
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

/* ---- tasks ---- */

void fd_queue_submit(fd_queue *q, fd_queue_task *task) {
    task->next = NULL;
    pthread_mutex_lock(&q->lock);
    *(q->last_task ? &q->last_task->next : &q->tasks) = task;
    q->last_task = task;
    if (q->n_sleeping > 0 && q->n_in_tasks < FD_QUEUE_MAX_IN_TASKS) pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

/* The lock is held before and after, and there is a task. */
static void run_task(fd_queue *q) {
    fd_queue_task *task = q->tasks;
    q->tasks = task->next;
    if (!q->tasks) q->last_task = NULL;
    q->n_in_tasks++;
    bool dropped = q->task_error != 0;
    pthread_mutex_unlock(&q->lock);
    int error = task->run(task, dropped);
    pthread_mutex_lock(&q->lock);
    if (q->task_error == 0) q->task_error = error;
    if (--q->n_in_tasks == 0 && !q->tasks) pthread_cond_signal(&q->tasks_done);
}

int fd_queue_finish_tasks(fd_queue *q) {
    pthread_mutex_lock(&q->lock);
    while (q->tasks || q->n_in_tasks > 0)
        if (q->tasks)
            run_task(q);
        else
            pthread_cond_wait(&q->tasks_done, &q->lock);
    int error = q->task_error;
    pthread_mutex_unlock(&q->lock);
    return error;
}

/* ---- preparing ---- */

/* Takes the next few items, prepares them without the lock, and says so. The lock is held before and after. */
static void prepare_some(fd_queue *q) {
    enum { MOST = 16 };
    fd_queue_item *taken[MOST];
    int n = 0;
    bool dropped = q->failure.code != FD_OK;
    for (size_t bytes = 0; q->unprepared && n < MOST && bytes < TAKE; q->unprepared = q->unprepared->next) {
        if (q->unprepared->prepared) continue;
        taken[n++] = q->unprepared;
        bytes += (size_t)(q->unprepared->end - q->unprepared->begin);
    }
    /* the writer may take those that are prepared */
    while (q->unprepared && q->unprepared->prepared) q->unprepared = q->unprepared->next;
    pthread_mutex_unlock(&q->lock);
    for (int i = 0; i < n && !dropped; i++) q->call.prepare(q->call.user, taken[i]);
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < n; i++) taken[i]->prepared = true;
    if (q->writer_waits) pthread_cond_signal(&q->prepared);
}

static void *help(void *user) {
    fd_queue *q = user;
    pthread_mutex_lock(&q->lock);
    while (!q->stop)
        if (q->tasks && q->n_in_tasks < FD_QUEUE_MAX_IN_TASKS) {
            run_task(q);
        } else if (q->unprepared) {
            prepare_some(q);
        } else {
            q->n_sleeping++;
            pthread_cond_wait(&q->work, &q->lock);
            q->n_sleeping--;
        }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- writing ---- */

/* Where a batch from the front ends: after half a ring, so that the caller has the other half meanwhile, and after
 * an item that gives other memory back. */
static uint64_t batch_end(const fd_queue *q) {
    const fd_queue_item *item = q->oldest;
    uint64_t end = item->end;
    while (item->outside == 0 && (item = item->next) && item->end - q->oldest->begin <= q->capacity / 2)
        end = item->end;
    return end;
}

/* Items stay in the list until they are prepared, because the helpers walk it. */
static void wait_until_prepared(fd_queue *q, uint64_t end) {
    for (const fd_queue_item *item = q->oldest; item && item->end <= end; item = item->next)
        while (!item->prepared)
            if (q->unprepared) {
                prepare_some(q);
            } else {
                q->writer_waits = true;
                pthread_cond_wait(&q->prepared, &q->lock);
                q->writer_waits = false;
            }
}

/* What a batch gives back when it is done. */
typedef struct batch {
    fd_queue_item *first;
    uint64_t end;
    size_t outside;
    int n_step;
} batch;

/* Takes the items up to `end` out of the list. */
static batch take_batch(fd_queue *q, uint64_t end) {
    batch b = {.first = q->oldest, .end = end};
    fd_queue_item *last = NULL;
    for (fd_queue_item *item = b.first; item && item->end <= end; item = item->next) {
        last = item;
        b.outside += item->outside;
        b.n_step += item->ends_step;
        q->n_at_once -= item->at_once;
    }
    q->oldest = last->next;
    if (!q->oldest) q->newest = NULL;
    last->next = NULL;
    return b;
}

/* The lock is held before and after. */
static void write_batch(fd_queue *q) {
    fd_error err = {0};
    uint64_t end = batch_end(q);
    wait_until_prepared(q, end);
    batch b = take_batch(q, end);
    bool dropped = q->failure.code != FD_OK;
    q->busy = true;
    pthread_mutex_unlock(&q->lock);
    fd_code code = q->call.write(q->call.user, b.first, dropped, &err);
    pthread_mutex_lock(&q->lock);
    q->tail = b.end; /* the caller has room while the steps are committed */
    q->outside -= b.outside;
    pthread_cond_broadcast(&q->room);
    pthread_mutex_unlock(&q->lock);
    fd_error commit_err = {0};
    fd_code committed =
        b.n_step > 0 && q->call.commit ? q->call.commit(q->call.user, dropped || code != FD_OK, &commit_err) : FD_OK;
    if (code != FD_OK) fd_queue_fail(q, &err);
    if (committed != FD_OK) fd_queue_fail(q, &commit_err);
    pthread_mutex_lock(&q->lock);
    q->n_step -= b.n_step;
    q->busy = false;
    pthread_cond_broadcast(&q->room);
}

/* Between batches the writer takes whatever steps have ended: many small ones while it is slower than the caller,
 * each at once while it is faster. */
static bool worth_writing(const fd_queue *q) {
    return q->oldest && (q->n_at_once > 0 || q->drain || q->caller_waits || q->head - q->tail >= q->capacity / 2);
}

static void *write_on(void *user) {
    fd_queue *q = user;
    pthread_mutex_lock(&q->lock);
    while (!q->stop)
        if (worth_writing(q)) {
            write_batch(q);
        } else {
            q->writer_sleeps = true;
            pthread_cond_wait(&q->items, &q->lock);
            q->writer_sleeps = false;
        }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- the caller's side ---- */

bool fd_queue_fits(const fd_queue *q, size_t bytes) {
    return bytes + 2 * sizeof(fd_queue_item) <= q->capacity / 4;
}

/* The lock is held. Waits until something has been written, or writes something. */
static void make_room(fd_queue *q) {
    if (!q->threaded) {
        write_batch(q);
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
    if (q->writer_sleeps && worth_writing(q)) pthread_cond_signal(&q->items);
    while (!q->threaded && worth_writing(q)) write_batch(q);
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

static bool start_threads(fd_queue *q) {
    sigset_t all, before;
    hbool_t safe = false;
    if (q->options.one_thread || H5is_library_threadsafe(&safe) < 0 || !safe) return false;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = pthread_create(&q->writer, NULL, write_on, q) == 0;
    while (ok && q->n_helper < q->options.n_helper && pthread_create(&q->helpers[q->n_helper], NULL, help, q) == 0)
        q->n_helper++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

bool fd_queue_start(fd_queue *q, const fd_queue_options *options, const fd_queue_work *work) {
    const size_t align = _Alignof(fd_queue_item);
    *q = (fd_queue){.call = *work, .options = *options};
    if (q->options.n_helper > FD_QUEUE_MAX_HELPERS) q->options.n_helper = FD_QUEUE_MAX_HELPERS;
    q->capacity = (options->memory < LEAST_MEMORY ? LEAST_MEMORY : options->memory) / align * align;
    if (q->capacity > LARGE_PAGE) q->capacity = q->capacity / LARGE_PAGE * LARGE_PAGE;
    q->ring = aligned_alloc(q->capacity < LARGE_PAGE ? align : LARGE_PAGE, q->capacity);
    if (!q->ring) return false;
    /* a fault for each page of 4 KiB would cost the caller more than the copy; refused: small pages */
    if (q->capacity >= LARGE_PAGE) (void)madvise(q->ring, q->capacity, MADV_HUGEPAGE);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_t *const conditions[] = {&q->work, &q->items, &q->prepared, &q->room, &q->tasks_done};
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++) pthread_cond_init(conditions[i], NULL);
    q->threaded = start_threads(q);
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
    free(q->ring);
    q->ring = NULL;
}
