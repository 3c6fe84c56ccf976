/* Between the files of emulate/: the executor's struct and what an op is to it. */
#ifndef FD_EMULATE_INTERNAL_H
#define FD_EMULATE_INTERNAL_H

#include <stddef.h>

#include "emulate/emulate.h"
#include "emulate/order.h"
#include "emulate/rounding.h"

typedef struct fd_emulate_buffer { /* grows, is never shrunk, holds nothing between ops */
    void *data;                    /* owned */
    size_t size;
} fd_emulate_buffer;

typedef struct fd_emulate_angles {
    const fd_node *node; /* one of those whose angles these are */
    float *cos, *sin;    /* owned, [n_ctx, n_rot/2] */
} fd_emulate_angles;

typedef struct fd_emulate {
    fd_exec exec; /* first */
    fd_emulate_class class_;
    char name[64];
    int n_thread;
    fd_emulate_order order[2][FD_OP_COUNT]; /* [batch kernels][op] */
    bool batch;                             /* this pass runs the batch kernels */
    float **rows;              /* [n_node]; a KV_WRITE's cache [n_ctx, width], kept; else made for a pass, zeroed, freed
                                               after its last reader */
    int32_t *last_reader;      /* [n_node] */
    fd_emulate_angles *angles; /* [n_angles] */
    int32_t n_angles;
    int32_t *angles_of;                    /* [n_node]; -1 for other ops */
    fd_emulate_buffer left, right, thread; /* rounded factors; a weight row for each thread */
} fd_emulate;

/* Computes args->out; rounding it to the class's tensor type is left to the caller. */
typedef fd_code (*fd_emulate_op)(fd_emulate *e, const fd_op_args *args, fd_error *err);
#define FD_OP(ENUM, name, n_input, summary)                                                                            \
    fd_code fd_emulate_##name(fd_emulate *e, const fd_op_args *args, fd_error *err);
#include "model/ops.def"
#undef FD_OP

/* forward.c: fd_exec_class.forward. */
fd_code fd_emulate_forward(fd_exec *exec, const fd_batch *batch, fd_error *err);

/* Room for `size` bytes, aligned for any type; what was there is lost. NULL with err set when there is no memory. */
void *fd_emulate_reserve(fd_emulate_buffer *buffer, size_t size, fd_error *err);

/* cos and sin for positions 0 … n_ctx - 1, as the class computes them. */
fd_code fd_emulate_angles_make(const fd_emulate *e, const fd_node *node, fd_emulate_angles *out, fd_error *err);

/* A vector of parameters (one row) in binary32, rounded to the class's tensor type. */
void fd_emulate_vector(const fd_emulate *e, const fd_weight *weight, float *out);
/* All rows of it likewise. */
void fd_emulate_vectors(const fd_emulate *e, const fd_weight *weight, float *out);

/* Threads for so many multiply-adds, which take about a nanosecond each here. What takes less than half a millisecond
 * is done by one: on a busy machine (CI) the others have to wait for a processor first. Never changes a bit. */
static inline int fd_emulate_threads(const fd_emulate *e, int64_t work) {
    enum { THREADED_WORK = 1 << 19 };
    return work < THREADED_WORK ? 1 : e->n_thread;
}

static inline const fd_emulate_order *fd_emulate_order_of(const fd_emulate *e, fd_op op) {
    return &e->order[e->batch][op];
}

/* Whether the class sums these products in f16; w_type: what w was before it was made binary32. */
static inline bool fd_emulate_sums_f16(const fd_emulate *e, fd_op op, uint32_t w_type) {
    return e->class_.f16_sum || (e->class_.f16_sum_of_f16 && op != FD_OP_ATTN_SCORES && w_type == FD_F16);
}

/* Σ w·x as the class sums products. */
static inline float fd_emulate_products(const fd_emulate *e, fd_op op, uint32_t w_type, const float *w, const float *x,
                                        int64_t n) {
    const fd_emulate_order *order = fd_emulate_order_of(e, op);
    return fd_emulate_sums_f16(e, op, w_type) ? fd_emulate_dot_f16(order, w, x, n) : fd_emulate_dot(order, w, x, n);
}

static inline uint32_t fd_emulate_kv_type(const fd_emulate *e) {
    return e->class_.cache == FD_EMULATE_F16 ? FD_F16 : e->class_.cache == FD_EMULATE_BF16 ? FD_BF16 : FD_F32;
}

/* cap·tanh(x / cap), rounded to the class's tensor type between its three kernels. */
static inline float fd_emulate_capped(const fd_emulate *e, float x, float cap) {
    fd_emulate_type type = e->class_.tensor;
    return fd_round_to(type, tanhf(fd_round_to(type, x * (1.0f / cap)))) * cap;
}

static inline const fd_node *fd_emulate_input(const fd_op_args *args, int i) {
    return &args->graph->nodes[args->node->input[i]];
}

#endif
