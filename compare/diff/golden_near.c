#include "compare/diff/golden_near.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/numerics_class.h"
#include "compare/diff/golden.h"
#include "dumpers/store/place.h"

double fd_golden_near_limit(const char *numerics) {
    const fd_numerics_class *class_ = fd_numerics_class_find(numerics);
    return class_ && class_->q8_activations ? FD_GOLDEN_NEAR_LIMIT_INT8 : FD_GOLDEN_NEAR_LIMIT;
}

/* "emulate-f16:7" is measured as "f16". */
static void class_name(const char *numerics, char to[32]) {
    static const char emulate[] = "emulate-";
    if (strncmp(numerics, emulate, strlen(emulate)) == 0) numerics += strlen(emulate);
    snprintf(to, 32, "%.*s", (int)strcspn(numerics, ":"), numerics);
}

/* The index of the measured class of that name, else of one that rounds where it does. */
static int32_t find_measured(const fd_golden_tolerances *measured, const char *numerics, char class_[32]) {
    const fd_numerics_class *wanted = fd_numerics_class_find(numerics);
    class_name(numerics, class_);
    int32_t at = fd_golden_tolerance_find(measured, class_);
    for (const char *name = measured->names; at < 0 && wanted && *name; name += strspn(name, " ")) {
        int size = (int)strcspn(name, " ");
        snprintf(class_, 32, "%.*s", size, name);
        if (fd_numerics_class_find(class_) == wanted) at = fd_golden_tolerance_find(measured, class_);
        name += size;
    }
    return at;
}

double fd_golden_measured_limit(const fd_golden_tolerances *measured, const char *numerics, char class_[32]) {
    int32_t at = find_measured(measured, numerics, class_);
    return at < 0 ? -1 : FD_GOLDEN_MEASURED_FACTOR * measured->nmse[at];
}

typedef struct near_check {
    const fd_trace *golden;
    int32_t n_vocab;
    double limit;
    fd_golden_near *result;
    float *recorded; /* [n_vocab] */
} near_check;

/* Over what the golden keeps; NaN when it keeps nothing. */
static double normalised_error(const float *now, const float *then, int32_t n) {
    double error = 0, power = 0;
    int32_t n_kept = 0;
    for (int32_t i = 0; i < n; i++) {
        if (then[i] != then[i]) continue;
        n_kept++;
        double d = (double)now[i] - (double)then[i];
        error += d * d;
        power += (double)then[i] * (double)then[i];
    }
    return n_kept == 0 ? NAN : error == 0 ? 0 : error / power;
}

static void check_row(near_check *c, const float *now, int32_t pos) {
    fd_golden_near *out = c->result;
    double error = normalised_error(now, c->recorded, c->n_vocab);
    int32_t next = pos + 1, n_prompt = fd_trace_steps(c->golden)[0].n_pos;
    int32_t token = fd_golden_next_token(c->golden, pos, c->recorded, c->n_vocab);
    out->n_pos++;
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
    *out = (fd_golden_near){.near = true, .parted = -1};
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

fd_code fd_golden_check_trace(const fd_trace *run, const fd_trace *golden, double limit, fd_golden_near *out,
                              fd_error *err) {
    int32_t node = fd_trace_find(run, "logits"),
            n_vocab = fd_trace_node_at(golden, fd_trace_n_node(golden) - 1)->shape[0];
    int32_t n = fd_trace_n_pos(run) < fd_trace_n_pos(golden) ? fd_trace_n_pos(run) : fd_trace_n_pos(golden);
    *out = (fd_golden_near){.near = true, .parted = -1};
    if (node < 0) return fd_fail(err, FD_ERR_INCOMPLETE, "%s: no logits: record them", fd_trace_path(run));
    if (fd_trace_elements(fd_trace_node_at(run, node), 0) != n_vocab)
        return fd_fail(err, FD_ERR_INPUT, "%s: %lld logits a position, the golden has %d", fd_trace_path(run),
                       (long long)fd_trace_elements(fd_trace_node_at(run, node), 0), n_vocab);
    float *recorded = malloc(sizeof *recorded * (size_t)n_vocab), *now = malloc(sizeof *now * (size_t)n_vocab);
    near_check c = {golden, n_vocab, limit, out, recorded};
    fd_code code = recorded && now ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "golden: out of memory");
    for (int32_t pos = 0; code == FD_OK && pos < n && out->parted < 0; pos++) {
        if (fd_trace_tokens(run)[pos] != fd_trace_tokens(golden)[pos]) out->parted = pos;
        if (out->parted >= 0 || !fd_trace_holds(run, node, pos)) continue;
        code = fd_golden_logits(golden, pos, recorded, err);
        if (code == FD_OK) code = fd_golden_logits(run, pos, now, err);
        if (code == FD_OK) check_row(&c, now, pos);
    }
    free(recorded);
    free(now);
    return code;
}
