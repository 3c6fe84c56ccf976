/* The writer's insides, shared by trace_create.c (the empty file), trace_observe.c (what a node's tensor becomes) and
 * trace_write.c (steps, flushing, the end). */
#ifndef FD_DUMPERS_TRACE_WRITER_H
#define FD_DUMPERS_TRACE_WRITER_H

#include "dumpers/h5_driver.h"
#include "dumpers/trace_schema.h"

struct fd_trace_writer {
    char *path;
    char *tensors; /* copy of options.tensors; NULL */
    fd_trace_options options;
    const fd_graph *graph;
    uint32_t dtype;   /* of every tensor that is shown: FD_F32 or FD_F64 */
    uint32_t stored;  /* of every tensor in the file: `dtype`, FD_F16 or FD_BF16 */
    uint16_t *half;   /* [n_half] rows rounded to 16 bits; grown on demand */
    size_t n_half;
    int32_t logits;   /* node id; -1: no such node */
    bool *selected;   /* [n_node] passes the filters */
    fd_error failure; /* the first failure; the writer then refuses everything but being freed */

    hid_t file; /* -1: none of the ids below is open */
    fd_h5_target target;
    hid_t tokens, steps, fingerprints, stats; /* datasets; stats -1 below FD_TRACE_STATS */
    hid_t health[FD_HEALTH_COUNT];            /* entropy and sink -1 without attention */
    hid_t *tensor;                            /* [n_node]; -1: not selected, or below FD_TRACE_FULL */

    int32_t n_pos, n_step; /* finished */
    int32_t *all_tokens;   /* [n_pos + n_tok] */

    bool in_step;
    fd_step_kind kind;
    fd_trace_level level; /* of this step */
    int32_t pos0, n_tok;
    fd_fingerprint *step_fingerprints; /* [n_tok, n_node] */
    fd_trace_stats *step_stats;        /* [n_tok, n_node]; NULL below FD_TRACE_STATS */
    fd_trace_health *step_health;      /* [n_tok] */
    float *step_entropy, *step_sink;   /* [n_tok, n_layer, n_head]; NULL without attention */
};

/* Creates the whole empty file beside `path`, opens it for single-writer use and moves it to `path`. On failure nothing
 * is left behind and what lay at `path` is untouched. */
fd_code fd_trace_create_file(fd_trace_writer *writer, const fd_trace_info *info, fd_error *err);

/* Closes the file and every id; true when all of it reached the disk. */
bool fd_trace_close_file(fd_trace_writer *writer);

/* fd_observe_fn and fd_wants_fn with the writer as `user`. */
fd_code fd_trace_observe(void *user, const fd_observation *observation, fd_error *err);
unsigned fd_trace_wants(void *user, const fd_node *node);

/* Bytes of an element in the file. */
size_t fd_trace_stored_bytes(const fd_trace_writer *writer);

/* Latches the failure and returns its code. */
fd_code fd_trace_latch(fd_trace_writer *writer, const fd_error *err);

#endif
