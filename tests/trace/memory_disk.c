/* memory_disk FOLDER, or full PATH: traces of more than 64 MiB with four helpers, in a file system in memory, where they make
 * pages ahead of what they write (dumpers/hdf5/disk_ahead.h). A whole one, one that is killed, and one whose file has a
 * limit; `full`: one that the file system, of 100 MiB, has no room for. Every finished step is there, with its
 * values. Ends with 0, with 77 where there is no such file system, or names what failed. */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dumpers/hdf5/driver.h"
#include "dumpers/store/trace.h"

#define CHECK(holds, ...) ((holds) ? (void)0 : fail(__VA_ARGS__))

static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    _exit(1);
}

enum { N_NODE = 4, WIDTH = 128 << 10, N_STEP = 60, WINDOW = 32 << 20 };
static float row[WIDTH];

static const float *row_of(int32_t node, int32_t pos) {
    for (int32_t i = 0; i < WIDTH; i++) row[i] = (float)(i % 1000 + 1000 * node + 4000 * pos);
    return row;
}

static fd_graph the_graph(void) {
    static fd_node nodes[N_NODE];
    for (int32_t i = 0; i < N_NODE; i++) {
        nodes[i] = (fd_node){.id = i, .op = FD_OP_RMS_NORM, .n_dim = 1, .shape = {WIDTH}};
        nodes[i].input[0] = i - 1;
        nodes[i].input[1] = nodes[i].weight[0] = nodes[i].weight[1] = -1;
        snprintf(nodes[i].name, sizeof nodes[i].name, "blk.0.t%d", i);
    }
    fd_graph graph = {.nodes = nodes, .n_node = N_NODE};
    graph.hparams.n_layer = 1;
    return graph;
}

enum { TOLD = 40 }; /* steps of more than 64 MiB */

/* `told`, unless NULL: a byte goes there once TOLD steps were flushed, and one comes from beside it before the next. */
static fd_code write_trace(const char *path, const int told[2], fd_error *err) {
    fd_graph graph = the_graph();
    fd_trace_options options = fd_trace_defaults(path);
    fd_trace_info info = {.producer = "memory_disk"};
    fd_trace_writer *writer;
    options.helpers = 4;
    FD_TRY(fd_trace_create(&options, &info, &graph, FD_NUMERICS_EXACT, &writer, err));
    fd_observer observer = fd_trace_observer(writer);
    fd_code code = FD_OK;
    for (int32_t pos = 0; code == FD_OK && pos < N_STEP; pos++) {
        code = fd_trace_begin_step(writer, FD_STEP_DECODE, &pos, 1, pos, err);
        for (int32_t i = 0; code == FD_OK && i < N_NODE; i++) {
            fd_observation o = {.graph = &graph, .node = &graph.nodes[i], .step = pos, .pos0 = pos, .n_pos = 1};
            o.row_stride = WIDTH;
            o.dtype = FD_F32;
            o.data = row_of(i, pos);
            code = observer.observe(observer.user, &o, err);
        }
        if (code == FD_OK) code = fd_trace_end_step(writer, err);
        if (code == FD_OK && pos == 0) code = fd_trace_flush(writer, err); /* what was flushed stays, whatever comes */
        if (code == FD_OK && told && pos + 1 == TOLD) {
            char x = 'x';
            code = fd_trace_flush(writer, err);
            CHECK(write(told[1], &x, 1) == 1 && read(told[0], &x, 1) == 1, "nobody listens");
        }
    }
    if (code == FD_OK) return fd_trace_finish(writer, err);
    fd_trace_abandon(writer);
    return code;
}

static int64_t size_of(const char *path) {
    struct stat there;
    return stat(path, &there) == 0 ? (int64_t)there.st_size : -1;
}

static void check_trace(const char *path, int32_t least, int32_t most, bool complete) {
    static float read[WIDTH];
    fd_error err = {0};
    fd_trace *trace;
    CHECK(fd_trace_open(path, &trace, &err) == FD_OK, "%s", err.message);
    int32_t n_pos = fd_trace_n_pos(trace);
    CHECK(n_pos >= least && n_pos <= most, "%s: %d positions, expected %d to %d", path, n_pos, least, most);
    CHECK(fd_trace_get_info(trace)->complete == complete, "%s: complete: %d", path, !complete);
    for (int32_t pos = 0; pos < n_pos; pos++)
        for (int32_t i = 0; i < N_NODE; i++) {
            CHECK(fd_trace_read(trace, i, pos, read, NULL, &err) == FD_OK, "%s", err.message);
            CHECK(memcmp(read, row_of(i, pos), sizeof read) == 0, "%s: node %d, position %d", path, i, pos);
        }
    fd_trace_close(trace);
    fd_h5_guard guard = fd_h5_begin();
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(file >= 0, "%s: plain HDF5 refuses the file", path);
    H5Fclose(file);
    fd_h5_end(guard);
}

