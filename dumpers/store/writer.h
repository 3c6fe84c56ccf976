/* The writer's insides.
 *
 *     observe ── copies rows ──▶ ring ──▶ helpers: fingerprints, statistics, health, rounding     trace_digest.c
 *                                     ──▶ writer:  chunks for rows of /tensors, where they lie    trace_rows.c, trace_chunks.c
 *                                         helpers and writer: rows from the ring into the file    trace_jobs.c
 *     end_step ── the step's end ──▶      ──▶ writer: tables, flush, /steps, flush                trace_commit.c
 *
 * trace_pack.c compresses rows, trace_create.c makes the empty file, trace_observe.c takes what is shown, trace_step.c a step's buffers, trace_queue.c
 * has the ring and the threads, trace_write.c opens and ends all of it. */
#ifndef FD_DUMPERS_STORE_WRITER_H
#define FD_DUMPERS_STORE_WRITER_H

#include "dumpers/store/file.h"
#include "dumpers/store/queue.h"
#include "dumpers/store/schema.h"

/* A forward call: filled by whoever digests its rows, freed when it was written. */
struct fd_trace_pending {
    fd_trace_pending *next; /* of those that are written together */
    fd_step_kind kind;
    fd_trace_level level; /* of this step */
    int32_t pos0, n_tok;
    int64_t bytes;                /* that it may add to the file */
    int32_t *tokens;              /* [n_tok] */
    fd_fingerprint *fingerprints; /* [n_tok, n_node] */
    fd_trace_stats *stats;        /* [n_tok, n_node]; NULL where the file has none */
    fd_trace_health *health;      /* [n_tok] */
    float *entropy, *sink;        /* [n_tok, n_layer, n_head]; NULL without attention */
};

/* The chunks of a tensor's newest rows, [from, from + rows): one for each FD_KV_CHUNK keys, or one. */
typedef struct fd_trace_chunks {
    int32_t rows; /* of a chunk */
    size_t row_bytes;
    int32_t from;
    int32_t end; /* behind the last row that was written, or filled */
    int32_t n;   /* columns; 0: nothing was written yet */
    size_t room;
    uint64_t *address; /* [n] in the file; FD_TRACE_NO_CHUNK: not there yet */
    bool through_hdf5; /* rows came out of order: HDF5 writes all that follow */
} fd_trace_chunks;
#define FD_TRACE_NO_CHUNK UINT64_MAX

/* Rows of one tensor, as stored. */
typedef struct fd_trace_rows {
    const char *data;
    size_t stride; /* bytes from row to row */
    int32_t pos0, n;
    int32_t n_kv; /* keys in each row (over_kv) */
} fd_trace_rows;

/* A place in a list of them. */
typedef struct fd_trace_cursor {
    const fd_trace_rows *rows;
    size_t i, n;
    int32_t row; /* of rows[i] */
} fd_trace_cursor;

/* Rows [pos, end) of the chunks whose first row is `from`; those of [fill, pos) were not recorded. */
typedef struct fd_trace_run {
    int32_t from, fill, pos, end;
    int32_t n_column; /* chunks */
} fd_trace_run;

typedef struct fd_trace_place_at {
    uint64_t address;
    bool fresh; /* nothing was written there: [from, pos) is fill */
} fd_trace_place_at;

struct fd_trace_put {
    fd_trace_put *next;
    const fd_node *node;
    size_t row_bytes;
    size_t n_run, n_place, n_row;
    fd_trace_run *runs;
    fd_trace_place_at *places; /* of the runs' columns, in order */
    fd_trace_rows *rows;       /* of the runs, in order; what they point to lies still */
};

struct fd_trace_writer {
    char *path;
    char *tensors; /* copy of options.tensors; NULL */
    fd_trace_options options;
    const fd_graph *graph;
    uint32_t dtype;  /* of every tensor that is shown: FD_F32 or FD_F64 */
    uint32_t stored; /* of every tensor in the file: `dtype`, FD_F16 or FD_BF16 */
    int32_t logits;  /* node id; -1: no such node */
    bool *selected;  /* [n_node] passes the filters */
    bool *stored_nodes; /* [n_node] /tensors has a dataset for it */

    /* of the calling thread */
    int32_t n_pos, n_step;  /* ended */
    int32_t *all_tokens;    /* [n_pos + n_tok] */
    fd_trace_pending *step; /* NULL: between steps */

    fd_trace_queue queue;

    /* of the thread that writes; of the calling thread while the queue is drained */
    fd_trace_file *file; /* owned, unless options.file is it */
    hid_t root;          /* the file, or the trace's group of it; -1: none of the ids below is open */
    hid_t tokens, steps, fingerprints, stats; /* datasets; stats -1 below FD_TRACE_STATS */
    hid_t health[FD_HEALTH_COUNT];            /* entropy and sink -1 without attention */
    hid_t *tensor;                            /* [n_node]; -1: not selected, or below FD_TRACE_FULL */
    int32_t *extent;                          /* [n_node] rows that the dataset has */
    fd_trace_record **first, **last;          /* [n_node] of a batch */
    fd_trace_chunks *chunks;                  /* [n_node] */
    void *nothing;                            /* as large as the largest chunk; never looked at */
    fd_trace_rows *rows;                      /* of a tensor in a batch; these three grow on demand */
    fd_trace_run *runs;
    fd_trace_place_at *places;
    size_t room_rows, room_runs, room_places;
    int32_t n_written; /* rows of /steps */
};

