#include "compare/diff/golden_near.h"

#include <stdlib.h>

#include "compare/bounds/numerics_class.h"
#include "compare/diff/golden.h"

double fd_golden_near_limit(const char *numerics) {
    const fd_numerics_class *class_ = fd_numerics_class_find(numerics);
    return class_ && class_->q8_activations ? FD_GOLDEN_NEAR_LIMIT_INT8 : FD_GOLDEN_NEAR_LIMIT;
}

typedef struct near_check {
    const fd_trace *golden;
    int32_t n_vocab;
    double limit;
    fd_golden_near *result;
    float *recorded; /* [n_vocab] */
} near_check;

static double normalised_error(const float *now, const float *then, int32_t n) {
    double error = 0, power = 0;
    for (int32_t i = 0; i < n; i++) {
        double d = (double)now[i] - (double)then[i];
        error += d * d;
        power += (double)then[i] * (double)then[i];
    }
    return error == 0 ? 0 : error / power;
}

static void check_row(near_check *c, const float *now, int32_t pos) {
    fd_golden_near *out = c->result;
    double error = normalised_error(now, c->recorded, c->n_vocab);
    int32_t next = pos + 1, n_prompt = fd_trace_steps(c->golden)[0].n_pos;
    int32_t token = fd_golden_next_token(c->golden, pos, c->recorded, c->n_vocab);
    out->n_flip += next >= n_prompt && fd_golden_best(now, c->n_vocab) != token;
    if (!out->near) return;
    out->near = error <= c->limit;
    if (error <= out->worst) return;
    out->worst = error;
    out->pos = pos;
}

static fd_code check_step(void *user, const fd_step_logits *shown, fd_error *err) {
    near_check *c = user;
    for (int32_t row = 0; row < shown->n_row; row++) {
        FD_TRY(fd_golden_logits(c->golden, shown->pos0 + row, c->recorded, err));
        check_row(c, shown->logits + (int64_t)row * c->n_vocab, shown->pos0 + row);
    }
    return FD_OK;
}

fd_code fd_golden_check_near(fd_exec *exec, const fd_trace *golden, double limit, fd_golden_near *out, fd_error *err) {
    *out = (fd_golden_near){.near = true};
    near_check c = {golden, exec->graph->hparams.n_vocab, limit, out, NULL};
    if (!(c.recorded = malloc(sizeof *c.recorded * (size_t)c.n_vocab)))
        return fd_fail(err, FD_ERR_MEMORY, "golden: out of memory");
    fd_golden_rerun rerun = {
        .exec = exec, .golden = golden, .unobserved = true, .all_logits = true, .on_logits = check_step, .user = &c};
    fd_verdict unused;
    fd_code code = fd_golden_run_again(&rerun, &unused, err);
    fd_verdict_free(&unused);
    free(c.recorded);
    return code;
}
