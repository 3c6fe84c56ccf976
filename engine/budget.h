/* What an engine will take of the device's memory, worked out before any is taken. Pure host code. */
#ifndef FD_ENGINE_BUDGET_H
#define FD_ENGINE_BUDGET_H

#include <stddef.h>

#include "model/graph.h"

/* ---- parts of what lives as long as the engine ---- */

size_t fd_cache_bytes(const fd_node *kv_write, int32_t n_ctx, bool fast); /* of one sequence; fast: binary16 */
size_t fd_table_bytes(const fd_node *rope, int32_t n_ctx);                /* cosines, or sines */
/* Tokens of a prompt, or a row for each sequence (fd_batch_inputs). */
size_t fd_inputs_bytes(int32_t n_ctx);
size_t fd_batch_inputs_bytes(int32_t n_seq);
/* The widest attention there is, of one sequence: one scratch serves all layers in turn. */
size_t fd_scratch_bytes(const fd_graph *graph, int32_t n_ctx);
/* The first ROPE node with the same table. */
int32_t fd_table_owner(const fd_graph *graph, int32_t id);

/* Samplers' states, and the tokens so far. */
size_t fd_sampling_state_bytes(int32_t n_seq);
size_t fd_history_bytes(int32_t n_ctx, int32_t n_seq);

/* Caches, tables, inputs and scratch together. */
uint64_t fd_engine_fixed_bytes(const fd_graph *graph, int32_t n_ctx, int32_t n_seq, bool fast);

/* q8act: activations of n_tok rows as int8 blocks, the widest there are. */
size_t fd_q8_scratch_bytes(const fd_graph *graph, int32_t n_tok);

/* Rows of a long prompt that run together. */
int32_t fd_engine_batch_rows(const fd_graph *graph, int32_t n_ctx);

int32_t fd_fast_batch_rows(int32_t n_ctx); /* of fast numerics */

/* Rows that the step of one token has room for: of so many sequences, up to a few. */
int32_t fd_step_rows(int32_t n_seq);

#endif
