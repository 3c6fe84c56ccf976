/* For the programs here that run a model on a GPU. */
#ifndef FD_BENCH_RUN_GPU_H
#define FD_BENCH_RUN_GPU_H

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "engine/engine.h"

/* The model and its graph, for the caller to free; ends the program with status 77 where no engine can run. */
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

/* The argument of --numerics. */
static inline fd_numerics parse_numerics(const char *text, struct argp_state *state) {
    static const fd_numerics all[] = {FD_NUMERICS_EXACT, FD_NUMERICS_Q8ACT, FD_NUMERICS_FAST};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(text, fd_numerics_name(all[i])) == 0) return all[i];
    argp_error(state, "numerics \"%s\": expected exact, q8act or fast", text);
    return FD_NUMERICS_EXACT;
}

#endif
