/* The store: a trace while it is written. Two front ends fill it, the engine's observer (dumpers/observe) and
 * libfirstdiff_trace (dumpers/client).
 *
 *     fd_store_create                      the file, with its attributes and empty tables
 *     fd_store_add, fd_store_publish       the tensors; from publish on a killed program leaves whole steps
 *     fd_store_put … fd_store_commit       rows of tensors, then the steps that they make whole
 *     fd_store_finish or fd_store_abandon
 *
 * A tensor may be added late: HDF5's single-writer mode cannot add datasets, so the file is copied and the copy, when its
 * next step is committed, takes the file's place. At any moment the file at the path is whole and has every committed step.
 *
 * Rows reach the file past HDF5, which only makes room for chunks and enters them in its index (chunks.c); the bytes go
 * there from where they are, as tasks of the queue (write_request.c). HDF5 itself would fill a chunk, lay the rows into it
 * and write that: one copy of every byte more, all of it in the one thread that may call it.
 *
 * All of it is used by one thread at a time, with HDF5's messages off (fd_h5_begin). */
#ifndef FD_DUMPERS_STORE_STORE_H
#define FD_DUMPERS_STORE_STORE_H

#include "dumpers/store/file.h"
#include "dumpers/store/queue.h"
#include "dumpers/store/schema.h"
#include "dumpers/store/weights.h"

/* The chunks of a tensor's newest rows, [from, from + rows): one for each FD_KV_CHUNK keys, or one. */
typedef struct fd_store_chunks {
    int32_t rows; /* of a chunk */
    size_t row_bytes;
    int32_t from;
    int32_t end; /* one past the last row that was written, or filled */
    int32_t n;   /* columns; 0: nothing was written yet */
    size_t room;
    uint64_t *address; /* [n] in the file; FD_STORE_NO_CHUNK: not there yet */
    bool through_hdf5; /* rows came out of order: HDF5 writes all that follow */
} fd_store_chunks;
#define FD_STORE_NO_CHUNK UINT64_MAX

typedef struct fd_store_tensor {
    fd_graph_row row; /* of /graph */
    fd_tensor_form form;
    bool stored;    /* /tensors has it */
    hid_t id;       /* its dataset; -1: not open, or not stored */
    int32_t extent; /* rows that the dataset has */
    fd_store_chunks chunks;
} fd_store_tensor;

/* A forward call: what it adds to the tables. */
typedef struct fd_store_step {
    struct fd_store_step *next; /* of those that are committed together */
    fd_step_kind kind;
    fd_trace_level level;
    int32_t pos0, n_tok;
    int32_t *tokens;              /* [n_tok] */
    fd_fingerprint *fingerprints; /* [n_tok, n_tensor] */
    fd_trace_stats *stats;        /* [n_tok, n_tensor]; NULL where the file has none */
    fd_trace_health *health;      /* [n_tok]; NULL likewise */
    float *entropy, *sink;        /* [n_tok, n_layer, n_head]; NULL likewise */
    int64_t bytes;                /* that it may add to the file */
} fd_store_step;

/* Rows of one tensor, as stored. */
typedef struct fd_store_rows {
    const char *data;
    size_t stride; /* bytes from row to row */
    int32_t pos0, n;
    int32_t n_kv; /* keys in each row (over_kv) */
} fd_store_rows;

typedef struct fd_store_options {
    const char *path;
    const char *group; /* as in fd_trace_options */
    fd_trace_level level;
    bool compress, compress_graph; /* likewise */
    bool health;                   /* /health, with entropy and sink where n_layer and n_head are not 0 */
    int32_t n_layer, n_head;
    int32_t n_pos; /* as in fd_trace_options */
} fd_store_options;

/* What is taken ahead (dumpers/hdf5/disk_ahead.h): nothing by the program's own threads, which a limit's signal would
 * end. */
typedef enum fd_write_ahead { FD_AHEAD_NONE, FD_AHEAD_SPACE, FD_AHEAD_PAGES } fd_write_ahead;

