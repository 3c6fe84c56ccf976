/* The schema firstdiff-trace 1: names, row types and chunk shapes, shared by the writer and the reader
 * (docs/trace-format.md is the same for people). */
#ifndef FD_DUMPERS_STORE_SCHEMA_H
#define FD_DUMPERS_STORE_SCHEMA_H

#include "base/dtype.h"
#include "dumpers/hdf5/type.h"
#include "dumpers/store/trace.h"

#define FD_TRACE_SCHEMA  "firstdiff-trace"
#define FD_GOLDEN_SCHEMA "firstdiff-golden"
enum { FD_TRACE_VERSION = 1 };

#define FD_STATS_COLUMNS "min", "max", "mean", "rms", "absmax", "n_nan", "n_pos_inf", "n_neg_inf", "n_zero"
enum { FD_N_STATS = sizeof(fd_trace_stats) / sizeof(double) };

/* A row of /steps. */
typedef struct fd_step_row {
    int32_t first, count; /* positions */
    int32_t kind;         /* fd_step_kind */
    int32_t level;        /* fd_trace_level the step was recorded at */
} fd_step_row;

/* A row of /graph. */
typedef struct fd_graph_row {
    int32_t seq;
    char name[64];
    char op[24];
    char input[2][64]; /* node names, "tokens", or "" */
    char weight[2][128];
    char params[128]; /* "eps=1e-05", "pairing=half n_rot=64 base=1000000", "scale=0.125" */
    int32_t layer;
    int32_t n_dim;
    int32_t shape[4];
    int32_t over_kv;
    char dtype[8];    /* "F32" */
    char covers[128]; /* names of the nodes a fused kernel covers, separated by spaces; "" */
} fd_graph_row;

/* The file holds the same members, packed. A table that lacks members is read with the fields left as they are. */
extern const fd_h5_type fd_step_row_type, fd_graph_row_type;

/* Everything /graph says about node i. */
void fd_graph_row_fill(const fd_graph *graph, int32_t i, uint32_t dtype, fd_graph_row *row);

/* Text attributes of the root, by name and place in fd_trace_info. */
typedef struct fd_info_field {
    const char *name;
    size_t offset, size;
} fd_info_field;
extern const fd_info_field fd_info_fields[];
extern const size_t fd_info_field_count;

/* Now, UTC: "2025-11-03T10:15:00Z" */
void fd_trace_now(char out[32]);

const char *fd_trace_level_name(fd_trace_level level); /* "full" */
int fd_trace_level_parse(const char *name);            /* -1 */

/* The datasets of /health, in the order of the writer's buffers. */
typedef enum fd_health_column {
    FD_HEALTH_N_KV,
    FD_HEALTH_TOP_LOGIT,
    FD_HEALTH_TOP_ID,
    FD_HEALTH_TOP1,
    FD_HEALTH_RANGE,
    FD_HEALTH_LOOP,
    FD_HEALTH_ENTROPY,
    FD_HEALTH_SINK,
    FD_HEALTH_COUNT
} fd_health_column;
typedef struct fd_health_info {
    const char *name;
    bool is_int;       /* int32, else float32 */
    int n_extra;       /* dimensions after the position: 0, 1 [10], 2 [n_layer, n_head] */
    size_t offset;     /* in fd_trace_health; entropy and sink lie outside it */
    const char *about; /* attribute `description` */
} fd_health_info;
extern const fd_health_info fd_health_columns[FD_HEALTH_COUNT];

/* "blk.12.attn_q" → 12; -1 for other names. */
int32_t fd_layer_of_name(const char *name);

/* ---- how a tensor's rows are stored ---- */

/* What /tensors says of a tensor, and all that writing its rows needs to know of it. */
typedef struct fd_tensor_form {
    uint32_t dtype;   /* as stored: FD_F32, FD_F64, FD_F16 or FD_BF16 */
    bool over_kv;     /* the last dimension runs over keys */
    bool scores;      /* over_kv: padded with -inf, others with 0 */
    int n_dim;        /* of one position, 1 to 4 */
    int32_t shape[4]; /* over_kv: the last is 0 */
} fd_tensor_form;

enum {
    FD_KV_CHUNK = 64,       /* keys in a chunk */
    FD_TRACE_EXTEND_BY = 64 /* rows: a dataset's header is written anew each time it grows */
};

fd_tensor_form fd_node_form(const fd_node *node, uint32_t dtype);
fd_tensor_form fd_graph_row_form(const fd_graph_row *row, uint32_t dtype);

size_t fd_element_bytes(uint32_t dtype); /* of the four types */
hid_t fd_stored_type(uint32_t dtype);    /* in the file: 16-bit types as raw integers; both are HDF5's own ids */
hid_t fd_memory_type(uint32_t dtype);

/* Rows × keys → the dataset's extent. Its rank is 1 + n_dim. */
void fd_form_extent(const fd_tensor_form *form, int64_t rows, int64_t keys, hsize_t out[FD_H5_MAX_RANK]);
/* Chunks hold whole rows, as few as fill 32 KiB: a decode step then writes one piece of one chunk, and a position is
 * read in one piece. `compress`: every row alone, because rewriting a compressed chunk leaves its old copy in the
 * file. */
void fd_form_chunk(const fd_tensor_form *form, bool compress, hsize_t out[FD_H5_MAX_RANK]);
size_t fd_form_chunk_row_bytes(const fd_tensor_form *form); /* of one row in one chunk */
int64_t fd_form_lines(const fd_tensor_form *form);          /* over_kv: runs of keys in a row, one for each head */
/* What writing rows [first, end) may add to the file: chunks that are touched for the first time, and HDF5's index.
 * `fresh`: no row was written before. */
int64_t fd_form_bytes(const fd_tensor_form *form, bool compress, bool fresh, int64_t first, int64_t end);
/* An element, of the stored type, that stands where nothing was recorded: NaN, or along keys padding of scores
 * (-inf) and of weights (0). */
const void *fd_form_fill(const fd_tensor_form *form);

#endif
