/* Several sequences in fast numerics: each has the bits it has alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/gpu/check_run.h"
#include "tests/gpu/fast_check.h"

static int32_t length_of(const check *c, int32_t sequence) {
    return 1 + (c->n_prefill + 7 * sequence) % (c->n_token - 1);
}

/* The sequence's prompt, then one token at a time: logits of positions from its prompt's last on. */
static void run_alone(fd_exec *exec, const check *c, int32_t sequence, float *logits) {
    fd_error err = {0};
    fd_exec_reset(exec);
    for (int32_t pos = 0, n = length_of(c, sequence); pos < c->n_token; pos += n, n = 1) {
        fd_batch batch = {.tokens = c->tokens + pos, .n_tok = n, .pos0 = pos};
        batch.logits = logits + (size_t)(pos + n - 1) * (size_t)c->graph->hparams.n_vocab;
        must(fd_exec_forward(exec, &batch, &err), &err);
    }
}

/* All sequences' prompts, then a token of each that has room, the last one first, so that no row is its sequence. */
static void run_together(fd_exec *exec, const check *c, int32_t n, float *logits) {
    fd_error err = {0};
    size_t n_vocab = (size_t)c->graph->hparams.n_vocab;
    int32_t *sequences = room((size_t)n, sizeof *sequences), *tokens = room((size_t)n, sizeof *tokens);
    float *step = room((size_t)n * n_vocab, sizeof *step);
    for (int32_t i = 0; i < n; i++) {
        fd_batch prompt = {.tokens = c->tokens, .n_tok = length_of(c, i)};
        prompt.logits = logits + (size_t)i * n_logits(c) + (size_t)(length_of(c, i) - 1) * n_vocab;
        must(fd_exec_select(exec, i, &err), &err);
        must(fd_exec_forward(exec, &prompt, &err), &err);
    }
    for (;;) {
        int32_t n_row = 0;
        for (int32_t i = n - 1; i >= 0; i--) {
            if (fd_exec_past(exec, i) >= c->n_token) continue;
            sequences[n_row] = i;
            tokens[n_row++] = c->tokens[fd_exec_past(exec, i)];
        }
        if (n_row == 0) break;
        fd_decode decode = {.n = n_row, .sequences = sequences, .tokens = tokens, .logits = step};
        must(fd_exec_decode(exec, &decode, &err), &err);
        for (int32_t row = 0; row < n_row; row++) {
            size_t at =
                (size_t)sequences[row] * n_logits(c) + (size_t)(fd_exec_past(exec, sequences[row]) - 1) * n_vocab;
            memcpy(logits + at, step + (size_t)row * n_vocab, n_vocab * sizeof *step);
        }
    }
    free(sequences);
    free(tokens);
    free(step);
}

void check_sequences(check *c, int32_t n, fd_int8 int8) {
    fd_error err = {0};
    fd_exec *exec;
    char what[96];
    size_t n_vocab = (size_t)c->graph->hparams.n_vocab;
    float *found = room((size_t)n * n_logits(c), sizeof *found);
    fd_engine_options several = {.n_ctx = c->n_token, .n_seq = n, .numerics = FD_NUMERICS_FAST, .int8 = int8};
    must(fd_engine_new(c->graph, &several, &exec, &err), &err);
    run_together(exec, c, n, found);
    bool int8_blocks = strcmp(fd_exec_numerics_name(exec), "fast-int8") == 0;
    bool same = true, seen = true;
    int32_t n_far = 0, n_row = 0;
    double worst = 0, total = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t first = length_of(c, i) - 1;
        size_t from = (size_t)first * n_vocab, count = (size_t)(c->n_token - first) * n_vocab;
        const float *own = found + (size_t)i * n_logits(c);
        run_alone(exec, c, i, c->again);
        same = same && same_bits("logits", c->again + from, own + from, count);
        /* The data tell positions apart, so rows that changed places would show. */
        for (size_t k = 0; k + n_vocab < count; k += n_vocab)
            seen = seen && memcmp(own + from + k, own + from + k + n_vocab, n_vocab * sizeof *own) != 0;
        for (int32_t pos = first; pos < c->same_until; pos++, n_row++) {
            double z = nmse(own + (size_t)pos * n_vocab, c->exact + (size_t)pos * n_vocab, (int64_t)n_vocab);
            n_far += !(z <= LIMIT);
            worst = fmax(worst, z);
            total += z;
        }
    }
    printf("  worst row: NMSE %.2e, mean of %d %.2e\n", worst, n_row, total / n_row);
    snprintf(what, sizeof what, "%d sequences: each one's logits are those it has alone", n);
    verdict(c, what, same && seen);
    snprintf(what, sizeof what, "%d sequences: near the reference's", n);
    /* Blocks' errors differ from row to row: there the mean is held. */
    verdict(c, what, int8_blocks ? n_row == 0 || total / n_row <= LIMIT_INT8 : n_far == 0);
    fd_exec_free(exec);
    free(found);
}
