/* Which nodes run as one item: patterns looked for along the graph's edges, so that a graph which a fault has
 * rearranged is not fused where a pattern no longer fits. A node that a fault replaces is in no pattern. None of the
 * fusions of exact numerics changes an operation or the order of a sum. */
#ifndef FD_ENGINE_MATCH_H
#define FD_ENGINE_MATCH_H

#include "engine/plan.h"

/* Patterns that a plan may use. */
enum {
    FD_MATCH_MATVEC = 1 << 0,
    FD_MATCH_ATTN_DECODE = 1 << 1,
    FD_MATCH_MATMULS = 1 << 2,
    FD_MATCH_ADD_NORM = 1 << 3,
    FD_MATCH_ROPE_KV_WRITE = 1 << 4,
    FD_MATCH_ATTN_DECODE_F16 = 1 << 5, /* with RoPE and cache writes */
    FD_MATCH_ATTN_ROW_F16 = 1 << 6,    /* without */
    FD_MATCH_ATTENTION_F16 = 1 << 7,
    FD_MATCH_GEMM_F16 = 1 << 8,
    FD_MATCH_IN_ORDER = 1 << 9, /* an observer may look: an item's nodes are neighbours in the list */
    FD_MATCH_DROP_K = 1 << 10,  /* ROPE of k is not kept next to the cache row made of it */
    FD_MATCH_GATHER_ADD = 1 << 11,
};

typedef struct fd_matcher {
    const fd_graph *graph;
    unsigned patterns;
    const bool *all_rows; /* [n_node] as fd_plan's */
    bool *covered;        /* [n_node]: members of items so far */
} fd_matcher;

/* The item that runs at the place of node `id`. False: none, as other items compute the node. Marks what it covers. */
bool fd_match(fd_matcher *matcher, int32_t id, fd_item *item);
/* Covers what items at later nodes compute; once, before the first fd_match. */
void fd_match_begin(fd_matcher *matcher);

/* Whether the attention that ends in ATTN_MIX `id` runs in one of the binary16 kernels. */
bool fd_match_attention_f16(const fd_graph *graph, int32_t id);

/* Whether ops that choose (routers) read the node: it stays exact, as a rounding there changes which experts run. */
bool fd_feeds_choice(const fd_graph *graph, int32_t id);

#endif
