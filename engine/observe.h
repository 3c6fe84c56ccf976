/* What an observer is shown. A tensor's elements are copied to pinned memory, or, where they are not wanted, what is
 * reduced of them on the device: fingerprint, statistics, health. The observer sees them once the copies have arrived.
 *
 * Synchronous: node by node while the pass runs, all of it before the call returns. Asynchronous
 * (engine/async_observe.h): all nodes of a decode step at once, up to one step late. */
#ifndef FD_ENGINE_OBSERVE_H
#define FD_ENGINE_OBSERVE_H

#include "engine/memory.h"
#include "exec/exec.h"
#include "kernels/observe/summary.h"

struct fd_engine;
struct fd_pass;

/* Observations whose contents are on their way into pinned memory. */
typedef struct fd_sync_observe {
    fd_block pinned;
    fd_block results, scratch; /* device: what is reduced of one tensor, and what that takes */
    fd_block cached;           /* device: rows of a cache in binary16, as binary32 */
    size_t used;
    fd_observation *pending; /* owned, [n_node] */
    int32_t n_pending;
} fd_sync_observe;

/* What the observer wants of the node: a sum of fd_want. */
unsigned fd_observe_wants(const struct fd_engine *engine, int32_t node);
/* Shows rows of a node, wherever they lie: binary32 [n_tok, row stride], device. */
fd_code fd_observe_rows(struct fd_pass *pass, int32_t node, const void *rows, fd_error *err);
/* Where the node's rows are in binary32; those that only the observer wants, in fd_fast.inner; NULL: nowhere. */
float *fd_observed_tensor(const struct fd_pass *pass, int32_t node);
/* Shows a node that lies where the plan says. */
fd_code fd_observe_node(struct fd_pass *pass, int32_t node, fd_error *err);
/* Room for the largest tensor of the pass that is shown, so that none is made while it runs. */
fd_code fd_observe_reserve(const struct fd_pass *pass, fd_error *err);
fd_code fd_observe_flush(struct fd_engine *engine, fd_error *err);
void fd_observe_release(struct fd_engine *engine);

/* ---- shared with the asynchronous form ---- */

/* What is reduced of tensors, and where its parts lie, in bytes. */
typedef struct fd_reduced {
    size_t prints, stats, entropy, sink, top; /* prints is 0 */
    bool has_stats, has_health, has_top;
} fd_reduced;

/* Launches what `parts` says: of the tensors, of the attention weights among them (n_head runs a row), of the logits. */
typedef struct fd_reduction {
    const fd_launch_context *ctx;
    fd_row_views tensors, weights;
    int32_t n_head;
    const float *logits;
    int64_t n_vocab;
    bool copies; /* what the views say of copies is done */
    void *scratch, *top_scratch;
    char *results; /* device */
} fd_reduction;
fd_code fd_reduce_on_device(const fd_reduction *in, const fd_reduced *parts, fd_error *err);

/* Hands observations to the observer, in order. */
fd_code fd_observe_deliver(const fd_exec *exec, const fd_observation *observations, int32_t n, fd_error *err);

#endif
