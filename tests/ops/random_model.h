/* A llama or qwen2 of random weights, small but awkward: K/V heads shared, lengths that are no multiple of 64. */
#ifndef FD_TESTS_OPS_RANDOM_MODEL_H
#define FD_TESTS_OPS_RANDOM_MODEL_H

#include "model/graph.h"

typedef struct random_model {
    fd_gguf *gguf;
    fd_graph *graph;
} random_model;

/* `dtype`: of the matrices. Three layers, width 288 (a block type's multiple), 6 heads of 48, 2 K/V heads, vocabulary
 * 101. Lives until the end of the test. */
random_model random_model_make(const char *arch, uint32_t dtype);

#endif
