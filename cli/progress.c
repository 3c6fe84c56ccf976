#include "cli/cli.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "cli/guard.h"
#include "cli/ranks.h"

double fd_cli_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

fd_cli_progress fd_cli_progress_start(const char *what, int64_t total) {
    double now = fd_cli_seconds();
    return (fd_cli_progress){.what = what, .total = total, .started = now, .stage = now};
}

void fd_cli_progress_to(fd_cli_progress *p, int64_t done) {
    bool terminal = fd_cli_is_terminal(stderr);
    double t = fd_cli_seconds(), pause = terminal ? 0.1 : 2.0;
    p->done = done;
    if (fd_cli_rank() > 0) return;
    if (t - p->started < 2.0 || t - p->printed < pause) return;
    p->printed = t;
    p->shown = true;
    char left[32] = "";
    double seconds = done > 0 ? (t - p->stage) / (double)done * (double)(p->total - done) : 0;
    if (seconds >= 60)
        snprintf(left, sizeof left, ", %.0f min left", ceil(seconds / 60));
    else if (seconds >= 1)
        snprintf(left, sizeof left, ", %.0f s left", seconds);
    if (terminal) fd_cli_raw(stderr, "\r\033[K", 4);
    fprintf(stderr, terminal ? "%s %lld/%lld%s" : "%s %lld/%lld%s\n", p->what, (long long)done, (long long)p->total,
            left);
}

void fd_cli_progress_end(fd_cli_progress *p) {
    if (p->shown && fd_cli_is_terminal(stderr)) fd_cli_raw(stderr, "\r\033[K", 4);
}

void fd_cli_progress_callback(void *user, int64_t done, int64_t total) {
    fd_cli_progress *progress = user;
    if (progress->total == 0)
        progress->started = progress->stage = fd_cli_seconds(); /* what came before says nothing of what is left */
    progress->total = total;
    fd_cli_progress_to(progress, done);
}

void fd_cli_progress_stage_callback(void *user, const char *what, int64_t done, int64_t total) {
    fd_cli_progress *progress = user;
    if (strcmp(progress->what, what) != 0) progress->stage = fd_cli_seconds();
    progress->what = what;
    progress->total = total;
    fd_cli_progress_to(progress, done);
}
