#include "compare/attribute/argmax_flip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/diff/token_split.h"

enum { REF, CAND };

fd_code fd_flips_open(const fd_graph *graph, int32_t n_pos, fd_flips *out, fd_error *err) {
    *out = (fd_flips){.logits = fd_graph_find(graph, "logits"), .n_pos = n_pos};
    out->at = calloc((size_t)n_pos + 1, sizeof *out->at);
    return out->at ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "argmax flips at %d positions: out of memory", n_pos);
}

void fd_flips_close(fd_flips *flips) {
    free(flips->at);
    *flips = (fd_flips){0};
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

void fd_flips_add(fd_flips *flips, const fd_attribution_row *row) {
    if (row->node->id != flips->logits || row->pos >= flips->n_pos || !row->reference) return;
    fd_position_argmax *at = &flips->at[row->pos];
    const double *own = row->candidate, *other = row->reference;
    const double *rows[2] = {flips->side == CAND ? other : own, flips->side == CAND ? own : other};
    int32_t best[2] = {best_of(rows[REF], row->stride), best_of(rows[CAND], row->stride)};
    if (best[REF] < 0 || best[CAND] < 0) return;
    at->known = true;
    for (int s = 0; s < 2; s++) {
        at->best[s] = best[s];
        at->last[s] = last_of(rows[s], row->stride, best[s]);
        at->margin[s] = rows[s][best[s]] - rows[s][best[!s]];
    }
    at->tau[flips->side] = row->tau[best[REF]] + row->tau[best[CAND]];
}

static bool within(const fd_position_argmax *at) {
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

static void note_ties(const fd_position_argmax *at, int32_t next, const fd_trace *ref, const fd_trace *cand,
                      fd_verdict *verdict) {
    const int32_t fed[2] = {fd_trace_tokens(ref)[next], fd_trace_tokens(cand)[next]};
    for (int s = 0; s < 2; s++)
        if (at->known && fed[s] == at->last[s] && at->last[s] != at->best[s])
            fd_verdict_note(verdict, (fd_remark){FD_NOTE_HIGHEST_OF_TIE, .side = s, .n = {fed[s], at->best[s]}});
}

void fd_flips_report(const fd_flips *flips, const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict) {
    fd_verdict_flip *v = &verdict->flip;
    *v = (fd_verdict_flip){.pos = -1};
    for (int32_t p = 0; p < flips->n_pos; p++) {
        const fd_position_argmax *at = &flips->at[p];
        v->n_pos += at->known;
        if (!at->known || at->best[REF] == at->best[CAND]) continue;
        v->n_flip++;
        v->n_flip_noise += within(at);
        bool parted = p == flips->n_pos - 1 && fd_tokens_part(ref, cand) == flips->n_pos;
        if (v->pos >= 0 && !parted) continue; /* the first, or the one that the runs parted by */
        v->pos = p;
        v->ref_token = at->best[REF];
        v->cand_token = at->best[CAND];
        v->ref_margin = at->margin[REF];
        v->cand_margin = at->margin[CAND];
        v->tau = at->tau[REF] + at->tau[CAND];
    }
    int32_t next = flips->n_pos;
    v->fed = fd_tokens_part(ref, cand) == next && next > 0;
    if (!v->fed) return;
    v->fed_pos = next;
    const fd_position_argmax *at = &flips->at[next - 1];
    int32_t best[2] = {at->best[REF], at->best[CAND]};
    v->choice_known =
        at->known || (best_by_health(ref, next - 1, &best[REF]) && best_by_health(cand, next - 1, &best[CAND]));
    v->chosen = v->choice_known && fd_trace_tokens(ref)[next] == best[REF] && fd_trace_tokens(cand)[next] == best[CAND];
    note_ties(at, next, ref, cand, verdict);
}
