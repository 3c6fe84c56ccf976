#include "mpi/mpi.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The part of MPI's interface that is used here, as Open MPI 4 and 5 have it in libmpi.so.40: handles are pointers to objects of
 * the library, a status may be NULL. (Standard: MPI 3.1; values: Open MPI's mpi.h.) */
enum { THREAD_FUNNELED = 1 };
typedef int (*init_fn)(int *argc, char ***argv, int required, int *provided);
typedef int (*number_fn)(void *communicator, int *number);
typedef int (*gather_fn)(const void *from, int count, void *type, void *to, const int *counts, const int *at,
                         void *to_type, void *communicator, void **request);
typedef int (*test_fn)(void **request, int *done, void *status);
typedef int (*abort_fn)(void *communicator, int status);
typedef int (*finalize_fn)(void);

/* A gather goes in pieces of at most this many bytes, for MPI counts in int. */
enum { PIECE_BYTES = 1 << 28 };

/* How long a process waits for the others. The first pass of a model that lies on a cold disk takes as long as reading it. */
enum { WAIT_SECONDS = 600 };

typedef struct mpi_peers {
    fd_peers peers; /* first */
    void *world, *byte;
    gather_fn gather;
    test_fn test;
    abort_fn abort;
    finalize_fn finalize;
    int *counts, *at; /* [n] bytes of each process in a piece, and where they lie */
    char *own, *all;  /* this process's share of a piece, and the piece, share after share */
    size_t own_bytes, all_bytes;
} mpi_peers;

static bool number_of(const char *variable, int32_t *out) {
    const char *text = getenv(variable);
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || end == text || *end || value < 0 || value > INT32_MAX) return false;
    *out = (int32_t)value;
    return true;
}

bool fd_mpi_started(int32_t *rank, int32_t *n) {
    return number_of("OMPI_COMM_WORLD_SIZE", n) && number_of("OMPI_COMM_WORLD_RANK", rank) && *n > 1 && *rank < *n;
}

int32_t fd_mpi_n_local(void) {
    int32_t n;
    return number_of("OMPI_COMM_WORLD_LOCAL_SIZE", &n) && n > 1 ? n : 1;
}

int32_t fd_mpi_local_rank(void) {
    int32_t rank;
    return number_of("OMPI_COMM_WORLD_LOCAL_RANK", &rank) ? rank : 0;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- gathering ---- */

static bool has_room(char **buffer, size_t *size, size_t wanted) {
    if (wanted <= *size) return true;
    char *more = realloc(*buffer, wanted);
    if (!more) return false;
    *buffer = more;
    *size = wanted;
    return true;
}

/* Waits without taking the processor from processes that share it. */
static fd_code wait_for(mpi_peers *m, void *request, const char *name, fd_error *err) {
    const double started = seconds();
    int done = 0;
    for (int64_t tries = 0;; tries++) {
        if (m->test(&request, &done, NULL) != 0) return fd_fail(err, FD_ERR_IO, "MPI: %s: a gather failed", name);
        if (done) return FD_OK;
        const double waited = seconds() - started;
        if (!(waited <= m->peers.wait_seconds))
            return fd_fail(err, FD_ERR_IO,
                           "MPI: %s: rank %d has waited %.0f s for the other %d rank%s: one of them is stuck or gone "
                           "(FIRSTDIFF_WAIT_SECONDS sets how long to wait)",
                           name, m->peers.rank, waited, m->peers.n - 1, m->peers.n > 2 ? "s" : "");
        if (waited > 0.02)
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        else
            sched_yield();
    }
}

/* Blocks [first, first + n) of the rows. */
static fd_code gather_piece(mpi_peers *m, const fd_shared_rows *rows, int64_t first, int64_t n, fd_error *err) {
    const size_t block = (size_t)rows->n_item * rows->item_bytes;
    char *data = (char *)rows->data + (size_t)first * block;
    int at = 0;
    for (int32_t r = 0; r < m->peers.n; r++) {
        int64_t items = fd_peers_first(&m->peers, r + 1, rows->n_item) - fd_peers_first(&m->peers, r, rows->n_item);
        m->counts[r] = (int)((size_t)(n * items) * rows->item_bytes);
        m->at[r] = at;
        at += m->counts[r];
    }
    const int own = m->counts[m->peers.rank];
    if (!has_room(&m->own, &m->own_bytes, (size_t)own + 1) || !has_room(&m->all, &m->all_bytes, (size_t)n * block + 1))
        return fd_fail(err, FD_ERR_MEMORY, "MPI: no memory for %s", rows->name);
    const size_t begin = (size_t)fd_peers_first(&m->peers, m->peers.rank, rows->n_item) * rows->item_bytes;
    const size_t share = n ? (size_t)own / (size_t)n : 0;
    for (int64_t b = 0; b < n; b++) memcpy(m->own + (size_t)b * share, data + (size_t)b * block + begin, share);
    void *request = NULL;
    if (m->gather(m->own, own, m->byte, m->all, m->counts, m->at, m->byte, m->world, &request) != 0)
        return fd_fail(err, FD_ERR_IO, "MPI: %s: a gather failed", rows->name);
    FD_TRY(wait_for(m, request, rows->name, err));
    for (int32_t r = 0; r < m->peers.n; r++) {
        const size_t to = (size_t)fd_peers_first(&m->peers, r, rows->n_item) * rows->item_bytes;
        const size_t bytes = (size_t)m->counts[r] / (size_t)n;
        for (int64_t b = 0; b < n && r != m->peers.rank; b++)
            memcpy(data + (size_t)b * block + to, m->all + m->at[r] + (size_t)b * bytes, bytes);
    }
    return FD_OK;
}

static fd_code gather_rows(fd_peers *peers, const fd_shared_rows *rows, fd_error *err) {
    const size_t block = (size_t)rows->n_item * rows->item_bytes;
    const int64_t most = block >= PIECE_BYTES ? 1 : PIECE_BYTES / (int64_t)(block ? block : 1);
    if (block > INT_MAX)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "MPI: %s: %zu bytes a row, at most %d can be gathered", rows->name,
                       block, INT_MAX);
    for (int64_t first = 0; first < rows->n_block; first += most) {
        int64_t n = rows->n_block - first < most ? rows->n_block - first : most;
        FD_TRY(gather_piece((mpi_peers *)peers, rows, first, n, err));
    }
    return FD_OK;
}

