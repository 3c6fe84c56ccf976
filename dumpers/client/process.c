/* What a fork and the end of the program mean for every trace. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "dumpers/client/tracer.h"

/* ---- fork ---- */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static fd_tracer *all; /* kept for good: a call after close must find its tracer */

/* A writer takes its queue's lock while it holds HDF5's, never the other way round. */
static void before_fork(void) {
    pthread_mutex_lock(&list_lock);
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next) pthread_mutex_lock(&tracer->lock);
    fd_h5_lock();
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next)
        if (tracer->queue.ring) pthread_mutex_lock(&tracer->queue.lock);
}

static void in_parent(void) {
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next)
        if (tracer->queue.ring) pthread_mutex_unlock(&tracer->queue.lock);
    fd_h5_unlock();
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next) pthread_mutex_unlock(&tracer->lock);
    pthread_mutex_unlock(&list_lock);
}

/* The file, its copy and the thread are the parent's, and the file's descriptor is shared. HDF5 closes its files at
 * exit, and would cut the parent's to the length that the child knows: the driver drops every write of a target that
 * has failed. */
static void in_child(void) {
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next) {
        if (tracer->output.store && tracer->output.store->file->target.error == 0)
            tracer->output.store->file->target.error = ECANCELED;
        tracer->output.store = NULL;
        tracer->queue.ring = NULL;
        tracer->device = NULL; /* CUDA does not survive a fork */
        fd_error err = {FD_ERR_UNSUPPORTED, "the trace belongs to the process that opened it"};
        if (!tracer->closed) fd_tracer_note_failure(tracer, &err);
        atomic_store(&tracer->off, true);
        pthread_mutex_unlock(&tracer->lock);
    }
    fd_h5_renew_lock();
    pthread_mutex_unlock(&list_lock);
}

static void watch_forks(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}

void fd_tracer_register(fd_tracer *tracer) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&list_lock);
    tracer->next = all;
    all = tracer;
    pthread_mutex_unlock(&list_lock);
}

/* ---- exit ---- */

/* A thread that ends the program inside a put holds its lock: that trace is left as it is. */
static void at_exit(void) {
    struct timespec until;
    pthread_mutex_lock(&list_lock);
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 5;
        if (pthread_mutex_timedlock(&tracer->lock, &until) != 0) continue;
        bool threaded = tracer->queue.ring && tracer->queue.threaded;
        if (threaded) fd_tracer_stop_writing(tracer);
        if (threaded) fd_tracer_close_file(tracer);
        if (threaded) atomic_store(&tracer->off, true);
        pthread_mutex_unlock(&tracer->lock);
    }
    pthread_mutex_unlock(&list_lock);
}

static void watch_exit(void) {
    atexit(at_exit);
}

void fd_tracer_watch_exit(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_exit);
}
