/* Traces: everything a run computed, in one HDF5 file (schema firstdiff-trace 1, docs/trace-format.md).
 *
 * Writing: open, begin_step / run with the observer / end_step for each forward call, finish. What is shown is
 * copied; the writer's own threads summarise it and write it, with a flush for each step or for several that end
 * while they are busy. The attribute `complete` becomes 1 in finish alone, so a killed run leaves a file that opens
 * and says how far it got. A writer is finished or abandoned before the program exits: its threads must not outlive
 * HDF5.
 *
 * Reading: fd_trace_open reads the small parts; tensors are read when asked for.
 *
 * HDF5 need not be built thread-safe: use traces and goldens from one thread at a time. Any number of writers and
 * readers in that thread is fine. (Where HDF5 is not thread-safe, a writer has no threads of its own.) */
#ifndef FD_DUMPERS_STORE_TRACE_H
#define FD_DUMPERS_STORE_TRACE_H

#include "exec/exec.h"
#include "numerics/fingerprint.h"
#include "numerics/summary.h"

typedef enum fd_trace_level {
    FD_TRACE_FINGERPRINT, /* fingerprints and health */
    FD_TRACE_STATS,       /* and statistics */
    FD_TRACE_FULL,        /* and every element */
} fd_trace_level;

typedef enum fd_step_kind { FD_STEP_PREFILL, FD_STEP_DECODE, FD_STEP_VERIFY } fd_step_kind;

typedef struct fd_trace_info { /* attributes of the root; strings NUL-terminated UTF-8 */
    char producer[64];         /* "firstdiff 0.1.0" */
    char numerics[32];         /* "exact", "f64", "emulate-llama-cpu:7"; "" when a foreign engine did not say */
    int32_t contract;          /* FD_CONTRACT_VERSION for exact; 0 otherwise */
    char backend[16];          /* "cpu", "gpu" */
    char device[128], driver[64], build[256];
    char model_name[128];
    char model_hash[48]; /* "xxh3-128:<32 hex digits>" of the file's bytes, fd_model_hash */
    char arch[32];
    char kv_type[16]; /* "f32" */
    char fusion[32];  /* "none" */
    char fault[128];  /* injected fault, "" for none */
    char sources[64]; /* digest of the kernel and engine sources that made it; "" when not recorded */
    char tokenizer[64];
    char names[32];    /* the built-in map that its foreign names follow, "llama.cpp"; "" for the names of the GGUF */
    char absent[1024]; /* globs of nodes that the engine cannot record, separated by spaces; "" none */
    char partial[64];  /* a node whose elements were kept in part; NaN stands for the others (goldens); "" none */
    char *prompt;      /* malloc'ed by the reader; the writer borrows; NULL: none */
    char started[32], finished[32]; /* UTC, ISO 8601; written by the writer */
    fd_trace_level level;
    bool complete;
} fd_trace_info;

typedef fd_stats fd_trace_stats; /* of one node at one position (numerics/summary.h) */

typedef struct fd_trace_health { /* of one position */
    int32_t n_kv;
    float top_logit[FD_TOP_K]; /* these four: fd_top_logits */
    int32_t top_id[FD_TOP_K];
    float top1_probability;
    float logit_range;
    int32_t loop_length; /* smallest period p of the token sequence that repeated at least 3 times (and ≥ 6
                                  tokens) up to here; 0: none */
} fd_trace_health;

/* ---- writing ---- */
typedef struct fd_trace_writer fd_trace_writer;

typedef struct fd_trace_file fd_trace_file; /* dumpers/store/file.h */

