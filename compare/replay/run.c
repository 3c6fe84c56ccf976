#include "compare/replay/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/products/products.h"
#include "compare/products/run_op.h"
#include "compare/replay/cuda_kernels.h"
#include "compare/replay/several_rows.h"
#include "model/gguf/quant.h"

static fd_code narrow(const double *x, int64_t n, float **out, fd_error *err) {
    *out = malloc(sizeof **out * (size_t)(n ? n : 1));
    if (!*out) return fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
    for (int64_t i = 0; i < n; i++) (*out)[i] = (float)x[i];
    return FD_OK;
}

fd_code fd_replay_rope_tables(const fd_replay *replay, fd_op_args *args, void **table, fd_error *err) {
    const fd_node *node = args->node;
    bool exact = replay->o.numerics->exact;
    int64_t half = node->rope.n_rot / 2, n = half * replay->n_kv;
    size_t real = exact ? sizeof(float) : sizeof(double);
    const fd_weight *factors = node->weight[0] >= 0 ? &replay->o.graph->weights[node->weight[0]] : NULL;
    *table = malloc(2 * real * (size_t)n);
    if (!*table) return fd_fail(err, FD_ERR_MEMORY, "%s: tables: out of memory", node->name);
    void *sine = (char *)*table + real * (size_t)n;
    if (exact)
        fd_rope_table(&node->rope, factors, 0, replay->n_kv, *table, sine);
    else
        fd_rope_table_f64(&node->rope, factors, 0, replay->n_kv, *table, sine);
    args->rope_cos = *table;
    args->rope_sin = sine;
    return FD_OK;
}

fd_code fd_replay_round_copy(fd_dot_type type, const double *x, int64_t n, double **out, fd_error *err) {
    float *rounded;
    FD_TRY(narrow(x, n, &rounded, err));
    *out = malloc(sizeof **out * (size_t)(n ? n : 1));
    if (*out) fd_dot_round(type, rounded, 1, n);
    for (int64_t i = 0; i < n && *out; i++) (*out)[i] = (double)rounded[i];
    free(rounded);
    return *out ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
}

int64_t fd_replay_rows_given(const fd_replay *replay, const fd_node *node) {
    int64_t rows = node->op == FD_OP_KV_WRITE ? replay->n_kv : replay->n_pos;
    return rows * fd_node_row_stride(node, replay->n_kv);
}

static fd_code run_op(const fd_replay *replay, fd_numerics numerics, const fd_op_args *args, fd_error *err) {
    if (args->node->op == FD_OP_MATMUL)
        return fd_products_multiply(replay->o.device, replay->o.op, numerics, args, err);
    fd_call_op(replay->o.op, numerics, args);
    return FD_OK;
}

/* In contract order: inputs are binary32 already, because an exact run recorded them. */
fd_code fd_replay_run_exact(const fd_replay *replay, fd_op_args args, double *out, fd_error *err) {
    const fd_node *node = args.node;
    float *in[FD_MAX_INPUTS] = {NULL, NULL}, *result = NULL;
    fd_code code = narrow(out, fd_replay_rows_given(replay, node), &result, err);
    for (int k = 0; k < FD_MAX_INPUTS && code == FD_OK; k++)
        if (node->input[k] >= 0)
            code =
                narrow(args.in[k], fd_replay_rows_given(replay, &replay->o.graph->nodes[node->input[k]]), &in[k], err);
    if (code == FD_OK) {
        for (int k = 0; k < FD_MAX_INPUTS; k++) args.in[k] = in[k];
        args.out = result;
        code = run_op(replay, FD_NUMERICS_EXACT, &args, err);
        for (int64_t i = 0; i < fd_replay_rows_given(replay, node); i++) out[i] = (double)result[i];
    }
    for (int k = 0; k < FD_MAX_INPUTS; k++) free(in[k]);
    free(result);
    return code;
}

/* In place; *rows is replaced by a copy of the caller's own. */
static fd_code round_input(const fd_replay *replay, fd_dot_type type, const fd_op_args *args, const double **rows,
                           double **copy, int64_t width, fd_error *err) {
    int64_t n = args->n_pos * width;
    float *x;
    FD_TRY(narrow(*rows, n, &x, err));
    *copy = malloc(sizeof **copy * (size_t)(n ? n : 1));
    if (*copy) {
        fd_dot_round_input(type, args->graph, args->node, x, args->n_pos, width);
        for (int64_t r = 0; r < args->n_pos; r++) {
            const bool kept = fd_replay_keeps_query(replay, args->node, r);
            for (int64_t i = r * width; i < (r + 1) * width; i++) (*copy)[i] = kept ? (*rows)[i] : (double)x[i];
        }
        *rows = *copy;
    }
    free(x);
    return *copy ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
}

/* What the op's first input becomes before it is multiplied: by the class's dot types, and in llama.cpp's CPU kernels
 * q, which meets rows of a quantised K cache, becomes blocks too. */
