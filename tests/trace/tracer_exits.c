/* A program that traces and then exits, forks, or runs out of disk. Not a Criterion test: its forked workers must not
 * run exit handlers, and HDF5's are what this is about. Ends with 0, or names what failed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tracer_steps.h"

static float data[16 * WIDTH];

static void check_steps(const char *path, int32_t least, int32_t most, bool complete) {
    char why[1200];
    CHECK(holds_steps(path, data, least, most, complete, why), "%s", why);
}

static void wait_for(pid_t child, const char *what, int round) {
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s, round %d: status %x", what, round, status);
}

/* A limit on file sizes, with SIGXFSZ as it comes: fatal. */
static void full_disk(const char *path) {
    for (int i = 0; i < 10; i++) {
        int round = i / 2;
        fd_tracer_options options = {.synchronous = i % 2};
        pid_t child = fork();
        if (child == 0) {
            char message[1024];
            struct rlimit limit = {(rlim_t)(round == 0 ? 1000 : 150000 + round * 100000), RLIM_INFINITY};
            setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
            setrlimit(RLIMIT_FSIZE, &limit);
            fd_tracer *tracer = fd_tracer_open(path, &options);
            for (int step = 0; step < 30; step++) put_step(tracer, data, 1);
            CHECK(fd_tracer_error(tracer) || !options.synchronous, "a full disk went unnoticed");
            CHECK(fd_tracer_close(tracer, message, sizeof message) != 0, "close says that all is well");
            CHECK(strstr(message, path), "the file is not named: %s", message);
            exit(0); /* HDF5 closes what it has at exit, too */
        }
        wait_for(child, "full disk", round);
        if (round > 0) check_steps(path, 0, 29, false);
        unlink(path);
    }
}

/* The same inside a tiny file system, where one can be mounted. */
static void tiny_file_system(const char *path) {
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    char message[1024];
    for (int i = 0; i < 300; i++) put_step(tracer, data, 1);
    CHECK(fd_tracer_close(tracer, message, sizeof message) != 0, "a full file system went unnoticed");
    CHECK(strstr(message, "No space left"), "%s", message);
    check_steps(path, 1, 299, false);
}

static void exit_without_close(const char *path, const fd_tracer_options *options) {
    pid_t child = fork();
    if (child == 0) {
        fd_tracer *tracer = fd_tracer_open(path, options);
        for (int i = 0; i < 5; i++) put_step(tracer, data, 1);
        exit(0);
    }
    wait_for(child, "exit without close", 0);
    check_steps(path, 4, 4, false);
    unlink(path);
}

/* What a child does with its parent's tracer: ends at once, ends with exit handlers, calls on, closes. */
static void forks(const char *path, const fd_tracer_options *options) {
    fd_tracer *tracer = fd_tracer_open(path, options);
    int32_t n = 0;
    for (int kind = 0; kind < 8; kind++) {
        CHECK(put_step(tracer, data, 1) == 0, "%s", fd_tracer_error(tracer));
        if (kind == 4) fd_tracer_put_f32(tracer, "late", data, 1, WIDTH); /* the next step grows */
        pid_t child = fork();
        if (child == 0) {
            bool wrote = kind % 4 >= 2 && put_step(tracer, data, 2) == 0;
            bool closed = kind % 4 == 3 && fd_tracer_close(tracer, NULL, 0) == 0;
            if (kind % 4 == 0 || kind % 4 == 2) _exit(wrote);
            exit(wrote || closed);
        }
        if (kind < 4) wait_for(child, "fork", kind);
        CHECK(put_step(tracer, data, 1) == 0 && put_step(tracer, data, 1) == 0, "%s", fd_tracer_error(tracer));
        if (kind >= 4) wait_for(child, "fork", kind); /* the parent wrote while the child lived */
        n += 3;
    }
    char message[1024];
    CHECK(fd_tracer_close(tracer, message, sizeof message) == 0, "%s", message);
    check_steps(path, n, n, true);
    unlink(path);
}

int main(int argc, char **argv) {
    for (int i = 0; i < 16 * WIDTH; i++) data[i] = (float)(i % WIDTH);
    if (argc == 3 && strcmp(argv[1], "tiny") == 0) {
        tiny_file_system(argv[2]);
        return 0;
    }
    CHECK(argc == 2, "usage: tracer_exits FILE | tiny FILE");
    full_disk(argv[1]);
    for (int synchronous = 0; synchronous < 2; synchronous++) {
        fd_tracer_options options = {.synchronous = synchronous};
        exit_without_close(argv[1], &options);
        forks(argv[1], &options);
    }
    return 0;
}
