/* CUDA graphs of passes: a pass runs kernel by kernel once, so that its kernels are loaded and their attributes set, is
 * captured the second time and replayed from then on. Its kernels read tokens and positions from device memory. */
#ifndef FD_ENGINE_GRAPH_H
#define FD_ENGINE_GRAPH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct fd_pass;

/* Good for as long as no block that the pass uses moves. */
typedef struct fd_captured {
    int32_t n_tok, sequence; /* of the pass that has run; n_tok 0: none has */
    cudaGraphExec_t exec;    /* NULL: not captured yet */
} fd_captured;

/* Runs the pass, captured where that is allowed. Where it has other rows than before, or another sequence's caches in
 * its kernels (fd_pass.sequence), it is captured anew. */
fd_code fd_graph_run(fd_captured *captured, struct fd_pass *pass, fd_error *err);
void fd_graph_forget(fd_captured *captured);

#endif
