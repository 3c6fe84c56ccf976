/* The engine's observer as a front end of the store.
 *
 *     observer.c ── copies rows ──▶ queue ──▶ helpers: fingerprints, statistics, health, rounding   summarise.c, compress.c
 *     step.c ── the step's end ──▶        ──▶ background writer: rows to the store, then its steps  batch.c
 *
 * plan.c says which nodes are kept; writer.c opens and ends all of it. */
#ifndef FD_DUMPERS_OBSERVE_WRITER_H
#define FD_DUMPERS_OBSERVE_WRITER_H

#include "dumpers/store/store.h"

/* Rows [pos0, pos0 + n_pos) of a node, or the end of a step: what an item of the queue holds. */
typedef struct fd_trace_record {
    struct fd_trace_record *same; /* in a batch: the next of this node */
    fd_store_step *step;
    const fd_node *node; /* NULL: the step ends here */
    int32_t pos0, n_pos;
    int64_t row_elements; /* rows lie without a gap */
    bool handed;          /* what is worked out of the rows came with them, and is noted */
    _Alignas(64) char data[];
} fd_trace_record;

/* Fixed when the writer is created: any thread reads it. */
typedef struct fd_writer_plan {
    char *path;
    fd_trace_options options; /* of its strings only path and group are kept */
    const fd_graph *graph;
    uint32_t dtype;  /* of every tensor that is shown: FD_F32 or FD_F64 */
    uint32_t stored; /* of every tensor in the file: `dtype`, FD_F16 or FD_BF16 */
    int32_t logits;  /* node id; -1: no such node */
    bool heads;      /* there is attention: health has entropy and sink */
    bool *selected;  /* [n_node] passes the filters */
    bool *in_file;   /* [n_node] /tensors has a dataset for it */
} fd_writer_plan;

/* Of the calling thread. */
typedef struct fd_writer_run {
    int32_t n_pos, n_step; /* ended */
    int32_t *all_tokens;   /* [n_pos + n_tok] */
    fd_store_step *step;   /* NULL: between steps */
} fd_writer_run;

/* Of the background writer; of the calling thread while the queue is drained. */
typedef struct fd_writer_batch {
    fd_store *store;
    fd_store_step *steps, *last_step; /* that ended in the batch */
    fd_trace_record **first, **last;  /* [n_node] */
    fd_store_rows *rows;              /* of a tensor; grows on demand */
    size_t room_rows;
} fd_writer_batch;

struct fd_trace_writer {
    fd_writer_plan plan;
    fd_writer_run run;
    fd_queue queue;
    fd_writer_batch batch;
    _Atomic int64_t unwritten; /* bytes that ended steps may still add to the file */
};

/* ---- plan.c ---- */
fd_code fd_trace_check_options(const fd_trace_options *options, const fd_graph *graph, fd_numerics numerics,
                               fd_error *err);
bool fd_writer_plan_make(fd_writer_plan *plan, const fd_trace_options *options, const fd_graph *graph,
                         fd_numerics numerics); /* false: out of memory */
void fd_writer_plan_free(fd_writer_plan *plan); /* what it owns */
/* Whether a step of this level has the node's elements. */
bool fd_trace_stores(const fd_trace_writer *writer, const fd_node *node, fd_trace_level level);

/* ---- observer.c ---- */
/* fd_observe_fn and fd_wants_fn with the writer as `user`. */
fd_code fd_trace_observe(void *user, const fd_observation *observation, fd_error *err);
unsigned fd_trace_wants(void *user, const fd_node *node);

/* ---- summarise.c ---- */
bool fd_trace_feeds_health(const fd_trace_writer *writer, const fd_node *node);
/* Fingerprint, statistics and health of one row into the step's buffers. Rows may be summarised in any order and at
 * once. */
void fd_trace_summarise_row(const fd_trace_writer *writer, fd_store_step *step, const fd_observation *o, int32_t row);
/* All rows of an item's record, whose data become what the file stores: fd_queue_work.prepare. */
void fd_trace_summarise(void *writer, fd_queue_item *item);
/* n elements of binary32 to the stored 16-bit type; `to` may be `from`. */
void fd_trace_round(const fd_trace_writer *writer, const char *from, size_t n, char *to);

/* ---- compress.c ---- */
/* Whether rows of the node are compressed before they reach HDF5; its records have 4 bytes more for each row. */
bool fd_trace_compresses(const fd_trace_writer *writer, const fd_node *node);
/* Compresses each row of a record in its place; rows that get no smaller stay as they are. */
void fd_trace_compress(const fd_trace_writer *writer, fd_trace_record *record);
/* Bytes of a row as HDF5 stores its chunk, at the row's place; 0: not compressed. */
uint32_t fd_trace_compressed_bytes(const fd_trace_writer *writer, fd_trace_record *record, int32_t row);

/* ---- batch.c ---- */
/* fd_queue_work.write and .commit. */
fd_code fd_trace_write_batch(void *writer, fd_queue_item *first, bool dropped, fd_error *err);
fd_code fd_trace_commit_batch(void *writer, bool dropped, fd_error *err);
/* Rows as they are shown, without a record; they are in the file on return. The queue is drained. */
fd_code fd_trace_write_shown(fd_trace_writer *writer, const fd_observation *o, int32_t end, fd_error *err);

#endif
