/* The executor's own struct, shared by reference.c (making it, forward calls) and run.c (threads over the node
 * list). */
#ifndef FD_REFERENCE_CPU_EXECUTOR_H
#define FD_REFERENCE_CPU_EXECUTOR_H

#include <stdatomic.h>

#include "reference_cpu/buffers.h"
#include "reference_cpu/ops.h"
#include "reference_cpu/reference.h"

/* One node in one pass. */
typedef struct fd_ref_task {
    fd_op_args args;
    fd_ref_rows rows;
    bool threaded;         /* worth more than one thread */
    bool shared;           /* worth more than one process */
    int64_t items, chunk;  /* threads fetch `chunk` items at a time, up to item `items` */
    int64_t work, n_total; /* of the whole node: its cost, and its items */
    _Atomic int64_t next;  /* first item that nobody has fetched */
} fd_ref_task;

typedef struct fd_reference {
    fd_exec exec; /* first */
    fd_ref_ops ops;
    int n_thread;
    fd_peers *peers;     /* NULL: this process alone */
    bool may_split;      /* a long batch may run as several shorter ones: the graph has no fault that could tell */
    int32_t write_ahead; /* cache rows past its own position that a position may write: a fault's row_offset */
    fd_ref_buffers buffers;
    fd_ref_task *tasks; /* [n_node] */
} fd_reference;

/* Runs all tasks in order; with an observer, shows each node's tensor. */
fd_code fd_ref_run(fd_reference *ref, fd_error *err);

/* Decides threads and chunks from the cost of task->args; with peers, which items are this process's. */
void fd_ref_cut(fd_ref_task *task, int n_thread, const fd_peers *peers);

bool fd_ref_shares(fd_op op);

/* Brings the peers' items of a shared task. */
fd_code fd_ref_gather(fd_peers *peers, const fd_ref_task *task, size_t real_size, fd_error *err);

#endif
