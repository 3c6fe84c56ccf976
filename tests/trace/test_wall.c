/* The wall: whatever the child does, the parent gets an answer or a reason. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dumpers/hdf5/wall.h"

enum { TWICE, CRASH, ABORT, LEAVE, SPIN, MEMORY, A_FILE, A_PROCESS, A_SOCKET, DESCRIPTORS, COUNT };

typedef struct page {
    int what, in, out;
} page;

static int *nowhere;

static void serve(void *shared, void **state) {
    page *p = shared;
    switch (p->what) {
    case TWICE: p->out = 2 * p->in; break;
    case CRASH: *nowhere = 1; break;
    case ABORT: abort();
    case LEAVE: _exit(0);
    case SPIN:
        for (volatile unsigned i = 0;; i++) continue;
    case MEMORY: { /* malloc alone would be taken out by the compiler */
        fd_wall_limit_memory(16 << 20);
        char *some = malloc(1 << 20), *much = malloc(64 << 20);
        p->out = (some != NULL) + 2 * (much != NULL);
        free(some);
        free(much);
        break;
    }
    case A_FILE:
        fd_wall_confine();
        p->out = open("/etc/passwd", O_RDONLY);
        break;
    case A_PROCESS:
        fd_wall_confine();
        p->out = fork();
        if (p->out == 0) _exit(0);
        break;
    case A_SOCKET:
        fd_wall_confine();
        p->out = socket(AF_INET, SOCK_STREAM, 0);
        break;
    case DESCRIPTORS: p->out = fcntl(p->in, F_GETFD); break;
    case COUNT:
        *state = (char *)*state + 1;
        p->out = (int)(intptr_t)*state;
        break;
    }
}

static fd_wall *start(void) {
    fd_wall *wall;
    fd_error err = {0};
    cr_assert_eq(fd_wall_start(sizeof(page), serve, &wall, &err), FD_OK, "%s", err.message);
    return wall;
}

static bool call(fd_wall *wall, int what, int in, int *out) {
    page *p = fd_wall_page(wall);
    *p = (page){what, in, -7};
    bool answered = fd_wall_call(wall, 0.2);
    if (answered && out) *out = p->out;
    return answered;
}

Test(wall, answers_and_keeps_what_it_knows) {
    fd_wall *wall = start();
    int out = 0;
    for (int i = 0; i < 1000; i++) {
        cr_assert(call(wall, TWICE, i, &out));
        cr_assert_eq(out, 2 * i);
    }
    for (int i = 1; i < 4; i++) {
        cr_assert(call(wall, COUNT, 0, &out));
        cr_expect_eq(out, i);
    }
    cr_expect_null(fd_wall_death(wall));
    fd_wall_stop(wall);
}

Test(wall, a_child_that_dies_is_a_reason) {
    const struct {
        int what;
        const char *why;
    } deaths[] = {{LEAVE, "left"},
                  {SPIN, "0.2 s of processor time"},
#ifndef FD_SANITIZED /* which turn them into an exit */
                  {CRASH, "signal 11"},
                  {ABORT, "signal 6"}
#endif
    };
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        fd_wall *wall = start();
        int out;
        cr_expect(call(wall, TWICE, 3, &out));
        cr_expect_not(call(wall, deaths[i].what, 0, NULL));
        cr_assert_not_null(fd_wall_death(wall));
        cr_expect(strstr(fd_wall_death(wall), deaths[i].why), "%zu: %s", i, fd_wall_death(wall));
        cr_expect_not(call(wall, TWICE, 3, &out), "a dead child answers nothing");
        fd_wall_stop(wall);
    }
    cr_expect_eq(waitpid(-1, NULL, WNOHANG), -1, "no child is left");
}

Test(wall, what_is_not_needed_is_refused) {
    int out = 0, mine = open("/dev/null", O_RDONLY);
    fd_wall *wall = start();
    cr_expect(call(wall, DESCRIPTORS, mine, &out));
    cr_expect_eq(out, -1, "the parent's descriptors are closed");
#ifndef FD_SANITIZED
    cr_expect(call(wall, MEMORY, 0, &out));
    cr_expect_eq(out, 1);
#endif
    cr_expect(call(wall, A_FILE, 0, &out));
    cr_expect_eq(out, -1);
    cr_expect(call(wall, A_SOCKET, 0, &out));
    cr_expect_eq(out, -1);
#if defined(__linux__) && !defined(FD_SANITIZED)
    cr_expect(call(wall, A_PROCESS, 0, &out));
    cr_expect_eq(out, -1);
#endif
    cr_expect(call(wall, TWICE, 4, &out));
    cr_expect_eq(out, 8, "and it still answers");
    fd_wall_stop(wall);
    close(mine);
}

/* A parent that is killed leaves no child behind, not even one that is caught in a loop. */
Test(wall, a_child_ends_with_its_parent) {
    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* its orphans become ours, to be waited for */
    if (fork() == 0) {
        fd_wall *wall = start();
        ((page *)fd_wall_page(wall))->what = SPIN;
        alarm(1); /* kills this process while it waits */
        fd_wall_call(wall, 1000);
        _exit(1);
    }
    int ended = 0;
    for (int i = 0; i < 1000 && ended < 2; i++) {
        if (waitpid(-1, NULL, WNOHANG) > 0) ended++;
        usleep(10000);
    }
    cr_expect_eq(ended, 2, "the child is still there");
}

/* A program that exits without stopping it has no child when it is gone. */
Test(wall, a_child_ends_with_a_program_that_forgot_it) {
    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    pid_t parent = fork();
    if (parent == 0) {
        int out;
        call(start(), TWICE, 1, &out);
        exit(0);
    }
    cr_assert_eq(waitpid(parent, NULL, 0), parent);
    cr_expect_eq(waitpid(-1, NULL, WNOHANG), -1, "an orphan is there");
}
