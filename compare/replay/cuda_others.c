/* A product's rows that the rule's kernel did not make: another GPU's limits, cuBLAS' parts, short heads. */
#include <string.h>
#include <stdlib.h>

#include "compare/products/run_op.h"
#include "compare/replay/cuda_internal.h"
#include "compare/replay/factors.h"

/* cuBLAS splits columns into up to so many parts, each of a multiple of PART. */
enum { MOST_PARTS = 32, PART = 64 };

typedef struct attempt {
    fd_replay *replay;
    const fd_op_args *args;
    double *x, *y, *room; /* a row of inputs, rounded, and what a kernel makes of it; owned, x all three */
    float *narrow;        /* owned */
    int64_t width;        /* of the inputs' rows */
    int64_t part;         /* of the last row that tiles gave; 0: whole rows */
} attempt;

static fd_code compute(attempt *a, fd_cuda_kernel k, int64_t part, int64_t r, fd_error *err) {
    const fd_node *node = a->args->node;
    const int64_t width = fd_node_row_stride(node, a->replay->n_kv), n = a->width;
    const double *x = (const double *)a->args->in[0] + r * n;
    memcpy(a->y, a->replay->y + r * width, sizeof *a->y * (size_t)width);
    memset(a->room, 0, sizeof *a->room * (size_t)width);
    if (k.how != FD_CUDA_ROUNDED) return fd_cuda_multiply_row(a->replay, a->args, k, part, r, x, a->y, a->room, err);
    for (int64_t i = 0; i < n; i++) a->narrow[i] = (float)x[i];
    fd_dot_round(k.type, a->narrow, 1, n);
    for (int64_t i = 0; i < n; i++) a->x[i] = (double)a->narrow[i];
    fd_op_args one = *a->args;
    one.in[0] = a->x;
    if (node->op == FD_OP_EXPERT_MATMUL) one.in[1] = (const double *)a->args->in[1] + r * node->shape[0];
    one.n_pos = 1;
    one.out = a->y;
    if (node->op == FD_OP_MATMUL && !a->replay->o.device) return fd_replay_run_rounded(a->replay, one, err);
    fd_call_op(a->replay->o.op, FD_NUMERICS_F64, &one);
    return FD_OK;
}

static double error_of(const double *candidate, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (candidate[i] - y[i]) * (candidate[i] - y[i]);
    return sum;
}

/* An activation on the other side of an int8 step is five times as much as a scale in binary16 for one in binary32: a row that has one is
 * no other kernel's because that has none. */
#define MUCH_NEARER 0.01

/* The row becomes what the kernel gives, if that is nearer to what was recorded. */
static fd_code try_kernel(attempt *a, fd_cuda_kernel k, int64_t part, int64_t r, bool *near, fd_error *err) {
    const int64_t width = fd_node_row_stride(a->args->node, a->replay->n_kv);
    double *y = a->replay->y + r * width;
    const double *candidate = a->replay->candidate + r * width;
    FD_TRY(compute(a, k, part, r, err));
    const bool blocks = fd_dtype_get(a->args->weight[0]->dtype)->is_quantised;
    *near = fd_replay_is_near(candidate, a->y, width);
    if (!*near && blocks && !(error_of(candidate, a->y, width) <= MUCH_NEARER * error_of(candidate, y, width)))
        return FD_OK;
    if (!*near && !fd_replay_is_nearer(candidate, a->y, y, width)) return FD_OK;
    memcpy(y, a->y, sizeof *y * (size_t)width);
    memcpy(a->replay->room + r * width, a->room, sizeof *a->room * (size_t)width);
    if (*near && k.how == FD_CUDA_TILES) a->part = part;
    return FD_OK;
}

