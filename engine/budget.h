/* What an engine will take of the device's memory, worked out before any is taken. Pure host code. */
#ifndef FD_ENGINE_BUDGET_H
#define FD_ENGINE_BUDGET_H

#include <stddef.h>

#include "model/graph.h"

/* q8act: activations of n_tok rows as int8 blocks, the widest there are. */
size_t fd_q8_scratch_bytes(const fd_graph *graph, int32_t n_tok);

/* Rows of a long prompt that run together. */
int32_t fd_engine_batch_rows(const fd_graph *graph, int32_t n_ctx);

int32_t fd_fast_batch_rows(int32_t n_ctx); /* of fast numerics */

/* Rows that the step of one token has room for: of so many sequences, up to a few. */
int32_t fd_step_rows(int32_t n_seq);

#endif