/* ---- beginning and ending ---- */

static void free_peers(mpi_peers *m) {
    free(m->counts);
    free(m->at);
    free(m->own);
    free(m->all);
    free(m);
}

static fd_code load(mpi_peers *m, fd_error *err) {
    void *library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL); /* its plug-ins look for its names */
    if (!library)
        return fd_fail(err, FD_ERR_UNSUPPORTED,
                       "mpirun started %d processes, but Open MPI's library cannot be loaded: %s (Debian: openmpi-bin)",
                       m->peers.n, dlerror());
    init_fn init = NULL;
    number_fn rank = NULL, size = NULL;
    struct {
        const char *name;
        void *to; /* POSIX gives functions as object pointers */
    } symbols[] = {{"MPI_Init_thread", &init},     {"MPI_Comm_rank", &rank},
                   {"MPI_Comm_size", &size},       {"MPI_Iallgatherv", &m->gather},
                   {"MPI_Test", &m->test},         {"MPI_Abort", &m->abort},
                   {"MPI_Finalize", &m->finalize}, {"ompi_mpi_comm_world", &m->world},
                   {"ompi_mpi_byte", &m->byte}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!(*(void **)symbols[i].to = dlsym(library, symbols[i].name)))
            return fd_fail(err, FD_ERR_UNSUPPORTED, "libmpi.so.40: no %s in it: is it Open MPI's?", symbols[i].name);
    int provided, here, n;
    if (init(NULL, NULL, THREAD_FUNNELED, &provided) != 0 || rank(m->world, &here) != 0 || size(m->world, &n) != 0)
        return fd_fail(err, FD_ERR_IO, "MPI: it could not be started");
    if (provided < THREAD_FUNNELED) return fd_fail(err, FD_ERR_UNSUPPORTED, "MPI: this library allows no threads");
    m->peers.rank = here;
    m->peers.n = n;
    return FD_OK;
}

fd_code fd_mpi_begin(fd_peers **out, fd_error *err) {
    int32_t rank, n, wait = WAIT_SECONDS;
    *out = NULL;
    if (!fd_mpi_started(&rank, &n)) return FD_OK;
    mpi_peers *m = calloc(1, sizeof *m);
    if (!m) return fd_fail(err, FD_ERR_MEMORY, "MPI: out of memory");
    m->peers = (fd_peers){.rank = rank, .n = n, .gather = gather_rows};
    if (getenv("FIRSTDIFF_WAIT_SECONDS") && !number_of("FIRSTDIFF_WAIT_SECONDS", &wait)) {
        free_peers(m);
        return fd_fail(err, FD_ERR_INPUT, "FIRSTDIFF_WAIT_SECONDS=%s: expected a whole number",
                       getenv("FIRSTDIFF_WAIT_SECONDS"));
    }
    m->peers.wait_seconds = wait;
    fd_code code = load(m, err);
    if (code == FD_OK) m->counts = calloc((size_t)m->peers.n, sizeof *m->counts);
    if (code == FD_OK) m->at = calloc((size_t)m->peers.n, sizeof *m->at);
    if (code == FD_OK && (!m->counts || !m->at)) code = fd_fail(err, FD_ERR_MEMORY, "MPI: out of memory");
    if (code == FD_OK)
        *out = &m->peers;
    else
        free_peers(m);
    return code;
}

void fd_mpi_end(fd_peers *peers, int failed) {
    mpi_peers *m = (mpi_peers *)peers;
    if (!m) return;
    if (failed && m->peers.rank > 0)
        sleep(2); /* the first one may be ending a trace: what all failed at, it failed at too */
    if (failed) m->abort(m->world, failed);
    m->finalize();
    free_peers(m);
}
