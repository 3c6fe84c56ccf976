/* The arguments of firstdiff run. */
#ifndef FD_CLI_RUN_ARGS_H
#define FD_CLI_RUN_ARGS_H

#include "cli/cli.h"
#include "exec/sampler.h"

typedef struct fd_run_args {
    const char *model, *prompts, *backend, *numerics, *trace, *level, *store, *tensors, *layers, *steps, *fault,
        *system, *cache_type, *cache_type_k, *cache_type_v;
    fd_cli_prompt prompt;
    fd_sampler_options sampler;
    int32_t n_generate, n_thread, n_ctx;
    bool chat, compress, no_weights, ids_only, ignore_eos, quiet;
} fd_run_args;

/* Parses them; prints usage errors and exits with status 2 on one, as argp does. */
fd_run_args fd_run_parse(int argc, char **argv);

/* The executor's, for fd_cli_exec_open. */
fd_code fd_run_spec(const fd_run_args *args, char spec[256], fd_error *err);

/* "3-7" or "3" to first and last; NULL leaves them. `what` is the option's name, for the message. */
fd_code fd_run_range(const char *what, const char *text, int32_t *first, int32_t *last, fd_error *err);

#endif
