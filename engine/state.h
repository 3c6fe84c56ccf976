/* What lives as long as an engine, beside the weights: caches, RoPE tables, inputs, attention scratch, samplers. */
#ifndef FD_ENGINE_STATE_H
#define FD_ENGINE_STATE_H

#include "engine/memory.h"
#include "model/graph.h"

struct fd_engine;

/* The device's copy of what changes from call to call. */
enum {
    FD_INPUT_FIRST, /* position of the first row */
    FD_INPUT_LAST,  /* and of the last */
    FD_INPUT_SEQUENCE,
    FD_INPUT_TOKENS /* [n_tok]; of several sequences: tokens, positions, sequences [n_seq] each */
};

/* cos and sin of one kind of RoPE: [n_ctx, n_rot/2] from position 0. */
typedef struct fd_rope_tables {
    const float *cosine, *sine;     /* device, inside fd_engine_state.fixed */
    float *host_cosine, *host_sine; /* owned; for ops that a fault replaces */
} fd_rope_tables;

/* What lives as long as the engine, beside the weights. */
typedef struct fd_engine_state {
    fd_block fixed;     /* caches, rope tables, inputs, attention scratch, sampling */
    float **cache;      /* [n_node] device, inside fixed; KV_WRITE nodes: [n_seq, n_ctx, …], uint16_t in truth where
                       fd_cache_is_half; states of recurrent layers: [n_seq] of fd_recurrent_bytes */
    size_t cache_bytes; /* they lie together at the start of fixed */
    fd_rope_tables *ropes;
    int32_t n_rope;
    int32_t *rope_of;                        /* [n_node] index of ropes; -1 */
    float *attention_scratch;                /* device, inside fixed; exact numerics' */
    int32_t *inputs;                         /* device, inside fixed: FD_INPUT_… */
    int32_t *batch_inputs;                   /* likewise, of a step of several sequences */
    fd_block inputs_host, batch_inputs_host; /* pinned */
} fd_engine_state;

/* Where the parts of `fixed` begin, in bytes; caches at 0. */
typedef struct fd_state_layout {
    size_t cache_bytes, inputs, batch_inputs, scratch, samplers, history, tables, bytes;
} fd_state_layout;
fd_state_layout fd_state_lay_out(const fd_graph *graph, int32_t n_ctx, int32_t n_seq, bool fast);

/* Whether a KV_WRITE's cache is in binary16: in fast numerics, or where it has that type of its own. */
bool fd_cache_is_half(const fd_node *kv_write, bool fast);
size_t fd_cache_bytes(const fd_node *kv_write, int32_t n_ctx, bool halves); /* of one sequence */
/* What one sequence leaves for its next pass: a KV_WRITE's cache, a recurrent layer's state; of other nodes 0. */
size_t fd_kept_bytes(const fd_graph *graph, const fd_node *node, int32_t n_ctx, bool fast);
/* The widest attention there is, of one sequence: one scratch serves all layers in turn. */
size_t fd_attention_scratch_bytes(const fd_graph *graph, int32_t n_ctx);

fd_code fd_state_make(struct fd_engine *engine, fd_error *err);
void fd_state_release(fd_engine_state *state);

#endif
