/* An op of two inputs and two weights, its reference by scalar C, and room for them: for the parts of kernel_check that
 * compare whole ops. */
#ifndef FD_TESTS_GPU_OP_OF_TWO_H
#define FD_TESTS_GPU_OP_OF_TWO_H

#include "model/graph.h"
#include "exec/exec.h"
#include "tests/gpu/gpu_case.h"

enum { OP_ROWS = 5, OP_MOST = 1 << 20 };

typedef struct op_of_two {
    fd_node nodes[3]; /* the inputs, the op */
    fd_weight weights[2];
    fd_graph graph;
    fd_op_args args; /* of OP_ROWS rows */
} op_of_two;

/* The inputs' elements and the reference's. */
extern float op_first[OP_MOST], op_second[OP_MOST], op_expected[OP_MOST];

void op_begin(op_of_two *o, fd_op op);
/* [a, b], or [a] with b 0. */
void op_shape(op_of_two *o, int node, int32_t a, int32_t b);
/* Elements within ± 1, where states stay finite. */
void op_fill(gpu_test *test, float *x, size_t n);
/* A random weight of the op, uploaded. */
const float *op_weight(gpu_test *test, op_of_two *o, int slot, int64_t n_row, int64_t n_col);
/* Rows from pos0 on by scalar C, to op_expected; how many elements. */
size_t op_reference(op_of_two *o, int32_t pos0);
/* `out` is op_expected, or (`equal` false) is not. */
void op_compare(gpu_test *test, const char *name, const char *how, const float *out, size_t n, bool equal);

#endif
