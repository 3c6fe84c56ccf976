#include "compare/diff/lockstep.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/diff/rendezvous.h"

enum { REF, CAND, SIDES };

typedef struct lockstep {
    const fd_lockstep_options *options;
    fd_verdict *verdict;
    fd_lockstep_comparator comparator;
    fd_rendezvous *rendezvous; /* both sides run; NULL with a trace */
    fd_exec *exec;             /* the reference executor, else the candidate's: its logits choose the next token */
    const fd_trace *trace;
    int32_t *tokens; /* owned: those given, then the generated ones */
    int32_t n_token;
    float *logits[SIDES]; /* owned */
} lockstep;

/* A call whose logits are asked for runs to its end. */
static fd_code compare_with_trace(void *user, const fd_observation *observation, fd_error *err) {
    lockstep *l = user;
    bool to_end = l->options->on_logits != NULL;
    if (to_end && l->verdict->divergence.kind != FD_NO_DIVERGENCE) return FD_OK;
    fd_code code = fd_lockstep_compare_trace(&l->comparator, observation, err);
    return code == FD_STOP && to_end ? FD_OK : code;
}

static unsigned wants_of_trace(void *user, const fd_node *node) {
    return fd_lockstep_wants(&((lockstep *)user)->comparator, node);
}

static fd_code forward_with_trace(lockstep *l, fd_batch batch, fd_error *err) {
    const fd_lockstep_options *o = l->options;
    int32_t step = l->exec->step, n_row = o->all_logits ? batch.n_tok : 1;
    batch.all_logits = o->all_logits;
    FD_TRY(fd_exec_forward(l->exec, &batch, err));
    fd_step_logits shown = {step, batch.pos0 + batch.n_tok - n_row, n_row, batch.logits};
    if (o->on_logits) FD_TRY(o->on_logits(o->logits_user, &shown, err));
    return l->verdict->divergence.kind == FD_NO_DIVERGENCE ? FD_OK : FD_STOP;
}

static fd_code run_step(lockstep *l, int32_t pos0, int32_t n, fd_step_kind kind, fd_error *err) {
    fd_batch batch = {.tokens = l->tokens + pos0, .n_tok = n, .pos0 = pos0};
    l->comparator.step_kind = kind;
    l->verdict->counts.n_step++;
    l->verdict->counts.n_pos = pos0 + n;
    fd_batch cand_batch = batch;
    batch.logits = l->logits[REF];
    cand_batch.logits = l->logits[CAND];
    if (l->trace) return forward_with_trace(l, batch, err);
    return fd_rendezvous_forward(l->rendezvous, &batch, &cand_batch, l->options->ref.label, l->options->cand.label,
                                 err);
}

static void report_progress(const lockstep *l, int64_t done) {
    const fd_lockstep_options *o = l->options;
    if (o->progress) o->progress(o->progress_user, done, o->n_token + (o->n_generate ? o->n_generate - 1 : 0));
}

static fd_code run_steps(lockstep *l, fd_error *err) {
    const fd_lockstep_options *o = l->options;
    fd_trace_step all = {0, o->n_token, FD_STEP_PREFILL};
    const fd_trace_step *steps = o->steps ? o->steps : &all;
    int32_t n_step = o->steps ? o->n_step : 1;
    for (int32_t i = 0; i < n_step; i++) {
        FD_TRY(run_step(l, steps[i].pos0, steps[i].n_pos, steps[i].kind, err));
        report_progress(l, steps[i].pos0 + steps[i].n_pos);
    }
    fd_choose_fn choose = o->choose ? o->choose : fd_choose_greedy;
    for (int32_t i = 1; i < o->n_generate; i++) {
        FD_TRY(choose(o->choose_user, l->logits[REF], l->exec->graph->hparams.n_vocab, l->tokens, l->n_token,
                      &l->tokens[l->n_token], err));
        l->n_token++;
        FD_TRY(run_step(l, l->n_token - 1, 1, FD_STEP_DECODE, err));
        report_progress(l, l->n_token);
    }
    return FD_OK;
}

