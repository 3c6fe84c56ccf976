/* An op on the CPU, by one thread where there is less to do than waking others takes. Replay and explanations run ops of a few rows a
 * hundred thousand times: with all threads at each, these spun and woke for more time than they worked (docs/performance.md). Every element
 * is computed by itself, so the number of threads changes no bit. */
#ifndef FD_COMPARE_PRODUCTS_RUN_OP_H
#define FD_COMPARE_PRODUCTS_RUN_OP_H

#include "exec/exec.h"

void fd_call_op(fd_op_fn op, fd_numerics numerics, const fd_op_args *args);

#endif
