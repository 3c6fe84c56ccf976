#include "tests/compare/mixed_products.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "emulate/rounding.h"
#include "model/gguf/quant.h"
#include "model/weight_rows.h"
#include "tests/compare/replay_bench.h"

static void in_bf16(float *row, int64_t n) {
    fd_round_row(FD_EMULATE_BF16, row, row, n);
}
static void in_f16(float *row, int64_t n) {
    fd_round_row(FD_EMULATE_F16, row, row, n);
}
void in_int8(float *row, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(row[i]));
    for (int64_t i = 0; i < n && most > 0; i++) row[i] = most / 127 * rintf(row[i] / (most / 127));
}

static void in_tf32(float *row, int64_t n) {
    fd_round_row(FD_EMULATE_TF32, row, row, n);
}

/* Four bits, the largest 448; below 2^-6 in steps of 2^-9. */
static void in_e4m3(float *row, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(row[i]));
    const float scale = most / 448;
    for (int64_t i = 0; i < n && most > 0; i++) {
        int exponent;
        frexpf(row[i] / scale, &exponent);
        const float step = ldexpf(1, exponent - 4 > -9 ? exponent - 4 : -9);
        row[i] = scale * step * rintf(row[i] / scale / step);
    }
}

typedef void (*round_fn)(float *row, int64_t n);

/* The product of rounded factors; then it is rounded itself, and its bias is added in binary32. NULL: as it is. */
static void multiply(const fd_op_args *args, round_fn activations, round_fn weights, round_fn result) {
    const fd_weight *w = args->weight[0], *bias = args->weight[1];
    int64_t n_row = w->n_row, n_col = w->n_col;
    float *x = malloc(sizeof *x * (size_t)(args->n_pos * n_col)), *m = malloc(sizeof *m * (size_t)(n_row * n_col));
    float *added = calloc((size_t)n_row, sizeof *added), *y = args->out;
    fd_weight rounded = *w;
    fd_op_args own = *args;
    cr_assert(x && m && added);
    memcpy(x, args->in[0], sizeof *x * (size_t)(args->n_pos * n_col));
    for (int64_t r = 0; r < args->n_pos; r++) activations(x + r * n_col, n_col);
    for (int64_t r = 0; r < n_row; r++) {
        fd_dequantize_row(w->dtype, (const char *)w->data + r * fd_dtype_row_bytes(w->dtype, n_col), m + r * n_col,
                          n_col);
        if (weights) weights(m + r * n_col, n_col);
    }
    rounded.dtype = FD_F32;
    rounded.data = m;
    own.in[0] = x;
    own.weight[0] = &rounded;
    own.weight[1] = NULL;
    run_clean(&own);
    if (bias) fd_dequantize_row(bias->dtype, bias->data, added, n_row);
    for (int64_t r = 0; r < args->n_pos; r++) {
        if (result) result(y + r * n_row, n_row);
        for (int64_t i = 0; i < n_row && bias; i++) y[r * n_row + i] += added[i];
    }
    free(x);
    free(m);
    free(added);
}

void bf16_factors(const fd_op_args *args) {
    multiply(args, in_bf16, in_bf16, NULL);
}
void f16_factors(const fd_op_args *args) {
    multiply(args, in_f16, in_f16, NULL);
}
void bf16_of_several_rows(const fd_op_args *args) {
    (args->n_pos > 1 ? bf16_factors : run_clean)(args);
}
void f16_of_several_rows(const fd_op_args *args) {
    (args->n_pos > 1 ? f16_factors : run_clean)(args);
}
/* As cuBLAS chooses: single rows stay in binary32, and so do matrices of some shapes. */
void tf32_factors(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    if (args->n_pos == 1 || w->n_row > 2 * w->n_col || w->n_col > 2 * w->n_row)
        run_clean(args);
    else
        multiply(args, in_tf32, in_tf32, NULL);
}

