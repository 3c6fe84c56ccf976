/* The insides of libfirstdiff_trace (firstdiff_trace.h), a front end of the store (dumpers/store/store.h):
 *
 *     tracer.c     the calls, their lock and their promises to the host program
 *     check.c      what a put may look like
 *     device.c     data in CUDA's memory
 *     gather.c     strided data to rows
 *     rows.c       a step in memory
 *     weight.c     a weight to hashes of its rows
 *     write.c      parts of steps and weights, through the queue, into the store
 *     host.c       what the host program must not notice
 *     process.c    fork and exit
 *     hash.c       the model file */
#ifndef FD_DUMPERS_CLIENT_TRACER_H
#define FD_DUMPERS_CLIENT_TRACER_H

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "dumpers/client/firstdiff_trace.h"
#include "dumpers/store/store.h"

enum { FD_TRACER_ROW_DIM = 4 }; /* dimensions of one position's tensor */

/* A put after it was checked: rows [first, first + n_row) of the trace, and where their elements lie. */
typedef struct fd_tracer_view {
    const char *name;
    fd_tracer_dtype source; /* of `data` */
    const char *data;       /* element [first, 0, …] */
    int64_t first, n_row;
    int64_t row_stride;                /* elements */
    int n_dim;                         /* of one row; leading dimensions of 1 are dropped */
    int64_t shape[FD_TRACER_ROW_DIM];  /* over_kv: the last is the keys given */
    int64_t stride[FD_TRACER_ROW_DIM]; /* elements */
    bool over_kv;
} fd_tracer_view;

/* A tensor of the trace, and what is held of it. */
typedef struct fd_tracer_set {
    char name[64];
    fd_tracer_dtype source;
    fd_tensor_form form;
    int64_t n_element; /* product of the shape, without the keys */
    char *rows;        /* [n_tok, row] of this step; NULL: none held */
    uint8_t *held;     /* [n_tok] row is in `rows` */
} fd_tracer_set;

/* The step in memory: of the calling threads. */
typedef struct fd_tracer_gathered {
    fd_tracer_set *sets;           /* [n_set] in order of first put */
    int32_t n_set, room, next_set; /* next_set: where the next put is expected */
    bool in_step;
    int64_t pos0, n_tok;
    int32_t *tokens; /* [n_tok] */
    size_t bytes;    /* held in rows */
} fd_tracer_gathered;

/* The file: of the background writer, or of a calling thread where there is none. */
typedef struct fd_tracer_output {
    fd_store *store;         /* NULL: not open */
    fd_fingerprint **prints; /* [n_print] of the step's tensors, each [n_tok] or NULL */
    int32_t n_print;
} fd_tracer_output;

struct fd_tracer {
    pthread_mutex_t lock; /* of everything below but `off` and `next` */
    atomic_bool off;      /* failed or closed: nothing more to do */
    atomic_bool failing;  /* the first failure was seen */
    bool closed;
    fd_error failure;       /* the first */
    struct fd_tracer *next; /* all tracers ever opened */

    char *path;                /* absolute */
    fd_tracer_options options; /* its strings are owned through `texts` */
    char *texts[6];

    fd_tracer_gathered step;
    struct fd_tracer_device *device; /* NULL until the first put of device data */
    fd_queue queue;                  /* of parts of steps, from `step` to `output` */
    fd_tracer_output output;
};

/* ---- check.c ---- */
/* FD_ERR_INPUT with the tensor, what was found and what was expected. `tensor` may be any garbage but its pointers. */
fd_code fd_tracer_check(const fd_tracer_tensor *tensor, int64_t pos0, int64_t n_tok, fd_tracer_view *out,
                        fd_error *err);
/* A name in the file: UTF-8 of 1 to `most` bytes; `what` is "tensor" or "weight". */
fd_code fd_tracer_check_name(const char *what, const char *name, size_t most, fd_error *err);
size_t fd_tracer_bytes_of(fd_tracer_dtype dtype); /* of an element; 0: no such type */

/* ---- gather.c ---- */
/* Row r of the view into `out`, contiguous and in the stored type; over_kv: [.., n_key] with the first `keys` of each
 * run taken and the rest filled. */
void fd_tracer_gather(const fd_tracer_view *view, int64_t r, const fd_tracer_set *set, int64_t keys, int64_t n_key,
                      char *out);
size_t fd_tracer_row_bytes(const fd_tracer_set *set, int64_t n_key);
void fd_tracer_drop_rows(fd_tracer_set *set);
fd_fingerprint fd_tracer_print(const fd_tracer_set *set, const char *row, int64_t keys, int64_t n_key);

/* ---- weight.c ---- */
/* *out is the caller's. `weight` may be any garbage but its pointers. */
fd_code fd_tracer_hash_weight(fd_tracer *tracer, const fd_tracer_weight *weight, fd_weight_rows *out, fd_error *err);

/* ---- write.c ---- */
/* Makes the file and the queue. */
fd_code fd_tracer_create(fd_tracer *tracer, fd_error *err);
size_t fd_tracer_most_held(const fd_tracer *tracer); /* bytes of the step */
/* Hands over what is held of the step; waits while too much is on its way to the file. */
fd_code fd_tracer_hand_over(fd_tracer *tracer, bool ends, fd_error *err);
/* A weight; its hashes belong to the queue from here on. */
fd_code fd_tracer_hand_over_weight(fd_tracer *tracer, const fd_weight_rows *rows, fd_error *err);
/* Waits until all that was handed over is written, and ends the thread. HDF5's lock is not held. */
void fd_tracer_stop_writing(fd_tracer *tracer);
/* Waits until all that was handed over is written, and the trace is marked as complete. */
fd_code fd_tracer_complete(fd_tracer *tracer, fd_error *err);
/* Closes the file as it is; one that is a copy still is removed. */
void fd_tracer_close_file(fd_tracer *tracer);

/* ---- rows.c ---- */
fd_code fd_tracer_begin(fd_tracer *tracer, const int32_t *tokens, int32_t count, fd_error *err);
/* Host data into the step's memory; hands over when more than options.memory allows is held. */
fd_code fd_tracer_take(fd_tracer *tracer, const fd_tracer_view *view, fd_error *err);
fd_code fd_tracer_end(fd_tracer *tracer, fd_error *err);

/* ---- device.c ---- */
fd_code fd_tracer_take_device(fd_tracer *tracer, const fd_tracer_view *view, void *stream, fd_error *err);
/* Brings `bytes` bytes at the device address `device` to `host`, and waits for them. */
fd_code fd_tracer_fetch(fd_tracer *tracer, const char *name, const void *device, size_t bytes, void *stream, char *host,
                        fd_error *err);
/* Waits for every copy that is under way and takes it. */
fd_code fd_tracer_collect(fd_tracer *tracer, fd_error *err);
bool fd_tracer_device_has(const fd_tracer *tracer, const char *name); /* a copy of this tensor is under way */
void fd_tracer_device_free(fd_tracer *tracer);

/* ---- host.c ---- */
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
/* Keeps the first failure and turns the calls off; any thread. */
void fd_tracer_note_failure(fd_tracer *tracer, const fd_error *err);

/* ---- process.c ---- */
/* After fork the child writes nothing; the locks are whole on both sides. */
void fd_tracer_register(fd_tracer *tracer);
/* At exit the threads end, and what they were given is in the files, before HDF5 ends. HDF5 was called before. */
void fd_tracer_watch_exit(void);

/* ---- hash.c ---- */
/* "xxh3-128:…" of a file's bytes, read in pieces: a model may be larger than memory. */
fd_code fd_tracer_hash_file(const char *path, char out[48], fd_error *err);

#endif
