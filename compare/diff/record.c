#include "compare/diff/record.h"

#include <stdlib.h>

#include "compare/diff/lockstep.h"

typedef struct recorder {
    fd_recording *run;
    fd_trace_writer *to;
    fd_observer writer; /* of `to` */
    int32_t n_shown;    /* nodes in this call */
    float *logits;      /* [n_vocab] after the last position */
} recorder;

static fd_code refuse_nan(const fd_observation *o, fd_error *err) {
    int64_t n_vocab = o->row_stride;
    const float *logits = o->data;
    for (int64_t i = 0; i < o->n_pos * n_vocab; i++)
        if (logits[i] != logits[i])
            return fd_fail(err, FD_ERR_INPUT, "logit %lld at position %lld is NaN", (long long)(i % n_vocab),
                           (long long)(o->pos0 + i / n_vocab));
    return FD_OK;
}

static fd_code record_tensor(void *user, const fd_observation *o, fd_error *err) {
    recorder *r = user;
    r->n_shown++;
    bool logits = o->node->id == o->graph->n_node - 1;
    if (r->run->whole && logits && o->data && o->dtype == FD_F32) FD_TRY(refuse_nan(o, err));
    return r->writer.observe(r->writer.user, o, err);
}

static unsigned recorder_wants(void *user, const fd_node *node) {
    const recorder *r = user;
    return r->writer.wants(r->writer.user, node);
}

static fd_code record_call(recorder *r, fd_trace_step step, fd_error *err) {
    const fd_recording *run = r->run;
    fd_batch batch = {.tokens = run->tokens + step.pos0, .n_tok = step.n_pos, .pos0 = step.pos0, .logits = r->logits};
    r->n_shown = 0;
    FD_TRY(fd_trace_begin_step(r->to, step.kind, batch.tokens, step.n_pos, step.pos0, err));
    FD_TRY(fd_exec_forward(run->exec, &batch, err));
    FD_TRY(fd_trace_end_step(r->to, err));
    int32_t n_node = run->exec->graph->n_node;
    if (!run->whole || r->n_shown == n_node) return FD_OK;
    return fd_fail(err, FD_ERR_INCOMPLETE, "the executor showed %d of %d nodes at position %d", r->n_shown, n_node,
                   step.pos0);
}

static fd_code record_calls(recorder *r, fd_error *err) {
    fd_recording *run = r->run;
    fd_trace_step prefill = {0, run->n_token, FD_STEP_PREFILL};
    const fd_trace_step *steps = run->steps ? run->steps : &prefill;
    int32_t n_step = run->steps ? run->n_step : 1, max = run->max_step ? run->max_step : INT32_MAX, at = 0;
    for (int32_t i = 0; i < max && at < run->n_pos; i++) {
        fd_trace_step step = i < n_step ? steps[i] : (fd_trace_step){at, 1, FD_STEP_DECODE};
        if (at == run->n_token) {
            FD_TRY(fd_choose_greedy(NULL, r->logits, run->exec->graph->hparams.n_vocab, run->tokens, run->n_token,
                                    &run->tokens[at], err));
            run->n_token++;
        }
        FD_TRY(record_call(r, step, err));
        at = step.pos0 + step.n_pos;
    }
    return FD_OK;
}

fd_code fd_record(fd_recording *run, fd_trace_writer *to, fd_error *err) {
    recorder r = {.run = run, .to = to, .writer = fd_trace_observer(to)};
    r.logits = malloc(sizeof *r.logits * (size_t)run->exec->graph->hparams.n_vocab);
    if (!r.logits) return fd_fail(err, FD_ERR_MEMORY, "recording: out of memory");
    fd_exec_reset(run->exec);
    fd_exec_set_observer(run->exec, (fd_observer){.observe = record_tensor, .wants = recorder_wants, .user = &r});
    fd_code code = record_calls(&r, err);
    fd_exec_set_observer(run->exec, (fd_observer){0});
    free(r.logits);
    return code;
}
