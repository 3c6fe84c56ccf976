/* Fast numerics inside the engine: prompts node by node with products by cuBLAS and fused attention, single tokens by
 * the matrix-vector kernels, exact's or those of int8 blocks (engine/fast_int8.c); K and V in binary16 everywhere.
 *
 * What a product reads is written in binary16 by the kernel before it, where that kernel is one of kernels/fast_*; the
 * residual stream stays binary32. Final norm and logits are the exact kernels', whose bits do not depend on how many
 * rows run together: so the logits of a traced run, which shows them for every row, equal the untraced run's. */
#ifndef FD_ENGINE_FAST_H
#define FD_ENGINE_FAST_H

#include "engine/cublas.h"
#include "engine/internal.h"
#include "kernels/attention/attention_f16.h"

/* Rows that run together: a longer prompt is split, and an observed one, which is not, is multiplied in the same
 * pieces. A multiple of the rows a block of the attention kernel takes. */
enum { FD_FAST_ROWS = 1024 };

/* Who computes a node. */
typedef enum fd_fast_how {
    FD_FAST_BY_NODE, /* the exact kernel */
    FD_FAST_BY_NORM, /* fast_norm, fast_gate: binary16 for the product behind */
    FD_FAST_BY_GATE,
    FD_FAST_BY_PRODUCT,
    FD_FAST_BY_PRODUCT_ADD, /* an ADD, and the product that only it reads */
    FD_FAST_BY_KV_WRITE,
    FD_FAST_BY_ATTENTION, /* a mix, its scores and softmax */
    FD_FAST_BY_TURN,      /* ROPE of q, with the three nodes behind it: ROPE of k, both KV_WRITEs */
    FD_FAST_INSIDE,       /* of one of the three above */
} fd_fast_how;

/* A node each, in order. */
typedef struct fd_fast_plan {
    fd_plan real;     /* slots of results in binary32; no items */
    uint8_t *how;     /* [n_node] fd_fast_how; owned, as the next two */
    int32_t *half_of; /* [n_node] slot of the result in binary16; -1: nobody reads it so */
    int32_t n_half;
} fd_fast_plan;

/* A pass of many rows, captured; good for as long as no block that it uses moves. */
typedef struct fd_fast_graph {
    int32_t n_tok;        /* 0: no pass yet */
    int32_t sequence;     /* whose caches its kernels have */
    cudaGraphExec_t exec; /* NULL: not captured yet */
} fd_fast_graph;

struct fd_fast {
    fd_cublas *cublas;
    fd_fast_plan many, one;      /* of a batch; of a single token that is observed or has an override */
    bool *int8;                  /* [n_node]: products of a single token that multiply int8 blocks; owned */
    fd_block *slots, *halves;    /* owned arrays */
    int32_t n_slot;              /* as many as the larger plan needs */
    fd_block shown, mixed, attended; /* what only an observer sees; a mix; weights of attention */
    fd_block weights;            /* one matrix in binary16; NULL when all are */
    fd_block scratch;            /* of fast_decode, for a row of each sequence */
    fd_fast_graph graphs[FD_ROWS_NONE + 1]; /* by the rows that have logits */
};

/* ---- fast_plan.c ---- */
/* `batch`: products by cuBLAS. Nodes with an override run on the host. */
fd_code fd_fast_plan_make(const fd_graph *graph, bool batch, fd_fast_plan *out, fd_error *err);
void fd_fast_plan_free(fd_fast_plan *plan);
/* rows[i]: node i is computed for all rows of a batch; false after the last layer. */
void fd_fast_mark_rows(const fd_graph *graph, bool *rows);
/* Whether ops that choose (routers) read the node: it stays exact, as a rounding there changes which experts run. */
bool fd_fast_feeds_choice(const fd_graph *graph, int32_t id);
/* What fast numerics cannot run: FD_ERR_UNSUPPORTED names it. */
fd_code fd_fast_check(const fd_graph *graph, fd_error *err);

/* ---- fast_int8.c ---- */
/* Sets int8[i], [n_node], where node i of a single token is such a product. */
fd_code fd_fast_choose_int8(const fd_launch_context *queue, const fd_graph *graph, fd_int8 where, bool *int8,
                            fd_error *err);

/* ---- fast_setup.c ---- */
fd_code fd_fast_setup(fd_engine *engine, fd_int8 where, fd_error *err);
void fd_fast_release(fd_engine *engine);
/* Beside weights, caches and tables; 0 when the host has no memory. */
uint64_t fd_fast_bytes(const fd_graph *graph, int32_t n_ctx, int32_t n_seq, int32_t n_sm);
/* Floats from one row's scratch of fast_decode to the next one's. */
int64_t fd_fast_scratch_stride(const fd_engine *engine);
/* Memory for a pass. */
fd_code fd_fast_reserve(fd_engine *engine, const fd_run *run, const fd_fast_plan *plan, fd_error *err);

/* ---- fast_run.c ---- */
fd_code fd_fast_run(fd_engine *engine, const fd_run *run, const fd_fast_plan *plan, fd_watch *watch, fd_error *err);
/* The same, as a CUDA graph where it may be. */
fd_code fd_fast_pass(fd_engine *engine, const fd_run *run, const fd_fast_plan *plan, fd_watch *watch, fd_error *err);
void fd_fast_forget_graphs(struct fd_fast *fast);
fd_code fd_fast_kv_write(const fd_engine *engine, const fd_run *run, int32_t node, fd_error *err);
/* Elements from one sequence's cache to the next one's. */
int64_t fd_fast_cache_stride(const fd_engine *engine, int32_t node);
/* An attention item of the decode step, or of a step of several sequences. */
fd_code fd_fast_step_attention(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_error *err);

#endif
