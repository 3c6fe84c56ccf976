/* Text generation on any executor: prefill, then sample a token, feed it, sample, and so on. */
#ifndef FD_EXEC_GENERATE_H
#define FD_EXEC_GENERATE_H

#include "exec/exec.h"
#include "exec/sampler.h"

/* Receives each token as soon as it is known, in order, in the thread that called fd_exec_generate. Returns FD_OK,
 * FD_STOP (no more are wanted), or a failure that ends the run. */
typedef fd_code (*fd_token_fn)(void *user, int32_t token, fd_error *err);

typedef struct fd_generation {
    int32_t *tokens;      /* [n_token + n_new]: the known ones, then those generated */
    int32_t n_token;      /* known: the first n_past of them are in the cache, at least one is not */
    int32_t n_new;        /* to generate at most; ≥ 1 */
    fd_sampler *sampler;  /* left as if each token had come from fd_sample */
    fd_token_fn on_token; /* NULL: tokens are not reported one by one */
    void *user;
} fd_generation;

/* Feeds the known tokens that the cache does not hold, then samples, feeds the sample, and so on: token for token what
 * a loop of fd_exec_forward and fd_sample gives, on any backend, with as little waiting as the backend can do with.
 * *n_done tokens have been generated, on failure too. The last one is not fed: n_past is n_token + *n_done - 1
 * afterwards. FD_STOP from on_token is no failure: FD_OK. */
fd_code fd_exec_generate(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err);

/* Generation i continues sequence i; n_done [n_run] as above. A failure of one ends all. */
fd_code fd_exec_generate_many(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done, fd_error *err);

/* The same, from logits that are copied to the host: the default, and what backends fall back to. */
fd_code fd_exec_generate_on_host(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err);
fd_code fd_exec_generate_many_on_host(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done,
                                      fd_error *err);

#endif
