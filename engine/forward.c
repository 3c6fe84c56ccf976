/* A batch of one sequence: a token as a step, anything else in passes over the prompt's plans. */
#include <string.h>

#include "engine/budget.h"
#include "engine/pass.h"
#include "kernels/attention/attention.h"
#include "kernels/int8/q8.h"

/* Memory for the pass, then its tokens and positions to the device. */
static fd_code prepare(fd_pass *pass, fd_error *err) {
    fd_engine *e = pass->engine;
    bool moved = false;
    fd_extent extent = {pass->n_tok, pass->n_kv_end,
                        pass->tail == FD_ROWS_ALL    ? pass->n_tok
                        : pass->tail == FD_ROWS_LAST ? 1
                                                     : 0};
    FD_TRY(fd_slots_reserve(&e->prompt.slots, pass->plan, extent, "a prompt's activations", &moved, err));
    for (int i = 0; i < FD_ROWS_COUNT && moved; i++) fd_graph_forget(&e->prompt.graphs[i]);
    if (e->fast && pass->observe) FD_TRY(fd_fast_reserve_inner(pass, err));
    if (e->ranks && pass->observe) FD_TRY(fd_observe_reserve(pass, err));
    if (e->exec.numerics == FD_NUMERICS_Q8ACT && pass->n_tok > 1) {
        size_t bytes = fd_q8_scratch_bytes(e->exec.graph, pass->n_tok);
        FD_TRY(fd_device_reserve(&e->prompt.q8_rows, bytes, "int8 activations", err));
        pass->q8_rows = e->prompt.q8_rows.data;
    }
    int32_t *inputs = e->state.inputs_host.data;
    inputs[FD_INPUT_FIRST] = pass->pos0;
    inputs[FD_INPUT_LAST] = pass->pos0 + pass->n_tok - 1;
    inputs[FD_INPUT_SEQUENCE] = e->exec.sequence;
    memcpy(inputs + FD_INPUT_TOKENS, pass->tokens, sizeof *inputs * (size_t)pass->n_tok);
    return fd_cuda_check(cudaMemcpyAsync(e->state.inputs, inputs,
                                         sizeof *inputs * (size_t)(FD_INPUT_TOKENS + pass->n_tok),
                                         cudaMemcpyHostToDevice, pass->ctx.stream),
                         "token upload", err);
}

static fd_code forward_step(fd_engine *e, const fd_batch *batch, fd_error *err) {
    FD_TRY(fd_engine_step_one(e, batch->tokens[0], batch->pos0, false, err));
    if (batch->logits) return fd_copy_logits(e, e->logits, 1, 1, batch->logits, err);
    return fd_engine_wait(e, NULL, "decode step", err);
}

/* Rows `done` … `done` + n - 1 of a batch. */
static fd_pass batch_pass(fd_engine *e, const fd_batch *batch, int32_t done, int32_t n) {
    bool observed = e->exec.observer.observe != NULL, last = done + n == batch->n_tok;
    /* Nothing but kernels: they may be fused, and start while the one before drains. */
    bool kernels_only = !observed && !e->has_override && !e->fast;
    bool many = e->fast ? batch->n_tok > 1 : kernels_only && e->prompt.fuses_rows;
    fd_pass pass = {.engine = e,
                    .plan = many ? &e->prompt.rows : &e->prompt.nodes,
                    .slots = &e->prompt.slots,
                    .ctx = e->device.ctx,
                    .tokens = batch->tokens + done,
                    .pos0 = batch->pos0 + done,
                    .n_tok = n,
                    .n_kv = batch->pos0 + done + n,
                    .n_kv_end = batch->pos0 + batch->n_tok,
                    .sequence = e->exec.sequence,
                    .inputs = e->state.inputs,
                    .halves = batch->n_tok == 1 ? e->step.halves.data : NULL,
                    .tail = batch->all_logits || observed                       ? FD_ROWS_ALL
                            : last && (batch->logits != NULL || e->keep_logits) ? FD_ROWS_LAST
                                                                                : FD_ROWS_NONE,
                    .short_context = batch->pos0 + done < FD_ATTENTION_SHORT_CONTEXT,
                    .kernels_only = kernels_only,
                    .observe = observed ? &e->sync : NULL};
    pass.ctx.overlap = e->device.overlap && kernels_only;
    return pass;
}

