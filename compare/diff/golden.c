#include "compare/diff/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report/remarks.h"

/* ---- what a golden holds ---- */

fd_code fd_golden_usable(const fd_trace *golden, const fd_graph *graph, const char *model_hash, fd_error *err) {
    const fd_trace_info *info = fd_trace_get_info(golden);
    int32_t n_node = fd_trace_n_node(golden);
    if (strcmp(info->model_hash, model_hash) != 0)
        return fd_fail(err, FD_ERR_INPUT, "golden of another model: %s (%s), expected %s", info->model_name,
                       info->model_hash, model_hash);
    if (strcmp(info->numerics, fd_numerics_name(FD_NUMERICS_EXACT)) != 0 &&
        strcmp(info->numerics, fd_numerics_name(FD_NUMERICS_Q8ACT)) != 0)
        return fd_fail(err, FD_ERR_INCOMPLETE, "golden: numerics \"%s\", expected \"exact\" or \"q8act\"",
                       info->numerics);
    if (info->contract != FD_CONTRACT_VERSION)
        return fd_fail(err, FD_ERR_INCOMPLETE, "golden: numerics contract %d, this build follows %d: record it again",
                       info->contract, FD_CONTRACT_VERSION);
    if (n_node != graph->n_node)
        return fd_fail(err, FD_ERR_INCOMPLETE, "golden: %d nodes, this build's graph has %d: record it again", n_node,
                       graph->n_node);
    for (int32_t i = 0; i < n_node; i++)
        if (strcmp(fd_trace_node_at(golden, i)->name, graph->nodes[i].name) != 0)
            return fd_fail(err, FD_ERR_INCOMPLETE, "golden: node %d is %s, in this build's graph %s: record it again",
                           i, fd_trace_node_at(golden, i)->name, graph->nodes[i].name);
    const fd_trace_node *logits = fd_trace_node_at(golden, n_node - 1);
    if (fd_trace_elements(logits, 0) != graph->hparams.n_vocab)
        return fd_fail(err, FD_ERR_INPUT, "golden: vocabulary of %lld, expected %d",
                       (long long)fd_trace_elements(logits, 0), graph->hparams.n_vocab);
    if (fd_trace_n_pos(golden) < 1 || !info->complete || !fd_trace_tokens(golden))
        return fd_fail(err, FD_ERR_INPUT, "golden: incomplete: %d positions", fd_trace_n_pos(golden));
    return FD_OK;
}

fd_code fd_golden_logits(const fd_trace *golden, int32_t pos, float *out, fd_error *err) {
    int32_t node = fd_trace_find(golden, "logits");
    if (node < 0) return fd_fail(err, FD_ERR_INCOMPLETE, "%s: no logits", fd_trace_path(golden));
    const fd_trace_node *logits = fd_trace_node_at(golden, node);
    if (logits->dtype != FD_F64) return fd_trace_read(golden, node, pos, out, NULL, err);
    int64_t n = fd_trace_elements(logits, pos);
    double *wide = malloc(sizeof *wide * (size_t)n);
    if (!wide) return fd_fail(err, FD_ERR_MEMORY, "logits: out of memory");
    fd_code code = fd_trace_read(golden, node, pos, NULL, wide, err);
    for (int64_t i = 0; code == FD_OK && i < n; i++) out[i] = (float)wide[i];
    free(wide);
    return code;
}

int32_t fd_golden_best(const float *logits, int32_t n_vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best] || (logits[best] != logits[best] && logits[i] == logits[i])) best = i;
    return best;
}

int32_t fd_golden_next_token(const fd_trace *golden, int32_t pos, const float *recorded, int32_t n_vocab) {
    return pos + 1 < fd_trace_n_pos(golden) ? fd_trace_tokens(golden)[pos + 1] : fd_golden_best(recorded, n_vocab);
}

/* ---- checking ---- */

