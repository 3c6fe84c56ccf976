/* What an engine will take of the device's memory, worked out before any is taken. Pure host code. */
#ifndef FD_ENGINE_BUDGET_H
#define FD_ENGINE_BUDGET_H

#include <stddef.h>

#include "model/graph.h"

/* ---- parts of what lives as long as the engine ---- */

size_t fd_cache_bytes(const fd_node *kv_write, int32_t n_ctx);
size_t fd_table_bytes(const fd_node *rope, int32_t n_ctx); /* cosines, or sines */
size_t fd_inputs_bytes(int32_t n_ctx);
/* The widest attention there is: one scratch serves all layers in turn. */
size_t fd_scratch_bytes(const fd_graph *graph, int32_t n_ctx);
/* The first ROPE node with the same table. */
int32_t fd_table_owner(const fd_graph *graph, int32_t id);

/* Caches, tables, inputs and scratch together. */
uint64_t fd_engine_fixed_bytes(const fd_graph *graph, int32_t n_ctx);

/* Rows of a long prompt that run together. */
int32_t fd_engine_batch_rows(const fd_graph *graph, int32_t n_ctx);

#endif