static fd_dot_type dot_type(const fd_replay *replay, const fd_op_args *args) {
    const fd_node *node = args->node;
    if (args->weight[0]) return fd_dot_type_of(replay->o.numerics, node, args->weight[0], 0);
    return fd_dot_type_beside_cache(replay->o.numerics, node, fd_replay_kv_type(replay, node));
}

/* GELU as ggml's table has it; then times the other factor. */
static fd_code run_gelu_table(const fd_replay *replay, fd_op_args args, fd_error *err) {
    const double *gate = args.in[0], *up = args.node->op == FD_OP_GELU_MUL ? args.in[1] : NULL;
    int64_t n = args.n_pos * fd_node_row_stride(args.node, replay->n_kv);
    double *rounded = malloc(sizeof *rounded * (size_t)(2 * n + 1)), *ones = rounded ? rounded + n : NULL,
           *out = args.out;
    if (!rounded) return fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
    for (int64_t i = 0; i < n; i++) {
        rounded[i] = (double)fd_dot_round_f16((float)gate[i]);
        ones[i] = 1;
    }
    args.in[0] = rounded;
    if (up) args.in[1] = ones;
    fd_call_op(replay->o.op, FD_NUMERICS_F64, &args);
    for (int64_t i = 0; i < n; i++) {
        double y = gate[i] <= -10 ? 0 : gate[i] >= 10 ? gate[i] : (double)fd_dot_round_f16((float)out[i]);
        out[i] = up ? y * up[i] : y;
    }
    free(rounded);
    return FD_OK;
}

/* Of the same node and type as before it is there: samples read it, too. */
static fd_code round_weight(fd_replay *replay, fd_op_args *args, fd_error *err) {
    const fd_weight *own = args->weight[0];
    if (!own || !(replay->o.numerics->u_factor > 0)) return FD_OK;
    const fd_dot_type type = fd_dot_type_of(replay->o.numerics, args->node, own, 0);
    if (replay->rounded != args->node->id || replay->rounded_type != type) {
        free((void *)replay->rounded_weight.data);
        replay->rounded_weight.data = NULL;
        replay->rounded = args->node->id;
        replay->rounded_type = type;
        FD_TRY(fd_dot_round_weight(replay->o.numerics, args->node, own, &replay->rounded_weight, err));
    }
    if (replay->rounded_weight.data) args->weight[0] = &replay->rounded_weight;
    return FD_OK;
}

/* All that decides how the weight is rounded (fd_dot_round_weight). */
static fd_memo_key key_of(const fd_replay *replay, const fd_op_args *args) {
    const fd_numerics_class *c = replay->o.numerics;
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int32_t type = (int32_t)fd_dot_type_of(c, args->node, weight, 0);
    return (fd_memo_key){.kind = FD_MEMO_PRODUCT,
                         .weight = weight->data,
                         .bias = bias ? bias->data : NULL,
                         .rounding = c->u_factor > 0 ? 4 * type + 2 * c->int8_rows + c->int8_weights : 0,
                         .n_row = weight->n_row,
                         .n = weight->n_col};
}

/* A product's rows are computed for the vectors that are new, [n] of them at args->in[0] + at[i] rows. Samples, which come before the
 * node's own rows (perturb.c), are not kept: another class moves them otherwise. */
static fd_code multiply_new(fd_replay *replay, fd_op_args args, const fd_memo_key *key, const int64_t *at, int32_t n,
                            fd_error *err) {
    const double *x = args.in[0];
    const int32_t n_plain = args.n_pos - replay->n_pos;
    double *y = args.out, *own = malloc(sizeof *own * (size_t)(n * (key->n + key->n_row)));
    if (!own) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args.node->name);
    for (int32_t i = 0; i < n; i++) memcpy(own + i * key->n, x + at[i] * key->n, sizeof *own * (size_t)key->n);
    args.in[0] = own;
    args.out = own + n * key->n;
    args.n_pos = n;
    fd_code code = round_weight(replay, &args, err);
    if (code == FD_OK) code = run_op(replay, FD_NUMERICS_F64, &args, err);
    for (int32_t i = 0; i < n && code == FD_OK; i++) {
        const double *row = (const double *)args.out + i * key->n_row;
        memcpy(y + at[i] * key->n_row, row, sizeof *row * (size_t)key->n_row);
        if (at[i] >= n_plain) fd_product_memo_keep(replay->o.memo, key, own + i * key->n, row);
    }
    free(own);
    return code;
}

static fd_code multiply(fd_replay *replay, fd_op_args args, fd_error *err) {
    const fd_memo_key key = key_of(replay, &args);
    int64_t *at = malloc(sizeof *at * (size_t)args.n_pos);
    int32_t n = 0;
    if (!at) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args.node->name);
    for (int32_t row = 0; row < args.n_pos; row++) {
        const double *known = fd_product_memo_find(replay->o.memo, &key, (const double *)args.in[0] + row * key.n);
        if (known)
            memcpy((double *)args.out + row * key.n_row, known, sizeof *known * (size_t)key.n_row);
        else
            at[n++] = row;
    }
    fd_code code = n > 0 ? multiply_new(replay, args, &key, at, n, err) : FD_OK;
    free(at);
    return code;
}

