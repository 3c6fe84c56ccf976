/* Questions about the graph's edges, by which patterns are found (engine/patterns.c) and products chosen. */
#ifndef FD_ENGINE_EDGES_H
#define FD_ENGINE_EDGES_H

#include "model/graph.h"

bool fd_reads(const fd_graph *graph, int32_t id, int32_t input);
/* How many inputs `id` is, counted up to two; *reader is the last node that reads it. */
int fd_readers_of(const fd_graph *graph, int32_t id, int32_t *reader);
/* Whether a node of that op, which no fault replaces, stands at `id`. */
bool fd_is_plain(const fd_graph *graph, int32_t id, fd_op op);
/* The only reader of `id`, if it is a plain node of that op; else -1. */
int32_t fd_only_reader(const fd_graph *graph, int32_t id, fd_op op);
/* The first node of that op that reads `id`; -1: none. */
int32_t fd_reader_with(const fd_graph *graph, int32_t id, fd_op op);

/* Whether ops that choose (routers) read the node: it stays exact, as a rounding there changes which experts run. */
bool fd_feeds_choice(const fd_graph *graph, int32_t id);
/* A norm of a whole row, not one head at a time, that MATMULs alone read: each of them norms for itself. */
bool fd_is_norm_of_matmuls(const fd_graph *graph, int32_t id);

#endif
