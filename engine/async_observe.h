/* Decode steps for an observer: the fused step as it always runs, but every tensor keeps memory of its own. Fingerprints,
 * statistics and health are reduced where the tensors lie, on a stream of their own during the next step; so are copies to
 * the host. Two sets of memory take turns. */
#ifndef FD_ENGINE_ASYNC_OBSERVE_H
#define FD_ENGINE_ASYNC_OBSERVE_H

#include "engine/graph.h"
#include "engine/observe.h"

/* One step. */
typedef struct fd_async_set {
    fd_block
        tensors;    /* device: what runs along the positions, [n_head, n_ctx] each; the same without gaps; the others */
    float **tensor; /* owned, [n_node], device; a KV_WRITE's: where its row is copied to */
    fd_block views; /* device: fd_row_view of every node, then of the attention weights */
    fd_block results, results_host; /* device and pinned: fd_async_layout.parts */
    fd_block tensors_host;          /* pinned: the others, then what runs along the positions, without gaps */
    fd_captured graphs[2];          /* [short context] */
    cudaEvent_t computed, copied;
    bool is_pending;              /* the observer has not seen it */
    fd_observation *observations; /* owned, [n_node] */
    int32_t n_observation;
    unsigned observer; /* fd_exec.n_observer of the one it is for */
} fd_async_set;

/* Where things lie in a set: bytes from the start of their block. */
typedef struct fd_async_layout {
    int32_t n_over, n_weights; /* nodes along the positions, and the attention weights among them */
    int32_t n_head;            /* rows of each */
    int64_t n_block;           /* of FD_SUM_BLOCK elements in all tensors */
    size_t *at;                /* owned, [n_node]: among those along the positions, or among the others */
    int32_t *order;            /* owned, [n_node]: which of the attention weights: 0, 1 … */
    size_t over_bytes, other_bytes;
    fd_reduced parts;
    size_t results_bytes;
} fd_async_layout;

typedef struct fd_async_observe {
    bool ready, refused; /* set up; cannot be: no memory, or a graph without a fixed number of heads */
    fd_async_layout layout;
    fd_async_set sets[2];
    int32_t next;
    unsigned *wants; /* owned, [n_node] fd_want of the step that is being launched */
    cudaStream_t stream;
    fd_block scratch; /* device */
} fd_async_observe;

/* ---- async_observe.c: memory ---- */
/* Device memory that it takes, from the first observed step on; 0 where a step is observed node by node. */
uint64_t fd_async_bytes(const fd_graph *graph, int32_t n_ctx);
/* Memory for it; *possible false where a step is to be observed node by node. */
fd_code fd_async_prepare(struct fd_engine *engine, bool *possible, fd_error *err);
void fd_async_release(struct fd_engine *engine);

/* ---- async_step.c ---- */
/* One observed token; the step before is shown meanwhile. */
fd_code fd_async_forward(struct fd_engine *engine, const fd_batch *batch, fd_error *err);
/* Shows what has not been shown. */
fd_code fd_async_flush(struct fd_engine *engine, fd_error *err);
void fd_async_forget(struct fd_engine *engine);

#endif
