#include "compare/replay/choice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REF, CAND };

fd_code fd_choices_open(const fd_graph *graph, int32_t n_pos, fd_choices *out, fd_error *err) {
    *out = (fd_choices){.logits = fd_graph_find(graph, "logits"), .n_pos = n_pos};
    out->at = calloc((size_t)n_pos + 1, sizeof *out->at);
    return out->at ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "choices at %d positions: out of memory", n_pos);
}

void fd_choices_close(fd_choices *choices) {
    free(choices->at);
    *choices = (fd_choices){0};
}

/* -1: a NaN leaves no order. */
static int32_t best_of(const double *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

/* As an argmax finds it that compares with ≥. */
static int32_t last_of(const double *logits, int64_t n, int32_t best) {
    int32_t last = best;
    for (int64_t i = best; i < n; i++)
        if (logits[i] == logits[best]) last = (int32_t)i;
    return last;
}

void fd_choices_see(void *user, const fd_node *node, int32_t pos, int64_t stride, const double *candidate,
                    const double *replayed, const double *tau, const double *reference) {
    fd_choices *choices = user;
    (void)replayed;
    if (node->id != choices->logits || pos >= choices->n_pos || !reference) return;
    fd_position_choice *at = &choices->at[pos];
    const double *rows[2] = {choices->side == CAND ? reference : candidate, choices->side == CAND ? candidate : reference};
    int32_t best[2] = {best_of(rows[REF], stride), best_of(rows[CAND], stride)};
    if (best[REF] < 0 || best[CAND] < 0) return;
    at->known = true;
    for (int s = 0; s < 2; s++) {
        at->best[s] = best[s];
        at->last[s] = last_of(rows[s], stride, best[s]);
        at->margin[s] = rows[s][best[s]] - rows[s][best[!s]];
    }
    at->tau[choices->side] = tau[best[REF]] + tau[best[CAND]];
}

static bool within(const fd_position_choice *at) {
    double tau = at->tau[REF] + at->tau[CAND];
    return at->margin[REF] <= tau && at->margin[CAND] <= tau;
}

/* A trace of ours knows its best token even where it holds no logits. */
static bool best_by_health(const fd_trace *trace, int32_t pos, int32_t *best) {
    const fd_trace_health *health = fd_trace_health_at(trace, pos);
    if (!health || health->top_id[0] < 0 || isnan(health->top_logit[0])) return false;
    *best = health->top_id[0];
    return true;
}

static void note_ties(const fd_position_choice *at, int32_t next, const fd_trace *ref, const fd_trace *cand,
                      fd_verdict *verdict) {
    const int32_t fed[2] = {fd_trace_tokens(ref)[next], fd_trace_tokens(cand)[next]};
    for (int s = 0; s < 2; s++)
        if (at->known && fed[s] == at->last[s] && at->last[s] != at->best[s])
            fd_verdict_note(verdict,
                            "the %s went on with token %d, whose logit equals that of token %d: the lowest id of a tie "
                            "is the best token",
                            s == REF ? "reference" : "candidate", fed[s], at->best[s]);
}

void fd_choices_report(const fd_choices *choices, const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict) {
    fd_verdict_choice *v = &verdict->choice;
    *v = (fd_verdict_choice){.pos = -1};
    for (int32_t p = 0; p < choices->n_pos; p++) {
        const fd_position_choice *at = &choices->at[p];
        v->n_pos += at->known;
        if (!at->known || at->best[REF] == at->best[CAND]) continue;
        v->n_flip++;
        v->n_flip_noise += within(at);
        bool parted = p == choices->n_pos - 1 && fd_tokens_part(ref, cand) == choices->n_pos;
        if (v->pos >= 0 && !parted) continue; /* the first, or the one that the runs parted by */
        v->pos = p;
        v->ref_token = at->best[REF];
        v->cand_token = at->best[CAND];
        v->ref_margin = at->margin[REF];
        v->cand_margin = at->margin[CAND];
        v->tau = at->tau[REF] + at->tau[CAND];
    }
    int32_t next = choices->n_pos;
    v->fed = fd_tokens_part(ref, cand) == next && next > 0;
    if (!v->fed) return;
    v->fed_pos = next;
    const fd_position_choice *at = &choices->at[next - 1];
    int32_t best[2] = {at->best[REF], at->best[CAND]};
    v->choice_known = at->known || (best_by_health(ref, next - 1, &best[REF]) && best_by_health(cand, next - 1, &best[CAND]));
    v->chosen =
        v->choice_known && fd_trace_tokens(ref)[next] == best[REF] && fd_trace_tokens(cand)[next] == best[CAND];
    note_ties(at, next, ref, cand, verdict);
}

/* ---- tokens ---- */

int32_t fd_tokens_part(const fd_trace *ref, const fd_trace *cand) {
    const int32_t *a = fd_trace_tokens(ref), *b = fd_trace_tokens(cand);
    int32_t n = fd_trace_n_pos(ref) < fd_trace_n_pos(cand) ? fd_trace_n_pos(ref) : fd_trace_n_pos(cand);
    for (int32_t p = 0; a && b && p < n; p++)
        if (a[p] != b[p]) return p;
    return -1;
}

static int32_t step_of(const fd_trace *trace, int32_t pos) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    for (int32_t i = 0; i < fd_trace_n_step(trace); i++)
        if (pos >= steps[i].pos0 && pos < steps[i].pos0 + steps[i].n_pos) return i;
    return -1;
}

