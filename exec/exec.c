#include "exec/exec.h"

#include <stdlib.h>

#include "numerics/contract.h"

const char *fd_numerics_name(fd_numerics numerics) {
    static const char *const names[] = {[FD_NUMERICS_EXACT] = "exact",
                                        [FD_NUMERICS_F64] = "f64",
                                        [FD_NUMERICS_Q8ACT] = "q8act",
                                        [FD_NUMERICS_FAST] = "fast"};
    return names[numerics];
}

int32_t fd_numerics_contract(fd_numerics numerics) {
    return numerics == FD_NUMERICS_EXACT || numerics == FD_NUMERICS_Q8ACT ? FD_CONTRACT_VERSION : 0;
}

const char *fd_exec_numerics_name(const fd_exec *exec) {
    return exec->numerics_name ? exec->numerics_name : fd_numerics_name(exec->numerics);
}

const char *fd_exec_kv_type(const fd_exec *exec) {
    if (exec->kv_type) return exec->kv_type;
    return exec->numerics == FD_NUMERICS_F64 ? "f64" : "f32";
}

unsigned fd_want_fingerprints(void *user, const fd_node *node) {
    return (void)user, (void)node, FD_WANT_FINGERPRINT;
}

static fd_code check_batch(const fd_exec *exec, const fd_batch *batch, fd_error *err) {
    if (batch->n_tok < 1) return fd_fail(err, FD_ERR_INPUT, "batch: %d tokens, expected at least 1", batch->n_tok);
    if (batch->pos0 != exec->n_past)
        return fd_fail(err, FD_ERR_INPUT, "batch: starts at position %d, the cache holds %d", batch->pos0, exec->n_past);
    if (batch->n_tok > exec->n_ctx - exec->n_past)
        return fd_fail(err, FD_ERR_INPUT, "context: %d positions and %d more tokens, room for %d", exec->n_past,
                       batch->n_tok, exec->n_ctx);
    for (int32_t i = 0; i < batch->n_tok; i++)
        if (batch->tokens[i] < 0 || batch->tokens[i] >= exec->graph->hparams.n_vocab)
            return fd_fail(err, FD_ERR_INPUT, "token %d at position %d: outside the vocabulary of %d", batch->tokens[i],
                           batch->pos0 + i, exec->graph->hparams.n_vocab);
    return FD_OK;
}

fd_code fd_exec_forward(fd_exec *exec, const fd_batch *batch, fd_error *err) {
    FD_TRY(check_batch(exec, batch, err));
    const fd_observer *observer = &exec->observer;
    bool bracket = observer->begin && !exec->class_->settle;
    if (bracket) FD_TRY(observer->begin(observer->user, batch, err));
    FD_TRY(exec->class_->forward(exec, batch, err));
    if (bracket) FD_TRY(observer->end(observer->user, err));
    exec->n_past += batch->n_tok;
    exec->step++;
    return FD_OK;
}

fd_code fd_exec_settle(fd_exec *exec, fd_error *err) {
    return exec->class_->settle ? exec->class_->settle(exec, err) : FD_OK;
}

void fd_exec_set_observer(fd_exec *exec, fd_observer observer) {
    exec->observer = observer;
    exec->n_observer++;
}

void fd_exec_reset(fd_exec *exec) {
    exec->n_past = 0;
    exec->sequence = 0;
    for (int32_t i = 0; exec->n_past_of && i < exec->n_seq; i++) exec->n_past_of[i] = 0;
    exec->step = 0;
    if (exec->class_->reset) exec->class_->reset(exec);
}

void fd_exec_free(fd_exec *exec) {
    if (!exec) return;
    free(exec->n_past_of);
    exec->class_->destroy(exec);
}