struct fd_store_scratch;
typedef struct fd_store {
    fd_store_options options;
    fd_trace_file *file;
    bool owns_file;
    hid_t root;                         /* the file, or the trace's group of it; -1: not open */
    bool growing;                       /* datasets may be added: fd_store_publish is due */
    fd_queue *queue;                    /* runs the write requests */
    fd_store_tensor *tensors;           /* [n_tensor], rows of /graph */
    int32_t n_tensor, room, n_in_graph; /* n_in_graph: those that the file's /graph has */
    int32_t n_pos, n_step;              /* committed */
    int32_t n_weight;
    hid_t tokens, steps, fingerprints, stats; /* datasets; -1: not there */
    hid_t health[FD_HEALTH_COUNT];
    void *placeholder_chunk; /* as large as the largest chunk; its bytes are never looked at */
    size_t placeholder_bytes;
    struct fd_store_scratch *scratch;
    fd_write_ahead ahead;
} fd_store;

/* The empty trace in `file`, which grows: all of it, and the store owns it from here on; or, not owned, its group
 * options->group. *out is the caller's to abandon after a failure too. */
fd_code fd_store_create(const fd_store_options *options, const fd_trace_info *info, fd_trace_file *file, bool owns_file,
                        fd_queue *queue, fd_store **out, fd_error *err);
/* The next tensor; `stored` false: it has fingerprints alone. A published store begins a copy of its file. */
fd_code fd_store_add(fd_store *store, const fd_graph_row *row, uint32_t dtype, bool stored, fd_error *err);
/* Row hashes of a weight, likewise; a name that comes again stands for the last. */
fd_code fd_store_add_weight(fd_store *store, const fd_weight_rows *rows, fd_error *err);
/* /graph and /fingerprints with all that were added; committed fingerprints stay. */
fd_code fd_store_enter_tensors(fd_store *store, fd_error *err);
/* The same, and the file takes its place at its path. */
fd_code fd_store_publish(fd_store *store, fd_error *err);

/* Makes the dataset reach to `end` rows, with as many keys. */
bool fd_store_extend(fd_store *store, fd_store_tensor *tensor, int32_t end);
/* Sends rows inside the dataset's extent on their way to the file; what they point to stays where it is until
 * fd_store_finish_writes. Nearly always in rising order; rows that come again, or late, HDF5 writes. */
bool fd_store_put(fd_store *store, fd_store_tensor *tensor, const fd_store_rows *rows, size_t n);
/* Sends fill for rows before `end` that chunks have and that were not put. */
bool fd_store_put_fill(fd_store *store, int32_t end);
/* n rows of `n_kv` keys (over_kv) without a gap, by HDF5. */
bool fd_store_write_block(const fd_store_tensor *tensor, int32_t pos0, int32_t n, int32_t n_kv, const void *data);
/* Waits for all rows that were put. False: one of them could not be written. */
bool fd_store_finish_writes(fd_store *store);

/* What a chain of steps adds to the tables, flushed. */
fd_code fd_store_append_tables(fd_store *store, const fd_store_step *steps, fd_error *err);
/* Their rows in /steps, flushed: from here on they count. All else is on disk before. */
fd_code fd_store_append_steps(fd_store *store, const fd_store_step *steps, fd_error *err);

/* Cuts or fills every tensor to the positions that were committed, notes the time and marks the trace as complete.
 * Free the store with fd_store_abandon afterwards. */
fd_code fd_store_finish(fd_store *store, fd_error *err);
/* Closes and frees the store; a file that was not published is removed, another one stays incomplete. NULL is fine. */
void fd_store_abandon(fd_store *store);

/* FD_ERR_IO, "PATH: what", with the disk's reason. */
fd_code fd_store_refuse(const fd_store *store, fd_error *err, const char *what);
/* Whether the disk has the file alone left that many bytes; FD_ERR_IO when not. */
fd_code fd_store_room(const fd_store *store, int64_t bytes, fd_error *err);
void fd_store_step_free(fd_store_step *step); /* NULL is fine */

#endif