void tf32_of_several_rows(const fd_op_args *args) {
    const fd_node *node = args->node, *nodes = args->graph->nodes;
    if (args->n_pos == 1 || args->weight[0]) {
        if (args->n_pos == 1)
            run_clean(args);
        else
            multiply(args, in_tf32, in_tf32, NULL);
        return;
    }
    const int64_t n_q = args->n_pos * fd_node_row_stride(&nodes[node->input[0]], args->n_kv),
                  n_k = args->n_kv * fd_node_row_stride(&nodes[node->input[1]], args->n_kv);
    fd_op_args own = *args;
    float *k = copy_input(args, 1, n_k), *q = copy_input(args, 0, n_q);
    in_tf32(k, n_k);
    in_tf32(q, n_q);
    own.in[1] = k;
    run_with(&own, 0, q);
    free(k);
}

/* RoPE and attention in bfloat16, scores' scale in K before that is rounded, as OpenVINO's CPU plugin has it. */
void bf16_rope(const fd_op_args *args) {
    const int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    float *x = copy_input(args, 0, n);
    in_bf16(x, n);
    run_with(args, 0, x);
    in_bf16(args->out, n);
}
void bf16_attention(const fd_op_args *args) {
    const fd_node *nodes = args->graph->nodes;
    const bool scores = args->node->op == FD_OP_ATTN_SCORES;
    const int64_t n_x = args->n_pos * fd_node_row_stride(&nodes[args->node->input[0]], args->n_kv),
                  n_kv = args->n_kv * fd_node_row_stride(&nodes[args->node->input[1]], args->n_kv);
    fd_node node = *args->node;
    fd_op_args own = *args;
    float *rows = copy_input(args, 1, n_kv), *x = copy_input(args, 0, n_x);
    for (int64_t i = 0; i < n_kv && scores; i++) rows[i] *= node.scale;
    in_bf16(rows, n_kv);
    in_bf16(x, n_x);
    node.scale = 1;
    own.node = &node;
    own.in[1] = rows;
    run_with(&own, 0, x);
    if (!scores) in_bf16(args->out, args->n_pos * fd_node_row_stride(args->node, args->n_kv));
    free(rows);
}

static void cut_13_bits(float *row, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int exponent;
        float share = frexpf(row[i], &exponent);
        row[i] = ldexpf(truncf(share * 0x1p11f) / 0x1p11f, exponent);
    }
}
/* As ggml's CUDA kernels: single rows stay in binary32, cuBLAS gets matrices of some shapes, tensor cores the others' binary32 as it is. */
void tf32_cut_factors(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    if (args->n_pos == 1)
        run_clean(args);
    else if (w->n_row > 2 * w->n_col)
        multiply(args, in_tf32, in_tf32, NULL);
    else
        multiply(args, cut_13_bits, cut_13_bits, NULL);
}

static int64_t turns(int64_t n_col, int64_t n_thread) {
    return (n_col + 2 * n_thread - 1) / (2 * n_thread);
}

