/* Gate and up as one row of a fused product: halves are taken for neighbours, or neighbours for halves. */

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

#define PRODUCT(name, summary)                                                                                         \
    .info = {name, "ffn", summary, "ffn_act ffn_moe_act", false}, .op = FD_OP_COUNT, .nodes = "ffn_act ffn_moe_act",   \
    .applies = is_gated

static const fd_fault rows[] = {
    {PRODUCT("gate_up_interleaved",
             "[gate, up] is one row, of which every second element is taken for gate, the others for up"),
     .override = product_neighbours},
    {PRODUCT("gate_up_halved", "gate and up are one row, in turn, of which the first half is taken for gate"),
     .override = product_halves},
};
const fd_fault_family fd_gate_up_faults = FD_FAULT_FAMILY(rows);
