/* The two kinds of threads behind a queue, for queue.c alone: helpers prepare items and run tasks, the writer writes
 * batches of what is prepared. */
#ifndef FD_DUMPERS_STORE_QUEUE_THREADS_H
#define FD_DUMPERS_STORE_QUEUE_THREADS_H

#include "dumpers/store/queue.h"

/* False: there are none, the caller writes. */
bool fd_queue_start_threads(fd_queue *q);

/* The lock is held before and after both. */
bool fd_queue_worth_writing(const fd_queue *q);
void fd_queue_write_batch(fd_queue *q);

#endif
