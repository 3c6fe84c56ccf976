/* For the programs here that run a model. */
#ifndef FD_TESTS_GPU_CHECK_RUN_H
#define FD_TESTS_GPU_CHECK_RUN_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/engine.h"

/* Ends the program on a failure, with its text and its exit status. */
static inline void must(fd_code code, const fd_error *err) {
    if (code == FD_OK) return;
    printf("FAIL: %s\n", err->message);
    exit(fd_exit_status(code));
}

/* The model and its graph, for the caller to free; ends the program with status 77 where there is no device. */
static inline void open_model_or_skip(const char *path, fd_gguf **gguf, fd_graph **graph) {
    char why[256];
    fd_error err = {0};
    if (!fd_engine_available(why, sizeof why)) {
        printf("SKIPPED: %s\n", why);
        exit(77);
    }
    must(fd_gguf_open(path, gguf, &err), &err);
    must(fd_graph_build(*gguf, graph, NULL, &err), &err);
}

/* The same n tokens below n_vocab in every program. */
static inline void fill_tokens(int32_t *tokens, int32_t n, int32_t n_vocab) {
    uint64_t z = 0x9e3779b97f4a7c15u;
    for (int32_t i = 0; i < n; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((z >> 33) % (uint64_t)n_vocab);
    }
}

#endif
