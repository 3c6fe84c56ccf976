/* For the programs here that run a model. */
#ifndef FD_TESTS_GPU_CHECK_RUN_H
#define FD_TESTS_GPU_CHECK_RUN_H

#include "bench/run_gpu.h"

/* The same n tokens below n_vocab in every program. */
static inline void fill_tokens(int32_t *tokens, int32_t n, int32_t n_vocab) {
    uint64_t z = 0x9e3779b97f4a7c15u;
    for (int32_t i = 0; i < n; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((z >> 33) % (uint64_t)n_vocab);
    }
}

#endif