static void whole(const char *path) {
    const int64_t bytes = (int64_t)N_STEP * N_NODE * (int64_t)sizeof row, more = 1 << 20;
    fd_error err = {0};
    CHECK(write_trace(path, NULL, &err) == FD_OK, "%s", err.message);
    CHECK(size_of(path) >= bytes && size_of(path) < bytes + more, "%s: %lld bytes", path, (long long)size_of(path));
    check_trace(path, N_STEP, N_STEP, true);
    unlink(path);
}

static void killed(const char *path) {
    int told[2], go[2];
    char x = 'x';
    CHECK(pipe(told) == 0 && pipe(go) == 0, "no pipe");
    pid_t child = fork();
    if (child == 0) {
        fd_error err = {0};
        close(told[0]), close(go[1]);
        _exit(write_trace(path, (const int[]){go[0], told[1]}, &err) == FD_OK ? 99 : 98);
    }
    CHECK(read(told[0], &x, 1) == 1, "%s: the writer ended", path);
    for (int i = 0; i < 1000 && size_of(path) < 3 * WINDOW; i++) usleep(10000); /* by a thread of its own */
    /* 80 MiB were written, and half a window is made ahead of the last helper's place: the end of the third window or,
     * where that place is a little further, of the fourth. */
    CHECK(size_of(path) == 3 * WINDOW || size_of(path) == 4 * WINDOW, "%s: %lld bytes: no pages were made ahead", path,
          (long long)size_of(path));
    CHECK(write(go[1], &x, 1) == 1, "%s: the writer ended", path);
    usleep(3000); /* somewhere in the steps after those */
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 2; i++) close(told[i]), close(go[i]);
    check_trace(path, TOLD, N_STEP, false);
    unlink(path);
}

/* Of the disk, or of the file's size. */
static void no_room(const char *path, const char *reason) {
    fd_error err = {0};
    CHECK(write_trace(path, NULL, &err) == FD_ERR_IO, "%s: a full disk went unnoticed", path);
    CHECK(strstr(err.message, path) && strstr(err.message, reason), "%s", err.message);
    CHECK(size_of(path) % WINDOW != 0, "%s: %lld bytes: the pages ahead stayed", path, (long long)size_of(path));
    check_trace(path, 1, N_STEP - 1, false);
    unlink(path);
}

static void limited(const char *path) {
    const rlim_t limits[] = {70 << 20, (96 << 20) - 4096, 96 << 20, 100 << 20};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){limits[i], RLIM_INFINITY});
            no_room(path, "File too large");
            _exit(0);
        }
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "limit %zu: status %x", (size_t)limits[i], status);
    }
}

/* Pages where the file system has none left, and in a file that somebody cut short. */
static void pages_alone(const char *path) {
    for (int cut = 0; cut < 2; cut++) {
        fd_disk_ahead ahead;
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
        uint64_t end = 64 << 20, last = 4000ull << 20;
        CHECK(fd >= 0, "%s cannot be made", path);
        fd_disk_ahead_begin(&ahead, fd);
        CHECK(fd_disk_ahead_make_pages(&ahead, fd, end), "%s: no pages can be made", path);
        if (cut) CHECK(ftruncate(fd, 1000) == 0, "%s cannot be cut", path);
        while (end < last && fd_disk_ahead_make_pages(&ahead, fd, end)) end += 1 << 20;
        CHECK(end < last, "%s: pages without end", path);
        CHECK(!fd_disk_ahead_make_pages(&ahead, fd, end), "%s: pages after a failure", path);
        fd_disk_ahead_end(&ahead);
        close(fd);
        unlink(path);
    }
}

int main(int argc, char **argv) {
    char path[4096];
    if (argc < 2) return 2;
    if (argc > 2)
        snprintf(path, sizeof path, "%s", argv[2]);
    else
        snprintf(path, sizeof path, "%s/memory_disk.%ld.h5", argv[1], (long)getpid());
    fd_disk_ahead ahead;
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    fd_disk_ahead_begin(&ahead, fd);
    bool in_memory = fd >= 0 && ahead.in_memory;
    fd_disk_ahead_end(&ahead);
    if (fd >= 0) close(fd);
    unlink(path);
    if (!in_memory) {
        printf("skipped: %s is not in memory\n", path);
        return 77;
    }
    if (argc > 2) {
        pages_alone(path);
        no_room(path, "No space left");
        return 0;
    }
    whole(path);
    killed(path);
    limited(path);
    return 0;
}