static fd_code try_tiles(attempt *a, int64_t r, bool *near, fd_error *err) {
    const int64_t n = a->args->weight[0]->n_col;
    const fd_cuda_kernel tiles = {.how = FD_CUDA_TILES};
    FD_TRY(try_kernel(a, tiles, a->part, r, near, err));
    if (!*near && a->part) FD_TRY(try_kernel(a, tiles, 0, r, near, err));
    for (int64_t n_part = 2, last = 0; n_part <= MOST_PARTS && !*near; n_part++) {
        const int64_t part = (n + n_part * PART - 1) / (n_part * PART) * PART;
        if (part != last && part < n) FD_TRY(try_kernel(a, tiles, part, r, near, err));
        last = part;
    }
    return FD_OK;
}

static fd_code try_row(attempt *a, int64_t r, fd_error *err) {
    const uint32_t dtype = a->args->weight[0]->dtype;
    bool near = false;
    if (fd_dtype_get(dtype)->is_quantised) {
        const bool many = fd_cuda_kernel_of_row(a->replay, a->args->node, fd_dot_weight(a->args), r).many;
        return try_kernel(a, fd_cuda_kernel_of_blocks(dtype, !many), 0, r, &near, err);
    }
    if (dtype == FD_F16 && a->args->weight[0]->n_col % 2 == 0)
        FD_TRY(try_kernel(a, (fd_cuda_kernel){.how = FD_CUDA_PAIRS}, 0, r, &near, err));
    if (dtype != FD_F32 && !near)
        FD_TRY(try_kernel(a, (fd_cuda_kernel){.type = dtype == FD_F16 ? FD_DOT_F16 : FD_DOT_BF16}, 0, r, &near, err));
    if (dtype != FD_F32 && !near) FD_TRY(try_kernel(a, (fd_cuda_kernel){.type = FD_DOT_AS_IS}, 0, r, &near, err));
    if (dtype != FD_F32 && !near) FD_TRY(try_kernel(a, (fd_cuda_kernel){.type = FD_DOT_TF32}, 0, r, &near, err));
    return dtype == FD_F16 && !near ? try_tiles(a, r, &near, err) : FD_OK;
}

/* cuBLAS takes queries as they are where heads are short. */
static fd_code try_scores(fd_replay *replay, const fd_node *node, const fd_op_args *args, fd_error *err) {
    const int64_t width = fd_node_row_stride(node, replay->n_kv);
    fd_op_args own = *args;
    double *y = malloc(sizeof *y * (size_t)(replay->n_pos * width));
    if (!y) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    own.out = y;
    const fd_code code = fd_replay_run_rounded(replay, own, err);
    for (int64_t r = 0; r < replay->n_pos && code == FD_OK; r++) {
        double *row = replay->y + r * width;
        if (!replay->recorded[r] || fd_replay_is_near(replay->candidate + r * width, row, width)) continue;
        if (fd_replay_is_near(replay->candidate + r * width, y + r * width, width))
            memcpy(row, y + r * width, sizeof *row * (size_t)width);
    }
    free(y);
    return code;
}

fd_code fd_cuda_try_others(fd_replay *replay, const fd_node *node, const fd_op_args *args, fd_error *err) {
    if (node->op == FD_OP_ATTN_SCORES) return try_scores(replay, node, args, err);
    const int64_t width = fd_node_row_stride(node, replay->n_kv);
    const int64_t n = fd_node_row_stride(&replay->o.graph->nodes[node->input[0]], replay->n_kv);
    attempt a = {.replay = replay, .args = args, .width = n, .x = malloc(sizeof *a.x * (size_t)(n + 2 * width))};
    a.y = a.x ? a.x + n : NULL;
    a.room = a.x ? a.y + width : NULL;
    a.narrow = malloc(sizeof *a.narrow * (size_t)n);
    fd_code code = a.x && a.narrow ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    for (int64_t r = 0; r < replay->n_pos && code == FD_OK; r++)
        if (replay->recorded[r] && !fd_replay_is_near(replay->candidate + r * width, replay->y + r * width, width))
            code = try_row(&a, r, err);
    free(a.x);
    free(a.narrow);
    return code;
}
