/* The insides of libfirstdiff_trace (firstdiff_trace.h): tracer.c (the calls, their lock and their promises to the host
 * program), tracer_check.c (what a put may look like), tracer_gather.c (strided data to rows), tracer_rows.c (a step in
 * memory), tracer_beside.c (the thread that writes), tracer_file.c (the file's life), tracer_sets.c (its datasets), tracer_device.c (CUDA), tracer_host.c (the
 * host's state), tracer_hash.c (the model file). */
#ifndef FD_DUMPERS_CLIENT_TRACER_H
#define FD_DUMPERS_CLIENT_TRACER_H

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "dumpers/client/firstdiff_trace.h"
#include "dumpers/hdf5/driver.h"
#include "dumpers/store/schema.h"

enum { FD_TRACER_ROW_DIM = 4 }; /* dimensions of one position's tensor */

/* A put after it was checked: rows [first, first + n_row) of the trace, and where their elements lie. */
typedef struct fd_tracer_view {
    const char *name;
    fd_tracer_dtype source; /* of `data` */
    const char *data;       /* element [first, 0, …] */
    int64_t first, n_row;
    int64_t row_stride;     /* elements */
    int n_dim;              /* of one row; leading dimensions of 1 are dropped */
    int64_t shape[FD_TRACER_ROW_DIM];  /* over_kv: the last is the keys given */
    int64_t stride[FD_TRACER_ROW_DIM]; /* elements */
    bool over_kv;
} fd_tracer_view;

/* A tensor of the trace. */
typedef struct fd_tracer_set {
    char name[64];
    uint32_t dtype; /* as stored: FD_F32, FD_F64, FD_F16, FD_BF16 */
    size_t element; /* bytes of it */
    fd_tracer_dtype source;
    int n_dim;
    int64_t shape[FD_TRACER_ROW_DIM]; /* over_kv: the last is 0 */
    int64_t n_element;                /* product of the shape, without the keys */
    bool over_kv, scores;             /* scores: padded with -inf, other tensors over keys with 0 */

    hid_t id;       /* -1: not in the file */
    int64_t extent; /* rows the dataset has */

    /* of this step */
    char *rows;             /* [n_tok, row]; NULL: none held */
    uint8_t *held;          /* [n_tok] row is in `rows` */
    fd_fingerprint *prints; /* [n_tok]; 0, 0: not recorded yet */
} fd_tracer_set;

struct fd_tracer {
    pthread_mutex_t lock; /* of everything below but `off` and `next` */
    atomic_bool off;      /* failed or closed: nothing more to do */
    atomic_bool failing;  /* somebody has seen the first failure */
    bool closed;
    fd_error failure;     /* the first */
    struct fd_tracer *next; /* all tracers ever opened */

    char *path, *part; /* absolute; `part` is the file while it grows new datasets */
    fd_tracer_options options; /* its strings are owned through `texts` */
    char *texts[6];

    hid_t file; /* -1: not open */
    fd_h5_target target;
    hid_t tokens, steps, fingerprints; /* datasets; fingerprints -1 before the first tensor */
    bool growing;  /* `part` is open, plainly; else the file at `path`, in single-writer mode, or none */
    int lock_file; /* a descriptor of the file at `path` with a lock on it; -1 */

    fd_tracer_set *sets; /* [n_set] in order of first put */
    int32_t n_set, room, next_set; /* next_set: where the next put is expected */
    int32_t n_in_graph;  /* sets that the file's /graph has */

    bool in_step;
    int64_t pos0, n_tok, n_step; /* of the step; finished steps */
    int32_t *step_tokens;        /* [n_tok] */
    size_t held_bytes;

    struct fd_tracer_beside *beside; /* who writes, to a file of his; NULL: the calls do, to the one above */
    struct fd_tracer_device *device; /* NULL until the first put of device data */
};

/* ---- tracer_check.c ---- */
/* FD_ERR_INPUT with the tensor, what was found and what was expected. `tensor` may be any garbage but its pointers. */
fd_code fd_tracer_check(const fd_tracer_tensor *tensor, int64_t pos0, int64_t n_tok, fd_tracer_view *out, fd_error *err);
size_t fd_tracer_bytes_of(fd_tracer_dtype dtype); /* of an element; 0: no such type */

/* ---- tracer_gather.c ---- */
/* Row r of the view into `out`, contiguous and in the stored type; over_kv: [.., n_key] with the first `keys` of each
 * run taken and the rest filled. */
void fd_tracer_gather(const fd_tracer_view *view, int64_t r, const fd_tracer_set *set, int64_t keys, int64_t n_key,
                      char *out);
/* Elements from the first to the last that the view reaches, and whether that is also how many it has. */
int64_t fd_tracer_reach(const fd_tracer_view *view);
fd_fingerprint fd_tracer_print(const fd_tracer_set *set, const char *row, int64_t keys, int64_t n_key);

