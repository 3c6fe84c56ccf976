/* Gate and up as one matrix, or one row of its product: halves are taken for neighbours, or neighbours for halves. */
#include <stdlib.h>
#include <string.h>

#include "faults/internal.h"
#include "numerics/contract.h"

typedef enum split {
    SPLIT_NEIGHBOURS, /* [gate, up] one after the other, of which every second element is taken */
    SPLIT_HALVES,     /* gate and up element by element, of which halves are taken */
} split;

/* Element i of what is taken for gate (`up` false) or up: its place in the row of 2n that has gate first, then up. */
static int64_t place_of(split how, bool up, int64_t i, int64_t n) {
    if (how == SPLIT_NEIGHBOURS) return 2 * i + up;
    const int64_t at = i + (up ? n : 0); /* among neighbours */
    return at % 2 * n + at / 2;
}

/* ---- in the matrix ---- */

static int32_t weight_beside(const fd_graph *graph, const fd_node *node, bool *up) {
    *up = fd_fault_is_one_of(node, "ffn_up ffn_moe_up");
    const bool experts = node->op == FD_OP_EXPERT_MATMUL;
    const int32_t other = fd_fault_sibling(graph, node,
                                           experts ? *up ? "ffn_moe_gate" : "ffn_moe_up"
                                           : *up   ? "ffn_gate"
                                                   : "ffn_up");
    return other < 0 ? -1 : graph->nodes[other].weight[0];
}

static bool has_both(const fd_graph *graph, const fd_node *node) {
    bool up;
    const int32_t other = weight_beside(graph, node, &up);
    const fd_weight *own = fd_fault_weight(graph, node, 0);
    return other >= 0 && own && graph->weights[other].dtype == own->dtype &&
           graph->weights[other].n_row == own->n_row && graph->weights[other].n_col == own->n_col;
}

/* Of experts, in each one's rows. */
static void split_rows(fd_fault_site *site, split how) {
    bool up;
    const int32_t beside = weight_beside(site->graph, site->node, &up);
    const fd_weight own = *fd_fault_weight(site->graph, site->node, 0), other = site->graph->weights[beside];
    const int64_t n = site->node->op == FD_OP_EXPERT_MATMUL ? site->node->shape[1] : own.n_row;
    const size_t row_bytes = (size_t)fd_dtype_row_bytes(own.dtype, own.n_col);
    char *rows = fd_fault_new_weight(site, own.dtype, own.bytes);
    for (int64_t row = 0; rows && row < own.n_row; row++) {
        const int64_t at = place_of(how, up, row % n, n), from = row - row % n + at % n;
        const bool of_up = at >= n;
        memcpy(rows + row * (int64_t)row_bytes,
               (const char *)(of_up == up ? own.data : other.data) + from * (int64_t)row_bytes, row_bytes);
    }
}
FD_EDIT(rows_neighbours, split_rows(site, SPLIT_NEIGHBOURS))
FD_EDIT(rows_halves, split_rows(site, SPLIT_HALVES))

/* ---- in the product ---- */

static void split_product(const fd_op_args *args, split how) {
    const fd_node *node = args->node;
    const int64_t n = node->shape[node->n_dim - 1];
    for (int64_t i = 0; i < args->n_pos * fd_node_width(node); i++) {
        float of[2];
        for (int up = 0; up < 2; up++) {
            const int64_t at = place_of(how, up, i % n, n);
            of[up] = ((const float *)args->in[at >= n])[i - i % n + at % n];
        }
        ((float *)args->out)[i] = (node->op == FD_OP_GELU_MUL ? fd_gelu32(of[0]) : fd_silu32(of[0])) * of[1];
    }
}
FD_OVERRIDE(product_neighbours, split_product(args, SPLIT_NEIGHBOURS))
FD_OVERRIDE(product_halves, split_product(args, SPLIT_HALVES))
FD_APPLIES(is_gated, node->op == FD_OP_SILU_MUL || node->op == FD_OP_GELU_MUL)

#define ROWS(name, summary)                                                                                            \
    .info = {name, "loader", summary, "ffn_gate ffn_moe_gate", false}, .op = FD_OP_COUNT,                              \
    .nodes = "ffn_gate ffn_up ffn_moe_gate ffn_moe_up", .applies = has_both
#define PRODUCT(name, summary)                                                                                         \
    .info = {name, "ffn", summary, "ffn_act ffn_moe_act", false}, .op = FD_OP_COUNT, .nodes = "ffn_act ffn_moe_act",   \
    .applies = is_gated

static const fd_fault rows[] = {
    {ROWS("gate_up_rows_interleaved",
          "gate and up are one matrix, [gate; up], of which every second row is taken for gate, the others for up"),
     .edit = rows_neighbours},
    {ROWS("gate_up_rows_halved",
          "gate and up are one matrix, row by row in turn, of which the first half is taken for gate"),
     .edit = rows_halves},
    {PRODUCT("gate_up_interleaved",
             "[gate, up] is one row, of which every second element is taken for gate, the others for up"),
     .override = product_neighbours},
    {PRODUCT("gate_up_halved", "gate and up are one row, in turn, of which the first half is taken for gate"),
     .override = product_halves},
};
const fd_fault_family fd_gate_up_faults = FD_FAULT_FAMILY(rows);
