#include "cli/compare/explain_runs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/compare/replay.h"
#include "cli/temporary.h"
#include "cli/trace_info.h"
#include "compare/compare.h"
#include "compare/diff/lockstep.h"
#include "dumpers/store/trace.h"

/* What two temporary traces may take together. */
#define MOST_BYTES (4.0 * (1 << 30))

typedef struct rerun {
    const fd_cli_rerun *o;
    int32_t *tokens; /* [n_token + n_generate] owned */
    int32_t n_token;
    float *logits;         /* [n_vocab] owned */
    fd_trace *recorded[2]; /* owned; NULL: the side is a trace already */
} rerun;

/* ---- one side ---- */

static fd_code record_step(rerun *r, fd_exec *exec, fd_trace_writer *to, fd_trace_step step, fd_error *err) {
    fd_batch batch = {.tokens = r->tokens + step.pos0, .n_tok = step.n_pos, .pos0 = step.pos0, .logits = r->logits};
    FD_TRY(fd_trace_begin_step(to, step.kind, batch.tokens, step.n_pos, step.pos0, err));
    FD_TRY(fd_exec_forward(exec, &batch, err));
    return fd_trace_end_step(to, err);
}

/* The steps given, then one of each generated token. The reference runs first and chooses them. */
static fd_code record_steps(rerun *r, int side, int32_t n_step, fd_trace_writer *to, fd_error *err) {
    const fd_cli_rerun_side *s = &r->o->side[side];
    fd_exec *exec = s->exec->exec;
    int32_t at = 0, total = r->o->n_token + (r->o->n_generate > 0 ? r->o->n_generate - 1 : 0);
    for (int32_t i = 0; i < n_step && i < s->n_step; i++) {
        FD_TRY(record_step(r, exec, to, s->steps[i], err));
        at = s->steps[i].pos0 + s->steps[i].n_pos;
    }
    for (int32_t i = s->n_step; i < n_step && at < total; i++, at++) {
        if (at == r->n_token)
            FD_TRY(fd_choose_greedy(NULL, r->logits, r->o->model->graph->hparams.n_vocab, r->tokens, r->n_token,
                                    &r->tokens[r->n_token], err));
        if (at == r->n_token) r->n_token++;
        FD_TRY(record_step(r, exec, to, (fd_trace_step){at, 1, FD_STEP_DECODE}, err));
    }
    return FD_OK;
}

static fd_code record_side(rerun *r, int side, int32_t n_step, fd_error *err) {
    const fd_cli_exec *exec = r->o->side[side].exec;
    char path[4096];
    fd_trace_writer *to;
    fd_trace_info info;
    FD_TRY(fd_cli_temporary(path, err));
    fd_trace_options how = fd_trace_defaults(path);
    how.weights = r->o->model->graph;
    fd_cli_trace_info(r->o->model, exec, &info);
    fd_exec_reset(exec->exec);
    fd_code code = fd_trace_create(&how, &info, exec->exec->graph, exec->exec->numerics, &to, err);
    if (code == FD_OK) {
        fd_exec_set_observer(exec->exec, fd_trace_observer(to));
        code = record_steps(r, side, n_step, to, err);
        fd_exec_set_observer(exec->exec, (fd_observer){0});
        if (code == FD_OK)
            code = fd_trace_finish(to, err);
        else
            fd_trace_abandon(to);
    }
    if (code == FD_OK) code = fd_trace_open(path, &r->recorded[side], err);
    unlink(path); /* what is open stays readable */
    if (code != FD_OK) fd_error_prefix(err, "recording %s", r->o->side[side].label);
    return code;
}

/* ---- both ---- */

static bool same_contract(const fd_verdict *v) {
    return v->ref.contract > 0 && v->ref.contract == v->cand.contract && strcmp(v->ref.numerics, v->cand.numerics) == 0;
}

static int32_t steps_to_run(const fd_verdict *v) {
    return same_contract(v) ? v->divergence.step + 1 : INT32_MAX;
}

