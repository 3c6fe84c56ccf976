#include "dumpers/store/queue.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dumpers/store/writer.h"

enum {
    DEFAULT_MEMORY = 256 << 20,
    LEAST_MEMORY = 64 << 10,
    LARGE_PAGE = 2 << 20,
    WAKE = 256 << 10, /* bytes put before helpers are woken in the middle of a step: a wake costs a system call */
    TAKE = 256 << 10, /* bytes that a helper takes at a time */
    MAX_STEPS = 256   /* under way; a step has buffers of its own beside the ring */
};

/* ---- failures ---- */

fd_code fd_trace_latch(fd_trace_writer *writer, const fd_error *err) {
    fd_trace_queue *q = &writer->queue;
    pthread_mutex_lock(&q->lock);
    if (q->failure.code == FD_OK) q->failure = *err;
    fd_code code = q->failure.code;
    atomic_store(&q->failed, true);
    pthread_mutex_unlock(&q->lock);
    return code;
}

fd_code fd_trace_failed(fd_trace_writer *writer, fd_error *err) {
    fd_trace_queue *q = &writer->queue;
    if (!atomic_load_explicit(&q->failed, memory_order_acquire)) return FD_OK;
    pthread_mutex_lock(&q->lock);
    *err = q->failure;
    pthread_mutex_unlock(&q->lock);
    return err->code;
}

/* ---- digesting ---- */

/* Takes the next few records, digests them without the lock, and says so. The lock is held before and after. */
static void digest_some(fd_trace_writer *writer) {
    enum { MOST = 16 };
    fd_trace_queue *q = &writer->queue;
    fd_trace_record *taken[MOST];
    int n = 0;
    bool dropped = q->failure.code != FD_OK;
    for (size_t bytes = 0; q->undigested && n < MOST && bytes < TAKE; q->undigested = q->undigested->next) {
        if (q->undigested->digested) continue;
        taken[n++] = q->undigested;
        bytes += (size_t)(q->undigested->end - q->undigested->begin);
    }
    while (q->undigested && q->undigested->digested) q->undigested = q->undigested->next; /* the writer may take them */
    pthread_mutex_unlock(&q->lock);
    for (int i = 0; i < n; i++)
        if (taken[i]->node && !dropped) fd_trace_digest(writer, taken[i]);
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < n; i++) taken[i]->digested = true;
    if (q->writer_waits) pthread_cond_signal(&q->digested);
}

static void sleep_until_work(fd_trace_queue *q) {
    q->n_sleeping++;
    pthread_cond_wait(&q->work, &q->lock);
    q->n_sleeping--;
}

