/* Plans without a device: made, counted, and run with node ids in place of tensors. */
#ifndef FD_TESTS_GPU_PLAN_SIMULATION_H
#define FD_TESTS_GPU_PLAN_SIMULATION_H

#include "engine/internal.h"

/* Ends the program where the graph has none. The caller frees it. */
fd_plan plan_made(const fd_graph *graph, fd_plan_kind kind);

/* How many items have this kernel. */
int plan_count(const fd_plan *plan, fd_kernel kernel);

/* Whether every node is computed once, from tensors that are there. A norm that products do for themselves is computed by each. */
bool plan_simulate(const fd_plan *plan);

#endif
