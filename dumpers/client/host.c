#include <errno.h>
#include <time.h>

#include "dumpers/client/tracer.h"

void fd_tracer_enter(fd_tracer_host *host, bool hdf5) {
    sigset_t size_limit, pending;
    host->error = errno;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &host->cancel);
    host->hdf5 = hdf5;
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
    pthread_setcancelstate(host->cancel, NULL);
    errno = host->error;
}

void fd_tracer_note_failure(fd_tracer *tracer, const fd_error *err) {
    if (atomic_exchange(&tracer->failing, true)) return;
    tracer->failure = *err;
    atomic_store(&tracer->off, true);
}