static void describe_side(const fd_lockstep_side *side, const fd_exec *model_of, fd_verdict_side *out) {
    if (side->trace) {
        fd_verdict_side_of_trace(side->trace, out);
        return;
    }
    snprintf(out->label, sizeof out->label, "%s", side->label);
    snprintf(out->fault, sizeof out->fault, "%s", side->fault ? side->fault : "");
    const fd_hparams *h = &model_of->graph->hparams;
    snprintf(out->backend, sizeof out->backend, "%s", side->exec->backend);
    snprintf(out->numerics, sizeof out->numerics, "%s", fd_exec_numerics_name(side->exec));
    snprintf(out->device, sizeof out->device, "%s", side->exec->device);
    snprintf(out->model_name, sizeof out->model_name, "%s", h->name);
    snprintf(out->arch, sizeof out->arch, "%s", h->arch);
    out->contract = fd_numerics_contract(side->exec->numerics);
    out->complete = true;
}

static void state_limits(lockstep *l) {
    fd_verdict *v = l->verdict;
    fd_verdict_note_numerics(v);
    if (!l->trace) return;
    if (!fd_trace_get_info(l->trace)->complete)
        fd_verdict_reason(v, (fd_remark){FD_REASON_RUN_STOPPED, .side = l->options->ref.trace ? REF : CAND,
                                         .n = {fd_trace_n_pos(l->trace)}});
    if (l->options->n_token < fd_trace_n_pos(l->trace))
        fd_verdict_note(v, (fd_remark){FD_NOTE_TRACE_LONGER, .n = {fd_trace_n_pos(l->trace), l->options->n_token}});
}

/* The tokens to be fed against those the trace was fed: true when they part, which is then the divergence. */
static bool tokens_differ(lockstep *l) {
    const fd_lockstep_options *o = l->options;
    const int32_t *recorded = fd_trace_tokens(l->trace);
    int32_t n = fd_trace_n_pos(l->trace), p = 0;
    if (o->n_token > n) fd_verdict_reason(l->verdict, (fd_remark){FD_REASON_TRACE_SHORT, .n = {o->n_token, n}});
    n = o->n_token < n ? o->n_token : n;
    while (p < n && recorded && recorded[p] == o->tokens[p]) p++;
    if (p == n) return false;
    if (!recorded) {
        fd_verdict_reason(l->verdict, (fd_remark){FD_REASON_TRACE_TOKENS_UNRECORDED});
        return true;
    }
    fd_divergence *d = &l->verdict->divergence;
    d->kind = FD_DIVERGED_TOKENS;
    snprintf(d->node, sizeof d->node, "tokens");
    d->layer = -1;
    d->pos = p;
    for (int32_t i = 0; i < o->n_step && o->steps[i].pos0 <= p; i++) {
        d->step = i;
        d->step_kind = o->steps[i].kind;
    }
    d->ref_token = o->ref.trace ? recorded[p] : o->tokens[p];
    d->cand_token = o->ref.trace ? o->tokens[p] : recorded[p];
    return true;
}

/* What the trace holds and the model's graph does not. */
static fd_code list_foreign_nodes(lockstep *l, fd_error *err) {
    const fd_lockstep_options *o = l->options;
    for (int32_t i = 0; i < fd_trace_n_node(l->trace); i++) {
        const char *name = fd_trace_node_at(l->trace, i)->name;
        if (fd_graph_find(l->exec->graph, name) >= 0) continue;
        FD_TRY(fd_verdict_missing(l->verdict, name, o->ref.trace ? FD_ONLY_IN_REFERENCE : FD_ONLY_IN_CANDIDATE,
                                  o->n_token, fd_name_matches(o->allow_missing, o->n_allow_missing, name), err));
    }
    return FD_OK;
}

/* Logits of the longest call, where all its rows are asked for. */
static size_t logits_rows(const fd_lockstep_options *o) {
    int32_t most = o->steps ? 1 : o->n_token;
    for (int32_t i = 0; o->steps && i < o->n_step; i++)
        if (o->steps[i].n_pos > most) most = o->steps[i].n_pos;
    return o->all_logits ? (size_t)most : 1;
}

static bool same_contract(const fd_trace *trace, const fd_exec *exec) {
    const fd_trace_info *info = fd_trace_get_info(trace);
    return strcmp(info->numerics, fd_exec_numerics_name(exec)) == 0 &&
           info->contract == fd_numerics_contract(exec->numerics);
}

