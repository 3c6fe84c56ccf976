/* Between the files of reference_cpu: what an op is to the executor, and the tables of them.
 *
 * An op is cut into items that do not depend on each other: output rows of a matrix product, heads of attention,
 * elements of an addition. A thread computes items [begin, end). No item's value depends on the cut, so neither threads
 * nor ranges change a bit. */
#ifndef FD_REFERENCE_CPU_OPS_H
#define FD_REFERENCE_CPU_OPS_H

#include "exec/exec.h"

typedef void (*fd_ref_fn)(const fd_op_args *args, int64_t begin, int64_t end);

typedef struct fd_ref_ops {
    fd_ref_fn run[FD_OP_COUNT]; /* NULL in a table of vectorised kernels: the scalar one serves */
} fd_ref_ops;

/* How much there is to do: items, and multiply-adds (or what costs as much) in all. */
typedef struct fd_ref_cost {
    int64_t items;
    int64_t work;
} fd_ref_cost;
fd_ref_cost fd_ref_cost_of(const fd_op_args *args);

/* Instruction sets, each with everything that the one before has. Off x86 there is only the baseline. */
typedef enum fd_isa { FD_ISA_BASELINE, FD_ISA_V3, FD_ISA_V4, FD_ISA_COUNT } fd_isa;
const char *fd_isa_name(fd_isa isa); /* "baseline", "v3" (AVX2, FMA), "v4" (AVX-512) */
fd_isa fd_isa_best(void);            /* of this machine */
/* What FD_SIMD asks for, or the best; FD_ERR_INPUT for a name that is none of the three, FD_ERR_UNSUPPORTED for a set
 * that this machine or build lacks. */
fd_code fd_isa_wanted(fd_isa *out, fd_error *err);

/* The kernels to run: the scalar ones alone (`scalar`: compiled for the baseline), or vectorised where there are
 * such. */
fd_ref_ops fd_ref_select(fd_numerics numerics, fd_isa isa, bool scalar);

/* Positions that the cache behind args->out holds. */
static inline int32_t fd_ref_cache_rows(const fd_op_args *args) {
    return args->n_ctx ? args->n_ctx : args->n_kv;
}

static inline const fd_node *fd_ref_input(const fd_op_args *args, int i) {
    return &args->graph->nodes[args->node->input[i]];
}

#endif
