/* The reader's insides: open.c (file, attributes, steps), nodes.c and order.c (which tensors there are, in which
 * order), set.c (what a dataset is), place.c (where its elements lie), tables.c (fingerprints, statistics, health),
 * read.c (what callers ask for). */
#ifndef FD_DUMPERS_STORE_READER_H
#define FD_DUMPERS_STORE_READER_H

#include "dumpers/hdf5/inflated.h"
#include "dumpers/hdf5/reader.h"
#include "dumpers/store/place.h"
#include "dumpers/store/schema.h"

/* A dataset of /tensors and how its elements lie in the file; F16 and BF16 are read as raw 16-bit integers and widened
 * here. */
typedef struct fd_trace_set {
    fd_h5_shape shape;
    int32_t first;  /* position of row 0 */
    uint32_t dtype; /* FD_F32, FD_F64, FD_F16, FD_BF16 */
    bool placed;    /* `layout` is known: it can be read without the library (place.h) */
    fd_h5_layout layout;
    fd_h5_chunk *chunks; /* [n_chunk] where they lie; NULL: not loaded. `only` for one chunk, else owned */
    fd_h5_chunk only;
    int64_t n_chunk;
} fd_trace_set;

/* A table with a row for each position, of which as many are in memory as may be. */
typedef struct fd_trace_table {
    const char *name;
    const fd_h5_type *type;
    size_t row_bytes;
    int n_rest;
    hsize_t rest[2];
    fd_h5_shape shape; /* of the dataset; it may have more rows than there are positions */
    void *rows;        /* [n] from position `first` on; owned */
    int32_t first, n, most;
} fd_trace_table;

struct fd_trace {
    char *path;
    fd_h5_reader *reader;     /* its root: the group that holds this trace, or the file's own */
    fd_h5_bytes bytes;        /* the same file, borrowed from the reader; not used unless `plain` */
    fd_h5_inflated *inflated; /* its filtered chunks, likewise */
    bool plain;               /* complete, and of a form that can be read without the library */
    size_t memory;            /* bytes that tables and lists of chunks may take */
    size_t *places_bytes; /* those that the lists of chunks take; through a pointer, for they change while reading */
    fd_trace_view *view;  /* of the thread that reads, likewise */
    fd_trace_info info;
    int32_t n_pos, n_step, n_node;
    int32_t *tokens;      /* [n_pos] */
    fd_trace_step *steps; /* [n_step] */
    uint8_t *level;       /* [n_pos] fd_trace_level its step was recorded at */
    fd_trace_node *nodes; /* [n_node] in order of execution */
    fd_trace_set *sets;   /* [n_node] */
    int32_t *by_name;     /* [n_node] nodes in order of their names */
    bool has_graph;
    fd_trace_table *fingerprints; /* [n_pos, n_node] fd_fingerprint; NULL: the file has none */
    fd_trace_table *stats;        /* [n_pos, n_node] fd_trace_stats; NULL */
    fd_trace_health *health;      /* [n_pos]; NULL */
    float *entropy, *sink;        /* [n_pos, n_layer, n_head]; NULL */
    int32_t n_layer, n_head;
};

enum { FD_TRACE_PATH = 320 };

/* The datasets of /tensors while they are looked at one after another. */
typedef struct fd_trace_links {
    fd_h5_link *links; /* [n] */
    size_t n;
    fd_h5_nearby nearby;
    size_t asked, ahead; /* the library was asked about those before `asked`, `ahead` of them at once */
} fd_trace_links;

/* Fills nodes and sets from /graph and /tensors. */
fd_code fd_trace_load_nodes(fd_trace *trace, fd_error *err);
/* Finds out what dataset i is: shape, dtype and layout into `set`, attributes into `out`. FD_ERR_INPUT, naming
 * it, for what no trace can hold. */
fd_code fd_trace_set_describe(const fd_trace *trace, fd_trace_links *links, size_t i, fd_trace_set *set,
                              fd_h5_object *out, fd_error *err);
/* "tensors/NAME" */
const char *fd_tensor_path(const char *name, char out[FD_TRACE_PATH]);
/* Frees the list of chunks, which is then loaded again when it is needed. */
void fd_trace_set_forget(fd_trace_set *set);
/* False for a dataset that was made, but never written. */
bool fd_trace_any_chunk(const fd_trace *trace, const fd_trace_set *set);

/* Fills fingerprints, stats, health, entropy, sink from what the file has. */
fd_code fd_trace_load_tables(fd_trace *trace, fd_error *err);

/* The row of a position, valid until another position is asked for; NULL when it cannot be read. */
const void *fd_trace_table_row(const fd_trace *trace, fd_trace_table *table, int32_t pos);
void fd_trace_table_free(fd_trace_table *table); /* NULL is fine */

/* Reads rows [0, n) of a dataset whose other dimensions must be `rest`. `what` names it in messages. More rows than n
 * are an error unless the trace is incomplete. Refuses what claims more rows than the file stores bytes for. */
fd_code fd_trace_load_rows(const fd_trace *trace, const char *what, const fd_h5_type *type, int n_rest,
                           const hsize_t *rest, int32_t n, void **out, fd_error *err);

/* Sorts nodes made up from /tensors into the order in which a llama-like model executes them: by `seq` where every
 * dataset had one (nodes[i].seq ≥ 0), else by name. `sets` moves along. Numbers them from 0. */
fd_code fd_trace_order(fd_trace_node *nodes, fd_trace_set *sets, int32_t n, fd_error *err);

/* ---- open.c ---- */
/* A trace that is a group of an open file; `file` outlives it. `path` is for messages. */
fd_code fd_trace_open_inside(fd_h5_reader *file, const char *path, const char *group, fd_trace **out, fd_error *err);

#endif