static double bytes_of(const fd_cli_rerun *o, int32_t n_step) {
    const fd_graph *graph = o->model->graph;
    double bytes = 0;
    for (int side = 0; side < 2; side++) {
        const fd_cli_rerun_side *s = &o->side[side];
        if (!s->exec) continue;
        double n = 0, width = s->exec->exec->numerics == FD_NUMERICS_F64 ? 8 : 4;
        int32_t given = n_step < s->n_step ? n_step : s->n_step;
        if (given > 0) n = s->steps[given - 1].pos0 + s->steps[given - 1].n_pos;
        if (n_step > given) n += n_step - given < o->n_generate ? n_step - given : o->n_generate;
        for (int32_t i = 0; i < graph->n_node; i++) {
            const fd_node *node = &graph->nodes[i];
            bytes += width * n * (node->over_kv ? node->shape[0] * n : (double)fd_node_elements(node, 1));
        }
    }
    return bytes;
}

static fd_code compare_recorded(rerun *r, fd_verdict *out, fd_error *err) {
    const fd_cli_rerun *o = r->o;
    const fd_trace *traces[2];
    for (int side = 0; side < 2; side++) traces[side] = o->side[side].trace ? o->side[side].trace : r->recorded[side];
    fd_compare_options how = {
        .allow_missing = o->allow_missing, .n_allow_missing = o->n_allow_missing, .graph = o->model->graph};
    FD_TRY(fd_compare_traces(traces[0], traces[1], &how, out, err));
    return fd_cli_replay(o->model->graph, traces[0], traces[1], o->class_name, out, err);
}

static void put_label(const fd_cli_rerun_side *side, fd_verdict_side *to) {
    if (side->exec) snprintf(to->label, sizeof to->label, "%s", side->label);
}

static fd_code rerun_both(rerun *r, fd_verdict *verdict, fd_error *err) {
    const fd_cli_rerun *o = r->o;
    int32_t n_step = steps_to_run(verdict);
    fd_verdict found = {0};
    fd_code code = FD_OK;
    for (int side = 0; side < 2 && code == FD_OK; side++)
        if (o->side[side].exec) code = record_side(r, side, n_step, err);
    if (code == FD_OK) code = compare_recorded(r, &found, err);
    if (code != FD_OK || found.divergence.kind == FD_NO_DIVERGENCE) {
        bool noise = code == FD_OK && (found.status == FD_NOISE || found.replay.done);
        if (code == FD_OK && !noise) fd_verdict_note(verdict, (fd_remark){FD_NOTE_RERUN_AGREES});
        if (!noise) {
            fd_verdict_free(&found);
            return code;
        }
    }
    put_label(&o->side[0], &found.ref);
    put_label(&o->side[1], &found.cand);
    found.next[0] = '\0'; /* it names a trace that is gone */
    fd_verdict_free(verdict);
    *verdict = found;
    return FD_OK;
}

static fd_code open_rerun(rerun *r, fd_error *err) {
    const fd_cli_rerun *o = r->o;
    r->n_token = o->n_token;
    r->tokens = malloc(sizeof *r->tokens * (size_t)(o->n_token + o->n_generate + 1));
    r->logits = malloc(sizeof *r->logits * (size_t)o->model->graph->hparams.n_vocab);
    if (!r->tokens || !r->logits) return fd_fail(err, FD_ERR_MEMORY, "%d tokens: out of memory", o->n_token);
    memcpy(r->tokens, o->tokens, sizeof *r->tokens * (size_t)o->n_token);
    return FD_OK;
}

fd_code fd_cli_explain_runs(const fd_cli_rerun *rerun_, fd_verdict *verdict, fd_error *err) {
    rerun r = {.o = rerun_};
    if (verdict->divergence.kind != FD_DIVERGED_VALUES) return FD_OK;
    double bytes = bytes_of(rerun_, steps_to_run(verdict));
    if (bytes > MOST_BYTES) {
        int64_t mib = (int64_t)(bytes / (1 << 20)), most = (int64_t)(MOST_BYTES / (1 << 20));
        fd_verdict_note(verdict, (fd_remark){FD_NOTE_RERUN_TOO_LARGE, .n = {mib, most}});
        return FD_OK;
    }
    fd_code code = open_rerun(&r, err);
    if (code == FD_OK) code = rerun_both(&r, verdict, err);
    for (int side = 0; side < 2; side++)
        if (r.recorded[side]) fd_trace_close(r.recorded[side]);
    free(r.tokens);
    free(r.logits);
    return code;
}
