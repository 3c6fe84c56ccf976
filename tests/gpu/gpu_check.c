#include "tests/gpu/gpu_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "numerics/contract.h"
#include "tests/gpu/check_run.h"
#include "tests/gpu/lockstep.h"

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
    if (!c->quiet || !holds) printf("%-4s %s (%.1f s)\n", holds ? "ok" : "FAIL", what, now() - c->started);
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

/* Two observers of one run. */
typedef struct both {
    fd_observer first, second;
} both;

static fd_code show_both(void *user, const fd_observation *seen, fd_error *err) {
    const both *b = user;
    FD_TRY(b->first.observe(b->first.user, seen, err));
    return b->second.observe(b->second.user, seen, err);
}

void check_lockstep(check *c, const char *how, fd_exec *cpu, fd_exec *gpu, const fd_observer *also) {
    lockstep l;
    fd_error err = {0};
    bool complete = true;
    double cpu_seconds = 0, gpu_seconds = 0;
    char name[120];
    must(lockstep_open(&l, c->graph, &err), &err);
    fd_exec_reset(cpu);
    both recorders = {lockstep_record(&l), {0}};
    if (also) recorders.second = *also;
    fd_exec_set_observer(cpu, also ? (fd_observer){.observe = show_both, .user = &recorders} : recorders.first);
    fd_exec_set_observer(gpu, lockstep_compare(&l));
    for (int32_t pos = 0, n = c->n_prefill; pos < c->n_token; pos += n, n = 1) {
        double start = now();
        must(forward(cpu, c, pos, n, c->logits, &err), &err);
        double between = now();
        must(forward(gpu, c, pos, n, c->found, &err), &err);
        cpu_seconds += between - start;
        gpu_seconds += now() - between;
        complete = lockstep_complete(&l) && complete;
    }
    fd_exec_set_observer(cpu, (fd_observer){0});
    fd_exec_set_observer(gpu, (fd_observer){0});
    bool equal = lockstep_report(&l, c->graph, c->quiet);
    if (!c->quiet) printf("  cpu %.1f s, gpu with every tensor copied and compared %.1f s\n", cpu_seconds, gpu_seconds);
    snprintf(name, sizeof name, "lockstep, %s: every tensor of every node and position", how);
    verdict(c, name, equal && complete);
    verdict(c, "lockstep: logits", same_logits(c));
    lockstep_close(&l);
}

void check_untraced(check *c, fd_exec *gpu) {
    run(gpu, c, c->n_prefill, 1, c->found);
    verdict(c, "untraced (fused, CUDA graph): logits equal the observed run's", same_logits(c));
    run(gpu, c, c->n_prefill, 1, c->found);
    verdict(c, "twice: the second run equals the first", same_logits(c));
    static const int32_t splits[] = {1, 2, 3, 5, 8, 40};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        char name[64];
        run(gpu, c, splits[i], splits[i], c->found);
        snprintf(name, sizeof name, "splits: batches of %d", splits[i]);
        verdict(c, name, same_logits(c));
    }
    /* Only the last row's logits: what feeds no cache is computed for that row alone. */
    fd_error err = {0};
    size_t n_vocab = (size_t)c->graph->hparams.n_vocab, at = (size_t)(c->n_prefill - 1) * n_vocab;
    fd_exec_reset(gpu);
    fd_batch batch = {.tokens = c->tokens, .n_tok = c->n_prefill, .logits = c->found + at};
    memcpy(c->found, c->logits, sizeof *c->found * n_vocab * (size_t)c->n_token);
    memset(c->found + at, 0xff, sizeof *c->found * n_vocab);
    must(fd_exec_forward(gpu, &batch, &err), &err);
    verdict(c, "last row alone: its logits", same_logits(c));
}
