/* llama.cpp's CPU reads GELU from a table whose arguments and results are f16: the only op where it is far from ours. */
#ifndef FD_TESTS_OPS_LLAMA_CPP_GELU_H
#define FD_TESTS_OPS_LLAMA_CPP_GELU_H

#include "model/graph.h"

/* Puts that table in place of the graph's GELU: what is left of a difference is the rest of the graph. */
void take_llama_cpp_gelu(fd_graph *graph);

#endif
