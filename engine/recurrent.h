/* States of recurrent layers. Their nodes read a cache from position 0 on, so that any pass can compute any position;
 * the state that a pass ends with is kept, and the pass that goes on from there begins with it. Host code. */
#ifndef FD_ENGINE_RECURRENT_H
#define FD_ENGINE_RECURRENT_H

#include "kernels/recurrent/recurrent.h"
#include "model/graph.h"

struct fd_engine;

/* Whether the node keeps one: its op has a state, and its cache's rows are never written later than their position's
 * pass. Such a node is computed for every row, like a cache. */
bool fd_recurrent_keeps(const fd_graph *graph, const fd_node *node);
/* Bytes for one sequence: 0 where none is kept. */
size_t fd_recurrent_bytes(const fd_graph *graph, const fd_node *node);
/* Of the selected sequence; empty where none is kept. */
fd_kept_state fd_recurrent_kept(const struct fd_engine *engine, const fd_node *node);

#endif
