#include "dumpers/store/queue_threads.h"

#include <H5public.h>
#include <signal.h>

enum { TAKE = 256 << 10 }; /* bytes that a helper takes at a time */

/* ---- tasks ---- */

void fd_queue_let_all_help(fd_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->max_in_tasks = FD_QUEUE_MAX_HELPERS;
    pthread_mutex_unlock(&q->lock);
}

void fd_queue_submit(fd_queue *q, fd_queue_task *task) {
    task->next = NULL;
    pthread_mutex_lock(&q->lock);
    *(q->last_task ? &q->last_task->next : &q->tasks) = task;
    q->last_task = task;
    if (q->n_sleeping > 0 && q->n_in_tasks < q->max_in_tasks) pthread_cond_signal(&q->work);
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
        if (q->tasks && q->n_in_tasks < q->max_in_tasks) {
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

void fd_queue_write_batch(fd_queue *q) {
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
bool fd_queue_worth_writing(const fd_queue *q) {
    return q->oldest && (q->n_at_once > 0 || q->drain || q->caller_waits || q->head - q->tail >= q->capacity / 2);
}

static void *write_on(void *user) {
    fd_queue *q = user;
    pthread_mutex_lock(&q->lock);
    while (!q->stop)
        if (fd_queue_worth_writing(q)) {
            fd_queue_write_batch(q);
        } else {
            q->writer_sleeps = true;
            pthread_cond_wait(&q->items, &q->lock);
            q->writer_sleeps = false;
        }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- both ---- */

bool fd_queue_start_threads(fd_queue *q) {
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
