#include "tests/gpu/generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/generate.h"
#include "numerics/contract.h"
#include "tests/gpu/check_run.h"

static const struct {
    const char *name;
    fd_sampler_options options;
} samplers[] = {
    {"greedy", {.top_p = 1, .repeat_penalty = 1}},
    {"greedy with a penalty", {.top_p = 1, .repeat_penalty = 1.2f, .repeat_last = -1}},
    {"temperature", {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 3}},
    {"all options",
     {.temperature = 0.9f, .top_k = 50, .top_p = 0.95f, .min_p = 0.01f, .repeat_penalty = 1.1f, .repeat_last = 8}},
};
enum { N_SAMPLER = sizeof samplers / sizeof *samplers };

int generation_samplers(void) {
    return N_SAMPLER;
}

const char *generation_sampler_name(int sampler) {
    return samplers[sampler].name;
}

static void *allocate(size_t n, size_t size) {
    void *data = calloc(n ? n : 1, size);
    if (!data) exit(2);
    return data;
}

static fd_sampler *sampler_of(const fd_exec *exec, int kind) {
    fd_error err = {0};
    fd_sampler *sampler;
    must(fd_sampler_new(&samplers[kind % N_SAMPLER].options, exec->graph->hparams.n_vocab, &sampler, &err), &err);
    return sampler;
}

static fd_code stop_at(void *user, int32_t token, fd_error *err) {
    (void)token, (void)err;
    return --*(int32_t *)user == 0 ? FD_STOP : FD_OK;
}

/* ---- one sequence ---- */

/* Tokens after the prompt; `stop` of them first, 0: all at once. */
static int32_t generate(fd_exec *exec, const generation_test *t, int kind, int32_t stop, int32_t *tokens) {
    fd_error err = {0};
    int32_t n_new = t->n_token - t->n_prompt + 1, n_first = 0, n_rest = 0;
    fd_sampler *sampler = sampler_of(exec, kind);
    memcpy(tokens, t->tokens, sizeof *tokens * (size_t)t->n_prompt);
    fd_exec_reset(exec);
    fd_generation first = {.tokens = tokens, .n_token = t->n_prompt, .n_new = n_new, .sampler = sampler};
    if (stop > 0) {
        first.on_token = stop_at;
        first.user = &stop;
    }
    must(fd_exec_generate(exec, &first, &n_first, &err), &err);
    if (n_first < n_new) {
        fd_generation rest = {
            .tokens = tokens, .n_token = t->n_prompt + n_first, .n_new = n_new - n_first, .sampler = sampler};
        must(fd_exec_generate(exec, &rest, &n_rest, &err), &err);
    }
    fd_sampler_free(sampler);
    return n_first + n_rest;
}

bool generation_equals_cpu(const generation_test *t, int kind) {
    size_t n_room = (size_t)t->n_token + 1;
    int32_t *expected = allocate(n_room, sizeof *expected), *found = allocate(n_room, sizeof *found);
    int32_t n = generate(t->cpu, t, kind, 0, expected), half = (t->n_token - t->n_prompt + 1) / 2;
    bool same = true;
    for (int part = 0; part < 2; part++) {
        memset(found, 0, sizeof *found * n_room);
        same = generate(t->gpu, t, kind, part ? half : 0, found) == n && same;
        same = memcmp(expected, found, sizeof *found * n_room) == 0 && same;
    }
    free(expected);
    free(found);
    return same && n == t->n_token - t->n_prompt + 1;
}

/* ---- several ---- */

static bool row_equals(const generation_test *t, int32_t position, const float *row) {
    size_t n_vocab = (size_t)t->gpu->graph->hparams.n_vocab;
    const float *expected = t->logits + (size_t)position * n_vocab;
    for (size_t i = 0; i < n_vocab; i++)
        if (fd_canonical32(expected[i]) != fd_canonical32(row[i])) {
            printf("  position %d, id %zu: %.9g, expected %.9g\n", position, i, (double)row[i], (double)expected[i]);
            return false;
        }
    return true;
}

static int32_t length_of(const generation_test *t, int32_t sequence) {
    return 1 + (t->n_prompt + 5 * sequence) % (t->n_token - 1);
}

