/* Which nodes run as one item: patterns looked for along the graph's edges, so that a graph which a fault has
 * rearranged is not fused where a pattern no longer fits. A node that a fault replaces is in no pattern. None of the
 * fusions of exact numerics changes an operation or the order of a sum. */
#ifndef FD_ENGINE_MATCH_H
#define FD_ENGINE_MATCH_H

#include "engine/patterns.h"

/* The item that runs at the place of node `id`. False: none, as other items compute the node. Marks what it covers. */
bool fd_match(fd_matcher *matcher, int32_t id, fd_item *item);
/* Covers what items at later nodes compute; once, before the first fd_match. */
void fd_match_begin(fd_matcher *matcher);

/* Whether the attention that ends in ATTN_MIX `id` runs in one of the binary16 kernels. */
bool fd_match_attention_f16(const fd_graph *graph, int32_t id);

#endif
