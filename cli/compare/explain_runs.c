#include "cli/compare/explain_runs.h"

#include <stdlib.h>
#include <string.h>

#include "cli/compare/replay.h"
#include "cli/record.h"
#include "compare/compare.h"
#include "dumpers/store/trace.h"

/* What two temporary traces may take together. */
#define MOST_BYTES (4.0 * (1 << 30))

typedef struct rerun {
    const fd_cli_rerun *o;
    int32_t *tokens; /* [n_token + n_generate] owned */
    int32_t n_token;
    fd_trace *recorded[2]; /* owned; NULL: the side is a trace already */
} rerun;

/* The reference runs first; its greedy choices are fed to both. */
static fd_code record_side(rerun *r, int side, int32_t n_step, fd_error *err) {
    const fd_cli_rerun_side *s = &r->o->side[side];
    fd_trace_options how = fd_trace_defaults(NULL);
    how.weights = r->o->model->graph;
    fd_recording run = {.tokens = r->tokens,
                        .n_token = r->n_token,
                        .n_pos = r->o->n_token + (r->o->n_generate > 0 ? r->o->n_generate - 1 : 0),
                        .steps = s->steps,
                        .n_step = s->n_step,
                        .max_step = n_step};
    fd_code code = fd_cli_record_temporary(r->o->model, s->exec, how, &run, &r->recorded[side], err);
    r->n_token = run.n_token;
    return code == FD_OK ? code : fd_error_prefix(err, "recording %s", s->label);
}

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
    return fd_cli_replay(o->model, traces[0], traces[1], o->class_name, false, out, err);
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
    if (!r->tokens) return fd_fail(err, FD_ERR_MEMORY, "%d tokens: out of memory", o->n_token);
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
    return code;
}