static bool in_prompt(const fd_trace *trace, int32_t pos) {
    int32_t step = step_of(trace, pos);
    return step >= 0 && fd_trace_steps(trace)[step].kind == FD_STEP_PREFILL;
}

bool fd_tokens_part_in_prompt(const fd_trace *ref, const fd_trace *cand) {
    int32_t p = fd_tokens_part(ref, cand);
    return p >= 0 && (in_prompt(ref, p) || in_prompt(cand, p));
}

void fd_tokens_diverge(const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict) {
    int32_t p = fd_tokens_part(ref, cand), step = step_of(ref, p);
    fd_divergence *d = &verdict->divergence;
    *d = (fd_divergence){.kind = FD_DIVERGED_TOKENS, .layer = -1, .step = step < 0 ? fd_trace_n_step(ref) : step, .pos = p};
    snprintf(d->node, sizeof d->node, "tokens");
    d->step_kind = step < 0 ? FD_STEP_DECODE : fd_trace_steps(ref)[step].kind;
    d->ref_token = fd_trace_tokens(ref)[p];
    d->cand_token = fd_trace_tokens(cand)[p];
    verdict->status = FD_DIVERGED;
}

bool fd_tokens_of_one_text(const fd_trace *ref, const fd_trace *cand) {
    const char *a = fd_trace_get_info(ref)->prompt, *b = fd_trace_get_info(cand)->prompt;
    return fd_tokens_part_in_prompt(ref, cand) && a && b && strcmp(a, b) == 0;
}

void fd_tokens_of_prompts(const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict) {
    if (!fd_tokens_part_in_prompt(ref, cand)) return;
    int32_t p = fd_tokens_part(ref, cand);
    bool known = fd_trace_get_info(ref)->prompt && fd_trace_get_info(cand)->prompt;
    if (fd_tokens_of_one_text(ref, cand)) {
        fd_verdict_note(verdict, "one prompt, but other tokens from position %d on: the tokenizers differ", p);
        return;
    }
    fd_verdict_reason(verdict, "cannot tell: the prompts differ from position %d on (token %d against %d)%s", p,
                      fd_trace_tokens(ref)[p], fd_trace_tokens(cand)[p],
                      known ? "" : ", and their texts are not recorded on both sides");
    if (verdict->divergence.kind != FD_DIVERGED_TOKENS) return;
    memset(&verdict->divergence, 0, sizeof verdict->divergence);
    verdict->status = FD_INCOMPLETE;
}
