#include "compare/diff/record.h"

#include <stdlib.h>
#include <string.h>

#include "compare/diff/lockstep.h"
#include "dumpers/observe/health.h"
#include "dumpers/store/golden.h"

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

/* A golden's logits: thinned, with the fingerprints of the whole rows. */
static fd_code record_thinned(recorder *r, const fd_observation *o, fd_error *err) {
    size_t n = (size_t)o->n_pos, n_vocab = (size_t)o->row_stride;
    float *rows = malloc(sizeof *rows * n * n_vocab);
    fd_fingerprint *fingerprints = malloc(sizeof *fingerprints * n);
    fd_top_logits *top = malloc(sizeof *top * n);
    fd_observation thin = *o;
    fd_code code = rows && fingerprints && top ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "logits: out of memory");
    if (code == FD_OK) {
        memcpy(rows, o->data, sizeof *rows * n * n_vocab);
        for (size_t i = 0; i < n; i++) {
            fingerprints[i] = fd_observation_fingerprint(o, (int32_t)i);
            if (o->top)
                top[i] = o->top[i];
            else
                fd_health_logits(FD_F32, rows + i * n_vocab, (int64_t)n_vocab, &top[i]);
            fd_golden_thin(rows + i * n_vocab, (int64_t)n_vocab, &top[i]);
        }
        thin.data = rows;
        thin.fingerprints = fingerprints;
        thin.top = top;
        code = r->writer.observe(r->writer.user, &thin, err);
    }
    free(rows);
    free(fingerprints);
    free(top);
    return code;
}

static fd_code record_tensor(void *user, const fd_observation *o, fd_error *err) {
    recorder *r = user;
    r->n_shown++;
    bool logits = o->node->id == o->graph->n_node - 1;
    bool elements = logits && o->data && o->dtype == FD_F32;
    if (r->run->whole && elements) FD_TRY(refuse_nan(o, err));
    if (r->run->golden_logits && elements && fd_golden_thins(o->row_stride)) return record_thinned(r, o, err);
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
