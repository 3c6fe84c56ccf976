/* Engines in binary32 that let cuBLAS take TF32 (PyTorch's set_float32_matmul_precision("high"), JAX on a GPU): calls of several rows are
 * matrix products on tensor cores, which round both factors to nearest of 10 bits; those of one row are vector products in binary32. Of
 * eager attention the scores and the weighted sum of V are such products, too. On an H200 every product of layers with 32 to 1,024
 * columns was so, to 7·10⁻⁷. It follows from the steps of the trace, and a replay repeats it (fd_numerics_class.several_rows). Where single
 * products differ, by their shape, `either` asks the recorded values (factors.h). */
#ifndef FD_COMPARE_REPLAY_SEVERAL_ROWS_H
#define FD_COMPARE_REPLAY_SEVERAL_ROWS_H

#include "compare/replay/internal.h"

/* A product of a class with several_rows. */
bool fd_several_rows_computes(const fd_replay *replay, const fd_node *node);

/* The node, samples among its rows or not, into args.out. */
fd_code fd_several_rows_run(fd_replay *replay, fd_op_args args, fd_error *err);

#endif
