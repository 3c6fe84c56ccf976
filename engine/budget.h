/* What an engine will take of the device's memory, worked out before any is taken. Pure host code. */
#ifndef FD_ENGINE_BUDGET_H
#define FD_ENGINE_BUDGET_H

#include <stddef.h>

#include "model/graph.h"

/* q8act: activations of n_tok rows as int8 blocks, the widest there are. */
size_t fd_q8_scratch_bytes(const fd_graph *graph, int32_t n_tok);

/* Fast numerics of n_seq sequences: the halves of a token of each, the widest there are. 0 where exact's products take
 * them: up to a step's rows their kernels read weights once as well, and are fused, which is faster for up to four
 * sequences, and for all where rows are short (docs/performance-diary.md). */
size_t fd_few_f16_scratch_bytes(const fd_graph *graph, int32_t n_seq);
/* Whether the halves take MATMUL `node`, one that no choice of experts depends on. */
bool fd_few_f16_takes(const fd_graph *graph, int32_t node);

/* Rows of a long prompt that run together. */
int32_t fd_engine_batch_rows(const fd_graph *graph, int32_t n_ctx);

int32_t fd_fast_batch_rows(int32_t n_ctx); /* of fast numerics */

/* Rows that the step of one token has room for: of so many sequences, up to a few. */
int32_t fd_step_rows(int32_t n_seq);

#endif
