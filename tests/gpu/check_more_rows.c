/* The ops that LayerNorm, ALiBi, learned positions and ungated activations bring, against scalar C. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/layer_norm.h"
#include "kernels/elementwise/position.h"
#include "numerics/contract.h"
#include "reference_cpu/reference.h"
#include "tests/gpu/kernel_check.h"

enum { MOST = 1 << 16, N_ROW = 5, POS0 = 37 };
static float x[MOST], w[MOST], b[MOST], expected[MOST], found[MOST];

/* A node of [n_first, n] or [n] elements a position, or over positions, with its weights. */
typedef struct one_op {
    fd_node nodes[2];
    fd_weight weights[2];
    fd_graph graph;
    fd_op_args args;
} one_op;

static void make(one_op *o, fd_op op, int32_t n_first, int32_t n, bool over_kv) {
    memset(o, 0, sizeof *o);
    for (int k = 0; k < 2; k++) {
        fd_node *node = &o->nodes[k];
        *node = (fd_node){.id = k, .input = {k - 1, -1}, .weight = {-1, -1}, .over_kv = over_kv};
        node->n_dim = n_first ? 2 : 1;
        node->shape[0] = n_first ? n_first : n;
        node->shape[1] = over_kv ? 0 : n;
    }
    o->nodes[1].op = op;
    o->graph = (fd_graph){.nodes = o->nodes, .n_node = 2, .weights = o->weights, .n_weight = 2};
    o->args = (fd_op_args){.graph = &o->graph,
                           .node = &o->nodes[1],
                           .pos0 = POS0,
                           .n_pos = N_ROW,
                           .n_kv = POS0 + N_ROW,
                           .in = {x},
                           .out = expected};
}

static void give_weight(one_op *o, int slot, uint32_t dtype, int64_t n_row, int64_t n_col, const void *data) {
    o->weights[slot] = (fd_weight){.dtype = dtype, .n_row = n_row, .n_col = n_col, .data = data};
    o->nodes[1].weight[slot] = slot;
    o->args.weight[slot] = &o->weights[slot];
}

static void compare(gpu_test *test, const one_op *o, const float *out, size_t count, const char *name) {
    fd_reference_op(FD_NUMERICS_EXACT, &o->args);
    gpu_download(test, out, found, count);
    gpu_expect_equal(test, name, expected, found, count);
    gpu_release(test);
}

static void check_layer_norm(gpu_test *test, int32_t n_head, int32_t n, bool weight, bool bias, bool each) {
    one_op o;
    char name[96];
    fd_error err = {0};
    int32_t heads = n_head ? n_head : 1, n_weight = each ? heads : 1;
    size_t count = (size_t)(N_ROW * heads * n);
    gpu_fill(test, x, count);
    gpu_fill(test, w, (size_t)(n_weight * n));
    gpu_fill(test, b, (size_t)(n_weight * n));
    make(&o, FD_OP_LAYER_NORM, n_head, n, false);
    o.nodes[1].eps = 1e-5f;
    if (weight) give_weight(&o, 0, FD_F32, n_weight, n, w);
    if (bias) give_weight(&o, 1, FD_F32, n_weight, n, b);
    float *out = gpu_poisoned(test, count);
    fd_layer_norm in = {.x = gpu_upload(test, x, sizeof *x * count),
                        .weight = weight ? gpu_upload(test, w, sizeof *w * (size_t)(n_weight * n)) : NULL,
                        .bias = bias ? gpu_upload(test, b, sizeof *b * (size_t)(n_weight * n)) : NULL,
                        .n_weight_row = n_weight,
                        .n_bias_row = n_weight,
                        .eps = 1e-5f,
                        .n_row = N_ROW * heads,
                        .n = n};
    gpu_must(fd_launch_layer_norm(&test->queue, &in, out, &err), &err);
    snprintf(name, sizeof name, "layer_norm_%d_heads_of_%d%s%s%s", heads, n, weight ? "_weight" : "",
             bias ? "_bias" : "", each ? "_each" : "");
    compare(test, &o, out, count, name);
}

static void check_add_position(gpu_test *test, uint32_t dtype, int32_t n, int64_t n_table) {
    one_op o;
    char name[96];
    float *rows;
    fd_error err = {0};
    size_t count = (size_t)(N_ROW * n);
    int32_t pos0 = POS0;
    void *file = gpu_random_weight(test, dtype, n_table, n, &rows);
    fd_device_matrix table = gpu_upload_weight(test, dtype, n_table, n, file);
    gpu_fill(test, x, count);
    make(&o, FD_OP_ADD_POSITION, 0, n, false);
    give_weight(&o, 0, dtype, n_table, n, file);
    float *out = gpu_poisoned(test, count), *dx = gpu_upload(test, x, sizeof *x * count),
          *dpos = gpu_upload(test, &pos0, sizeof pos0);
    gpu_must(fd_launch_add_position(&test->queue, &table, dx, (const int32_t *)(const void *)dpos, N_ROW, out, &err),
             &err);
    snprintf(name, sizeof name, "add_position_%s_%d_of_%lld_rows", fd_dtype_get(dtype)->name, n, (long long)n_table);
    compare(test, &o, out, count, name);
}

