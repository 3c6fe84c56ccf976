/* A fabricated model for the trace tests: a llama-like graph and, for every node, position and element, a value that
 * is a pure function of the three. What a trace must hold is therefore known without keeping it. */
#ifndef FD_TESTS_TRACE_FIXTURE_H
#define FD_TESTS_TRACE_FIXTURE_H

#include "dumpers/store/trace.h"

typedef struct fixture_size {
    int32_t n_layer, n_embd, n_head, n_head_kv, n_ff, n_vocab;
} fixture_size;

extern const fixture_size fixture_small; /* 2 layers, 41 nodes; odd sizes, so that pairs straddle heads */

/* Freed with fd_graph_free. */
fd_graph *fixture_graph(fixture_size size);
fd_trace_info fixture_info(void);

/* The token at a position: a loop of three from position 20 on. */
int32_t fixture_token(int32_t pos);

/* Element i of the node's unpadded tensor at `pos`. Attention weights are positive and sum to 1 over a head; logits
 * have ties. */
double fixture_value(const fd_graph *graph, const fd_node *node, int32_t pos, int64_t i);

/* What an executor does: shows every node's rows, padded along n_kv, for positions [pos0, pos0 + n). */
fd_code fixture_show(fd_observer observer, const fd_graph *graph, fd_numerics numerics, int32_t pos0, int32_t n,
                     fd_error *err);

/* begin_step, show, end_step. */
fd_code fixture_step(fd_trace_writer *writer, const fd_graph *graph, fd_numerics numerics, fd_step_kind kind,
                     int32_t pos0, int32_t n, fd_error *err);

/* A whole trace: a prefill of n_prefill positions, then n_decode single ones, finished. Fails the test on an error. */
void fixture_write(const fd_trace_options *options, const fd_graph *graph, fd_numerics numerics, int32_t n_prefill,
                   int32_t n_decode);

/* Fails the test when the trace cannot be opened. */
fd_trace *fixture_open(const char *path);

/* Path of a file of this test in a directory of its own, removed at exit; static storage of four. */
const char *fixture_path(const char *name);

/* The trace holds exactly the fixture's elements of node `name` at pos: fails the test otherwise. */
void fixture_check_tensor(const fd_trace *trace, const fd_graph *graph, const char *name, int32_t pos);

/* The trace's hashes of a weight are those that the rows have in a model: fails the test otherwise. */
void fixture_check_weight(const char *path, const char *name, uint32_t dtype, const void *rows, int64_t n_row,
                          int64_t n_col);

#endif
