/* The executor's struct and its parts, for the files of engine/ alone. */
#ifndef FD_ENGINE_INTERNAL_H
#define FD_ENGINE_INTERNAL_H

#include "engine/async_observe.h"
#include "engine/cublas.h"
#include "engine/engine.h"
#include "engine/graph.h"
#include "engine/memory.h"
#include "engine/observe.h"
#include "engine/plan.h"
#include "engine/ranks.h"
#include "engine/slots.h"
#include "engine/split.h"
#include "engine/state.h"
#include "engine/weights.h"
#include "exec/generate.h"
#include "kernels/sampling/sample.h"

/* Rows that run together in fast numerics: a longer prompt is split, and an observed one, which is not, is multiplied
 * in the same pieces. A multiple of the rows a block of the attention kernel takes. */
enum { FD_FAST_ROWS = 1024 };

/* Steps whose tokens the host has not looked at: enough that the device never waits for it. */
enum { FD_SAMPLED_AHEAD = 4 };

/* Of the nodes that need not be computed for all rows of a batch (fd_plan.all_rows). */
typedef enum fd_rows { FD_ROWS_ALL, FD_ROWS_LAST, FD_ROWS_NONE, FD_ROWS_COUNT } fd_rows;

typedef struct fd_engine_device {
    int32_t id;
    fd_launch_context ctx;
    bool overlap;  /* of a decode step's kernels, and of a prompt's that nobody observes and no fault replaces */
    bool no_graph; /* every kernel is launched by itself */
} fd_engine_device;

/* Prompts, and single tokens that are not a step: observed ones node by node, those of a graph with a fault in it. */
typedef struct fd_engine_prompt {
    fd_plan nodes, rows;
    fd_slots slots;                    /* of both; grown to the largest batch so far */
    fd_block q8_rows;                  /* q8act: activations as int8 blocks, made before each product of several rows */
    bool fuses_rows;                   /* `rows` may be used */
    bool may_split;                    /* a long prompt may run in pieces: no fault looks at the whole batch */
    fd_captured graphs[FD_ROWS_COUNT]; /* fast: of an unobserved pass, by the rows that have logits */
} fd_engine_prompt;

/* One token without a fault, or one of each of several sequences. */
typedef struct fd_engine_step {
    fd_plan one, many;
    fd_slots one_slots, many_slots; /* fixed size: CUDA graphs hold their addresses */
    int32_t one_rows;               /* so many sequences run as one does, everything fused; 0: none */
    bool batches;                   /* there are several sequences, and `many` can run */
    fd_block q8_rows;               /* of `many` */
    fd_block halves;                /* of both, where few_f16 takes products (kernels/matmul/few_f16.h) */
    fd_captured graphs[2][2];       /* [the token comes from the device][short context] */
    fd_captured *batch_graphs;      /* [n_seq + 1][sampled][short context], by the rows of the step; owned */
} fd_engine_step;

typedef struct fd_engine_sampling {
    bool possible;           /* by the device and the vocabulary */
    fd_sample_state *states; /* device, [n_seq], inside fixed */
    int32_t *history;        /* device, [n_seq, n_ctx + 1], inside fixed */
    fd_block results;        /* pinned, [FD_SAMPLED_AHEAD, n_seq] fd_sample_result */
    cudaEvent_t done[FD_SAMPLED_AHEAD];
} fd_engine_sampling;

/* What fast numerics hold beside. */
typedef struct fd_fast {
    fd_cublas *cublas;
    fd_block weights;                /* one matrix in binary16; empty where all are so already */
    fd_block scratch;                /* of attention over one row of each sequence */
    fd_block inner, mixed, attended; /* what only an observer sees: of a kernel's inside; a mix; attention weights */
    fd_block whole[2];               /* and, of several GPUs', put together (fd_ranks_gather_shown) */
} fd_fast;

typedef struct fd_engine {
    fd_exec exec; /* first: fd_exec * is fd_engine * */
    fd_engine_device device;
    fd_device_weights weights;
    fd_engine_state state;
    fd_engine_prompt prompt;
    fd_engine_step step;
    fd_engine_sampling sampling;
    fd_sync_observe sync;
    fd_async_observe async;
    bool observe_by_node;  /* observed steps are not fused */
    bool has_override;     /* a fault replaces an op */
    fd_fast *fast;         /* owned; NULL: exact or q8act */
    fd_ranks *ranks;       /* borrowed: those that run the model with this one; NULL: it runs it alone */
    const fd_split *split; /* borrowed: of ranks, what this one does */
    int32_t rank;
    fd_block logits_host; /* pinned */
    const float *logits;  /* device: the last row that the last call computed, where it computed any */
    bool keep_logits;     /* compute the last row though the host does not want it */
} fd_engine;

