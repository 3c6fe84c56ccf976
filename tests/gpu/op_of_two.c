#include "tests/gpu/op_of_two.h"

#include <stdio.h>
#include <string.h>

#include "reference_cpu/reference.h"

float op_first[OP_MOST], op_second[OP_MOST], op_expected[OP_MOST];
static float weight[2][OP_MOST], found[OP_MOST];

void op_fill(gpu_test *test, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = ((float)(gpu_random_bits(test) % 20001) - 10000.0f) / 10000.0f;
}

void op_shape(op_of_two *o, int node, int32_t a, int32_t b) {
    o->nodes[node].n_dim = b ? 2 : 1;
    o->nodes[node].shape[0] = a;
    o->nodes[node].shape[1] = b;
}

void op_begin(op_of_two *o, fd_op op) {
    memset(o, 0, sizeof *o);
    for (int k = 0; k < 3; k++) o->nodes[k] = (fd_node){.id = k, .input = {-1, -1}, .weight = {-1, -1}};
    o->nodes[2].op = op;
    o->nodes[2].input[0] = 0;
    o->nodes[2].input[1] = 1;
    o->graph = (fd_graph){.nodes = o->nodes, .n_node = 3, .weights = o->weights, .n_weight = 2};
    o->args = (fd_op_args){
        .graph = &o->graph, .node = &o->nodes[2], .n_pos = OP_ROWS, .in = {op_first, op_second}, .out = op_expected};
}

const float *op_weight(gpu_test *test, op_of_two *o, int slot, int64_t n_row, int64_t n_col) {
    op_fill(test, weight[slot], (size_t)(n_row * n_col));
    o->weights[slot] = (fd_weight){.dtype = FD_F32, .n_row = n_row, .n_col = n_col, .data = weight[slot]};
    o->nodes[2].weight[slot] = slot;
    o->args.weight[slot] = &o->weights[slot];
    return gpu_upload(test, weight[slot], sizeof **weight * (size_t)(n_row * n_col));
}

size_t op_reference(op_of_two *o, int32_t pos0) {
    o->args.pos0 = pos0;
    o->args.n_kv = pos0 + OP_ROWS;
    fd_reference_op(FD_NUMERICS_EXACT, &o->args);
    return (size_t)(OP_ROWS * fd_node_width(&o->nodes[2]));
}

void op_compare(gpu_test *test, const char *name, const char *how, const float *out, size_t n, bool equal) {
    char text[128];
    size_t first;
    snprintf(text, sizeof text, "%s, %s", name, how);
    gpu_download(test, out, found, n);
    if (equal)
        gpu_expect_equal(test, text, op_expected, found, n);
    else
        gpu_expect(test, text, gpu_differing(op_expected, found, n, &first) > 0);
}
