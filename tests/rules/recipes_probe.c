/* Linked to the tree that tests/rules/recipes made: the new op computes on the CPU in both number types, and the new
 * architecture and fault are found. */
#include <stdio.h>

#include "compare/bounds/bounds.h"
#include "emulate/emulate.h"
#include "faults/faults.h"
#include "model/builder.h"
#include "reference_cpu/reference.h"

int main(void) {
    fd_node nodes[2] = {{.op = FD_OP_EMBED, .n_dim = 1, .shape = {3}},
                        {.id = 1, .op = FD_OP_SQUARE, .n_dim = 1, .shape = {3}, .weight = {-1, -1}, .input = {0, -1}}};
    fd_graph graph = {.nodes = nodes, .n_node = 2};
    const float x[] = {1, -2, 3};
    const double x64[] = {1, -2, 3};
    float y[3];
    double y64[3];
    fd_op_args args = {.graph = &graph, .node = &nodes[1], .n_pos = 1, .n_kv = 1, .in = {x}, .out = y};
    fd_reference_op(FD_NUMERICS_EXACT, &args);
    args.in[0] = x64;
    args.out = y64;
    fd_reference_op(FD_NUMERICS_F64, &args);
    for (int i = 0; i < 3; i++)
        if (y[i] != x[i] * x[i] || y64[i] != x64[i] * x64[i]) return puts("the op's values are wrong"), 1;
    if (!fd_arch_find((fd_string){"example", 7}, NULL, 0)) return puts("the architecture is not in the table"), 1;
    if (fd_fault_find("square_missing") < 0) return puts("the fault is not in the table"), 1;
    /* Keeps the other tables in the program. */
    return (void *)fd_bound == (void *)fd_emulate_new || (void *)fd_graph_validate == (void *)fd_graph_build;
}
