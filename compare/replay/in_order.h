/* Jobs that do not depend on each other, on as many threads as there are; what comes out is taken in the jobs' order until
 * one is the last, so that no thread changes what is taken. Jobs behind the last may have been run for nothing.
 *
 * With more threads than jobs each is run alone, with all threads to itself. */
#ifndef FD_COMPARE_REPLAY_IN_ORDER_H
#define FD_COMPARE_REPLAY_IN_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct fd_jobs {
    int32_t begin, end;
    int32_t most_threads; /* 0: all there are */
    void *user;
    bool (*needless)(void *user, int32_t i);              /* not to be run, only taken; not while another is taken */
    fd_code (*run)(void *user, int32_t i, fd_error *err); /* from any thread, several at once */
    bool (*take)(void *user, int32_t i);                  /* one at a time, in order; false: it was the last */
} fd_jobs;

/* The failure of the first job that failed, if it was to be taken; FD_ERR_MEMORY. */
fd_code fd_run_in_order(const fd_jobs *jobs, fd_error *err);

#endif
