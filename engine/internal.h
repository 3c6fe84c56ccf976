/* Between the files of engine/: the executor's struct and its parts. */
#ifndef FD_ENGINE_INTERNAL_H
#define FD_ENGINE_INTERNAL_H

#include "engine/budget.h"
#include "engine/engine.h"
#include "engine/kept.h"
#include "engine/memory.h"
#include "engine/plan.h"
#include "engine/weights.h"
#include "exec/generate.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "kernels/int8/q8.h"
#include "kernels/sampling/sample.h"

/* Rows of a batch that a node computes. Nodes that feed no cache need not compute all. */
typedef enum fd_rows { FD_ROWS_ALL, FD_ROWS_LAST, FD_ROWS_NONE } fd_rows;

/* cos and sin of one kind of RoPE: [n_ctx, n_rot/2] from position 0. */
typedef struct fd_rope_tables {
    fd_rope rope;
    const float *cosine, *sine;     /* device, inside fd_engine.fixed */
    float *host_cosine, *host_sine; /* owned; kept for overrides */
} fd_rope_tables;

/* The device's copy of what changes from call to call. */
enum {
    FD_INPUT_FIRST, /* position of the first row */
    FD_INPUT_LAST,  /* and of the last */
    FD_INPUT_SEQUENCE,
    FD_INPUT_TOKENS /* [n_tok] */
};

/* One pass over a plan. */
typedef struct fd_run {
    const fd_plan *plan;
    const fd_block *slots; /* [plan->n_slot] */
    float *const *tensors; /* [n_node]: instead of slots, and every tensor is kept; NULL: as the plan says */
    const fd_launch_context *queue;
    const int32_t *tokens; /* host, [n_tok]; for overrides */
    int32_t pos0, n_tok;   /* for overrides and observers; kernels read positions from inputs */
    int32_t n_kv;          /* room of over_kv rows: pos0 + n_tok; n_ctx in the decode step, whatever the position */
    const int32_t *inputs; /* device */
    fd_rows tail;
    bool near;       /* every position of the pass is below FD_ATTENTION_SHORT_CONTEXT */
    bool unobserved; /* kernels alone read what nodes leave */
    void *q8_rows;           /* q8act, several rows: fd_q8_scratch_bytes for a product's activations */
    const int32_t *positions, *sequences; /* device, [n_tok]: each row is of another sequence; NULL: all are of one */
} fd_run;

/* Tensors on their way to the observer, or what was worked out of them: copied in stream order, shown when the copies are
 * through. */
typedef struct fd_pending {
    int32_t node, pos0, n_pos;
    unsigned wants; /* fd_want */
    int64_t row_stride;
    size_t offset;  /* in pinned: the elements, or fingerprints, statistics, entropy and sink, best logits */
} fd_pending;

typedef struct fd_watch {
    fd_block pinned;
    fd_block found, scratch; /* device: what is worked out of one tensor, and what that takes */
    size_t used;
    fd_pending *pending; /* owned, [n_node] */
    int32_t n_pending;
} fd_watch;

/* Steps whose tokens the host has not looked at: enough that the device never waits for it. */
enum { FD_SAMPLED_AHEAD = 4 };

typedef struct fd_engine_sampling {
    bool possible;            /* by the device and the vocabulary */
    fd_sample_state *states;  /* device, [n_seq], inside fixed */
    int32_t *history;         /* device, [n_seq, n_ctx + 1], inside fixed */
    fd_block results;         /* pinned, [FD_SAMPLED_AHEAD, n_seq] fd_sample_result */
    cudaEvent_t done[FD_SAMPLED_AHEAD];
} fd_engine_sampling;
struct fd_fast; /* engine/fast.h */

typedef struct fd_engine {
    fd_exec exec; /* first: fd_exec * is fd_engine * */
    fd_launch_context queue;
    int32_t device;
    fd_device_weights weights;
    fd_block fixed;     /* caches, rope tables, inputs, attention scratch */
    float **cache;      /* [n_node] device, inside fixed; KV_WRITE nodes: [n_seq, n_ctx, …] */
    size_t cache_bytes; /* they lie together at the start of fixed */
    int32_t *rope_of;   /* [n_node] index of ropes; -1 */
    fd_rope_tables *ropes;
    int32_t n_rope;
    int32_t *inputs; /* device, [FD_INPUT_TOKENS + n_ctx] */
    float *attention_scratch;
    bool *feeds_cache; /* [n_node] */
    bool has_override, may_split;
    bool fuses_rows; /* a prompt's nodes too */
    fd_block q8_rows;       /* q8act: activations as int8 blocks, made before each product of several rows: a prompt's, */
    fd_block batch_q8_rows; /* and those of a step of several sequences, whose CUDA graphs hold the address */

    fd_plan nodes;        /* a node each */
    fd_plan rows;         /* of a prompt that nobody observes */
    fd_block *node_slots; /* [n_node_slot], of both; grown to the largest batch so far */
    int32_t n_node_slot;
    fd_plan step;         /* of one token; of one each of up to step_rows sequences */
    int32_t step_rows;    /* 0: several sequences never run so */
    fd_block *step_slots; /* fixed size: the CUDA graph holds their addresses */
    fd_plan batch;        /* of a token of each of several sequences */
    fd_block *batch_slots;
    bool batches;         /* there are several, and the plan can run */
    int32_t *batch_inputs;       /* device: FD_INPUT_TOKENS unused, then tokens, positions, sequences [n_seq] each */
    fd_block batch_inputs_host;  /* pinned, likewise */
    fd_step_graph *batch_graphs; /* [n_seq + 1][sampled][near], by the rows of the step */
    bool overlap;         /* of a decode step's kernels, and of a prompt's that nobody observes or replaces */
    bool no_graph;
    fd_step_graph graphs[2][2]; /* [sampled: the token comes from the device][below FD_ATTENTION_SHORT_CONTEXT] */

    fd_block inputs_host; /* pinned, as inputs */
    fd_block logits_host; /* pinned */
    const float *logits;  /* device: the last row that the last call computed, where it computed any */
    bool keep_logits;     /* compute the last row though the host does not want it */
    fd_engine_sampling sampling;
    fd_watch watch;
    fd_kept kept;
    bool watch_by_node; /* observed steps are not fused */

    struct fd_fast *fast; /* owned; NULL: exact. K and V are binary16 then, whatever the type of `cache` says */
} fd_engine;

