/* Flash attention as ggml's CPU kernel computes it: the weighted sum of V key after key, in binary16, but for calls of many rows. */
#include <math.h>
#include <stdlib.h>

#include "base/clones.h"
#include "compare/replay/internal.h"
#include "model/gguf/float16.h"

/* From so many rows in a call on, the kernel takes tiles of them, whose sums and queries are binary32 (GGML_FA_TILE_Q). */
enum { ROWS_OF_A_TILE = 64 };

/* And from so many cells of a cache on, which come in 256s, a single row's are split over its threads, nobody knows how many. */
enum { CELLS_OF_A_SPLIT = 512, CELLS_OF_A_STEP = 256 };

static int32_t rows_of_call(const fd_replay *replay, int64_t row) {
    return fd_trace_rows_of_call(replay->o.trace, replay->pos0 + (int32_t)(row % replay->n_pos));
}

static bool adds_in_turn(const fd_replay *replay, int64_t row) {
    const int32_t rows = rows_of_call(replay, row), pos = replay->pos0 + (int32_t)(row % replay->n_pos);
    return rows < ROWS_OF_A_TILE && (rows > 1 || pos < CELLS_OF_A_SPLIT - CELLS_OF_A_STEP);
}

bool fd_replay_is_in_turn(const fd_replay *replay, const fd_node *node) {
    const bool attention = node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_MIX;
    return attention && replay->o.numerics->sums_in_turn && fd_replay_kv_type(replay, node) == FD_F32;
}

bool fd_replay_keeps_query(const fd_replay *replay, const fd_node *node, int64_t row) {
    return fd_replay_is_in_turn(replay, node) && rows_of_call(replay, row) >= ROWS_OF_A_TILE;
}

/* One fused step in binary32, then binary16. Of binary16 factors and a binary32 weight binary64 holds the sum. */
FD_FOR_EACH_CPU
static void add(float *sum, const double *v, float weight, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] = f32_through_f16((float)((double)sum[i] + v[i] * (double)weight));
}

FD_FOR_EACH_CPU
static void scale(float *sum, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] = f32_through_f16(sum[i] * factor);
}

/* Weights relative to the largest so far, which a larger one scales down; a sink comes to their total, in the end. */
static void sum_head(const double *p, const double *v, int64_t n_kv, int64_t stride, int64_t dim, float *sum,
                     double *y) {
    double most = 0;
    for (int64_t t = 0; t < n_kv; t++)
        if (!(p[t] >= 0)) return; /* a NaN, which y has already */
    for (int64_t i = 0; i < dim; i++) sum[i] = 0;
    for (int64_t t = 0; t < n_kv; t++) {
        if (!(p[t] > 0)) continue; /* masked, or so small that e^x is 0 */
        if (p[t] > most) {
            scale(sum, (float)(most / p[t]), dim);
            most = p[t];
        }
        add(sum, v + t * stride, (float)(p[t] / most), dim);
    }
    for (int64_t i = 0; i < dim; i++) y[i] = most * (double)sum[i];
}

static fd_code sum(const fd_replay *replay, const fd_op_args *args, fd_error *err) {
    const fd_node *node = args->node;
    const int64_t n_head = node->shape[0], dim = node->shape[1], n_kv = args->n_kv,
                  n_head_kv = replay->o.graph->nodes[node->input[1]].shape[0];
    float *kept = malloc(sizeof *kept * (size_t)dim);
    if (!kept) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    for (int64_t i = 0; i < args->n_pos * n_head; i++) {
        const double *v = (const double *)args->in[1] + i % n_head / (n_head / n_head_kv) * dim;
        if (!adds_in_turn(replay, i / n_head)) continue;
        sum_head((const double *)args->in[0] + i * n_kv, v, n_kv, n_head_kv * dim, dim, kept,
                 (double *)args->out + i * dim);
    }
    free(kept);
    return FD_OK;
}

/* A cache of binary32 is cast to binary16 before the kernel reads it. */
fd_code fd_replay_run_in_turn(fd_replay *replay, fd_op_args args, fd_error *err) {
    const fd_node *node = args.node, *cache = &replay->o.graph->nodes[node->input[1]];
    double *rows;
    FD_TRY(fd_replay_round_copy(FD_DOT_F16, args.in[1], args.n_kv * fd_node_row_stride(cache, args.n_kv), &rows, err));
    args.in[1] = rows;
    fd_code code = fd_replay_run_as_given(replay, args, err);
    if (code == FD_OK && node->op == FD_OP_ATTN_MIX) code = sum(replay, &args, err);
    free(rows);
    return code;
}
