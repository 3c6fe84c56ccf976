#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "dumpers/client/tracer.h"

/* HDF5 need not be built for threads: one at a time of ours is in it. */
static pthread_mutex_t hdf5_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void fd_tracer_enter(fd_tracer_host *host, bool hdf5) {
    sigset_t size_limit, pending;
    host->error = errno;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &host->cancel);
    host->hdf5 = hdf5;
    if (hdf5) pthread_mutex_lock(&hdf5_lock);
    feholdexcept(&host->env);
    sigemptyset(&size_limit);
    sigaddset(&size_limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &size_limit, &host->mask);
    host->was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    if (hdf5) host->print = fd_h5_begin();
}

void fd_tracer_leave(const fd_tracer_host *host) {
    sigset_t size_limit, pending;
    if (host->hdf5) fd_h5_end(host->print);
    sigemptyset(&size_limit);
    sigaddset(&size_limit, SIGXFSZ);
    if (!host->was_pending && sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1)
        sigtimedwait(&size_limit, NULL, &(struct timespec){0, 0}); /* of our own write: reported as its error */
    pthread_sigmask(SIG_SETMASK, &host->mask, NULL);
    fesetenv(&host->env);
    if (host->hdf5) pthread_mutex_unlock(&hdf5_lock);
    pthread_setcancelstate(host->cancel, NULL);
    errno = host->error;
}

/* ---- fork ---- */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static fd_tracer *all; /* kept for good: a call after close must find its tracer */

static void before_fork(void) {
    pthread_mutex_lock(&list_lock);
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next) {
        pthread_mutex_lock(&tracer->lock);
        fd_tracer_beside_before_fork(tracer);
    }
    pthread_mutex_lock(&hdf5_lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&hdf5_lock);
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next) {
        fd_tracer_beside_in_parent(tracer);
        pthread_mutex_unlock(&tracer->lock);
    }
    pthread_mutex_unlock(&list_lock);
}

/* The file's descriptor is shared. HDF5 closes its files at exit, and would cut the parent's to the length that the
 * child knows: the driver drops every write of a target that has failed. */
static void in_child(void) {
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next) {
        if (tracer->target.error == 0) tracer->target.error = ECANCELED;
        tracer->growing = false; /* the file beside it is the parent's to remove */
        tracer->device = NULL;   /* CUDA does not survive a fork */
        fd_tracer_beside_in_child(tracer);
        fd_error err = {FD_ERR_UNSUPPORTED, "the trace belongs to the process that opened it"};
        if (!tracer->closed) fd_tracer_note_failure(tracer, &err);
        atomic_store(&tracer->off, true);
        pthread_mutex_unlock(&tracer->lock);
    }
    /* a recursive lock is its thread's, and this thread is another one than locked it */
    hdf5_lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
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

/* Whoever ends the program inside a put has its lock: that trace is left as it is. */
static void at_exit(void) {
    struct timespec until;
    pthread_mutex_lock(&list_lock);
    for (fd_tracer *tracer = all; tracer; tracer = tracer->next) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 5;
        if (pthread_mutex_timedlock(&tracer->lock, &until) != 0) continue;
        fd_tracer_beside_end(tracer, false);
        if (tracer->beside) atomic_store(&tracer->off, true);
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