/* ---- setup.c ---- */
fd_code fd_engine_setup(fd_engine *engine, bool fuse, fd_int8 int8, fd_error *err);
void fd_engine_release(fd_engine *engine);

/* ---- run.c ---- */
/* What a node's kernel is given: its matrix, a vector by its weight index (NULL for -1), a ROPE's heads and tables. */
const fd_device_matrix *fd_node_matrix(const fd_engine *engine, const fd_node *node);
const float *fd_engine_vector(const fd_engine *engine, int32_t weight);
fd_rope_shape fd_node_rope(const fd_engine *engine, int32_t node);
fd_rows fd_run_rows(const fd_engine *engine, const fd_run *run, int32_t node);
int64_t fd_run_row_bytes(const fd_run *run, const fd_node *node);
/* Bytes a slot needs for this pass. */
size_t fd_run_slot_bytes(const fd_engine *engine, const fd_run *run, int32_t slot);
/* Floats from one sequence's cache to the next one's. */
int64_t fd_cache_floats(const fd_engine *engine, int32_t node);
/* Where the node's rows are; a KV_WRITE's cache of the selected sequence from position 0. */
float *fd_run_tensor(const fd_engine *engine, const fd_run *run, int32_t node);
/* Where reader `node` finds row 0 of input `input`, when it computes the last row alone too. */
const float *fd_run_input(const fd_engine *engine, const fd_run *run, int32_t node, int32_t input);
/* All items in order; shows nodes to the observer when `watch` is not NULL. */
fd_code fd_run_plan(fd_engine *engine, const fd_run *run, fd_watch *watch, fd_error *err);

/* ---- engine.c ---- */
/* The last n_row of the `have` rows of logits from `from` on, to the host. */
fd_code fd_copy_logits(fd_engine *engine, const float *from, int32_t have, int32_t n_row, float *to, fd_error *err);

/* ---- launch.c: single nodes ---- */
/* Whether the product multiplies integers: in q8act, and in fast numerics a single token's. */
bool fd_engine_in_q8(const fd_engine *engine, const fd_node *node);
fd_code fd_launch_node(const fd_engine *engine, const fd_run *run, int32_t node, fd_error *err);

/* ---- launch_item.c: fused ones ---- */
fd_code fd_launch_item(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_error *err);

/* ---- override.c: a node computed on the host ---- */
fd_code fd_run_override(const fd_engine *engine, const fd_run *run, int32_t node, fd_error *err);

/* ---- watch.c ---- */
bool fd_watch_wants(const fd_engine *engine, int32_t node);
/* Rows of a node that the observer wants, wherever they lie: binary32 [n_tok, row stride], device. */
fd_code fd_watch_rows(fd_engine *engine, const fd_run *run, int32_t node, const void *rows, fd_watch *watch,
                      fd_error *err);
fd_code fd_watch_node(fd_engine *engine, const fd_run *run, int32_t node, fd_watch *watch, fd_error *err);
fd_code fd_watch_flush(fd_engine *engine, fd_watch *watch, fd_error *err);

/* ---- step.c: one token without an observer ---- */
/* What is launched in between becomes a graph. The end is called in any case, with the code of what was launched: a stream
 * left capturing refuses everything. */
fd_code fd_capture_begin(fd_engine *engine, fd_error *err);
fd_code fd_capture_end(fd_engine *engine, fd_code code, cudaGraphExec_t *out, fd_error *err);
fd_code fd_engine_step(fd_engine *engine, int32_t token, int32_t pos, fd_error *err);
/* The step of the token that the device sampled last, at position `pos`, and the sampling of the next. */
fd_code fd_engine_step_sampled(fd_engine *engine, int32_t pos, fd_error *err);

/* ---- generate.c: sampling on the device ---- */
fd_code fd_engine_generate(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err);
/* Samples a token from each row of the step's logits, where the next step reads it: of the selected sequence from
 * inputs, or (n_row > 1, or `batch`) of those in batch_inputs. */
fd_code fd_launch_sampling(const fd_engine *engine, const fd_launch_context *queue, bool batch, int32_t n_row,
                           fd_error *err);
/* The selected sequence from `run` on, up to its first sample, which is on its way. */
fd_code fd_engine_begin_generation(fd_engine *engine, const fd_generation *run, fd_error *err);
/* Sample number *n_done of `sequence`, which is there. FD_STOP: no more are wanted. */
fd_code fd_engine_take_sample(fd_engine *engine, const fd_generation *run, int32_t sequence, int32_t *n_done,
                              fd_error *err);
void fd_sampling_release(fd_engine *engine);

/* ---- batch.c: a token of each of several sequences ---- */
fd_code fd_engine_decode(fd_exec *exec, const fd_decode *decode, fd_error *err);
fd_code fd_engine_generate_many(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done,
                                fd_error *err);

#endif
