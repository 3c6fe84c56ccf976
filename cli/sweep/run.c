/* The runs of firstdiff sweep: a baseline that is recorded, and runs in lockstep with it. */
#include "cli/sweep/sweep.h"

#include <stdlib.h>
#include <string.h>

#include "compare/report/remarks.h"

typedef struct logits_check {
    const fd_trace *baseline;
    int32_t n_vocab;
    float *recorded; /* [n_vocab] */
    fd_sweep_result *result;
} logits_check;

static fd_code compare_logits(void *user, const fd_step_logits *shown, fd_error *err) {
    logits_check *c = user;
    for (int32_t row = 0; row < shown->n_row; row++) {
        const float *now = shown->logits + (int64_t)row * c->n_vocab;
        FD_TRY(fd_golden_logits(c->baseline, shown->pos0 + row, c->recorded, err));
        for (int32_t i = 0; i < c->n_vocab; i++) {
            if (fd_canonical32(now[i]) == fd_canonical32(c->recorded[i])) continue;
            c->result->diverged = true;
            c->result->step = shown->step;
            c->result->pos = shown->pos0 + row;
            snprintf(c->result->node, sizeof c->result->node, "logits");
            return FD_STOP;
        }
        c->result->n_compared++;
    }
    return FD_OK;
}

/* Tensors at a position that were compared: nodes of whole steps, then of the step that differs. */
static int64_t n_compared(const fd_verdict *v, const fd_trace_step *steps, int32_t n_node) {
    const fd_divergence *d = &v->divergence;
    if (d->kind == FD_NO_DIVERGENCE) return v->counts.n_pos * n_node;
    const fd_trace_step *step = &steps[d->step];
    int64_t before_in_step = v->counts.n_before - (int64_t)d->step * n_node;
    return (int64_t)step->pos0 * n_node + before_in_step * step->n_pos + (d->pos - step->pos0);
}

static fd_code conclude_split(const fd_verdict *v, const fd_trace_step *steps, int32_t n_node, fd_sweep_result *out,
                              fd_error *err) {
    const fd_divergence *d = &v->divergence;
    char reason[FD_REMARK_SIZE];
    if (v->status == FD_INCOMPLETE)
        return fd_fail(err, FD_ERR_INCOMPLETE, "%.300s", fd_reason_text(v, 0, reason));
    out->n_compared = n_compared(v, steps, n_node);
    out->diverged = d->kind != FD_NO_DIVERGENCE;
    out->step = d->step;
    out->pos = d->pos;
    memcpy(out->node, d->node, sizeof out->node);
    return FD_OK;
}

fd_code fd_sweep_run(fd_exec *exec, const fd_trace *baseline, const fd_sweep_split *split, fd_sweep_result *out,
                     fd_error *err) {
    int32_t n_vocab = exec->graph->hparams.n_vocab, n_pos = fd_trace_n_pos(baseline), n_step;
    *out = (fd_sweep_result){0};
    fd_trace_step *steps = fd_sweep_steps(split, n_pos, &n_step);
    logits_check check = {baseline, n_vocab, malloc(sizeof(float) * (size_t)n_vocab), out};
    fd_code code = steps && check.recorded ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%d positions: out of memory", n_pos);
    if (code == FD_OK) {
        fd_golden_rerun rerun = {.exec = exec,
                                 .golden = baseline,
                                 .steps = steps,
                                 .n_step = n_step,
                                 .unobserved = split->unobserved,
                                 .all_logits = split->all_logits,
                                 .on_logits = split->unobserved ? compare_logits : NULL,
                                 .user = &check};
        fd_verdict v;
        double start = fd_cli_seconds();
        code = fd_golden_run_again(&rerun, &v, err);
        out->seconds = fd_cli_seconds() - start;
        if (code == FD_OK && !split->unobserved) code = conclude_split(&v, steps, exec->graph->n_node, out, err);
        fd_verdict_free(&v);
    }
    free(check.recorded);
    free(steps);
    return code;
}

fd_trace_step *fd_sweep_steps(const fd_sweep_split *split, int32_t n_pos, int32_t *n_step) {
    fd_trace_step *steps = malloc(sizeof *steps * (size_t)n_pos);
    *n_step = 0;
    for (int32_t pos = 0; steps && pos < n_pos; (*n_step)++) {
        int32_t n = pos == 0 ? split->first : split->batch;
        if (n > n_pos - pos) n = n_pos - pos;
        steps[*n_step] = (fd_trace_step){pos, n, pos == 0 ? FD_STEP_PREFILL : FD_STEP_DECODE};
        pos += n;
    }
    return steps;
}
