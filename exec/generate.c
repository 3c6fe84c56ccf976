/* Prefill, then sample and feed, token by token. */
#include <stdlib.h>

#include "exec/generate.h"

static fd_code check(const fd_exec *exec, const fd_generation *run, int32_t n_past, fd_error *err) {
    if (run->n_new < 1) return fd_fail(err, FD_ERR_INPUT, "generation: %d tokens, expected at least 1", run->n_new);
    if (run->n_token <= n_past)
        return fd_fail(err, FD_ERR_INPUT, "generation: %d tokens known, the cache holds %d, expected one more at least",
                       run->n_token, n_past);
    /* The last token is not fed. */
    if (run->n_token - 1 > exec->n_ctx - run->n_new)
        return fd_fail(err, FD_ERR_INPUT, "context: %d tokens and %d more to generate, room for %d positions",
                       run->n_token, run->n_new, exec->n_ctx);
    return FD_OK;
}

/* Samples the next token of `run` from its logits and shows it. FD_STOP: no more are wanted. */
static fd_code next(const fd_generation *run, const float *logits, int32_t *n_done, fd_error *err) {
    int32_t n_known = run->n_token + *n_done, *token = &run->tokens[n_known];
    FD_TRY(fd_sample(run->sampler, logits, run->tokens, n_known, token, err));
    ++*n_done;
    return run->on_token ? run->on_token(run->user, *token, err) : FD_OK;
}

/* The known tokens that the cache does not hold. */
static fd_code feed(fd_exec *exec, const fd_generation *run, int32_t n_done, float *logits, fd_error *err) {
    fd_batch batch = {.tokens = run->tokens + exec->n_past,
                      .n_tok = run->n_token + n_done - exec->n_past,
                      .pos0 = exec->n_past,
                      .logits = logits};
    return fd_exec_forward(exec, &batch, err);
}

static fd_code loop(fd_exec *exec, const fd_generation *run, float *logits, int32_t *n_done, fd_error *err) {
    while (*n_done < run->n_new) {
        FD_TRY(feed(exec, run, *n_done, logits, err));
        fd_code code = next(run, logits, n_done, err);
        if (code == FD_STOP) return FD_OK;
        FD_TRY(code);
    }
    return FD_OK;
}

fd_code fd_exec_generate_on_host(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err) {
    *n_done = 0;
    FD_TRY(check(exec, run, exec->n_past, err));
    float *logits = malloc(sizeof *logits * (size_t)exec->graph->hparams.n_vocab);
    if (!logits) return fd_fail(err, FD_ERR_MEMORY, "logits: out of memory");
    fd_code code = loop(exec, run, logits, n_done, err);
    free(logits);
    return code;
}

fd_code fd_exec_generate(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err) {
    *n_done = 0;
    FD_TRY(check(exec, run, exec->n_past, err));
    if (!exec->class_->generate) return fd_exec_generate_on_host(exec, run, n_done, err);
    return exec->class_->generate(exec, run, n_done, err);
}

/* ---- several sequences ---- */

typedef struct decode_round {
    int32_t *sequences, *tokens; /* [n] of those that go on */
    int32_t n;
    float *logits; /* [n, n_vocab] */
} decode_round;

/* The next token of `sequence`; when it goes on, a place in the round. */
static fd_code next_of(const fd_generation *run, int32_t sequence, const float *logits, int32_t *n_done,
                       decode_round *r, fd_error *err) {
    fd_code code = next(run, logits, n_done, err);
    if (code == FD_STOP || (code == FD_OK && *n_done == run->n_new)) return FD_OK;
    if (code != FD_OK) return fd_error_prefix(err, "sequence %d", sequence);
    r->sequences[r->n] = sequence;
    r->tokens[r->n++] = run->tokens[run->n_token + *n_done - 1];
    return FD_OK;
}

static fd_code loop_many(fd_exec *exec, const fd_generation *runs, int32_t n_run, decode_round *r, int32_t *n_done,
                         fd_error *err) {
    for (int32_t i = 0; i < n_run; i++) {
        FD_TRY(fd_exec_select(exec, i, err));
        FD_TRY(feed(exec, &runs[i], 0, r->logits, err));
        FD_TRY(next_of(&runs[i], i, r->logits, &n_done[i], r, err));
    }
    while (r->n > 0) {
        fd_decode decode = {.n = r->n, .sequences = r->sequences, .tokens = r->tokens, .logits = r->logits};
        FD_TRY(fd_exec_decode(exec, &decode, err));
        int32_t n = r->n;
        r->n = 0; /* places are taken again from the first on, never before they have been read */
        for (int32_t k = 0; k < n; k++) {
            int32_t i = r->sequences[k];
            const float *logits = r->logits + (size_t)k * (size_t)exec->graph->hparams.n_vocab;
            FD_TRY(next_of(&runs[i], i, logits, &n_done[i], r, err));
        }
    }
    return FD_OK;
}

static fd_code check_many(const fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done,
                          fd_error *err) {
    int32_t n_seq = exec->n_seq > 1 ? exec->n_seq : 1;
    if (n_run < 1 || n_run > n_seq)
        return fd_fail(err, FD_ERR_INPUT, "generation: %d sequences, expected 1 to %d", n_run, n_seq);
    for (int32_t i = 0; i < n_run; i++) {
        n_done[i] = 0;
        if (check(exec, &runs[i], fd_exec_past(exec, i), err) != FD_OK)
            return n_run > 1 ? fd_error_prefix(err, "sequence %d", i) : err->code;
    }
    return FD_OK;
}

fd_code fd_exec_generate_many_on_host(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done,
                                      fd_error *err) {
    FD_TRY(check_many(exec, runs, n_run, n_done, err));
    decode_round r = {.sequences = malloc(sizeof(int32_t) * (size_t)n_run),
                      .tokens = malloc(sizeof(int32_t) * (size_t)n_run)};
    r.logits = malloc(sizeof *r.logits * (size_t)n_run * (size_t)exec->graph->hparams.n_vocab);
    fd_code code = r.sequences && r.tokens && r.logits
                       ? loop_many(exec, runs, n_run, &r, n_done, err)
                       : fd_fail(err, FD_ERR_MEMORY, "logits of %d sequences: out of memory", n_run);
    free(r.sequences);
    free(r.tokens);
    free(r.logits);
    return code;
}

fd_code fd_exec_generate_many(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done, fd_error *err) {
    FD_TRY(check_many(exec, runs, n_run, n_done, err));
    if (n_run == 1) {
        FD_TRY(fd_exec_select(exec, 0, err));
        return fd_exec_generate(exec, runs, n_done, err);
    }
    if (!exec->class_->generate_many) return fd_exec_generate_many_on_host(exec, runs, n_run, n_done, err);
    return exec->class_->generate_many(exec, runs, n_run, n_done, err);
}