typedef struct fd_trace_options {
    const char *path;
    /* Write into the group `group` ("prompt/0") of this file, created now, and leave the file open; `path` is then its
     * path. One such trace at a time. NULL: a file of its own. */
    fd_trace_file *file;
    const char *group;
    fd_trace_level level;
    const char *tensors;             /* globs over node names, separated by commas; NULL: all */
    const char *always;              /* likewise: nodes whose elements are kept below FD_TRACE_FULL too; NULL: none */
    int32_t layer_first, layer_last; /* nodes outside layers are always kept; 0, INT32_MAX: all */
    int32_t step_first, step_last;   /* steps traced at `level`; others are written at fingerprint level */
    /* FD_F16, FD_BF16: elements of /tensors are rounded to it; fingerprints and statistics are of what was computed.
     * FD_F32 (the default): as computed. */
    uint32_t store;
    int32_t n_pos;       /* positions that the run will have, for tables that are no larger; 0: unknown */
    bool compress;       /* shuffle + gzip of /tensors, gzip of /graph */
    bool compress_graph; /* that alone */
    size_t memory;       /* bytes of tensors that may wait to be written; 0: 256 MiB */
    int32_t helpers; /* threads that summarise and write besides the one that calls HDF5, at most 8; 0: a quarter of the
                        processors, 1 to 4 */
    bool one_thread; /* all work in the calling thread, at the end of each step */
    /* The model's graph without faults: row hashes of all weights are recorded under the names they have there
     * (dumpers/store/weights.h); NULL: none. */
    const fd_graph *weights;
} fd_trace_options;
fd_trace_options fd_trace_defaults(const char *path);
/* Whether the filters (tensors, layers) keep the node. */
bool fd_trace_selects(const fd_trace_options *options, const fd_node *node);

/* Creates the file (an existing one is replaced only when the new one could be created). `graph` and `info` are read
 * now; graph must outlive the writer. */
fd_code fd_trace_create(const fd_trace_options *options, const fd_trace_info *info, const fd_graph *graph,
                        fd_numerics numerics, fd_trace_writer **out, fd_error *err);
/* The observer to hand to fd_exec_set_observer for the steps between begin and end. */
fd_observer fd_trace_observer(fd_trace_writer *writer);
/* The same, and it begins and ends the steps itself, a forward call each: the caller does neither, and flushes the
 * executor before it finishes. A call at position 0 or of several tokens is a prefill. */
fd_observer fd_trace_run_observer(fd_trace_writer *writer);
fd_code fd_trace_begin_step(fd_trace_writer *writer, fd_step_kind kind, const int32_t *tokens, int32_t n_tok,
                            int32_t pos0, fd_error *err);
/* The step is written and flushed by another thread, at once or together with others that end while that one is busy. A
 * failure (a full disk: it names the file, and written steps stay) is returned by the next call, at the latest by
 * fd_trace_finish. */
fd_code fd_trace_end_step(fd_trace_writer *writer, fd_error *err);
/* Waits until every ended step is in the file, flushed. */
fd_code fd_trace_flush(fd_trace_writer *writer, fd_error *err);
/* Last flush, `finished`, `complete` = 1; frees the writer in every case. */
fd_code fd_trace_finish(fd_trace_writer *writer, fd_error *err);
/* Leaves the file incomplete and frees the writer. NULL is fine. */
void fd_trace_abandon(fd_trace_writer *writer);

/* ---- reading ---- */
typedef struct fd_trace fd_trace;

typedef struct fd_trace_step {
    int32_t pos0, n_pos;
    fd_step_kind kind;
} fd_trace_step;

typedef struct fd_trace_node { /* a row of /graph, or made up from /tensors when a foreign trace has no /graph */
    int32_t seq;               /* order of execution */
    char name[64];
    char op[24];        /* "" unknown */
    char inputs[2][64]; /* names of input nodes, "" unused; "tokens" for the embedding */
    char params[128];   /* "pairing=half n_rot=64 base=1000000", "" none or unknown */
    int32_t layer;      /* -1 */
    int32_t n_dim;
    int32_t shape[4]; /* of one position; over_kv: shape[n_dim - 1] = 0 */
    bool over_kv;
    uint32_t dtype;    /* as stored: FD_F32, FD_F64, FD_F16, FD_BF16 */
    int32_t last_rows; /* of each step so many positions at its end were recorded; 0: all */
    bool has_data;     /* /tensors has it, every element */
    bool partial;      /* /tensors has some of its elements: fd_trace_read alone gives them, NaN for the others */
    char source[64];   /* its name in the file that this trace was mapped from (fd_trace_set_source); "" not mapped */
    char saved_as[64]; /* what the files that it was imported from call it (fd_trace_set_saved_as); "" not from files */
} fd_trace_node;

/* Missing file, not HDF5, not a trace, truncated HDF5: FD_ERR_INPUT with what was found. An incomplete trace opens
 * (info.complete is false). */
