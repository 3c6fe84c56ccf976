/* For the programs here that time a model on a GPU: prompts, single tokens and generation. */
#ifndef FD_BENCH_GENERATE_GPU_H
#define FD_BENCH_GENERATE_GPU_H

#include "bench/measure.h"
#include "bench/run_gpu.h"
#include "exec/generate.h"

enum { WARM = 16 /* tokens before those that are timed */ };

/* Feeds n tokens from where the executor is, at_once at a time; seconds. `logits` [n_vocab] of the last one, or NULL. */
static inline double feed(fd_exec *exec, int n, int at_once, float *logits) {
    fd_error err = {0};
    int32_t *tokens = malloc(sizeof *tokens * (size_t)at_once);
    if (!tokens) exit(2);
    double start = now();
    for (int done = 0, k; done < n; done += k) {
        k = n - done < at_once ? n - done : at_once;
        for (int i = 0; i < k; i++) tokens[i] = token_at(exec->n_past + i, exec->graph->hparams.n_vocab);
        fd_batch batch = {.tokens = tokens, .n_tok = k, .pos0 = exec->n_past, .logits = logits};
        must(fd_exec_forward(exec, &batch, &err), &err);
    }
    double seconds = now() - start;
    free(tokens);
    return seconds;
}

static inline fd_code start_clock(void *user, int32_t token, fd_error *err) {
    double *start = user;
    if (*start == 0) *start = now();
    return (void)token, (void)err, FD_OK;
}

/* From an empty context: n tokens after WARM given ones and a first one, with which the clock starts; seconds. Sampled
 * on the device, or from logits on the host. `tokens` [WARM + n + 1] are all of them. */
static inline double generate(fd_exec *exec, int n, bool on_host, const fd_sampler_options *from, int32_t *tokens) {
    fd_error err = {0};
    fd_sampler *sampler;
    double start = 0;
    int32_t n_done, n_vocab = exec->graph->hparams.n_vocab;
    for (int i = 0; i < WARM; i++) tokens[i] = token_at(i, n_vocab);
    must(fd_sampler_new(from, n_vocab, &sampler, &err), &err);
    fd_generation run = {
        .tokens = tokens, .n_token = WARM, .n_new = n + 1, .sampler = sampler, .on_token = start_clock, .user = &start};
    fd_exec_reset(exec);
    must((on_host ? fd_exec_generate_on_host : fd_exec_generate)(exec, &run, &n_done, &err), &err);
    double seconds = now() - start;
    fd_sampler_free(sampler);
    return seconds;
}

#endif
