#include "exec/exec.h"

#include <string.h>

#include <stdlib.h>

#include "model/gguf/quant.h"
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
    const char *rounded = exec->graph->kv_type;
    if (*rounded && strcmp(rounded, "f32") != 0) return rounded;
    if (exec->kv_type) return exec->kv_type;
    return exec->numerics == FD_NUMERICS_F64 ? "f64" : "f32";
}

unsigned fd_want_fingerprints(void *user, const fd_node *node) {
    return (void)user, (void)node, FD_WANT_FINGERPRINT;
}

fd_code fd_exec_check_graph(const fd_graph *graph, fd_error *err) {
    FD_TRY(fd_graph_validate(graph, err));
    const fd_node *last = &graph->nodes[graph->n_node - 1];
    if (last->over_kv || last->op == FD_OP_KV_WRITE || fd_node_width(last) != graph->hparams.n_vocab)
        return fd_fail(err, FD_ERR_INPUT, "graph: its last node, %s, is no row of %d logits", last->name,
                       graph->hparams.n_vocab);
    return FD_OK;
}

fd_code fd_exec_check_weights(const fd_graph *graph, fd_error *err) {
    for (int32_t i = 0; i < graph->n_weight; i++) {
        const fd_weight *w = &graph->weights[i];
        const fd_dtype_info *type = fd_dtype_get(w->dtype);
        if (!fd_can_dequantize(w->dtype))
            return fd_fail(err, FD_ERR_UNSUPPORTED, "weight %s: type %s cannot be dequantised yet", w->name,
                           type ? type->name : "unknown");
    }
    return FD_OK;
}

fd_code fd_exec_show(const fd_exec *exec, const fd_op_args *args, fd_error *err) {
    const fd_observer *observer = &exec->observer;
    if (!observer->observe || (observer->wants && !observer->wants(observer->user, args->node))) return FD_OK;
    bool f64 = exec->numerics == FD_NUMERICS_F64;
    fd_observation seen = {.graph = args->graph,
                           .node = args->node,
                           .step = exec->step,
                           .pos0 = args->pos0,
                           .n_pos = args->n_pos,
                           .row_stride = fd_node_row_stride(args->node, args->n_kv),
                           .dtype = f64 ? FD_F64 : FD_F32,
                           .data = args->out};
    if (args->node->op == FD_OP_KV_WRITE) /* out is the cache from position 0 */
        seen.data =
            (const char *)args->out + args->pos0 * seen.row_stride * (int64_t)(f64 ? sizeof(double) : sizeof(float));
    return observer->observe(observer->user, &seen, err);
}

static fd_code check_batch(const fd_exec *exec, const fd_batch *batch, fd_error *err) {
    if (batch->n_tok < 1) return fd_fail(err, FD_ERR_INPUT, "batch: %d tokens, expected at least 1", batch->n_tok);
    if (batch->pos0 != exec->n_past)
        return fd_fail(err, FD_ERR_INPUT, "batch: starts at position %d, the cache holds %d", batch->pos0,
                       exec->n_past);
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
    bool bracket = observer->begin && !exec->class_->flush;
    if (bracket) FD_TRY(observer->begin(observer->user, batch, err));
    FD_TRY(exec->class_->forward(exec, batch, err));
    if (bracket) FD_TRY(observer->end(observer->user, err));
    exec->n_past += batch->n_tok;
    exec->step++;
    return FD_OK;
}

fd_code fd_exec_flush(fd_exec *exec, fd_error *err) {
    return exec->class_->flush ? exec->class_->flush(exec, err) : FD_OK;
}

void fd_exec_set_observer(fd_exec *exec, fd_observer observer) {
    exec->observer = observer;
    exec->n_observer++;
}

void fd_exec_set_progress(fd_exec *exec, fd_progress_fn progress, void *user) {
    exec->progress = progress;
    exec->progress_user = user;
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