fd_code fd_trace_open(const char *path, fd_trace **out, fd_error *err);
/* The same, but what grows with the length of the run takes at most `memory` bytes: of fingerprints and statistics
 * as many positions as fit are held (what fd_trace_fingerprint and fd_trace_stats_at return is then valid until
 * another position is asked for), health is left out where it does not fit, and so are lists of where a tensor's
 * chunks lie. */
fd_code fd_trace_open_within(const char *path, size_t memory, fd_trace **out, fd_error *err);
/* The trace in a group of a file (dumpers/store/file.h). */
fd_code fd_trace_open_group(const char *path, const char *group, fd_trace **out, fd_error *err);
void fd_trace_close(fd_trace *trace);
const char *fd_trace_path(const fd_trace *trace);
/* What messages and reports call it from now on (a copy): for a trace kept in a temporary file. False: out of
 * memory. */
bool fd_trace_set_path(fd_trace *trace, const char *path);
/* What a node is called in the file that the trace's path names, which holds it under a foreign name. */
void fd_trace_set_source(fd_trace *trace, int32_t node, const char *name);
void fd_trace_set_saved_as(fd_trace *trace, int32_t node, const char *name);
const fd_trace_info *fd_trace_get_info(const fd_trace *trace);
int32_t fd_trace_n_pos(const fd_trace *trace);
const int32_t *fd_trace_tokens(const fd_trace *trace); /* [n_pos] */
int32_t fd_trace_n_step(const fd_trace *trace);
const fd_trace_step *fd_trace_steps(const fd_trace *trace);
/* The step that holds `pos`; behind all: the last; 0: none is there. */
int32_t fd_trace_step_of(const fd_trace *trace, int32_t pos);
/* Its positions: the rows of the call that computed this one; 1: none is there. */
int32_t fd_trace_rows_of_call(const fd_trace *trace, int32_t pos);
int32_t fd_trace_n_node(const fd_trace *trace);
const fd_trace_node *fd_trace_node_at(const fd_trace *trace, int32_t i); /* in order of execution */
int32_t fd_trace_find(const fd_trace *trace, const char *name);          /* -1 when absent */
bool fd_trace_has_data(const fd_trace *trace, const char *name);         /* it is there, with its elements */
/* Elements of the node's tensor at one position (over_kv resolved). */
int64_t fd_trace_elements(const fd_trace_node *node, int32_t pos);
/* NULL when the trace has none (a foreign one), or nothing was recorded for that node and position. */
const fd_fingerprint *fd_trace_fingerprint(const fd_trace *trace, int32_t node, int32_t pos);
const fd_trace_stats *fd_trace_stats_at(const fd_trace *trace, int32_t node, int32_t pos);
const fd_trace_health *fd_trace_health_at(const fd_trace *trace, int32_t pos);
/* Entropy in nats of each head's attention weights at a position: [n_layer, n_head] floats, NULL when absent. */
const float *fd_trace_entropy(const fd_trace *trace, int32_t pos, int32_t *n_layer, int32_t *n_head);
/* Attention sink: each head's weight on position 0, likewise. */
const float *fd_trace_sink(const fd_trace *trace, int32_t pos, int32_t *n_layer, int32_t *n_head);
/* One position's tensor, unpadded, [fd_trace_elements], widened to double (`out64`) or, for F32 and 16-bit types,
 * exact in float (`out32`); the other pointer is NULL. FD_ERR_INCOMPLETE when the trace does not hold it. */
fd_code fd_trace_read(const fd_trace *trace, int32_t node, int32_t pos, float *out32, double *out64, fd_error *err);

/* ---- shared pieces ---- */

/* "xxh3-128:…" of a file's bytes (XXH3, seed 0; `xxh128sum` prints the same digits). */
void fd_model_hash(const void *data, size_t size, char out[48]);

/* The observation's rows without padding at row r: fingerprint and statistics, as handed over or worked out here.
 * n = fd_node_elements(node, pos + 1). */
fd_fingerprint fd_observation_fingerprint(const fd_observation *observation, int32_t row);
void fd_observation_stats(const fd_observation *observation, int32_t row, fd_trace_stats *out);
/* Copies row r without padding to out (observation dtype). */
void fd_observation_copy(const fd_observation *observation, int32_t row, void *out);

#endif
