/* The patterns of nodes that run as one item, each found along the graph's edges from one of its nodes. */
#ifndef FD_ENGINE_PATTERNS_H
#define FD_ENGINE_PATTERNS_H

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

typedef struct fd_pattern {
    unsigned pattern; /* FD_MATCH_…: the plan uses one of these */
    fd_op op;         /* of the node at whose place the item runs */
    bool is_last;     /* it is the last of the item's nodes; else the first */
    /* Whether the pattern is there at node `id`: the item's kernel, and which node plays which part. */
    bool (*match)(const fd_matcher *m, int32_t id, fd_item *item);
} fd_pattern;

/* Those that come first are tried first. */
extern const fd_pattern fd_patterns[];
extern const int fd_n_pattern;

#endif
