#include "dumpers/hdf5/wall.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PARENT, CHILD, ENDED }; /* whose turn it is */

/* Before the page, in the shared memory. */
typedef struct shared {
    _Alignas(64) _Atomic uint32_t turn;
    _Alignas(64) char page[];
} shared;

struct fd_wall {
    shared *shared;
    size_t bytes;
    pid_t child; /* 0: dead and reaped */
    pid_t parent;
    fd_wall *next; /* of `live` */
    char death[96];
};

/* ---- taking turns ---- */

static void pass_turn(shared *s, uint32_t to) {
    atomic_store(&s->turn, to);
    syscall(SYS_futex, &s->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* True when it is no longer `other`'s turn. Looks for a moment, then sleeps for at most `nanoseconds`. */
static bool await_turn(shared *s, uint32_t other, long nanoseconds) {
    enum { LOOKS = 200 }; /* some 5 to 10 microseconds, what sleeping costs at the least */
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load_explicit(&s->turn, memory_order_acquire) != other) return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    struct timespec limit = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    syscall(SYS_futex, &s->turn, FUTEX_WAIT, other, &limit, NULL, 0);
    return atomic_load_explicit(&s->turn, memory_order_acquire) != other;
}

/* ---- the child ---- */

/* Descriptors of the parent keep its pipes open, and are none of a hostile file's business. What the C library prints
 * about a damaged heap helps nobody; a sanitizer's report does. */
static void close_descriptors(void) {
#ifdef FD_SANITIZED
    const int last = 1;
#else
    const int last = 2;
#endif
    int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; nothing >= 0 && fd <= last; fd++) dup2(nothing, fd);
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3, ~0u, 0) == 0) return;
#endif
    long most = sysconf(_SC_OPEN_MAX);
    for (int fd = 3; fd < (most > 0 && most < 4096 ? most : 4096); fd++) close(fd);
}

/* What the host does on a signal is not the child's to do; what the terminal sends goes to the parent. */
static void reset_signals(void) {
    sigset_t none;
    for (int s = 1; s < 32; s++) signal(s, SIG_DFL);
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* A child that is caught in a loop sees its parent's end, too. */
static pid_t served;
static void look_for_parent(int signal_number) {
    (void)signal_number;
    if (getppid() != served) _exit(0);
}

static void watch_parent(pid_t parent) {
    struct sigaction action = {.sa_handler = look_for_parent, .sa_flags = SA_RESTART};
    struct itimerval each_second = {{1, 0}, {1, 0}}; /* of processor time */
    served = parent;
    sigaction(SIGPROF, &action, NULL);
    setitimer(ITIMER_PROF, &each_second, NULL);
}

static _Noreturn void serve_until_the_end(shared *s, fd_wall_serve serve, pid_t parent) {
    void *state = NULL;
    close_descriptors();
    reset_signals();
    watch_parent(parent);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    for (;;) {
        while (!await_turn(s, PARENT, 1000000000))
            if (getppid() != parent) _exit(0);
        if (atomic_load(&s->turn) == ENDED) _exit(0);
        serve(s->page, &state);
        pass_turn(s, PARENT);
    }
}

/* ---- the parent ---- */

static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static fd_wall *live; /* started and not stopped */

static void kill_child(fd_wall *wall);

/* A program that ends without closing what it read would leave a child behind for a second, and HDF5's lock with it. */
static void end_all(void) {
    if (pthread_mutex_trylock(&live_lock) != 0) return; /* held when this process was forked, perhaps for good */
    for (fd_wall *wall = live; wall; wall = wall->next)
        if (wall->parent == getpid()) kill_child(wall);
    pthread_mutex_unlock(&live_lock);
}

static void watch_exit(void) {
    atexit(end_all);
}

static void enlist(fd_wall *wall) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_exit);
    pthread_mutex_lock(&live_lock);
    wall->next = live;
    live = wall;
    pthread_mutex_unlock(&live_lock);
}

static void strike(const fd_wall *wall) {
    pthread_mutex_lock(&live_lock);
    for (fd_wall **at = &live; *at; at = &(*at)->next)
        if (*at == wall) {
            *at = wall->next;
            break;
        }
    pthread_mutex_unlock(&live_lock);
}

fd_code fd_wall_start(size_t page_bytes, fd_wall_serve serve, fd_wall **out, fd_error *err) {
    fd_wall *wall = calloc(1, sizeof *wall);
    *out = NULL;
    if (!wall) return fd_fail(err, FD_ERR_MEMORY, "a process that reads: out of memory");
    wall->bytes = sizeof(shared) + page_bytes;
    wall->shared = mmap(NULL, wall->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (wall->shared == MAP_FAILED) {
        free(wall);
        return fd_fail(err, FD_ERR_MEMORY, "a process that reads: no memory to share: %s", strerror(errno));
    }
    pid_t parent = getpid();
    wall->child = fork();
    if (wall->child == 0) serve_until_the_end(wall->shared, serve, parent);
    if (wall->child < 0) {
        int reason = errno;
        wall->child = 0;
        fd_wall_stop(wall);
        return fd_fail(err, FD_ERR_IO, "a process that reads: cannot be started: %s", strerror(reason));
    }
    wall->parent = parent;
    enlist(wall);
    *out = wall;
    return FD_OK;
}

void *fd_wall_page(const fd_wall *wall) {
    return wall->shared->page;
}

const char *fd_wall_death(const fd_wall *wall) {
    return wall->death[0] ? wall->death : NULL;
}

/* Seconds of processor time that the child has had; it is not reaped, so its clock exists. */
static double processor_time(const fd_wall *wall) {
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(wall->child, &clock) != 0 || clock_gettime(clock, &t) != 0) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Reaps a child that is dead; false while it lives. */
static bool has_died(fd_wall *wall) {
    int status = 0;
    pid_t found = waitpid(wall->child, &status, WNOHANG);
    if (found == 0) return false;
    wall->child = 0;
    if (found > 0 && WIFSIGNALED(status))
        snprintf(wall->death, sizeof wall->death, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(wall->death, sizeof wall->death, "it left the process");
    return true;
}

static void kill_child(fd_wall *wall) {
    if (wall->child > 0) {
        kill(wall->child, SIGKILL);
        while (waitpid(wall->child, NULL, 0) < 0 && errno == EINTR) continue;
    }
    wall->child = 0;
}

bool fd_wall_call(fd_wall *wall, double seconds) {
    enum { FIRST = 1000000, LONGEST = 32000000 }; /* nanoseconds between two looks at whether the child lives */
    if (wall->death[0]) return false;
    double before = -1;
    pass_turn(wall->shared, CHILD);
    for (long sleep = FIRST; !await_turn(wall->shared, CHILD, sleep); sleep = sleep < LONGEST ? 2 * sleep : LONGEST) {
        if (has_died(wall)) return false;
        double now = processor_time(wall);
        if (before < 0) before = now;
        if (now - before <= seconds) continue;
        kill_child(wall);
        snprintf(wall->death, sizeof wall->death, "no answer in %g s of processor time", seconds);
        return false;
    }
    return true;
}

/* Waits for the end: until then the child holds HDF5's lock of the file, which may be written next. */
void fd_wall_stop(fd_wall *wall) {
    if (!wall) return;
    strike(wall);
    kill_child(wall);
    munmap(wall->shared, wall->bytes);
    free(wall);
}
