/* What is launched, in which order, and where results lie: the graph's nodes as items, a node each or several fused, and
 * a slot of memory for each result, shared by results that are never needed at the same time. Every pass of the engine
 * walks such a plan (engine/pass.c); which fusions it may use is all that distinguishes one kind of pass from another.
 * Pure host code. */
#ifndef FD_ENGINE_PLAN_H
#define FD_ENGINE_PLAN_H

#include "model/graph.h"

enum { FD_ITEM_MATMULS = 3, FD_ITEM_EDGES = 8 };

/* What an item launches; engine/pass.c has a launcher for each. */
typedef enum fd_kernel {
    FD_KERNEL_OP,            /* one node: its op's kernel, or the host where a fault replaces the op */
    FD_KERNEL_MATVEC,        /* [RMS_NORM of the input,] one to three MATMULs of it[, then ADD or SILU_MUL] */
    FD_KERNEL_ATTN_DECODE,   /* ROPE of q and k, both KV_WRITEs, scores, softmax, mix */
    FD_KERNEL_MATMULS,       /* of many rows: MATMULs of one input */
    FD_KERNEL_ADD_NORM,      /* of many rows: ADD, and RMS_NORM of the sum */
    FD_KERNEL_ROPE_KV_WRITE, /* of many rows: ROPE of q and k, both KV_WRITEs */
    FD_KERNEL_GATHER_ADD,    /* of one row, on several GPUs: GATHER, and ADD of the whole */
    /* Fast numerics: */
    FD_KERNEL_ATTN_DECODE_F16, /* ATTN_DECODE's nodes, but for ROPEs and KV_WRITEs that others read too */
    FD_KERNEL_ATTN_ROW_F16,    /* one row whose K and V are in the caches: scores, softmax, mix */
    FD_KERNEL_ATTENTION_F16,   /* many rows likewise */
    FD_KERNEL_GEMM_F16,        /* MATMUL by cuBLAS */
    FD_KERNEL_GEMM_ADD_F16,    /* MATMUL by cuBLAS onto the other summand of the ADD that reads it */
    FD_KERNEL_COUNT
} fd_kernel;

/* The types a result is kept in. */
typedef enum fd_result { FD_REAL, FD_HALF, FD_RESULT_COUNT } fd_result;

typedef struct fd_edge {
    int32_t node;
    fd_result type; /* of a read: the type that is read. A write's types follow from its readers (fd_plan.slot_of) */
} fd_edge;

typedef struct fd_item {
    fd_kernel kernel;
    int32_t node;     /* the one at whose place in the list it runs; messages name it */
    bool int8;        /* its products multiply int8 blocks of activations */
    bool sends;       /* on several GPUs: one row of what it leaves it sends itself; the next item is its gather */
    int32_t sent_sum; /* of `sends`: the ADD that the gather goes on into, whose other summand it adds; -1: none */
    int32_t n_member, members[FD_ITEM_EDGES]; /* nodes that it computes, in the graph's order */
    int32_t n_read, n_write;
    fd_edge reads[FD_ITEM_EDGES], writes[FD_ITEM_EDGES]; /* nodes from other items, and members that are kept */
    /* Which member plays which part; -1: none. */
    int32_t norm, add, silu, gather, matmul[FD_ITEM_MATMULS], n_matmul;
    int32_t q_rope, k_rope, cache_k, cache_v, scores, softmax, mix; /* caches: also where they are only read */
    int32_t q, k, v; /* what attention reads; k and v are -1 where their rows are in the caches already */
} fd_item;

typedef struct fd_plan {
    const fd_graph *graph; /* borrowed */
    fd_item *items;        /* owned, as the arrays below */
    int32_t n_item;
    int32_t *slot_of[FD_RESULT_COUNT]; /* [n_node]; -1: a cache, not kept, or no one reads that type */
    int32_t n_slot[FD_RESULT_COUNT];
    bool *all_rows; /* [n_node]: computed for every row of a batch; else for the rows that have logits alone */
} fd_plan;

/* A pass and what it may fuse. */
typedef enum fd_plan_kind {
    FD_PLAN_NODES, /* a node each, of any number of rows: what an observer or a fault looks at */
    FD_PLAN_ROWS,  /* a prompt that nobody observes */
    FD_PLAN_STEP,  /* one token */
    FD_PLAN_BATCH, /* a token of each of several sequences */
    FD_PLAN_FAST_NODES,
    FD_PLAN_FAST_ROWS, /* observed or not */
    FD_PLAN_FAST_STEP,
    FD_PLAN_FAST_BATCH, /* and a step of which nothing else is fused */
    FD_PLAN_KIND_COUNT
} fd_plan_kind;

fd_code fd_plan_make(const fd_graph *graph, fd_plan_kind kind, fd_plan *out, fd_error *err);
void fd_plan_free(fd_plan *plan);

/* Marks the items whose first product is one of `int8` [n_node]. */
void fd_plan_mark_int8(fd_plan *plan, const bool *int8);

/* Whether the op's kernels leave their result in binary16 too; others' results are rounded afterwards. */
bool fd_op_leaves_half(fd_op op);

/* Whether rows of several sequences can run: no node outside of fused attention depends on a row's position, or is
 * computed on the host. */
bool fd_plan_batches(const fd_plan *plan);

/* What fast numerics cannot run: FD_ERR_UNSUPPORTED names it. */
fd_code fd_plan_check_fast(const fd_graph *graph, fd_error *err);

#endif
