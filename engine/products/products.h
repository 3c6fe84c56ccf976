/* Products on a GPU (exec/products.h): replay's and its bounds', in the CPU's bits. Exact ones are the engine's own matrix
 * kernels, the others kernels of this folder. What a CPU computes while vectors and results would be on their way is not
 * taken. */
#ifndef FD_ENGINE_PRODUCTS_PRODUCTS_H
#define FD_ENGINE_PRODUCTS_PRODUCTS_H

#include "exec/products.h"

/* On CUDA's device 0, to which all matrices of the graph are copied. `graph` is borrowed; its weights are told by their
 * data, so that of a graph with some weights replaced the others are taken. FD_ERR_DEVICE: there is no device;
 * FD_ERR_MEMORY: the matrices do not fit; FD_ERR_UNSUPPORTED: one has a type without a kernel. */
fd_code fd_engine_products_new(const fd_graph *graph, fd_products **out, fd_error *err);
void fd_engine_products_free(fd_products *products); /* NULL is fine */

#endif
