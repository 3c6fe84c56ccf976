#include "tests/compare/overflow_ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "tests/compare/replay_bench.h"

/* ---- rows 2 and 4 of what an op gives, made larger ---- */

static void scale_rows(const fd_op_args *args, float factor) {
    int64_t stride = fd_node_row_stride(args->node, args->n_kv);
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * stride; i++)
        if (i / stride == 2 || i / stride == 4) ((float *)args->out)[i] *= factor;
}
void by_150(const fd_op_args *args) {
    scale_rows(args, 150.0f);
}
void by_8000(const fd_op_args *args) {
    scale_rows(args, 8000.0f);
}
void by_25800(const fd_op_args *args) {
    scale_rows(args, 25800.0f);
}
void by_a_million(const fd_op_args *args) {
    scale_rows(args, 1e6f);
}
void by_nothing(const fd_op_args *args) {
    scale_rows(args, 0.0f);
}

/* x of row 2 so that the first output of ffn_gate sums up to the middle of the row, and back to 0. */
void there_and_back(const fd_op_args *args) {
    const fd_weight *w =
        &args->graph->weights[args->graph->nodes[fd_graph_find(args->graph, "blk.1.ffn_gate")].weight[0]];
    float *row = malloc(sizeof *row * (size_t)w->n_col);
    cr_assert(row);
    fd_dequantize_row(w->dtype, w->data, row, w->n_col);
    run_clean(args);
    for (int64_t i = 0; i < w->n_col; i++) {
        float away = i < w->n_col / 2 ? 1.0f : -1.0f;
        ((float *)args->out)[2 * w->n_col + i] = 4e4f * (row[i] < 0 ? -away : away);
    }
    free(row);
}

/* ---- engines that compute in binary16 ---- */

static float half(float x) {
    return fd_f16_to_f32(fd_f32_to_f16(x));
}

/* The op of an input in binary16. */
void of_half(const fd_op_args *args) {
    int64_t n = args->n_pos * fd_node_row_stride(&args->graph->nodes[args->node->input[0]], args->n_kv);
    float *x = malloc(sizeof *x * (size_t)n);
    cr_assert(x);
    for (int64_t i = 0; i < n; i++) x[i] = half(((const float *)args->in[0])[i]);
    fd_op_args other = *args;
    other.in[0] = x;
    run_clean(&other);
    free(x);
}

/* What comes out in binary16, before a factor that comes last. */
void to_half(const fd_op_args *args) {
    float last = args->node->op == FD_OP_ATTN_SCORES ? args->node->scale : 1.0f;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_row_stride(args->node, args->n_kv); i++)
        ((float *)args->out)[i] = half(((float *)args->out)[i] / last) * last;
}

/* Rows whose squares, or whose sum of squares, binary16 does not hold. */
static void of_squares(const fd_op_args *args, bool sum) {
    int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t r = 0; r < args->n_pos; r++) {
        float most = 0, all = 0;
        for (int64_t i = 0; i < n; i++) {
            float x = ((const float *)args->in[0])[r * n + i];
            most = fmaxf(most, half(x * x));
            all = half(all + half(x * x));
        }
        for (int64_t i = 0; i < n && !isfinite(sum ? all : most); i++) ((float *)args->out)[r * n + i] = NAN;
    }
}
void squares(const fd_op_args *args) {
    of_squares(args, false);
}
void sums_of_squares(const fd_op_args *args) {
    of_squares(args, true);
}

/* Sums in binary16, one product after the other. */
void summed_in_half(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    int64_t row_bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
    float *row = malloc(sizeof *row * (size_t)w->n_col);
    cr_assert(row);
    for (int64_t o = 0; o < w->n_row; o++) {
        fd_dequantize_row(w->dtype, (const char *)w->data + o * row_bytes, row, w->n_col);
        for (int64_t p = 0; p < args->n_pos; p++) {
            float sum = 0;
            for (int64_t i = 0; i < w->n_col; i++)
                sum = half(sum + row[i] * ((const float *)args->in[0])[p * w->n_col + i]);
            ((float *)args->out)[p * w->n_row + o] = sum;
        }
    }
    free(row);
}

void softmax_without_max(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0];
    for (int32_t i = 0; i < args->n_pos * n_head; i++) {
        const float *s = (const float *)args->in[0] + (int64_t)i * args->n_kv;
        float *w = (float *)args->out + (int64_t)i * args->n_kv, sum = 0;
        int32_t n = args->pos0 + i / n_head + 1;
        for (int32_t t = 0; t < n; t++) sum += expf(s[t]);
        for (int32_t t = 0; t < args->n_kv; t++) w[t] = t < n ? expf(s[t]) / sum : 0;
    }
}

void without_eps(const fd_op_args *args) {
    fd_node node = *args->node;
    fd_op_args other = *args;
    node.eps = 0;
    other.node = &node;
    run_clean(&other);
}

/* ---- what is no overflow ---- */

static void spoil(const fd_op_args *args, int64_t row, float value) {
    int64_t stride = fd_node_row_stride(args->node, args->n_kv);
    run_clean(args);
    for (int64_t i = row * stride; i < (row + 1) * stride; i++) ((float *)args->out)[i] = value;
}
void row_two_is_nan(const fd_op_args *args) {
    spoil(args, 2, NAN);
}
void row_two_is_masked(const fd_op_args *args) {
    spoil(args, 2, -INFINITY);
}