static void check_add_vector(gpu_test *test, int32_t n) {
    one_op o;
    char name[96];
    fd_error err = {0};
    size_t count = (size_t)(N_ROW * n);
    gpu_fill(test, x, count);
    gpu_fill(test, w, (size_t)n);
    make(&o, FD_OP_ADD_VECTOR, 0, n, false);
    give_weight(&o, 0, FD_F32, 1, n, w);
    float *out = gpu_poisoned(test, count), *dx = gpu_upload(test, x, sizeof *x * count),
          *dw = gpu_upload(test, w, sizeof *w * (size_t)n);
    gpu_must(fd_launch_add_vector(&test->queue, dw, dx, n, N_ROW, out, &err), &err);
    snprintf(name, sizeof name, "add_vector_%d", n);
    compare(test, &o, out, count, name);
}

static void check_alibi(gpu_test *test, int32_t n_head, float max_bias) {
    one_op o;
    char name[96];
    fd_error err = {0};
    int32_t pos0 = POS0, n_kv = POS0 + N_ROW;
    size_t count = (size_t)(N_ROW * n_head * n_kv);
    gpu_fill(test, x, count);
    make(&o, FD_OP_ATTN_ALIBI, n_head, 0, true);
    o.nodes[1].max_bias = max_bias;
    float *out = gpu_poisoned(test, count), *dx = gpu_upload(test, x, sizeof *x * count),
          *dpos = gpu_upload(test, &pos0, sizeof pos0);
    gpu_must(fd_launch_attn_alibi(&test->queue, max_bias, n_head, n_kv, dx, (const int32_t *)(const void *)dpos, N_ROW,
                                  out, &err),
             &err);
    snprintf(name, sizeof name, "attn_alibi_%d_heads_to_%g", n_head, (double)max_bias);
    compare(test, &o, out, count, name);
}

static void check_temperature(gpu_test *test, int32_t n, int32_t length, int32_t first) {
    one_op o;
    char name[96];
    fd_error err = {0};
    int32_t pos0 = POS0;
    size_t count = (size_t)(N_ROW * n);
    gpu_fill(test, x, count);
    make(&o, FD_OP_ATTN_TEMPERATURE, 0, n, false);
    o.nodes[1].scale = 0.1f;
    o.nodes[1].length = length;
    o.nodes[1].first = first;
    fd_attn_temperature_rows in = {.scale = 0.1f,
                                   .length = length,
                                   .first = first,
                                   .x = gpu_upload(test, x, sizeof *x * count),
                                   .pos0 = (const int32_t *)(const void *)gpu_upload(test, &pos0, sizeof pos0),
                                   .n = n,
                                   .n_tok = N_ROW,
                                   .out = gpu_poisoned(test, count)};
    gpu_must(fd_launch_attn_temperature(&test->queue, &in, &err), &err);
    snprintf(name, sizeof name, "attn_temperature_%d_length_%d_first_%d", n, length, first);
    compare(test, &o, in.out, count, name);
}

/* Every binade, both signs, infinities and NaN. */
static void check_activations(gpu_test *test) {
    static const struct {
        fd_op op;
        fd_activation_kind kind;
        const char *name;
    } table[] = {{FD_OP_GELU, FD_ACTIVATION_GELU, "gelu_all_binades"},
                 {FD_OP_RELU_SQUARED, FD_ACTIVATION_RELU_SQUARED, "relu_squared_all_binades"},
                 {FD_OP_SIGMOID, FD_ACTIVATION_SIGMOID, "sigmoid_all_binades"},
                 {FD_OP_SILU, FD_ACTIVATION_SILU, "silu_all_binades"},
                 {FD_OP_SOFTPLUS, FD_ACTIVATION_SOFTPLUS, "softplus_all_binades"},
                 {FD_OP_EXP, FD_ACTIVATION_EXP, "exp_all_binades"},
                 {FD_OP_CLAMP, FD_ACTIVATION_CLAMP, "clamp_all_binades"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        one_op o;
        fd_error err = {0};
        for (size_t k = 0; k < MOST; k++) x[k] = fd_from_bits32((uint32_t)k << 16 | (gpu_random_bits(test) & 0xffff));
        x[0] = INFINITY, x[1] = -INFINITY, x[2] = NAN, x[3] = -0.0f;
        make(&o, table[i].op, 0, MOST, false);
        o.nodes[1].limit = 0.75f;
        o.args.n_pos = 1;
        float *out = gpu_poisoned(test, MOST), *dx = gpu_upload(test, x, sizeof x);
        gpu_must(fd_launch_activation(&test->queue, table[i].kind, dx, 0.75f, MOST, out, &err), &err);
        compare(test, &o, out, MOST, table[i].name);
    }
}

void check_more_rows(gpu_test *test) {
    static const int32_t widths[] = {1, 2, 63, 64, 65, 172, 896, 4096};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        check_layer_norm(test, 0, widths[i], true, true, false);
        check_layer_norm(test, 0, widths[i], false, false, false);
        check_add_vector(test, widths[i]);
        check_temperature(test, widths[i], 4, (int32_t)i % 2);
    }
    check_layer_norm(test, 6, 80, true, false, true);
    check_layer_norm(test, 6, 80, true, true, false);
    check_temperature(test, 128, 8192, 1);
    check_add_position(test, FD_F32, 172, 100);
    check_add_position(test, FD_F16, 96, 100);
    check_add_position(test, FD_Q8_0, 896, 100);
    check_add_position(test, FD_F32, 64, POS0 + 2); /* the last rows have none */
    static const int32_t heads[] = {1, 2, 3, 12, 16, 71};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) check_alibi(test, heads[i], 8.0f);
    check_activations(test);
}