/* One row, by threads that take two columns a turn each and sum in binary16: the fewest that take no more turns than 256. */
static void sum_in_halves(const fd_weight *w, const float *x, float *y) {
    int64_t n_thread = 256;
    while (n_thread > 32 && turns(w->n_col, n_thread - 32) == turns(w->n_col, 256)) n_thread -= 32;
    for (int64_t r = 0; r < w->n_row; r++) {
        _Float16 sums[512] = {0};
        const _Float16 *row = (const _Float16 *)w->data + r * w->n_col;
        for (int64_t i = 0; i < w->n_col; i++) {
            _Float16 *sum = &sums[i % (2 * n_thread)];
            *sum = (_Float16)((double)row[i] * (double)(_Float16)x[i] + (double)*sum);
        }
        double all = 0;
        for (int64_t t = 0; t < 2 * n_thread; t++) all += (double)sums[t];
        y[r] = (float)all;
    }
}
void f16_sums_of_single_rows(const fd_op_args *args) {
    const fd_weight *w = args->weight[0], *bias = args->weight[1];
    if (args->n_pos > 1 || w->dtype != FD_F16) {
        multiply(args, in_f16, NULL, NULL);
        return;
    }
    sum_in_halves(w, args->in[0], args->out);
    for (int64_t i = 0; bias && i < w->n_row; i++) ((float *)args->out)[i] += fd_weight_element(bias, i);
}
void bf16_products(const fd_op_args *args) {
    multiply(args, in_bf16, in_bf16, in_bf16);
}
void bf16_activations(const fd_op_args *args) {
    multiply(args, in_bf16, NULL, in_bf16);
}
void int8_products(const fd_op_args *args) {
    multiply(args, in_int8, in_int8, in_bf16);
}
void fp8_products(const fd_op_args *args) {
    multiply(args, in_e4m3, in_e4m3, in_bf16);
}
void fp8_factors(const fd_op_args *args) {
    multiply(args, in_e4m3, in_e4m3, NULL);
}
void int8_rows(const fd_op_args *args) {
    multiply(args, in_int8, NULL, NULL);
}
static void in_blocks(float *row, int64_t n, int64_t block) {
    for (int64_t at = 0; at < n; at += block) in_int8(row + at, at + block < n ? block : n - at);
}
static void in_blocks_of_64(float *row, int64_t n) {
    in_blocks(row, n, 64);
}
static void in_blocks_of_128(float *row, int64_t n) {
    in_blocks(row, n, 128);
}
static void in_blocks_of_bf16(float *row, int64_t n) {
    in_bf16(row, n);
    in_blocks(row, n, 32);
}
void int8_blocks_of_bf16(const fd_op_args *args) {
    multiply(args, in_blocks_of_bf16, NULL, in_bf16);
}
void int8_blocks_64(const fd_op_args *args) {
    multiply(args, in_blocks_of_64, NULL, NULL);
}
void int8_blocks_128(const fd_op_args *args) {
    multiply(args, in_blocks_of_128, NULL, NULL);
}
void int8_both(const fd_op_args *args) {
    multiply(args, in_int8, in_int8, NULL);
}

static void in_uint8(float *x, int64_t n) {
    float least = 0, most = 0;
    for (int64_t i = 0; i < n; i++) least = fminf(least, x[i]), most = fmaxf(most, x[i]);
    const float step = (most - least) / 255, zero = rintf(-least / step);
    for (int64_t i = 0; i < n; i++) x[i] = (fminf(fmaxf(rintf(x[i] / step) + zero, 0), 255) - zero) * step;
}

/* One scale for the whole batch, and a zero point. */
void int8_batch(const fd_op_args *args) {
    const int64_t n = args->n_pos * args->weight[0]->n_col;
    float *x = copy_input(args, 0, n);
    in_uint8(x, n);
    run_with(args, 0, x);
}

void int8_tensors(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    float *m = malloc(sizeof *m * (size_t)(w->n_row * w->n_col));
    fd_weight rounded = *w;
    fd_op_args own = *args;
    cr_assert(m);
    for (int64_t r = 0; r < w->n_row; r++)
        fd_dequantize_row(w->dtype, (const char *)w->data + r * fd_dtype_row_bytes(w->dtype, w->n_col),
                          m + r * w->n_col, w->n_col);
    in_int8(m, w->n_row * w->n_col);
    rounded.dtype = FD_F32;
    rounded.data = m;
    own.weight[0] = &rounded;
    int8_batch(&own);
    free(m);
}

/* Of weights that stay as they are: no class multiplies so, and an engine that does it everywhere is meant so. */
void f16_activations(const fd_op_args *args) {
    multiply(args, in_f16, NULL, NULL);
}

/* Scales of weights' blocks in bfloat16, of three kinds of products: int8 activations have room for that, and are in all or in none. */
static void coarse_scales(float *row, int64_t n) {
    for (int64_t at = 0; at < n; at += 32) {
        float most = 0, scale;
        for (int64_t i = at; i < at + 32; i++) most = fmaxf(most, fabsf(row[i]));
        scale = most / 127;
        in_bf16(&scale, 1);
        for (int64_t i = at; i < at + 32 && most > 0; i++) row[i] *= scale / (most / 127);
    }
}
static void as_they_are(float *row, int64_t n) {
    (void)row, (void)n;
}
void off_by_scales(const fd_op_args *args) {
    multiply(args, as_they_are, coarse_scales, NULL);
}