static fd_code run_pass(fd_pass *pass, fd_error *err) {
    fd_engine *e = pass->engine;
    /* Not on several GPUs: kernels hold where the others' tensors are, and those may move without this one's. */
    bool captured = e->fast && pass->plan == &e->prompt.rows && !pass->observe && !e->has_override && !e->ranks;
    FD_TRY(prepare(pass, err));
    return captured ? fd_graph_run(&e->prompt.graphs[pass->tail], pass, err) : fd_pass_run(pass, err);
}

static fd_code forward_nodes(fd_engine *e, const fd_batch *batch, fd_error *err) {
    size_t n_vocab = (size_t)e->exec.graph->hparams.n_vocab;
    int32_t longest = !e->prompt.may_split || e->exec.observer.observe ? batch->n_tok
                      : e->fast                                        ? FD_FAST_ROWS
                                : fd_engine_batch_rows(e->split ? e->split->full : e->exec.graph, e->exec.n_ctx);
    for (int32_t done = 0, n; done < batch->n_tok; done += n) {
        n = batch->n_tok - done < longest ? batch->n_tok - done : longest;
        fd_pass pass = batch_pass(e, batch, done, n);
        FD_TRY(run_pass(&pass, err));
        const float *logits = fd_pass_tensor(&pass, e->exec.graph->n_node - 1);
        int32_t have = pass.tail == FD_ROWS_ALL ? n : 1;
        if (pass.tail != FD_ROWS_NONE) e->logits = logits + (size_t)(have - 1) * n_vocab;
        if (batch->logits && (batch->all_logits || done + n == batch->n_tok))
            FD_TRY(fd_copy_logits(e, logits, have, batch->all_logits ? n : 1,
                                  batch->logits + (batch->all_logits ? (size_t)done * n_vocab : 0), err));
        /* The next pass writes over the pinned tokens. */
        FD_TRY(fd_engine_wait(e, NULL, "batch", err));
        if (e->exec.progress && batch->n_tok > longest) e->exec.progress(e->exec.progress_user, done + n, batch->n_tok);
    }
    return FD_OK;
}

/* With an observer: one token as the fused step, anything else node by node. */
static fd_code forward_observed(fd_engine *e, const fd_batch *batch, fd_error *err) {
    const fd_observer *observer = &e->exec.observer;
    bool async = batch->n_tok == 1 && e->prompt.may_split && !e->observe_by_node && e->exec.n_seq <= 1 &&
                 e->exec.numerics != FD_NUMERICS_FAST;
    if (async) FD_TRY(fd_async_prepare(e, &async, err));
    if (async) return fd_async_forward(e, batch, err);
    FD_TRY(fd_async_flush(e, err));
    if (observer->begin) FD_TRY(observer->begin(observer->user, batch, err));
    FD_TRY(forward_nodes(e, batch, err));
    return observer->end ? observer->end(observer->user, err) : FD_OK;
}

fd_code fd_engine_forward(fd_exec *exec, const fd_batch *batch, fd_error *err) {
    fd_engine *e = (fd_engine *)exec;
    FD_TRY(fd_cuda_check(cudaSetDevice(e->device.id), "device", err));
    e->sync.n_pending = 0;
    e->sync.used = 0;
    bool step = batch->n_tok == 1 && !e->has_override;
    fd_code code = exec->observer.observe ? forward_observed(e, batch, err)
                   : step                 ? forward_step(e, batch, err)
                                          : forward_nodes(e, batch, err);
    if (code != FD_OK) { /* nothing of a failed call is still under way */
        fd_error ignored;
        (void)fd_engine_wait(e, NULL, "a failed call", &ignored);
        fd_async_forget(e);
    }
    return code;
}