/* Creates the whole empty trace: a file of its own, opened for single-writer use and moved to its path, or the group
 * options.group of options.file. */
fd_code fd_trace_create_file(fd_trace_writer *writer, const fd_trace_info *info, fd_error *err);

/* Whether a step of this level has the node's elements. */
bool fd_trace_stores(const fd_trace_writer *writer, const fd_node *node, fd_trace_level level);

/* fd_observe_fn and fd_wants_fn with the writer as `user`. */
fd_code fd_trace_observe(void *user, const fd_observation *observation, fd_error *err);
unsigned fd_trace_wants(void *user, const fd_node *node);

/* Bytes of an element in the file. */
size_t fd_trace_stored_bytes(const fd_trace_writer *writer);

void fd_trace_pending_free(fd_trace_pending *step); /* NULL is fine */

/* ---- trace_digest.c ---- */
bool fd_trace_feeds_health(const fd_trace_writer *writer, const fd_node *node);
/* Fingerprint, statistics and health of one row into the step's buffers. Rows may be digested in any order and at once. */
void fd_trace_digest_row(const fd_trace_writer *writer, fd_trace_pending *step, const fd_observation *o, int32_t row);
/* All rows of a record; its data become what the file stores. */
void fd_trace_digest(const fd_trace_writer *writer, fd_trace_record *record);
/* n elements of binary32 to the stored 16-bit type; `to` may be `from`. */
void fd_trace_round(const fd_trace_writer *writer, const char *from, size_t n, char *to);

/* ---- trace_pack.c ---- */
/* Whether rows of the node are compressed before they reach HDF5; its records have 4 bytes more for each row. */
bool fd_trace_packs(const fd_trace_writer *writer, const fd_node *node);
/* Compresses each row of a record in its place; rows that get no smaller stay as they are. */
void fd_trace_pack(const fd_trace_writer *writer, fd_trace_record *record);
/* Bytes of a row as HDF5 stores its chunk, at the row's place; 0: not compressed. */
uint32_t fd_trace_packed_bytes(const fd_trace_writer *writer, fd_trace_record *record, int32_t row);

/* ---- trace_rows.c ---- */
/* The rows of the records from `first` on, and what the steps that end among them add to the tables: all of it is flushed
 * when it returns true, and nobody looks at the records any more when it returns. */
bool fd_trace_write_batch(fd_trace_writer *writer, fd_trace_record *first, const fd_trace_pending *steps,
                          fd_error *err);
/* Rows as they are shown, without a record; they are in the file on return. */
bool fd_trace_write_shown(fd_trace_writer *writer, const fd_observation *o, int32_t end, fd_error *err);

/* ---- trace_chunks.c ---- */
bool fd_trace_chunks_begin(fd_trace_writer *writer); /* false: out of memory */
void fd_trace_chunks_free(fd_trace_writer *writer);
/* Rows inside the dataset's extent on their way to where HDF5 has, or makes, room for them. False: out of memory, or HDF5
 * refused. */
bool fd_trace_put_rows(fd_trace_writer *writer, const fd_node *node, const fd_trace_rows *rows, size_t n);
/* Likewise fill for rows before `end` that chunks have and nobody showed. */
bool fd_trace_put_fill(fd_trace_writer *writer, int32_t end);
/* n rows of `n_kv` keys (over_kv) without a gap, by HDF5. */
bool fd_trace_write_block(fd_trace_writer *writer, const fd_node *node, int32_t pos0, int32_t n, int32_t n_kv,
                          const void *data);

/* ---- trace_jobs.c ---- */
bool fd_trace_cursor_ended(const fd_trace_cursor *at);
int32_t fd_trace_cursor_pos(const fd_trace_cursor *at);
const char *fd_trace_cursor_data(const fd_trace_cursor *at);
void fd_trace_cursor_step(fd_trace_cursor *at, int32_t n);
/* How far the rows from here on follow one another, not beyond `limit`. */
int32_t fd_trace_cursor_reach(fd_trace_cursor at, int32_t limit);

/* A put with room for so much; NULL: out of memory. Given away by fd_trace_send. */
fd_trace_put *fd_trace_new_put(size_t n_run, size_t n_place, size_t n_row);
/* It is in the file when fd_trace_finish_jobs returns true. No two of them write the same bytes. */
void fd_trace_send(fd_trace_writer *writer, fd_trace_put *put);
/* Does what is left and waits for the helpers. A failure is noted in the target; false then. */
bool fd_trace_finish_jobs(fd_trace_writer *writer);
/* A helper's share; the queue's lock is held before and after, and there are jobs. */
void fd_trace_do_job(fd_trace_writer *writer);

/* ---- trace_commit.c ---- */
/* What a chain of steps adds to the tables, flushed. */
bool fd_trace_commit_tables(fd_trace_writer *writer, const fd_trace_pending *steps, fd_error *err);
/* Their rows in /steps, flushed. */
bool fd_trace_commit(fd_trace_writer *writer, const fd_trace_pending *steps, fd_error *err);

#endif
