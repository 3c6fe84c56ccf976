#include "compare/diff/golden_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- recording ---- */

typedef struct recorder {
    fd_fingerprint *fingerprints; /* [n_pos, n_node] */
    int32_t n_node;
    int32_t n_shown; /* nodes in this step: an executor that hides one must not make a golden with a hole */
} recorder;

static fd_code record_tensor(void *user, const fd_observation *o, fd_error *err) {
    recorder *r = user;
    (void)err;
    r->n_shown++;
    for (int32_t row = 0; row < o->n_pos; row++)
        r->fingerprints[(int64_t)(o->pos0 + row) * r->n_node + o->node->id] = fd_observation_fingerprint(o, row);
    return FD_OK;
}

/* The highest logit, the lowest id of a tie. NaN never wins; a row of NaN alone gives 0. */
static int32_t greedy(const float *logits, int32_t n_vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best] || (logits[best] != logits[best] && logits[i] == logits[i])) best = i;
    return best;
}

static fd_code all_shown(int32_t n_shown, const fd_graph *graph, int32_t pos, fd_error *err) {
    if (n_shown == graph->n_node) return FD_OK;
    return fd_fail(err, FD_ERR_INCOMPLETE, "golden: the executor showed %d of %d nodes at position %d", n_shown,
                   graph->n_node, pos);
}

static fd_code no_nan(const float *logits, int64_t n, int32_t n_vocab, int32_t pos0, fd_error *err) {
    for (int64_t i = 0; i < n; i++)
        if (logits[i] != logits[i])
            return fd_fail(err, FD_ERR_INPUT, "golden: logit %lld at position %lld is NaN: nothing to hold on to",
                           (long long)(i % n_vocab), (long long)(pos0 + i / n_vocab));
    return FD_OK;
}

static fd_code run_and_record(fd_exec *exec, recorder *r, int32_t n_prompt, int32_t n_vocab, fd_golden_prompt *p,
                              fd_error *err) {
    for (int32_t pos = 0; pos < p->n_pos;) {
        int32_t n = pos == 0 ? n_prompt : 1;
        fd_batch batch = {.tokens = p->tokens + pos,
                          .n_tok = n,
                          .pos0 = pos,
                          .all_logits = true,
                          .logits = p->logits + (int64_t)pos * n_vocab};
        r->n_shown = 0;
        FD_TRY(fd_exec_forward(exec, &batch, err));
        FD_TRY(all_shown(r->n_shown, exec->graph, pos, err));
        FD_TRY(no_nan(batch.logits, (int64_t)n * n_vocab, n_vocab, pos, err));
        pos += n;
        if (pos < p->n_token) p->tokens[pos] = greedy(p->logits + (int64_t)(pos - 1) * n_vocab, n_vocab);
    }
    return FD_OK;
}

fd_code fd_golden_record(fd_exec *exec, const int32_t *ids, int32_t n_prompt, int32_t n_generate, fd_golden_prompt *out,
                         fd_error *err) {
    int32_t n_vocab = exec->graph->hparams.n_vocab, n_node = exec->graph->n_node;
    *out = (fd_golden_prompt){.n_prompt = n_prompt, .n_token = n_prompt + n_generate};
    out->n_pos = n_generate > 0 ? out->n_token - 1 : n_prompt;
    out->tokens = calloc((size_t)out->n_token, sizeof *out->tokens);
    out->logits = calloc((size_t)out->n_pos * (size_t)n_vocab, sizeof *out->logits);
    out->fingerprints = calloc((size_t)out->n_pos * (size_t)n_node, sizeof *out->fingerprints);
    if (!out->tokens || !out->logits || !out->fingerprints) {
        fd_golden_prompt_clear(out);
        return fd_fail(err, FD_ERR_MEMORY, "golden of %d positions: out of memory", n_prompt + n_generate);
    }
    memcpy(out->tokens, ids, sizeof *ids * (size_t)n_prompt);

    recorder r = {out->fingerprints, n_node, 0};
    fd_exec_reset(exec);
    fd_exec_set_observer(exec, (fd_observer){.observe = record_tensor, .wants = fd_want_fingerprints, .user = &r});
    fd_code code = run_and_record(exec, &r, n_prompt, n_vocab, out, err);
    fd_exec_set_observer(exec, (fd_observer){0});
    if (code != FD_OK) fd_golden_prompt_clear(out);
    return code;
}

void fd_golden_prompt_clear(fd_golden_prompt *prompt) {
    free(prompt->text);
    free(prompt->tokens);
    free(prompt->logits);
    free(prompt->fingerprints);
    *prompt = (fd_golden_prompt){0};
}

/* ---- checking ---- */

