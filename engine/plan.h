/* What is launched, in which order, and where results lie: the graph's nodes as items, a node each or several fused,
 * and a slot of memory for each result, shared by results that are never needed at the same time. Pure host code. */
#ifndef FD_ENGINE_PLAN_H
#define FD_ENGINE_PLAN_H

#include "model/graph.h"

enum { FD_ITEM_MATMULS = 3, FD_ITEM_EDGES = 8 };

typedef enum fd_item_kind {
    FD_ITEM_NODE,      /* one node, one kernel */
    FD_ITEM_MATVEC,    /* [RMS_NORM of the input,] one to three MATMULs of it[, then ADD or SILU_MUL] */
    FD_ITEM_ATTENTION, /* ROPE of q and k, both KV_WRITEs, scores, softmax, mix; fast: not always the first four */
    /* Of many rows, each node's result kept: */
    FD_ITEM_PRODUCTS, /* MATMULs of one input */
    FD_ITEM_ADD_NORM, /* ADD, RMS_NORM of the sum */
    FD_ITEM_TURN,     /* ROPE of q, and the three nodes behind it: ROPE of k, both KV_WRITEs */
} fd_item_kind;

typedef struct fd_item {
    fd_item_kind kind;
    int32_t node; /* NODE: its id; TURN: the first; ADD_NORM: the ADD */
    struct {
        int32_t norm; /* ADD_NORM's too; -1: none */
        int32_t matmul[FD_ITEM_MATMULS], n_matmul; /* PRODUCTS' too */
        int32_t add;  /* adds a tensor to the one product; -1 */
        int32_t silu; /* of the two products; -1 */
    } matvec;
    struct {
        int32_t q_rope, k_rope, cache_k, cache_v, scores, softmax, mix; /* -1: not in the item */
    } attention;
} fd_item;

typedef struct fd_plan {
    fd_item *items; /* owned */
    int32_t n_item;
    int32_t *slot_of; /* [n_node]; -1: a cache, or inside a fused item and not kept */
    int32_t n_slot;
} fd_plan;

/* With `fuse`, items for one token; without, a node each, for any number. */
fd_code fd_plan_make(const fd_graph *graph, bool fuse, fd_plan *out, fd_error *err);
/* For many rows of one sequence: a node each, but for what a kernel does in one pass and still leaves every result. */
fd_code fd_plan_make_rows(const fd_graph *graph, fd_plan *out, fd_error *err);
/* For a row of each of several sequences: likewise, and attention is fused, whose kernels know each row's position. */
fd_code fd_plan_make_batch(const fd_graph *graph, fd_plan *out, fd_error *err);
/* Whether such a plan can run: no other node of it depends on a row's position, or is computed on the host. */
bool fd_plan_batches(const fd_graph *graph, const fd_plan *plan);
/* Items for one token whose attention is the fast kernel's; `fuse`: the products' too. Without, for a row of each of
 * several sequences, where fd_plan_batches says so. */
fd_code fd_plan_make_fast(const fd_graph *graph, bool fuse, fd_plan *out, fd_error *err);
void fd_plan_free(fd_plan *plan);

/* Nodes whose tensors the item reads and leaves behind; at most FD_ITEM_EDGES. Returns the count. */
int fd_item_reads(const fd_graph *graph, const fd_item *item, int32_t nodes[FD_ITEM_EDGES]);
int fd_item_writes(const fd_item *item, int32_t nodes[FD_ITEM_EDGES]);

/* What is fused: attention, the products of one token, what many rows share, and in it RoPE with the cache writes. */
enum { FD_FUSE_ATTENTION = 1, FD_FUSE_TOKEN = 2, FD_FUSE_ROWS = 4, FD_FUSE_TURN = 8 };

/* Appends the items of a fused plan (engine/fuse.c); `items` has room for one a node. Returns the count. `what`: of
 * FD_FUSE_…; `fast`: attention as the fast kernel takes it. */
int32_t fd_fuse(const fd_graph *graph, unsigned what, bool fast, fd_item *items, bool *covered);

/* The item of many rows that begins with `id` (engine/fuse_rows.c), if there is one. */
bool fd_match_rows(const fd_graph *graph, int32_t id, bool turn, fd_item *item);
/* Whether ROPE of q at `id`, ROPE of k and both KV_WRITEs stand in a row, as kernels/elementwise/rope_kv_write.h takes them. */
bool fd_match_turn(const fd_graph *graph, int32_t id);

/* Whether the fast kernels can do the attention that ends in this ATTN_MIX; what else of it they take with them. */
bool fd_match_fast_attention(const fd_graph *graph, int32_t mix, fd_item *item);
/* Where an attention item finds q and, when it writes the caches, k and v. */
int32_t fd_item_query(const fd_graph *graph, const fd_item *item);
int32_t fd_item_key(const fd_graph *graph, const fd_item *item);
int32_t fd_item_value(const fd_graph *graph, const fd_item *item);

/* feeds[i]: some later position needs every row of node i, because a cache is made from it. */
void fd_mark_cache_feeders(const fd_graph *graph, bool *feeds);

#endif