static fd_code open_sides(lockstep *l, fd_error *err) {
    const fd_lockstep_options *o = l->options;
    int32_t most = o->n_token + (o->n_generate > 0 ? o->n_generate : 0);
    size_t n_logit = (size_t)l->exec->graph->hparams.n_vocab * logits_rows(o);
    l->tokens = malloc(sizeof *l->tokens * (size_t)most);
    for (int side = 0; side < SIDES; side++) l->logits[side] = malloc(sizeof(float) * n_logit);
    if (!l->tokens || !l->logits[REF] || !l->logits[CAND])
        return fd_fail(err, FD_ERR_MEMORY, "lockstep over %d positions: out of memory", most);
    memcpy(l->tokens, o->tokens, sizeof *l->tokens * (size_t)o->n_token);
    l->n_token = o->n_token;
    l->comparator = (fd_lockstep_comparator){.graph = l->exec->graph,
                                             .trace = l->trace,
                                             .trace_is_ref = o->ref.trace != NULL,
                                             .same_contract = l->trace && same_contract(l->trace, l->exec),
                                             .fingerprints_only = o->fingerprints_only,
                                             .verdict = l->verdict,
                                             .allow_missing = o->allow_missing,
                                             .n_allow_missing = o->n_allow_missing};
    FD_TRY(fd_lockstep_comparator_open(&l->comparator, err));
    if (!l->trace) return fd_rendezvous_open(o->ref.exec, o->cand.exec, &l->comparator, &l->rendezvous, err);
    fd_exec_reset(l->exec);
    if (o->unobserved) return FD_OK;
    FD_TRY(list_foreign_nodes(l, err));
    fd_exec_set_observer(l->exec, (fd_observer){.observe = compare_with_trace, .wants = wants_of_trace, .user = l});
    return FD_OK;
}

static void close_sides(lockstep *l) {
    fd_rendezvous_close(l->rendezvous);
    fd_exec_set_observer(l->exec, (fd_observer){0});
    fd_lockstep_comparator_close(&l->comparator);
    free(l->tokens);
    for (int side = 0; side < SIDES; side++) free(l->logits[side]);
}

fd_code fd_choose_greedy(void *user, const float *logits, int32_t n_vocab, const int32_t *history, int32_t n_history,
                         int32_t *token, fd_error *err) {
    (void)user, (void)history;
    *token = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (logits[i] != logits[i])
            return fd_fail(err, FD_ERR_INPUT, "logits: NaN at id %d after position %d: no token can be chosen", i,
                           n_history - 1);
        if (logits[i] > logits[*token]) *token = i;
    }
    return FD_OK;
}

fd_code fd_lockstep_run(const fd_lockstep_options *options, fd_verdict *out, fd_error *err) {
    const fd_lockstep_side *ref = &options->ref, *cand = &options->cand;
    assert(!ref->exec != !ref->trace && !cand->exec != !cand->trace && !(ref->trace && cand->trace));
    memset(out, 0, sizeof *out);
    out->counts.grid = FD_F64;
    lockstep l = {.options = options, .verdict = out};
    l.exec = ref->exec ? ref->exec : cand->exec;
    l.trace = ref->trace ? ref->trace : cand->trace;
    describe_side(ref, l.exec, &out->ref);
    describe_side(cand, l.exec, &out->cand);
    state_limits(&l);
    fd_code code = open_sides(&l, err);
    if (code == FD_OK && !(l.trace && tokens_differ(&l))) code = run_steps(&l, err);
    int64_t n_shown = l.comparator.n_shown;
    close_sides(&l);
    out->counts.after_known = out->divergence.kind == FD_NO_DIVERGENCE;
    if (code != FD_OK && code != FD_STOP) return code;
    for (int side = 0; side < SIDES; side++) {
        fd_verdict_side *s = side == REF ? &out->ref : &out->cand;
        if (!(side == REF ? ref : cand)->trace) s->n_pos = (int32_t)out->counts.n_pos;
    }
    int32_t n_node = l.exec->graph->n_node;
    if (out->divergence.kind == FD_NO_DIVERGENCE && !options->unobserved && n_shown != out->counts.n_step * n_node)
        fd_verdict_reason(out, (fd_remark){FD_REASON_TENSORS_SHOWN, .n = {n_shown, n_node, out->counts.n_step}});
    fd_verdict_decide(out);
    return FD_OK;
}