static void *help(void *user) {
    fd_trace_writer *writer = user;
    fd_trace_queue *q = &writer->queue;
    pthread_mutex_lock(&q->lock);
    while (!q->stop)
        if (q->jobs && q->n_doing < FD_TRACE_MOST_WRITING)
            fd_trace_do_job(writer);
        else if (q->undigested)
            digest_some(writer);
        else
            sleep_until_work(q);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- writing ---- */

/* Where a batch from the front ends: after half a ring, so that the run has the other half meanwhile. */
static uint64_t batch_end(const fd_trace_queue *q) {
    const fd_trace_record *r = q->oldest;
    uint64_t end = r->end;
    while ((r = r->next) && r->end - q->oldest->begin <= q->capacity / 2) end = r->end;
    return end;
}

/* Records stay in the list until they are digested, because the helpers walk it. */
static void wait_until_digested(fd_trace_writer *writer, uint64_t end) {
    fd_trace_queue *q = &writer->queue;
    for (const fd_trace_record *r = q->oldest; r && r->end <= end; r = r->next)
        while (!r->digested)
            if (q->undigested) {
                digest_some(writer);
            } else {
                q->writer_waits = true;
                pthread_cond_wait(&q->digested, &q->lock);
                q->writer_waits = false;
            }
}

/* Takes the records up to `end` out of the list, and the steps that end among them. */
static fd_trace_record *take_batch(fd_trace_queue *q, uint64_t end, fd_trace_pending **steps) {
    fd_trace_record *first = q->oldest, *last = NULL;
    fd_trace_pending **tail = steps;
    for (fd_trace_record *r = first; r && r->end <= end; r = r->next) {
        last = r;
        if (r->node) continue;
        *tail = r->step;
        tail = &r->step->next;
        q->n_end--;
    }
    *tail = NULL;
    q->oldest = last->next;
    if (!q->oldest) q->newest = NULL;
    last->next = NULL;
    return first;
}

static void forget_steps(fd_trace_queue *q, fd_trace_pending *steps) {
    for (fd_trace_pending *next; steps; steps = next) {
        next = steps->next;
        q->n_step--;
        q->step_bytes -= steps->bytes;
        fd_trace_pending_free(steps);
    }
}

/* A batch to the file. The lock is held before and after. */
static void write_batch(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    fd_trace_pending *steps;
    fd_error err = {0};
    uint64_t end = batch_end(q);
    wait_until_digested(writer, end);
    fd_trace_record *first = take_batch(q, end, &steps);
    bool ok = q->failure.code == FD_OK;
    q->busy = true;
    pthread_mutex_unlock(&q->lock);
    fd_h5_guard guard = fd_h5_begin();
    bool written = !ok || fd_trace_write_batch(writer, first, steps, &err);
    pthread_mutex_lock(&q->lock);
    q->tail = end; /* the run has room while the steps are entered */
    pthread_cond_broadcast(&q->room);
    pthread_mutex_unlock(&q->lock);
    if (ok && written && steps) written = fd_trace_commit(writer, steps, &err);
    fd_h5_end(guard);
    if (!written) fd_trace_latch(writer, &err);
    pthread_mutex_lock(&q->lock);
    forget_steps(q, steps);
    q->busy = false;
    pthread_cond_broadcast(&q->room);
}

/* Between batches the writer takes whatever steps have ended: many small ones while it is slower than the run, each at
 * once while it is faster. */
static bool worth_writing(const fd_trace_queue *q) {
    return q->oldest && (q->n_end > 0 || q->drain || q->run_waits || q->head - q->tail >= q->capacity / 2);
}

static void *write_on(void *user) {
    fd_trace_writer *writer = user;
    fd_trace_queue *q = &writer->queue;
    pthread_mutex_lock(&q->lock);
    while (!q->stop)
        if (worth_writing(q)) {
            write_batch(writer);
        } else {
            q->writer_sleeps = true;
            pthread_cond_wait(&q->records, &q->lock);
            q->writer_sleeps = false;
        }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- the run's side ---- */

bool fd_trace_queue_fits(const fd_trace_queue *queue, size_t bytes) {
    return bytes + 2 * sizeof(fd_trace_record) <= queue->capacity / 4;
}

/* The lock is held. Waits until something has been written, or writes something. */
static void make_room(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    if (!q->threaded) {
        write_batch(writer);
        return;
    }
    q->run_waits = q->outrun = true;
    pthread_cond_signal(&q->records);
    pthread_cond_wait(&q->room, &q->lock);
    q->run_waits = false;
}

/* Where the next `size` bytes are, if they are free. What was used before is used again where there is enough of it: fresh
 * memory costs the run a page fault, and used memory may be in the cache. A run that has waited gets all of it: the more
 * steps go together, the fewer blocks of HDF5's are written. */
static uint64_t place(const fd_trace_queue *q, size_t size) {
    uint64_t at = q->head % q->capacity, tail = q->tail % q->capacity;
    bool same_lap = q->head / q->capacity == q->tail / q->capacity;
    bool reuse = !q->outrun && same_lap && at + size > q->touched && tail >= size && tail >= q->touched / 2;
    return at + size > q->capacity || reuse ? q->head + q->capacity - at : q->head;
}

fd_trace_record *fd_trace_queue_take(fd_trace_writer *writer, size_t bytes) {
    fd_trace_queue *q = &writer->queue;
    const size_t align = _Alignof(fd_trace_record);
    size_t size = (sizeof(fd_trace_record) + bytes + align - 1) / align * align;
    uint64_t begin;
    pthread_mutex_lock(&q->lock);
    for (;; make_room(writer)) {
        if (q->head == q->tail) q->head = q->tail = 0;
        begin = place(q, size);
        if (begin + size - q->tail <= q->capacity) break;
    }
    q->head = begin + size;
    size_t at = (size_t)(begin % q->capacity);
    if (at + size > q->touched) q->touched = at + size;
    pthread_mutex_unlock(&q->lock);
    fd_trace_record *record = (fd_trace_record *)(void *)(q->ring + at);
    *record = (fd_trace_record){.begin = begin, .end = begin + size};
    return record;
}

void fd_trace_queue_put(fd_trace_writer *writer, fd_trace_record *record) {
    fd_trace_queue *q = &writer->queue;
    pthread_mutex_lock(&q->lock);
    if (q->newest)
        q->newest->next = record;
    else
        q->oldest = record;
    q->newest = record;
    if (!q->undigested && !record->digested) q->undigested = record;
    if (!record->node) {
        q->n_end++;
        q->n_step++;
        q->step_bytes += record->step->bytes;
    }
    q->quiet += (size_t)(record->end - record->begin);
    if (q->undigested && q->n_sleeping > 0 && (!record->node || q->quiet >= WAKE)) {
        pthread_cond_broadcast(&q->work);
        q->quiet = 0;
    }
    if (q->writer_sleeps && worth_writing(q)) pthread_cond_signal(&q->records);
    while (!q->threaded && worth_writing(q)) write_batch(writer);
    pthread_mutex_unlock(&q->lock);
}

void fd_trace_queue_drain(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    pthread_mutex_lock(&q->lock);
    q->drain = true;
    while (q->oldest || q->busy) make_room(writer);
    q->drain = false;
    pthread_mutex_unlock(&q->lock);
}

int64_t fd_trace_queue_step_bytes(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    pthread_mutex_lock(&q->lock);
    while (q->n_step >= MAX_STEPS) make_room(writer);
    int64_t bytes = q->step_bytes;
    pthread_mutex_unlock(&q->lock);
    return bytes;
}

/* ---- life ---- */

/* One is enough where the run itself needs the processors. */
static int helpers_of(const fd_trace_options *options) {
    enum { SUITABLE = 4 };
    long quarter = sysconf(_SC_NPROCESSORS_ONLN) / 4;
    if (options->helpers > 0) return options->helpers < FD_TRACE_MAX_HELPERS ? options->helpers : FD_TRACE_MAX_HELPERS;
    return quarter < 1 ? 1 : quarter < SUITABLE ? (int)quarter : SUITABLE;
}

static bool start_threads(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    sigset_t all, before;
    hbool_t safe = false;
    if (writer->options.one_thread || H5is_library_threadsafe(&safe) < 0 || !safe) return false;
    sigfillset(&all); /* signals are the program's own threads' to take */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = pthread_create(&q->writer, NULL, write_on, writer) == 0;
    int wanted = helpers_of(&writer->options);
    while (ok && q->n_helper < wanted && pthread_create(&q->helpers[q->n_helper], NULL, help, writer) == 0)
        q->n_helper++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

bool fd_trace_queue_start(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    size_t memory = writer->options.memory ? writer->options.memory : DEFAULT_MEMORY;
    const size_t align = _Alignof(fd_trace_record);
    q->capacity = (memory < LEAST_MEMORY ? LEAST_MEMORY : memory) / align * align;
    if (q->capacity > LARGE_PAGE) q->capacity = q->capacity / LARGE_PAGE * LARGE_PAGE;
    q->ring = aligned_alloc(q->capacity < LARGE_PAGE ? align : LARGE_PAGE, q->capacity);
    if (!q->ring) return false;
    /* a fault for each page of 4 KiB would cost the run more than the copy; refused: small pages */
    if (q->capacity >= LARGE_PAGE) (void)madvise(q->ring, q->capacity, MADV_HUGEPAGE);
    q->threaded = start_threads(writer);
    return true;
}

void fd_trace_queue_stop(fd_trace_writer *writer) {
    fd_trace_queue *q = &writer->queue;
    if (q->threaded) {
        pthread_mutex_lock(&q->lock);
        q->stop = true;
        pthread_cond_broadcast(&q->work);
        pthread_cond_signal(&q->records);
        pthread_mutex_unlock(&q->lock);
        pthread_join(q->writer, NULL);
        for (int i = 0; i < q->n_helper; i++) pthread_join(q->helpers[i], NULL);
        q->threaded = false;
    }
    free(q->ring);
    q->ring = NULL;
}
