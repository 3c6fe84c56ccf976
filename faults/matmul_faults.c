/* Matrix product bugs, in binary32: what is summed, how, and what becomes of the bias. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>

typedef float (*dot_fn)(const float *w, const float *x, int64_t n);

static float half_dot(const float *w, const float *x, int64_t n) {
    return fd_fault_dot(w, x, n / 2);
}

/* y = dot(W, x) + n_bias · b for the first n_row rows, and 0 (a fresh buffer) for the others. */
static void product(const fd_op_args *args, dot_fn dot, int n_bias, int64_t n_row) {
    const fd_weight *w = args->weight[0];
    float *bias = args->weight[1] && n_bias ? fd_fault_row(args->weight[1], 0) : NULL;
#pragma omp parallel for if (w->n_row * w->n_col > FD_FAULT_MANY)
    for (int64_t o = 0; o < w->n_row; o++) {
        float *row = fd_fault_row(w, o);
        for (int32_t r = 0; r < args->n_pos; r++) {
            float *y = (float *)args->out + r * w->n_row + o;
            *y = !row ? NAN : o < n_row ? dot(row, (const float *)args->in[0] + r * w->n_col, w->n_col) : 0.0f;
            for (int i = 0; bias && i < n_bias; i++) *y = *y + bias[o];
        }
        free(row);
    }
    free(bias);
}

FD_OVERRIDE(half_summed, product(args, half_dot, 1, args->weight[0]->n_row))
FD_OVERRIDE(f16_accumulation, product(args, fd_fault_dot_f16, 1, args->weight[0]->n_row))
FD_OVERRIDE(bias_twice, product(args, fd_fault_dot, 2, args->weight[0]->n_row))

/* 16 is the height of a tensor core's tile: a kernel that rounds the number of tiles down leaves the last one. */
enum { TILE = 16 };
static void tile_unwritten(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    product(args, fd_fault_dot, 0, w->n_row - TILE);
    float *bias = args->weight[1] ? fd_fault_row(args->weight[1], 0) : NULL;
    for (int32_t r = 0; bias && r < args->n_pos; r++)
        for (int64_t o = 0; o < w->n_row - TILE; o++) {
            float *y = (float *)args->out + r * w->n_row + o;
            *y = *y + bias[o];
        }
    free(bias);
}

FD_APPLIES(has_bias, fd_fault_weight(graph, node, 1) != NULL)
FD_APPLIES(more_than_a_tile, fd_fault_weight(graph, node, 0)->n_row > TILE)

/* missing_qkv_bias has the others. */
FD_APPLIES(has_other_bias, has_bias(graph, node) && !fd_fault_is_one_of(node, "attn_q attn_k attn_v"))
FD_EDIT(bias_missing, node->weight[1] = -1)

/* Does a node of the FFN read the norm that attention reads, too? In falcon attention has one of its own beside it. */
static bool reads_attention_norm(const fd_graph *graph, const fd_node *node) {
    const int32_t norm = fd_fault_sibling(graph, node, "attn_norm"), sum = fd_fault_sibling(graph, node, "ffn_inp");
    return norm >= 0 && node->input[0] == norm && sum >= 0 && sum < node->id && fd_node_is_norm(&graph->nodes[norm]);
}
static void product_of_normed(const fd_op_args *args) {
    const int32_t norm = fd_fault_sibling(args->graph, args->node, "attn_norm");
    float *x = norm < 0 ? NULL : malloc(sizeof *x * (size_t)(args->n_pos * args->weight[0]->n_col));
    fd_op_args own = *args;
    if (!x) {
        fd_fault_nan(args, fd_node_width(args->node));
        return;
    }
    fd_fault_norm(args->graph, &args->graph->nodes[norm], args->in[0], args->n_pos, x);
    own.in[0] = x;
    product(&own, fd_fault_dot, 1, args->weight[0]->n_row);
    free(x);
}
FD_EDIT(after_attention, node->input[0] = fd_fault_sibling(site->graph, node, "ffn_inp");
        node->override = product_of_normed)

#define MATMUL(name, summary) .info = {name, "matmul", summary, "attn_q", false}, .op = FD_OP_MATMUL

static const fd_fault rows[] = {
    {MATMUL("missing_qkv_bias", "the Q, K and V biases are not added"), .nodes = "attn_q attn_k attn_v",
     .applies = has_bias, .edit = bias_missing},
    {.info = {"missing_bias", "matmul",
              "a bias is not added: of attention's output, of the FFN, of the logits, of a mamba's steps",
              "attn_proj ffn_up ffn_down", false},
     .op = FD_OP_MATMUL,
     .applies = has_other_bias,
     .edit = bias_missing},
    {MATMUL("bias_twice", "biases are added twice"), .applies = has_bias, .override = bias_twice},
    {MATMUL("half_summed", "only the first half of each dot product is summed"), .override = half_summed},
    {.info = {"parallel_as_sequential", "matmul",
              "the FFN reads the norm of the sum after attention, as in a sequential block; this one is parallel",
              "ffn_up ffn_gate", false, .roundings = 8},
     .op = FD_OP_MATMUL,
     .nodes = "ffn_gate ffn_up",
     .applies = reads_attention_norm,
     .edit = after_attention},
    {MATMUL("f16_accumulation", "dot products are accumulated in binary16"), .override = f16_accumulation},
    {MATMUL("tile_unwritten", "the last 16 rows of a product are not written"), .applies = more_than_a_tile,
     .override = tile_unwritten},
};
const fd_fault_family fd_matmul_faults = FD_FAULT_FAMILY(rows);