/* ---- tracer_rows.c ---- */
fd_code fd_tracer_begin(fd_tracer *tracer, const int32_t *tokens, int32_t count, fd_error *err);
/* Host data into the step's memory; writes early, or hands over, when more than options.memory allows is held. */
fd_code fd_tracer_take(fd_tracer *tracer, const fd_tracer_view *view, fd_error *err);
fd_code fd_tracer_end(fd_tracer *tracer, fd_error *err);
fd_code fd_tracer_write_held(fd_tracer *tracer, fd_error *err);
void fd_tracer_drop_rows(fd_tracer_set *set);

/* ---- tracer.c ---- */
/* Keeps the first failure and turns the calls off; any thread. */
void fd_tracer_note_failure(fd_tracer *tracer, const fd_error *err);

/* ---- tracer_beside.c ---- */
/* Makes tracer->beside, unless the options or HDF5 are against it. The thread starts when the file is there. */
void fd_tracer_beside_open(fd_tracer *tracer);
fd_code fd_tracer_beside_start(fd_tracer *tracer, fd_error *err);
/* Whose file it is: the tracer's, or the thread's. */
fd_tracer *fd_tracer_file(fd_tracer *tracer);
size_t fd_tracer_most_held(const fd_tracer *tracer); /* bytes of the step */
/* What is held of the step, to the thread; waits while too much is on its way there. */
fd_code fd_tracer_hand_over(fd_tracer *tracer, bool ends, fd_error *err);
/* Waits until the thread has written all that it was given, and has ended. HDF5's lock is not held. */
void fd_tracer_beside_end(fd_tracer *tracer, bool complete);
void fd_tracer_beside_free(fd_tracer *tracer);
void fd_tracer_beside_before_fork(fd_tracer *tracer);
void fd_tracer_beside_in_parent(fd_tracer *tracer);
void fd_tracer_beside_in_child(fd_tracer *tracer);

/* ---- tracer_file.c ---- */
fd_code fd_tracer_create(fd_tracer *tracer, fd_error *err);
/* From here to the end of the step datasets may be added: the file is copied and the copy is written. */
fd_code fd_tracer_grow(fd_tracer *tracer, fd_error *err);
/* The step's tokens and fingerprints, then its row in /steps. */
fd_code fd_tracer_commit(fd_tracer *tracer, fd_error *err);
fd_code fd_tracer_complete(fd_tracer *tracer, fd_error *err);
/* Closes what is open and removes a file that was growing. */
void fd_tracer_shut(fd_tracer *tracer);

/* ---- tracer_sets.c ---- */
fd_code fd_tracer_make_room(fd_tracer *tracer, fd_error *err); /* on the disk, for all rows that are held */
fd_code fd_tracer_write_rows(fd_tracer *tracer, fd_tracer_set *set, fd_error *err);
bool fd_tracer_open_sets(fd_tracer *tracer);
bool fd_tracer_write_graph(fd_tracer *tracer); /* /graph, and /fingerprints with a column for each set */
bool fd_tracer_even_out(fd_tracer *tracer);
int64_t fd_tracer_chunk_rows(const fd_tracer_set *set);

/* ---- tracer_device.c ---- */
fd_code fd_tracer_take_device(fd_tracer *tracer, const fd_tracer_view *view, void *stream, fd_error *err);
/* Waits for every copy that is under way and takes it. */
fd_code fd_tracer_collect(fd_tracer *tracer, fd_error *err);
bool fd_tracer_device_has(const fd_tracer *tracer, const char *name); /* a copy of this tensor is under way */
void fd_tracer_device_free(fd_tracer *tracer);

/* ---- tracer_host.c ---- */
/* What the host program must not notice of HDF5 and of writes: errno, floating-point flags and traps, SIGXFSZ of a
 * write beyond the limit on file sizes, a thread cancelled with the lock held, HDF5's error printing. May nest; taken
 * after the tracer's lock, never before. */
typedef struct fd_tracer_host {
    bool hdf5;
    int error, cancel;
    fenv_t env;
    sigset_t mask;
    bool was_pending;
    fd_h5_guard print;
} fd_tracer_host;
void fd_tracer_enter(fd_tracer_host *host, bool hdf5); /* false: HDF5 is not called before fd_tracer_leave */
void fd_tracer_leave(const fd_tracer_host *host);
/* After fork the child writes nothing; the locks are whole on both sides. */
void fd_tracer_register(fd_tracer *tracer);
/* At exit the threads end, and what they were given is in the files, before HDF5 does. HDF5 was called before. */
void fd_tracer_watch_exit(void);

/* ---- tracer_hash.c ---- */
/* "xxh3-128:…" of a file's bytes, read in pieces: a model may be larger than memory. */
fd_code fd_tracer_hash_file(const char *path, char out[48], fd_error *err);

#endif
