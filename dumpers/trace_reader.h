/* The reader's insides: trace_open.c (file, attributes, steps), trace_nodes.c (which tensors there are, in which
 * order), trace_tables.c (fingerprints, statistics, health), trace_read.c (what callers ask for). */
#ifndef FD_DUMPERS_TRACE_READER_H
#define FD_DUMPERS_TRACE_READER_H

#include "dumpers/h5.h"
#include "dumpers/trace_schema.h"

/* How the elements of a dataset lie in the file; F16 and BF16 are read as raw 16-bit integers and widened here. */
typedef struct fd_trace_set {
    hid_t id;     /* -1: no data */
    hid_t memory; /* type to read with; owned for 16-bit floats */
    fd_h5_shape shape;
    int32_t first; /* position of row 0 */
} fd_trace_set;

struct fd_trace {
    char *path;
    hid_t file;
    fd_trace_info info;
    int32_t n_pos, n_step, n_node;
    int32_t *tokens;      /* [n_pos] */
    fd_trace_step *steps; /* [n_step] */
    uint8_t *level;       /* [n_pos] fd_trace_level its step was recorded at */
    fd_trace_node *nodes; /* [n_node] in order of execution */
    fd_trace_set *sets;   /* [n_node] */
    bool has_graph;
    fd_fingerprint *fingerprints; /* [n_pos, n_node]; NULL: the file has none */
    fd_trace_stats *stats;        /* [n_pos, n_node]; NULL */
    fd_trace_health *health;      /* [n_pos]; NULL */
    float *entropy, *sink;        /* [n_pos, n_layer, n_head]; NULL */
    int32_t n_layer, n_head;
};

/* Fills nodes and sets from /graph and /tensors. */
fd_code fd_trace_load_nodes(fd_trace *trace, fd_error *err);
/* Fills fingerprints, stats, health, entropy, sink from what the file has. */
fd_code fd_trace_load_tables(fd_trace *trace, fd_error *err);

/* Reads rows [0, n) of a dataset whose other dimensions must be `rest`. `what` names it in messages. More rows than n
 * are an error unless the trace is incomplete. Refuses what claims more rows than the file stores bytes for. */
fd_code fd_trace_load_rows(const fd_trace *trace, const char *what, hid_t type, size_t element_bytes, int n_rest,
                           const hsize_t *rest, int32_t n, void **out, fd_error *err);

/* Sorts nodes made up from /tensors into the order in which a llama-like model executes them: by `seq` where every
 * dataset had one (nodes[i].seq ≥ 0), else by name. `sets` moves along. Numbers them from 0. */
fd_code fd_trace_order(fd_trace_node *nodes, fd_trace_set *sets, int32_t n, fd_error *err);

#endif