static bool remembers(const fd_replay *replay, const fd_node *node) {
    return node->op == FD_OP_MATMUL && replay->o.memo && !replay->o.device;
}

fd_code fd_replay_run_rounded(fd_replay *replay, fd_op_args args, fd_error *err) {
    return remembers(replay, args.node) ? multiply(replay, args, err) : run_op(replay, FD_NUMERICS_F64, &args, err);
}

/* To the nearest that has so many bits. */
static double round_product(const fd_numerics_class *c, double x) {
    if (!isfinite(x) || x == 0) return x;
    const double step = fmax(ldexp(2 * c->u_product, ilogb(x)), c->tiny_out);
    return rint(x / step) * step;
}

/* A product that is rounded before its bias is added, or its scale and softcap taken. */
static fd_code run_rounded_product(fd_replay *replay, fd_op_args args, fd_error *err) {
    const fd_numerics_class *c = replay->o.numerics;
    const fd_node *node = args.node;
    const fd_weight *bias = node->op == FD_OP_MATMUL ? args.weight[1] : NULL;
    const int64_t n = args.n_pos * fd_node_row_stride(node, replay->n_kv);
    double *y = args.out;
    float *row = malloc(sizeof *row * (size_t)(bias ? bias->n_col : 1));
    fd_node plain = *node;
    plain.scale = node->op == FD_OP_ATTN_SCORES ? 1 : node->scale;
    plain.softcap = 0;
    args.node = &plain;
    if (bias) args.weight[1] = NULL;
    fd_code code = row ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    if (code == FD_OK) code = fd_replay_run_rounded(replay, args, err);
    if (code == FD_OK && bias) fd_dequantize_row(bias->dtype, bias->data, row, bias->n_col);
    for (int64_t i = 0; i < n && code == FD_OK; i++) {
        y[i] = round_product(c, y[i]);
        if (bias) y[i] += (double)row[i % bias->n_col];
        if (node->op != FD_OP_ATTN_SCORES || !isfinite(y[i])) continue;
        y[i] *= (double)node->scale;
        if (node->softcap > 0) y[i] = node->softcap * tanh(y[i] / node->softcap);
    }
    free(row);
    return code;
}

static bool rounds_product(const fd_replay *replay, const fd_op_args *args) {
    const bool biased = args->node->op == FD_OP_MATMUL && args->weight[1];
    return replay->o.numerics->u_product > 0 && (biased || args->node->op == FD_OP_ATTN_SCORES);
}

fd_code fd_replay_run_f64(fd_replay *replay, fd_op_args args, fd_error *err) {
    if (fd_replay_is_in_turn(replay, args.node)) return fd_replay_run_in_turn(replay, args, err);
    const bool flash = fd_replay_is_flash_mix(replay, args.node);
    return (flash ? fd_replay_run_flash_mix : fd_replay_run_as_given)(replay, args, err);
}

fd_code fd_replay_run_as_given(fd_replay *replay, fd_op_args args, fd_error *err) {
    const fd_node *node = args.node;
    if (rounds_product(replay, &args)) return run_rounded_product(replay, args, err);
    if (fd_cuda_computes(replay, node)) return fd_cuda_run(replay, args, err);
    if (fd_several_rows_computes(replay, node)) return fd_several_rows_run(replay, args, err);
    if (fd_gelu_is_table(replay->o.numerics, node)) return run_gelu_table(replay, args, err);
    fd_dot_type type = dot_type(replay, &args);
    double *copy = NULL;
    if (!remembers(replay, node)) FD_TRY(round_weight(replay, &args, err));
    if (type != FD_DOT_AS_IS) {
        const double *rows = args.in[0];
        int64_t width = fd_node_row_stride(&replay->o.graph->nodes[node->input[0]], replay->n_kv);
        FD_TRY(round_input(replay, type, &args, &rows, &copy, width, err));
        args.in[0] = rows;
    }
    fd_code code = fd_replay_run_rounded(replay, args, err);
    free(copy);
    if (code != FD_OK || !fd_node_is_kv_cache(node)) return code;
    const int64_t n = fd_node_row_stride(node, replay->n_kv);
    double *rows = (double *)args.out + replay->pos0 * n;
    const uint32_t blocks = fd_replay_kv_type(replay, node);
    if (blocks != FD_F32) return fd_replay_quantise_rows(replay, blocks, rows, replay->n_pos, n, err);
    for (int64_t i = 0; i < replay->n_pos * n && fd_class_repeats_cache(replay->o.numerics); i++)
        rows[i] = (double)fd_dot_round_f16((float)rows[i]);
    return FD_OK;
}
