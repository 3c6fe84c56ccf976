/* Row hashes of weights: what a run computed with, small enough to stand in every trace (group /weights,
 * docs/trace-format.md).
 *
 * A hash is XXH3 (64 bits, seed 0) of the little-endian binary32 values of `rows_per_hash` neighbouring rows,
 * dequantised, without padding; the last one covers what is left. So two runs whose weights have equal hashes have
 * computed with the same numbers, whatever type they stored them in. */
#ifndef FD_DUMPERS_STORE_WEIGHTS_H
#define FD_DUMPERS_STORE_WEIGHTS_H

#include <hdf5.h>

#include "dumpers/store/trace.h"

/* A matrix of more rows has several of them in a hash: 32 KiB a weight at most, 7 MiB for a model of 8 billion; a
 * sixteenth of it in traces that hold fingerprints alone. */
enum { FD_MAX_WEIGHT_HASHES = 4096, FD_FEW_WEIGHT_HASHES = 256 };

typedef struct fd_weight_rows {
    char name[192];       /* as in the GGUF; "NODE:NAME" for what node NODE alone has in its place */
    char dtype[8];        /* "Q8_0", as held by the run; "" not recorded */
    int64_t n_row, n_col; /* as fd_weight; n_col 0: not recorded */
    int32_t rows_per_hash;
    int64_t n_hash;                          /* n_row / rows_per_hash, rounded up */
    uint64_t *hashes;                        /* owned */
    int64_t n_zero_row, n_trailing_zero_row; /* rows of nothing but zeros; of those, at the end. -1: not recorded */
} fd_weight_rows;

typedef struct fd_weight_table { /* of a trace */
    fd_weight_rows *rows;        /* [n] in order of first use where that was recorded, else by name; owned */
    int32_t n;                   /* 0: the trace has none */
} fd_weight_table;

/* True when the weight has data that can be dequantised. */
bool fd_weight_can_hash(const fd_weight *weight);

/* ---- one row after another ----
 *
 * Without a thread and without a library of its own, for libfirstdiff_trace: begin, add n_row times, end. */
typedef struct fd_row_hasher {
    fd_weight_rows rows; /* so far */
    int64_t n;           /* rows added */
    void *state;
} fd_row_hasher;
/* n_row and n_col from 1 to INT32_MAX. FD_ERR_MEMORY alone. */
fd_code fd_row_hasher_begin(fd_row_hasher *hasher, const char *name, const char *dtype, int64_t n_row, int64_t n_col,
                            fd_error *err);
void fd_row_hasher_add(fd_row_hasher *hasher, const float *row); /* [n_col] */
fd_weight_rows fd_row_hasher_end(fd_row_hasher *hasher);         /* to be freed with fd_weight_rows_free */
void fd_row_hasher_abandon(fd_row_hasher *hasher);
bool fd_row_is_zero(const float *row, int64_t n);

/* The group /weights of a trace that is written, made when it is not there; negative: it cannot be. */
hid_t fd_weights_group(hid_t root);
/* Its dataset of one weight, in place of one of that name. */
bool fd_weight_put(hid_t group, const fd_weight_rows *rows, int32_t seq);

/* ---- weights of a model ---- */

/* How many rows go into a hash, of a weight of n_row that may have `most` hashes. */
int32_t fd_weight_rows_per_hash(int64_t n_row, int32_t most);

/* Hash number i; rows_per_hash ≥ 1. FD_ERR_MEMORY alone. */
fd_code fd_weight_hash_at(const fd_weight *weight, int32_t rows_per_hash, int64_t i, uint64_t *out, fd_error *err);

/* All of them, in parallel. *out is freed with fd_weight_rows_free. */
fd_code fd_weight_hash(const fd_weight *weight, int32_t rows_per_hash, fd_weight_rows *out, fd_error *err);
void fd_weight_rows_free(fd_weight_rows *rows); /* frees what it owns, not the struct */

/* Reads /weights; a trace without it has an empty table. FD_ERR_INPUT names the dataset that is no list of hashes. */
fd_code fd_trace_read_weights(const fd_trace *trace, fd_weight_table *out, fd_error *err);
void fd_weight_table_free(fd_weight_table *table);
const fd_weight_rows *fd_weight_table_find(const fd_weight_table *table, const char *name); /* NULL: there is none */

/* Writes /weights of `graph` into an open trace file: every weight under the name that `model`, the graph as the file
 * has it, gives it at the node that reads it (a fault may have exchanged or replaced it in `graph`). */
fd_code fd_trace_write_weights(hid_t file, const fd_graph *graph, const fd_graph *model, int32_t most_hashes,
                               fd_error *err);

#endif
