/* The parts of firstdiff inspect. Each prints one view of a trace on standard output, as text or as JSON. */
#ifndef FD_CLI_INSPECT_INSPECT_H
#define FD_CLI_INSPECT_INSPECT_H

#include "cli/inspect/slice.h"
#include "dumpers/store/trace.h"
#include "model/tokenizer/tokenizer.h"

typedef struct json_t json_t;

typedef struct fd_inspect {
    const fd_trace *trace;
    bool json;
    bool map;                      /* --map: attention as a heat map */
    bool all;                      /* --all: no elision of long rows */
    int32_t layer;                 /* --layer; -1: none */
    const char *glob;              /* which tensors the tree lists; NULL: all, with a header */
    const fd_tokenizer *tokenizer; /* --model: tokens have their text beside their id; NULL: ids alone */
} fd_inspect;

/* Statistics of a node at a position: recorded, else computed from its elements; *known false: the trace has
 * neither. */
fd_code fd_inspect_stats(const fd_trace *trace, int32_t node, int32_t pos, fd_trace_stats *out, bool *known,
                         fd_error *err);

/* Health of every position: recorded, else computed from `logits` and `blk.N.attn_weights`. */
typedef struct fd_inspect_health_table {
    int32_t n_pos, n_layer, n_head;
    fd_trace_health *of;                     /* [n_pos] owned; without logits top_id[0] is -1 */
    bool *has_entropy;                       /* [n_pos] owned */
    float *entropy, *sink;                   /* [n_pos, n_layer, n_head] owned; sink NaN where not known */
    int32_t n_recorded, n_logits, n_entropy; /* positions with recorded health, with logits read, with entropy */
} fd_inspect_health_table;
fd_code fd_inspect_health_load(const fd_trace *trace, fd_inspect_health_table *out, fd_error *err);
void fd_inspect_health_free(fd_inspect_health_table *table); /* what it owns; also after a failed load */

/* What is odd in it, a line each: heads of no entropy, logits of no range, repeated tokens, weights that do not sum to 1. */
enum { FD_HEALTH_RULES = 4 };
typedef struct fd_health_words {
    char line[FD_HEALTH_RULES][256];
    int32_t n;
} fd_health_words;
fd_code fd_inspect_health_rules(const fd_trace *trace, const fd_inspect_health_table *table, fd_health_words *out,
                                fd_error *err);

/* A golden's head and its prompts. */
fd_code fd_inspect_golden(const char *path, bool json, fd_error *err);

/* A line for each step of a trace that is being written, as it comes; returns when the trace is complete. A file that is not
 * there yet is waited for. tokenizer NULL: ids alone. */
fd_code fd_inspect_watch(const char *path, const fd_tokenizer *tokenizer, fd_error *err);

/* Header, steps and the node table; of in->glob the table alone. */
fd_code fd_inspect_tree(const fd_inspect *in, fd_error *err);

/* One tensor: what it is and its statistics at every position. */
fd_code fd_inspect_tensor(const fd_inspect *in, int32_t node, fd_error *err);

/* The elements a slice selects; the first index is the position. */
fd_code fd_inspect_slice(const fd_inspect *in, int32_t node, const fd_slice *slice, fd_error *err);

/* A node over key positions as a heat map: a row for each selected query position, a column for each key. */
fd_code fd_inspect_map(const fd_inspect *in, int32_t node, const fd_slice *slice, fd_error *err);

/* Per-position health, and entropy by layer, or by head with in->layer. */
fd_code fd_inspect_health(const fd_inspect *in, fd_error *err);

/* One position's elements, widened to double (malloc'ed). FD_ERR_INCOMPLETE when the trace does not hold them. */
fd_code fd_inspect_read(const fd_trace *trace, int32_t node, int32_t pos, double **out, int64_t *n, fd_error *err);

/* Numbers in JSON: null for NaN and Inf. */
json_t *fd_inspect_number(double x);

const char *fd_trace_level_text(fd_trace_level level); /* "full", "stats", "fingerprint" */

#endif