bool sequences_have_logits(const generation_test *t, int32_t n) {
    size_t n_vocab = (size_t)t->gpu->graph->hparams.n_vocab;
    float *logits = allocate((size_t)n * n_vocab, sizeof *logits);
    int32_t *sequences = allocate((size_t)n, sizeof *sequences), *tokens = allocate((size_t)n, sizeof *tokens);
    fd_error err = {0};
    bool same = true;
    fd_exec_reset(t->gpu);
    for (int32_t i = 0; i < n; i++) {
        fd_batch prompt = {.tokens = t->tokens, .n_tok = length_of(t, i), .logits = logits};
        must(fd_exec_select(t->gpu, i, &err), &err);
        must(fd_exec_forward(t->gpu, &prompt, &err), &err);
        same = row_equals(t, length_of(t, i) - 1, logits) && same;
    }
    for (int32_t step = 0; step < t->n_token; step++) {
        /* Backwards, so that no row is its sequence; those whose context is full leave. */
        int32_t n_row = 0;
        for (int32_t i = n - 1; i >= 0; i--) {
            if (fd_exec_past(t->gpu, i) >= t->n_token) continue;
            sequences[n_row] = i;
            tokens[n_row++] = t->tokens[fd_exec_past(t->gpu, i)];
        }
        if (n_row == 0) break;
        memset(logits, 0xff, sizeof *logits * n_vocab * (size_t)n);
        fd_decode decode = {.n = n_row, .sequences = sequences, .tokens = tokens, .logits = logits};
        must(fd_exec_decode(t->gpu, &decode, &err), &err);
        for (int32_t row = 0; row < n_row && same; row++)
            same = row_equals(t, fd_exec_past(t->gpu, sequences[row]) - 1, logits + (size_t)row * n_vocab);
    }
    free(logits);
    free(sequences);
    free(tokens);
    return same;
}

typedef struct many {
    fd_generation *runs; /* [n] */
    int32_t *stops, *n_done;
    int32_t n;
} many;

static many many_open(const generation_test *t, int32_t n) {
    many m = {.runs = allocate((size_t)n, sizeof *m.runs), .n = n};
    m.stops = allocate((size_t)n, sizeof *m.stops);
    m.n_done = allocate((size_t)n, sizeof *m.n_done);
    for (int32_t i = 0; i < n; i++) {
        fd_generation *run = &m.runs[i];
        *run = (fd_generation){.n_token = length_of(t, i), .sampler = sampler_of(t->cpu, i)};
        run->n_new = (t->n_token - run->n_token + 1 + i % 2) / (1 + i % 2);
        run->tokens = allocate((size_t)t->n_token + 1, sizeof *run->tokens);
        memcpy(run->tokens, t->tokens, sizeof *run->tokens * (size_t)run->n_token);
        m.stops[i] = 1 + 3 * i;
        if (i % 3 == 2) { /* a stop that nobody could foresee */
            run->on_token = stop_at;
            run->user = &m.stops[i];
        }
    }
    return m;
}

static void many_close(many *m) {
    for (int32_t i = 0; i < m->n; i++) {
        fd_sampler_free(m->runs[i].sampler);
        free(m->runs[i].tokens);
    }
    free(m->runs);
    free(m->stops);
    free(m->n_done);
}

bool sequences_generate_alone(const generation_test *t, int32_t n) {
    fd_error err = {0};
    many expected = many_open(t, n), found = many_open(t, n);
    bool same = true;
    for (int32_t i = 0; i < n; i++) {
        fd_exec_reset(t->cpu);
        must(fd_exec_generate(t->cpu, &expected.runs[i], &expected.n_done[i], &err), &err);
    }
    fd_exec_reset(t->gpu);
    must(fd_exec_generate_many(t->gpu, found.runs, n, found.n_done, &err), &err);
    for (int32_t i = 0; i < n; i++) {
        size_t bytes = sizeof(int32_t) * (size_t)(expected.runs[i].n_token + expected.n_done[i]);
        bool equal = expected.n_done[i] == found.n_done[i] &&
                     memcmp(expected.runs[i].tokens, found.runs[i].tokens, bytes) == 0 &&
                     fd_sampler_draws(expected.runs[i].sampler) == fd_sampler_draws(found.runs[i].sampler) &&
                     fd_exec_past(t->gpu, i) == expected.runs[i].n_token + expected.n_done[i] - 1;
        if (!equal) printf("  sequence %d: %d tokens, expected %d\n", i, found.n_done[i], expected.n_done[i]);
        same = same && equal;
    }
    many_close(&expected);
    many_close(&found);
    return same;
}
