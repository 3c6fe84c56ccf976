#include "tests/gpu/gpu_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "numerics/contract.h"
#include "tests/gpu/check_run.h"

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void open_check(check *c) {
    c->tokens = calloc((size_t)c->n_token, sizeof *c->tokens);
    c->logits = calloc((size_t)c->n_token * (size_t)c->graph->hparams.n_vocab, sizeof *c->logits);
    c->found = calloc((size_t)c->n_token * (size_t)c->graph->hparams.n_vocab, sizeof *c->found);
    if (!c->tokens || !c->logits || !c->found) {
        printf("FAIL: out of memory\n");
        exit(2);
    }
    fill_tokens(c->tokens, c->n_token, c->graph->hparams.n_vocab);
}

void close_check(check *c) {
    free(c->tokens);
    free(c->logits);
    free(c->found);
}

void verdict(check *c, const char *what, bool holds) {
    printf("%-4s %s (%.1f s)\n", holds ? "ok" : "FAIL", what, now() - c->started);
    fflush(stdout);
    c->n_failed += !holds;
    c->started = now();
}

fd_code forward(fd_exec *exec, const check *c, int32_t pos0, int32_t n, float *logits, fd_error *err) {
    fd_batch batch = {.tokens = c->tokens + pos0, .n_tok = n, .pos0 = pos0, .all_logits = true};
    batch.logits = logits ? logits + (size_t)pos0 * (size_t)c->graph->hparams.n_vocab : NULL;
    return fd_exec_forward(exec, &batch, err);
}

void run(fd_exec *exec, check *c, int32_t first, int32_t then, float *logits) {
    fd_error err = {0};
    fd_exec_reset(exec);
    memset(logits, 0xff, sizeof *logits * (size_t)c->n_token * (size_t)c->graph->hparams.n_vocab);
    for (int32_t pos = 0, n = first; pos < c->n_token; pos += n, n = then) {
        if (n > c->n_token - pos) n = c->n_token - pos;
        must(forward(exec, c, pos, n, logits, &err), &err);
    }
}

bool same_logits(const check *c) {
    size_t n_vocab = (size_t)c->graph->hparams.n_vocab, n = (size_t)c->n_token * n_vocab, differ = 0, first = 0;
    for (size_t i = 0; i < n; i++)
        if (fd_canonical32(c->logits[i]) != fd_canonical32(c->found[i]) && differ++ == 0) first = i;
    if (differ > 0)
        printf("  %zu of %zu logits differ, first at position %zu, id %zu: %.9g, expected %.9g\n", differ, n,
               first / n_vocab, first % n_vocab, (double)c->found[first], (double)c->logits[first]);
    return differ == 0;
}