/* ---- setup.c ---- */
fd_code fd_engine_setup(fd_engine *engine, bool fuse, fd_int8 int8, fd_error *err);
void fd_engine_release(fd_engine *engine);

/* ---- engine.c ---- */
/* Making an engine: its device and a stream there, then all that it holds. What is begun is ended by fd_exec_free. */
fd_code fd_engine_begin(const fd_graph *graph, const fd_engine_options *options, fd_engine **out, fd_error *err);
fd_code fd_engine_complete(fd_engine *engine, const fd_engine_options *options, fd_error *err);

/* ---- many.c: an engine on several GPUs ---- */
fd_code fd_engine_new_many(const fd_graph *graph, const fd_engine_options *options, fd_exec **out, fd_error *err);

/* ---- forward.c ---- */
fd_code fd_engine_forward(fd_exec *exec, const fd_batch *batch, fd_error *err);

/* ---- fast.c ---- */
fd_code fd_fast_setup(fd_engine *engine, fd_error *err);
void fd_fast_release(fd_engine *engine);
/* The largest matrix in binary16 that a product of the prompt's plan has to make of another type. */
size_t fd_fast_weight_bytes(const fd_plan *rows);
/* Of attention over one row of each of n_seq sequences. */
size_t fd_fast_scratch_bytes(const fd_graph *graph, const fd_launch_context *ctx, int32_t n_ctx, int32_t n_seq);

/* ---- int8.c: which products multiply int8 blocks of activations; int8 [n_node], false before ---- */
void fd_int8_choose_all(const fd_graph *graph, bool *int8);
/* Of fast numerics' fused step, whose groups of products are chosen as one. */
void fd_int8_choose_faster(const fd_launch_context *ctx, const fd_plan *step, fd_int8 where, bool *int8);
/* Of an item's products in any of these plans all stay chosen, or none: they are one launch. */
void fd_int8_agree(const fd_plan *const *plans, int n_plan, bool *int8);

/* ---- step.c ---- */
/* One token at `pos`, as a CUDA graph where it may be; the next one sampled with `sampled`, whose token the device
 * has. */
fd_code fd_engine_step_one(fd_engine *engine, int32_t token, int32_t pos, bool sampled, fd_error *err);
/* The same, each node's tensor kept in `tensors` [n_node]; `graphs` [short context]. */
fd_code fd_engine_step_kept(fd_engine *engine, float *const *tensors, fd_captured graphs[2], int32_t token, int32_t pos,
                            fd_error *err);
/* A step of the rows in batch_inputs, of which the farthest is at `last`. */
fd_code fd_engine_step_many(fd_engine *engine, int32_t n_row, bool sampled, int32_t last, fd_error *err);

/* The last n_row of the `have` rows of logits from `from` on, to the host. */
fd_code fd_copy_logits(fd_engine *engine, const float *from, int32_t have, int32_t n_row, float *to, fd_error *err);

/* ---- sampling.c ---- */
/* Samples a token from each row of the step's logits, where the next step reads it: of the selected sequence from
 * inputs, or (`batch`) of those in batch_inputs. */
fd_code fd_engine_sample(const fd_engine *engine, const fd_launch_context *ctx, bool batch, int32_t n_row,
                         fd_error *err);
/* Sample number *n_done of `sequence`, which is there. FD_STOP: no more are wanted. */
fd_code fd_engine_take_sample(fd_engine *engine, const fd_generation *run, int32_t sequence, int32_t *n_done,
                              fd_error *err);
/* Marks the end of sample number `launched`, and waits for it. */
fd_code fd_engine_mark_sample(fd_engine *engine, int32_t launched, fd_error *err);
fd_code fd_engine_await_sample(fd_engine *engine, int32_t sample, fd_error *err);
void fd_sampling_release(fd_engine *engine);

/* ---- generate.c ---- */
fd_code fd_engine_generate(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err);
/* The selected sequence from `run` on, up to its first sample, which is on its way. */
fd_code fd_engine_begin_generation(fd_engine *engine, const fd_generation *run, fd_error *err);

/* ---- batch.c: a token of each of several sequences ---- */
fd_code fd_engine_decode(fd_exec *exec, const fd_decode *decode, fd_error *err);
fd_code fd_engine_generate_many(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done,
                                fd_error *err);

#endif
