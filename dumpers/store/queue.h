/* Work on its way from the thread that makes it to the one that carries it out, in order. What an item holds, and what is
 * done with it, only the callbacks know.
 *
 * An item lies in a ring of fixed size and goes through three stages:
 *
 *     fd_queue_take, fd_queue_put     the caller's thread; waits while the ring is full
 *     prepare                         helpers, in any order and at once
 *     write, then commit              the background writer, batches of items in order
 *
 * While the writer is in `write` it may submit tasks: parts of its work whose order is free, which helpers do meanwhile.
 *
 * Where HDF5 is not built for threads, or no thread can be had, the calling thread does all of it, whenever an item is to
 * be written at once.
 *
 * After the first failure items are dropped: callbacks are still called, to free what items own. */
#ifndef FD_DUMPERS_STORE_QUEUE_H
#define FD_DUMPERS_STORE_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct fd_queue_item {
    struct fd_queue_item *next; /* in the order in which they were put; the end of a batch has none */
    uint64_t begin, end;        /* in the ring */
    size_t outside;             /* bytes that it holds outside the ring */
    bool prepared;              /* nothing is left to prepare */
    bool at_once;               /* does not wait for others to be written together with it */
    bool ends_step;             /* counted until it is committed */
    _Alignas(64) char data[];
} fd_queue_item;

/* Part of a batch. run: 0, or errno; frees the task. `dropped`: it does no more than that. */
typedef struct fd_queue_task {
    struct fd_queue_task *next;
    int (*run)(struct fd_queue_task *task, bool dropped);
} fd_queue_task;

typedef struct fd_queue_work {
    void (*prepare)(void *user, fd_queue_item *item); /* NULL: nothing to prepare */
    /* The items' memory belongs to others as soon as it returns. */
    fd_code (*write)(void *user, fd_queue_item *first, bool dropped, fd_error *err);
    fd_code (*commit)(void *user, bool dropped, fd_error *err); /* NULL, or after a batch in which a step ended */
    void *user;
} fd_queue_work;

typedef struct fd_queue_options {
    size_t memory;  /* bytes of the ring */
    size_t outside; /* bytes that items in it may hold elsewhere; one alone may hold more */
    int n_helper;   /* threads that prepare and run tasks, at most FD_QUEUE_MAX_HELPERS */
    int max_steps;  /* put and not yet committed */
    bool one_thread;
} fd_queue_options;

enum {
    FD_QUEUE_MAX_HELPERS = 8,
    FD_QUEUE_IN_TASKS = 2 /* helpers: a file's lock lets one write, while another lays out what it writes next */
};

typedef struct fd_queue {
    fd_queue_work call;
    fd_queue_options options;
    bool threaded; /* else the calling thread is the writer */

    pthread_mutex_t lock;                       /* of all that follows */
    pthread_cond_t work, items, prepared, room; /* for helpers; twice for the writer; for the calling thread */
    pthread_t writer, helpers[FD_QUEUE_MAX_HELPERS];
    int n_helper;
    bool stop, drain;

    char *ring;
    size_t capacity;
    size_t touched;                  /* of its bytes, from the front, that were ever used */
    uint64_t head, tail;             /* bytes ever taken and given back; head % capacity is where the next item lies */
    fd_queue_item *oldest, *newest;  /* not yet in a batch */
    fd_queue_item *unprepared;       /* the first one that no thread has taken */
    size_t quiet;                    /* bytes put since the helpers were last woken */
    size_t outside;                  /* bytes that items hold elsewhere */
    int n_at_once;                   /* items in the list that are written at once */
    int n_step;                      /* steps put and not yet committed */
    int n_sleeping;                  /* helpers that wait for work */
    bool writer_sleeps, busy;        /* busy: a batch is being written */
    bool writer_waits, caller_waits; /* for items to be prepared; for room */
    bool outrun;                     /* the caller has waited for room */

    pthread_cond_t tasks_done;        /* for the writer */
    fd_queue_task *tasks, *last_task; /* not yet taken */
    int n_in_tasks, max_in_tasks;     /* helpers that run one; at most FD_QUEUE_IN_TASKS or all */
    int task_error;                   /* errno of the first that failed; 0: none */

    atomic_bool failed;
    fd_error failure; /* the first */
} fd_queue;

/* Makes the ring and the threads. False: out of memory. */
bool fd_queue_start(fd_queue *queue, const fd_queue_options *options, const fd_queue_work *work);
/* Waits until all that was put is written, ends the threads and frees the ring. A queue of zeros is fine. */
void fd_queue_stop(fd_queue *queue);

/* Whether items of `bytes` go through the ring. */
bool fd_queue_fits(const fd_queue *queue, size_t bytes);
/* An item with room for `bytes`, to be filled and put; waits for room. */
fd_queue_item *fd_queue_take(fd_queue *queue, size_t bytes);
void fd_queue_put(fd_queue *queue, fd_queue_item *item);
/* Waits until everything that was put has been committed, or dropped after a failure. */
void fd_queue_drain(fd_queue *queue);

/* ---- inside `write` ---- */
/* Tasks are run by as many helpers as there are: most of them do not wait for one another. */
void fd_queue_let_all_help(fd_queue *queue);
void fd_queue_submit(fd_queue *queue, fd_queue_task *task);
/* Runs what is left of the tasks and waits for the helpers. errno of the first failure ever; 0: none. */
int fd_queue_finish_tasks(fd_queue *queue);

/* Keeps the first failure and returns its code; any thread. */
fd_code fd_queue_fail(fd_queue *queue, const fd_error *err);
/* The failure so far; FD_OK: none. Cheap. */
fd_code fd_queue_failed(fd_queue *queue, fd_error *err);

#endif
