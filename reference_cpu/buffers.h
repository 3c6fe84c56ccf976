/* The memory of one executor: rows of activations, K/V caches, rope tables. All of it is made with the executor, for
 * one position at a time, and grows when a longer batch comes. */
#ifndef FD_REFERENCE_CPU_BUFFERS_H
#define FD_REFERENCE_CPU_BUFFERS_H

#include <stddef.h>

#include "exec/exec.h"

typedef struct fd_ref_block {
    void *base; /* owned */
    char *data; /* in it, on a cache line's start; zeroed when made */
    size_t size;
} fd_ref_block;

/* Which rows of a batch a node computes. */
typedef enum fd_ref_rows { FD_REF_ALL_ROWS, FD_REF_LAST_ROW, FD_REF_NO_ROW } fd_ref_rows;

/* A slot holds the rows of nodes that are never needed at the same time. */
typedef struct fd_ref_slot {
    fd_ref_block block;
    int64_t width;      /* elements of a row: the widest of its nodes that do not run over positions, */
    int64_t n_head;     /* and the most heads of those that do: n_head · n_kv elements */
    int32_t busy_until; /* while planning: the last node that reads it */
} fd_ref_slot;

typedef struct fd_ref_rope_table {
    const fd_node *node;   /* one of those whose angles these are */
    int32_t n_filled;      /* positions */
    fd_ref_block cos, sin; /* real [n_ctx, n_rot/2] */
} fd_ref_rope_table;

typedef struct fd_ref_buffers {
    const fd_graph *graph; /* borrowed */
    fd_numerics numerics;
    size_t real_size;
    int32_t n_ctx, n_seq;
    int32_t sequence; /* whose caches fd_ref_rows_of gives */
    fd_ref_slot *slots;
    int32_t n_slot;
    int32_t *slot_of;     /* [n_node]; -1 for a KV_WRITE */
    bool *feeds_cache;    /* [n_node]: some later position needs this node's every row */
    fd_ref_block *caches; /* [n_node]; filled for KV_WRITE: real [n_seq, n_ctx, width] */
    fd_ref_rope_table *ropes;
    int32_t n_rope;
    int32_t *rope_of; /* [n_node]; -1 for other ops */
    int32_t n_used;   /* cache rows of a sequence that may have been written since they were zeroed */
} fd_ref_buffers;

fd_code fd_ref_buffers_make(fd_ref_buffers *buffers, const fd_graph *graph, fd_numerics numerics, int32_t n_ctx,
                            int32_t n_seq, fd_error *err);
void fd_ref_buffers_free(fd_ref_buffers *buffers);

/* Room for n_row rows of which the last sees n_kv positions, and rope tables up to there. Pointers may move. */
fd_code fd_ref_buffers_reserve(fd_ref_buffers *buffers, int32_t n_row, int32_t n_kv, fd_error *err);

/* Zeroes the caches: a fault may read rows that nothing wrote, and two runs must see the same ones. */
void fd_ref_buffers_reset(fd_ref_buffers *buffers);

/* Where the node's rows are; a KV_WRITE's cache of the sequence from position 0. */
void *fd_ref_rows_of(const fd_ref_buffers *buffers, int32_t node);

#endif
