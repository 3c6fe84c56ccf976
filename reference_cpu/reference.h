/* The CPU reference: scalar C in contract order (exact, q8act), and the same ops in binary64. */
#ifndef FD_REFERENCE_CPU_REFERENCE_H
#define FD_REFERENCE_CPU_REFERENCE_H

#include "exec/exec.h"
#include "exec/peers.h"

typedef struct fd_reference_options {
    fd_numerics numerics;
    int32_t n_ctx;    /* positions of K/V cache; ≥ 1 */
    int32_t n_seq;    /* sequences, each with that much cache; 0 counts as 1 */
    int32_t n_thread; /* 0: all cores. Never changes a bit */
    fd_peers *
        peers; /* processes that each compute a share of the large ops, and call the same things in the same order; NULL:
                         this one alone. Never changes a bit. Borrowed */
    bool scalar; /* only the scalar kernels (tests; slow). Never changes a bit */
} fd_reference_options;

/* `graph` must outlive the executor. FD_ERR_INPUT: no room (n_ctx), a graph that breaks an invariant, FD_SIMD with an
 * unknown name; FD_ERR_UNSUPPORTED: a weight of a type that cannot be dequantised, other numerics, an override under
 * f64. The environment's FD_SIMD (baseline, v3, v4) picks the instruction set instead of the best; no choice changes a
 * bit. */
fd_code fd_reference_new(const fd_graph *graph, const fd_reference_options *options, fd_exec **out, fd_error *err);

/* Runs one node's op (or its override: not in f64) on given inputs: args as in exec/exec.h, real = double for
 * f64, else float. Uses all cores for a large node, unless it is called from a team of threads. */
void fd_reference_op(fd_numerics numerics, const fd_op_args *args);

#endif
