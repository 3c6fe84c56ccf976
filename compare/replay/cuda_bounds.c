/* What rows of ggml's CUDA kernels may be off though a replay repeats them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/bounds.h"
#include "compare/bounds/roundoffs.h"
#include "compare/replay/cuda_blocks.h"
#include "compare/replay/cuda_internal.h"

const fd_numerics_class *fd_cuda_class_of_bounds(const fd_replay *replay, const fd_node *node, fd_numerics_class *own) {
    const fd_numerics_class *class_ = replay->o.numerics;
    bool recorded = true;
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) recorded &= !replay->state[node->input[k]].missing;
    if (!fd_cuda_computes(replay, node) || recorded) return class_;
    *own = *class_;
    own->u_acc_f16 = own->u_mix = UF16;
    /* cuBLAS leaves some shapes in binary32, which their result would tell */
    const bool product = fd_dot_is_product(node->op) && replay->o.graph->weights[node->weight[0]].dtype == FD_F32;
    if (product) own->u_in = 2 * UF16;
    return own;
}

/* What is added to such a sum rounds it in binary32. */
#define OF_ADDITION 0x1p-22

/* Kernels divide in fast math, so that a block's scale may come to lie on the other side of the middle between two of binary16. */
static void add_scales(const double *x, int64_t n, int64_t block, double *e) {
    for (int64_t at = 0; at + block <= n; at += block) {
        double most = 0;
        for (int64_t i = at; i < at + block; i++) most = fmax(most, fabs(x[i]));
        const double step = most / 127;
        const double ulp = step > 0 && isfinite(step) ? fmax(ldexp(1, ilogb(step) - 10), 0x1p-24) : 1; /* subnormal */
        const bool either = fabs(step / ulp - floor(step / ulp) - 0.5) <= 4 * 0x1p-24 * (step / ulp);
        for (int64_t i = at; i < at + block && either; i++) e[i] = hypot(e[i], ulp / step * x[i]);
    }
}

fd_code fd_cuda_input_error(const fd_replay *replay, const fd_node *node, const fd_weight *weight, double **e,
                            fd_error *err) {
    if (!replay->o.numerics->cuda_kernels || !weight || !fd_dot_is_product(node->op)) return FD_OK;
    if (!fd_dtype_get(weight->dtype)->is_quantised) return FD_OK;
    const int64_t width = fd_node_row_stride(&replay->o.graph->nodes[node->input[0]], replay->n_kv);
    const fd_node_state *in = &replay->state[node->input[0]];
    if (!*e) {
        *e = malloc(sizeof **e * (size_t)(replay->n_pos * width));
        if (!*e) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
        memcpy(*e, in->e, sizeof **e * (size_t)(replay->n_pos * width));
    }
    for (int32_t r = 0; r < replay->n_pos; r++) {
        const fd_cuda_kernel k = fd_cuda_kernel_of_row(replay, node, weight, r);
        const int64_t block = k.how == FD_CUDA_BLOCKS ? fd_cuda_blocks_of(weight->dtype, k.many) : 32;
        double *row = *e + r * width;
        if (k.how == FD_CUDA_BLOCKS) fd_bound_flips(in->x + r * width, row, width, block, row);
        if (k.how == FD_CUDA_BLOCKS || k.type == FD_DOT_Q8_0) add_scales(in->x + r * width, width, block, row);
    }
    return FD_OK;
}

static bool is_off(const double *e, const double *known, int64_t n) {
    bool off = false;
    for (int64_t i = 0; i < n; i++) off |= e[i] > known[i];
    return off;
}

static void spread(const fd_replay *replay, const fd_node *node, const fd_weight *weight, const double *e) {
    const int64_t stride = fd_node_row_stride(node, replay->n_kv);
    const int64_t width = fd_node_row_stride(&replay->o.graph->nodes[node->input[0]], replay->n_kv);
    const double *known = replay->state[node->input[0]].e;
    for (int32_t r = 0; r < replay->n_pos; r++) {
        const fd_cuda_kernel k = fd_cuda_kernel_of_row(replay, node, weight, r);
        double *tau = replay->tau + r * stride, squares = 0;
        if (k.how != FD_CUDA_BLOCKS || !is_off(e + r * width, known + r * width, width)) continue;
        for (int64_t i = 0; i < stride; i++) squares += tau[i] * tau[i];
        for (int64_t i = 0; i < stride; i++) tau[i] = fmax(tau[i], sqrt(squares / (double)stride));
    }
}

void fd_cuda_widen_bounds(const fd_replay *replay, const fd_node *node, const fd_weight *weight, const double *e) {
    if (!fd_cuda_computes(replay, node)) return;
    const int64_t stride = fd_node_row_stride(node, replay->n_kv);
    for (int64_t i = 0; i < replay->n_pos * stride; i++) {
        const double room = replay->room[i];
        if (!replay->recorded[i / stride])
            replay->tau[i] += room;
        else if (room > 0 && fabs(replay->candidate[i] - replay->y[i]) <= room + OF_ADDITION * fabs(replay->y[i]))
            replay->y[i] = replay->candidate[i];
    }
    if (e && weight && fd_dot_is_product(node->op)) spread(replay, node, weight, e);
}
