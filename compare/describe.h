/* Shapes, places and attributes in words. */
#ifndef FD_COMPARE_DESCRIBE_H
#define FD_COMPARE_DESCRIBE_H

#include "compare/verdict.h"

/* Shapes as text, "[8, 64]"; over_kv: "[8, n]". */
void fd_shape_text(int32_t n_dim, const int32_t *shape, bool over_kv, char *to, size_t size);

/* Where element `index` of a tensor with these dims is: "head 2 · element 17", "head 1 · key position 4", "element
 * 3", "index [1, 2, 3]". Two dimensions are [head, …] in every graph of ours, and [chosen expert, …] in nodes of
 * that name. */
void fd_index_text(const char *node, int32_t n_dim, const int64_t *dims, bool over_kv, int64_t index, char *to,
                   size_t size);

/* The attributes of a graph's node in words: "(i, i+32) pairs, base 1e+06, 64 dims"; "" when it has none. */
void fd_node_attributes(const fd_graph *graph, const fd_node *node, char *to, size_t size);

/* Layers of which layers[l] is set: "0…5, 7"; "" none. */
void fd_layers_text(const bool *layers, int32_t n_layer, char *to, size_t size);

/* This node's values differ at this position. Leaves the values and inputs as they are. */
void fd_divergence_at(const fd_graph *graph, const fd_node *node, int32_t step, fd_step_kind step_kind, int32_t pos,
                      fd_divergence *out);

#endif