fd_code fd_golden_usable(const fd_golden *golden, const fd_graph *graph, const char *model_hash, fd_error *err) {
    if (strcmp(golden->model_hash, model_hash) != 0)
        return fd_fail(err, FD_ERR_INPUT, "golden of another model: %s (%s), expected %s", golden->model_name,
                       golden->model_hash, model_hash);
    if (strcmp(golden->numerics, fd_numerics_name(FD_NUMERICS_EXACT)) != 0 &&
        strcmp(golden->numerics, fd_numerics_name(FD_NUMERICS_Q8ACT)) != 0)
        return fd_fail(err, FD_ERR_INCOMPLETE, "golden: numerics \"%s\", expected \"exact\" or \"q8act\"",
                       golden->numerics);
    if (golden->contract != FD_CONTRACT_VERSION)
        return fd_fail(err, FD_ERR_INCOMPLETE, "golden: numerics contract %d, this build follows %d: record it again",
                       golden->contract, FD_CONTRACT_VERSION);
    if (golden->n_vocab != graph->hparams.n_vocab)
        return fd_fail(err, FD_ERR_INPUT, "golden: vocabulary of %d, expected %d", golden->n_vocab,
                       graph->hparams.n_vocab);
    if (golden->n_node != graph->n_node)
        return fd_fail(err, FD_ERR_INCOMPLETE, "golden: %d nodes, this build's graph has %d: record it again",
                       golden->n_node, graph->n_node);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (strcmp(golden->nodes[i], graph->nodes[i].name) != 0)
            return fd_fail(err, FD_ERR_INCOMPLETE, "golden: node %d is %s, in this build's graph %s: record it again",
                           i, golden->nodes[i], graph->nodes[i].name);
    if (golden->n_prompt < 1) return fd_fail(err, FD_ERR_INCOMPLETE, "golden: no prompts in it");
    return FD_OK;
}

typedef struct checker {
    const fd_golden_prompt *golden;
    int32_t n_node;
    fd_golden_result *result;
    int32_t n_shown; /* nodes in this step */
} checker;

static fd_code check_tensor(void *user, const fd_observation *o, fd_error *err) {
    checker *c = user;
    (void)err;
    c->n_shown++;
    if (c->result->kind != FD_GOLDEN_SAME) return FD_OK; /* the step is run to its end for its logits */
    for (int32_t row = 0; row < o->n_pos; row++) {
        int32_t pos = o->pos0 + row;
        fd_fingerprint now = fd_observation_fingerprint(o, row);
        const fd_fingerprint *then = &c->golden->fingerprints[(int64_t)pos * c->n_node + o->node->id];
        if (now.lo == then->lo && now.hi == then->hi) continue;
        c->result->kind = FD_GOLDEN_TENSOR;
        c->result->step = o->step;
        c->result->pos = pos;
        snprintf(c->result->node, sizeof c->result->node, "%s", o->node->name);
        return FD_OK;
    }
    c->result->n_same++;
    return FD_OK;
}

static void check_logits(const fd_golden_prompt *p, const float *now, int32_t n_vocab, int32_t pos0, int32_t n,
                         int32_t step, fd_golden_result *out) {
    const float *then = p->logits + (int64_t)pos0 * n_vocab;
    for (int64_t i = 0; i < (int64_t)n * n_vocab; i++) {
        if (fd_canonical32(now[i]) == fd_canonical32(then[i])) continue;
        if (out->n_logit_differ++) continue;
        out->logits_differ = true;
        out->logit_pos = pos0 + (int32_t)(i / n_vocab);
        out->logit_id = (int32_t)(i % n_vocab);
        out->logit_golden = then[i];
        out->logit_now = now[i];
    }
    if (out->logits_differ && out->kind == FD_GOLDEN_SAME) {
        out->kind = FD_GOLDEN_LOGITS;
        out->step = step;
        out->pos = out->logit_pos;
        snprintf(out->node, sizeof out->node, "logits");
    }
    int32_t next = pos0 + n;
    if (next >= p->n_token) return;
    out->choice_golden = p->tokens[next];
    out->choice_now = greedy(now + (int64_t)(n - 1) * n_vocab, n_vocab);
    out->choice_differs = out->choice_now != out->choice_golden;
    if (out->choice_differs && out->kind == FD_GOLDEN_SAME) {
        out->kind = FD_GOLDEN_CHOICE;
        out->step = step;
        out->pos = next;
    }
}

static fd_code run_and_check(fd_exec *exec, checker *c, float *logits, fd_error *err) {
    const fd_golden_prompt *p = c->golden;
    fd_golden_result *out = c->result;
    int32_t n_vocab = exec->graph->hparams.n_vocab, step = 0;
    for (int32_t pos = 0; pos < p->n_pos; step++) {
        int32_t n = pos == 0 ? p->n_prompt : 1;
        fd_batch batch = {.tokens = p->tokens + pos, .n_tok = n, .pos0 = pos, .all_logits = true, .logits = logits};
        c->n_shown = 0;
        FD_TRY(fd_exec_forward(exec, &batch, err));
        FD_TRY(all_shown(c->n_shown, exec->graph, pos, err));
        check_logits(p, logits, n_vocab, pos, n, step, out);
        if (out->kind != FD_GOLDEN_SAME) return FD_OK;
        pos += n;
    }
    return FD_OK;
}

fd_code fd_golden_check(fd_exec *exec, const fd_golden *golden, int32_t prompt, fd_golden_result *out, fd_error *err) {
    const fd_golden_prompt *p = &golden->prompts[prompt];
    memset(out, 0, sizeof *out);
    float *logits = malloc(sizeof *logits * (size_t)p->n_prompt * (size_t)golden->n_vocab);
    if (!logits) return fd_fail(err, FD_ERR_MEMORY, "logits of %d positions: out of memory", p->n_prompt);
    checker c = {p, golden->n_node, out, 0};
    fd_exec_reset(exec);
    fd_exec_set_observer(exec, (fd_observer){.observe = check_tensor, .wants = fd_want_fingerprints, .user = &c});
    fd_code code = run_and_check(exec, &c, logits, err);
    fd_exec_set_observer(exec, (fd_observer){0});
    free(logits);
    return code;
}