fd_code fd_golden_run_again(const fd_golden_rerun *rerun, fd_verdict *out, fd_error *err) {
    const fd_trace *golden = rerun->golden;
    fd_lockstep_options how = {.ref = {.trace = golden},
                               .cand = {.exec = rerun->exec, .label = "now", .fault = ""},
                               .tokens = fd_trace_tokens(golden),
                               .n_token = fd_trace_n_pos(golden),
                               .steps = rerun->steps ? rerun->steps : fd_trace_steps(golden),
                               .n_step = rerun->steps ? rerun->n_step : fd_trace_n_step(golden),
                               .fingerprints_only = true,
                               .unobserved = rerun->unobserved,
                               .on_logits = rerun->on_logits,
                               .logits_user = rerun->user,
                               .all_logits = rerun->all_logits};
    return fd_lockstep_run(&how, out, err);
}

typedef struct checker {
    const fd_trace *golden;
    int32_t n_vocab;
    fd_golden_result *result;
    float *recorded; /* [n_vocab] of the last position compared */
} checker;

static void compare_logits(checker *c, const float *now, int32_t pos) {
    fd_golden_result *out = c->result;
    for (int32_t i = 0; i < c->n_vocab; i++) {
        if (c->recorded[i] != c->recorded[i] || fd_canonical32(now[i]) == fd_canonical32(c->recorded[i])) continue;
        if (out->n_logit_differ++) continue;
        out->logits_differ = true;
        out->logit_pos = pos;
        out->logit_id = i;
        out->logit_golden = c->recorded[i];
        out->logit_now = now[i];
    }
}

static fd_code check_step(void *user, const fd_step_logits *shown, fd_error *err) {
    checker *c = user;
    fd_golden_result *out = c->result;
    int32_t next = shown->pos0 + shown->n_row;
    for (int32_t row = 0; row < shown->n_row; row++) {
        FD_TRY(fd_golden_logits(c->golden, shown->pos0 + row, c->recorded, err));
        compare_logits(c, shown->logits + (int64_t)row * c->n_vocab, shown->pos0 + row);
    }
    out->choice_golden = fd_golden_next_token(c->golden, next - 1, c->recorded, c->n_vocab);
    out->choice_now = fd_golden_best(shown->logits + (int64_t)(shown->n_row - 1) * c->n_vocab, c->n_vocab);
    out->choice_differs = out->choice_now != out->choice_golden;
    if (!out->logits_differ && !out->choice_differs) return FD_OK;
    out->kind = out->logits_differ ? FD_GOLDEN_LOGITS : FD_GOLDEN_CHOICE;
    out->step = shown->step;
    out->pos = out->logits_differ ? out->logit_pos : next;
    if (out->logits_differ) snprintf(out->node, sizeof out->node, "logits");
    return FD_STOP;
}

/* A tensor that differs comes before the logits of its step. */
static fd_code conclude_check(const fd_verdict *v, fd_golden_result *out, fd_error *err) {
    const fd_divergence *d = &v->divergence;
    out->n_same = v->counts.n_before;
    if (d->kind != FD_NO_DIVERGENCE) {
        out->kind = FD_GOLDEN_TENSOR;
        out->step = d->step;
        out->pos = d->pos;
        memcpy(out->node, d->node, sizeof out->node);
    }
    if (out->kind != FD_GOLDEN_SAME || v->status == FD_IDENTICAL) return FD_OK;
    char reason[FD_REMARK_SIZE];
    return fd_fail(err, FD_ERR_INCOMPLETE, "golden: %.300s", fd_reason_text(v, 0, reason));
}

fd_code fd_golden_check(fd_exec *exec, const fd_trace *golden, fd_golden_result *out, fd_error *err) {
    memset(out, 0, sizeof *out);
    checker c = {golden, exec->graph->hparams.n_vocab, out, NULL};
    if (!(c.recorded = malloc(sizeof *c.recorded * (size_t)c.n_vocab)))
        return fd_fail(err, FD_ERR_MEMORY, "golden: out of memory");
    fd_golden_rerun rerun = {.exec = exec, .golden = golden, .all_logits = true, .on_logits = check_step, .user = &c};
    fd_verdict v;
    fd_code code = fd_golden_run_again(&rerun, &v, err);
    if (code == FD_OK) code = conclude_check(&v, out, err);
    fd_verdict_free(&v);
    free(c.recorded);
    return code;
}
