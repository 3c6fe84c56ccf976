/* Sequences of one executor: which is selected, how far each is, and a step of several. */
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

static int32_t count(const fd_exec *exec) {
    return exec->n_seq > 1 ? exec->n_seq : 1;
}

int32_t fd_exec_past(const fd_exec *exec, int32_t sequence) {
    if (sequence == exec->sequence) return exec->n_past;
    return exec->n_past_of ? exec->n_past_of[sequence] : 0;
}

fd_code fd_exec_select(fd_exec *exec, int32_t sequence, fd_error *err) {
    if (sequence < 0 || sequence >= count(exec))
        return fd_fail(err, FD_ERR_INPUT, "sequence %d: expected 0 to %d", sequence, count(exec) - 1);
    if (sequence == exec->sequence) return FD_OK;
    if (!exec->n_past_of) exec->n_past_of = calloc((size_t)count(exec), sizeof *exec->n_past_of);
    if (!exec->n_past_of) return fd_fail(err, FD_ERR_MEMORY, "%d sequences: out of memory", count(exec));
    exec->n_past_of[exec->sequence] = exec->n_past;
    exec->sequence = sequence;
    exec->n_past = exec->n_past_of[sequence];
    return FD_OK;
}

static fd_code check(const fd_exec *exec, const fd_decode *d, fd_error *err) {
    int32_t n_vocab = exec->graph->hparams.n_vocab;
    if (d->n < 1) return fd_fail(err, FD_ERR_INPUT, "decode: %d sequences, expected at least 1", d->n);
    for (int32_t i = 0; i < d->n; i++) {
        int32_t sequence = d->sequences[i];
        if (sequence < 0 || sequence >= count(exec))
            return fd_fail(err, FD_ERR_INPUT, "sequence %d: expected 0 to %d", sequence, count(exec) - 1);
        for (int32_t k = 0; k < i; k++)
            if (d->sequences[k] == sequence)
                return fd_fail(err, FD_ERR_INPUT, "sequence %d: twice in one step", sequence);
        if (d->tokens[i] < 0 || d->tokens[i] >= n_vocab)
            return fd_fail(err, FD_ERR_INPUT, "token %d of sequence %d: outside the vocabulary of %d", d->tokens[i],
                           sequence, n_vocab);
        if (fd_exec_past(exec, sequence) >= exec->n_ctx)
            return fd_fail(err, FD_ERR_INPUT, "context: sequence %d has %d positions and one more token, room for %d",
                           sequence, fd_exec_past(exec, sequence), exec->n_ctx);
    }
    return FD_OK;
}

static fd_code in_turn(fd_exec *exec, const fd_decode *d, fd_error *err) {
    size_t n_vocab = (size_t)exec->graph->hparams.n_vocab;
    for (int32_t i = 0; i < d->n; i++) {
        FD_TRY(fd_exec_select(exec, d->sequences[i], err));
        fd_batch batch = {.tokens = &d->tokens[i],
                          .n_tok = 1,
                          .pos0 = exec->n_past,
                          .logits = d->logits ? d->logits + (size_t)i * n_vocab : NULL};
        FD_TRY(fd_exec_forward(exec, &batch, err));
    }
    return FD_OK;
}

fd_code fd_exec_decode(fd_exec *exec, const fd_decode *d, fd_error *err) {
    FD_TRY(check(exec, d, err));
    int32_t selected = exec->sequence;
    if (d->n == 1 || exec->observer.observe || !exec->class_->decode) {
        fd_code code = in_turn(exec, d, err);
        fd_error ignored;
        fd_code back = fd_exec_select(exec, selected, code == FD_OK ? err : &ignored);
        return code == FD_OK ? back : code;
    }
    FD_TRY(exec->class_->decode(exec, d, err));
    for (int32_t i = 0; i < d->n; i++) {
        FD_TRY(fd_exec_select(exec, d->sequences[i], err));
        exec->n_past++;
    }
    exec->step++;
    return fd_exec_select(exec, selected, err);
}
