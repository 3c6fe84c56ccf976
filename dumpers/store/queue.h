/* Rows on their way from the run to the file, and the threads that bring them there: one that calls HDF5, and helpers
 * that digest rows and write them (trace_jobs.c). The memory is a ring of fixed size; whoever has rows to put waits while it is full.
 *
 * Where HDF5 is not built for threads, or none can be had, the calling thread does all of it at the end of a step. */
#ifndef FD_DUMPERS_STORE_QUEUE_H
#define FD_DUMPERS_STORE_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>

#include "dumpers/store/trace.h"

typedef struct fd_trace_pending fd_trace_pending; /* a step, trace_writer.h */
typedef struct fd_trace_put fd_trace_put;         /* rows on their way to known places, trace_writer.h */

/* Rows [pos0, pos0 + n_pos) of a node, or the end of a step. Lies in the ring. */
typedef struct fd_trace_record {
    struct fd_trace_record *next; /* in the order in which they were put */
    struct fd_trace_record *same; /* in a batch: the next of this node */
    fd_trace_pending *step;
    const fd_node *node; /* NULL: the step ends here */
    int32_t pos0, n_pos;
    int64_t row_elements; /* rows lie without a gap */
    uint64_t begin, end;  /* in the ring */
    bool digested;
    bool handed; /* what is to be worked out of the rows has come with them, and is noted */
    _Alignas(64) char data[];
} fd_trace_record;

enum {
    FD_TRACE_MAX_HELPERS = 8,
    FD_TRACE_MOST_WRITING = 2 /* helpers: a file's lock lets one write, while another lays out what it writes next */
};

typedef struct fd_trace_queue {
    pthread_mutex_t lock;
    pthread_cond_t work, records, digested, room; /* for the helpers; twice for the writer; for the calling thread */
    pthread_t writer, helpers[FD_TRACE_MAX_HELPERS];
    int n_helper;
    bool threaded, stop, drain;

    char *ring;
    size_t capacity;
    size_t touched;                   /* of its bytes, from the front, that were ever used */
    uint64_t head, tail;              /* bytes ever taken and given back; head % capacity is the next record's place */
    fd_trace_record *oldest, *newest; /* not yet in a batch */
    fd_trace_record *undigested;      /* the first one that nobody has taken */
    size_t quiet;                     /* bytes put since the helpers were last woken */
    int32_t n_end;                    /* ends of steps in the list */
    int32_t n_step;                   /* steps put and not yet written */
    int64_t step_bytes;               /* that they may add to the file */
    int n_sleeping;                   /* helpers that wait for work */
    bool writer_sleeps;
    bool busy;                        /* a batch is being written */

    pthread_cond_t jobs_done;      /* for the writer */
    fd_trace_put *jobs, *last_job; /* nobody has taken them */
    int n_doing;                   /* jobs that somebody is at */
    int job_error;                 /* errno of the first that failed; 0: none */

    bool writer_waits, run_waits;     /* for rows to be digested; for room */
    bool outrun;                      /* the run has waited for room */

    atomic_bool failed;
    fd_error failure; /* the first; rows that come after it are dropped */
} fd_trace_queue;

/* Makes the ring and the threads. False: out of memory. */
bool fd_trace_queue_start(fd_trace_writer *writer);
/* Ends the threads and frees the ring. The queue is drained before, or never got anything. */
void fd_trace_queue_stop(fd_trace_writer *writer);

/* Whether rows of `bytes` go through the ring; larger ones are written by the calling thread. */
bool fd_trace_queue_fits(const fd_trace_queue *queue, size_t bytes);
/* A record with room for `bytes`, to be filled and put; waits for room. */
fd_trace_record *fd_trace_queue_take(fd_trace_writer *writer, size_t bytes);
void fd_trace_queue_put(fd_trace_writer *writer, fd_trace_record *record);
/* Waits until everything that was put has been written, or dropped after a failure. */
void fd_trace_queue_drain(fd_trace_writer *writer);
/* Bytes that the steps under way may still add to the file; waits while there are more of them than memory should hold. */
int64_t fd_trace_queue_step_bytes(fd_trace_writer *writer);

/* Keeps the first failure and returns its code. */
fd_code fd_trace_latch(fd_trace_writer *writer, const fd_error *err);
/* The failure so far; FD_OK: none. Cheap. */
fd_code fd_trace_failed(fd_trace_writer *writer, fd_error *err);

#endif
