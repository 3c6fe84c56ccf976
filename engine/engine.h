/* The GPU executor: the graph on one CUDA device. In `exact` and `q8act` numerics bit for bit what reference_cpu
 * computes; in `fast` ones as a production engine does: prompts on tensor cores with factors in binary16, tokens
 * that are decoded with activations as int8 blocks beside quantised weights where that is faster, K and V in binary16
 * (engine/plan.h). Where it has such products its numerics are called "fast-int8" in traces.
 *
 * One token without an observer runs as a CUDA graph, one for the first positions and one for all others, its
 * neighbouring nodes fused where the contract's order allows it. With an observer one token runs as the same CUDA
 * graph, whose kernels then keep what lies inside them too. A prompt goes node by node, but for neighbours that one
 * kernel takes together where nobody observes. None of it changes a bit (tests/gpu). */
#ifndef FD_ENGINE_ENGINE_H
#define FD_ENGINE_ENGINE_H

#include <stddef.h>

#include "exec/exec.h"
#include "exec/peers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a token of fast numerics multiplies int8 blocks with quantised weights (engine/int8.c). */
typedef enum fd_int8 { FD_INT8_WHERE_FASTER, FD_INT8_NEVER, FD_INT8_ALWAYS } fd_int8;

/* CUDA's numbers of devices. Several share the model, row by row, and no bit changes (docs/scale.md); one may stand
 * there twice. */
enum { FD_ENGINE_MAX_DEVICES = 16 };
typedef struct fd_engine_devices {
    int32_t id[FD_ENGINE_MAX_DEVICES];
    int32_t n;
} fd_engine_devices;

/* "2": the first two; "0,3": these. FD_ERR_INPUT: anything else. */
fd_code fd_engine_parse_devices(const char *text, fd_engine_devices *out, fd_error *err);

typedef struct fd_engine_options {
    int32_t n_ctx;             /* positions of K/V cache, of each sequence; ≥ 1 */
    int32_t n_seq;             /* sequences; 0 counts as 1 */
    fd_engine_devices devices; /* none: CUDA's device 0 */
    fd_peers *peers;           /* processes that run the model together, each on one device; NULL: this one alone */
    fd_numerics numerics;      /* exact, q8act or fast */
    fd_int8 int8;              /* of fast numerics; 2 to 8 sequences never do */
    bool no_graph;             /* launch the kernels of a decode step one by one */
    bool no_fusion;            /* decode node by node too (the CUDA graph then holds one kernel a node) */
    bool no_overlap;           /* every kernel waits for the end of the one before it */
    bool observe_by_node;      /* observed steps of one token go node by node, as batches do */
} fd_engine_options; /* from `no_graph` on none changes what is computed: they are for measuring and for doubt */

/* True when a CUDA device can be used; otherwise `why` says what is missing. */
bool fd_engine_available(char *why, size_t size);
/* CUDA's devices; 0 where there is none. */
int32_t fd_engine_n_device(void);

/* What the memory depends on, beside the graph. */
typedef struct fd_engine_size {
    int32_t n_ctx, n_seq; /* as fd_engine_options */
    fd_numerics numerics;
    int32_t n_sm; /* the device's multiprocessors, by which fast numerics size their scratch; others: 0 will do */
} fd_engine_size;

/* One of several GPUs that share a model. {0}: there is one. */
typedef struct fd_rank_of {
    int32_t rank, n;
    bool apart; /* each in a process of its own, */
    bool nccl;  /* and they gather by NCCL, with room for it */
} fd_rank_of;

/* Device memory that an engine takes, in bytes. */
typedef struct fd_engine_memory {
    uint64_t weights;
    uint64_t cache;    /* K and V of n_ctx positions of each sequence */
    uint64_t scratch;  /* tables, a decode step's activations, and a long prompt's, which are taken when one comes */
    uint64_t observed; /* beside these, for decode steps with an observer: where it is not free they go node by node */
} fd_engine_memory;

/* Observed prompts and all_logits may need more. FD_ERR_UNSUPPORTED: a weight type without a kernel. */
fd_code fd_engine_memory_needed(const fd_graph *graph, const fd_engine_size *size, fd_engine_memory *out,
                                fd_error *err);
/* Of one of several GPUs; `observed` is 0, as they go node by node where they are observed. */
fd_code fd_engine_memory_of_rank(const fd_graph *graph, const fd_engine_size *size, fd_rank_of rank,
                                 fd_engine_memory *out, fd_error *err);
/* Of weights, cache and scratch: what it must have. */
uint64_t fd_engine_memory_total(const fd_engine_memory *memory);

/* "2.70 GiB needed (weights 2.05 GiB, K/V cache of 2048 positions 88.0 MiB, scratch 579.4 MiB), 40.1 MiB more for
 * observed decode steps, 139.29 GiB free" */
void fd_engine_memory_text(const fd_engine_memory *memory, const fd_engine_size *size, uint64_t free_bytes, char *to,
                           size_t room);

/* FD_OK when an engine fits in free_bytes; else FD_ERR_MEMORY: each part, and the context that would fit. */
fd_code fd_engine_memory_fits(const fd_graph *graph, const fd_engine_size *size, fd_rank_of rank, uint64_t free_bytes,
                              fd_error *err);

/* What is free on CUDA device `device` now, and its multiprocessors. */
fd_code fd_engine_memory_free(int32_t device, uint64_t *bytes, int32_t *n_sm, fd_error *err);

/* `graph` must outlive the executor; its weights are uploaded here. FD_ERR_DEVICE: no such device, or CUDA failed
 * (its own text), or devices that cannot read each other's memory; FD_ERR_MEMORY: as fd_engine_memory_fits says it,
 * and nothing is taken; FD_ERR_UNSUPPORTED: a weight type or head size without a kernel, numerics that are not the
 * GPU's, fast ones on a device that is named twice. Fast: FD_ERR_DEVICE too where CUDA's libcublas is missing. */
fd_code fd_engine_new(const fd_graph *graph, const fd_engine_options *options, fd_exec **out, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif
