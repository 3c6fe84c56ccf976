#include "compare/diff/token_split.h"

#include <stdio.h>
#include <string.h>

int32_t fd_tokens_part(const fd_trace *ref, const fd_trace *cand) {
    const int32_t *a = fd_trace_tokens(ref), *b = fd_trace_tokens(cand);
    int32_t n = fd_trace_n_pos(ref) < fd_trace_n_pos(cand) ? fd_trace_n_pos(ref) : fd_trace_n_pos(cand);
    for (int32_t p = 0; a && b && p < n; p++)
        if (a[p] != b[p]) return p;
    return -1;
}

static int32_t step_of(const fd_trace *trace, int32_t pos) {
    return pos >= 0 && pos < fd_trace_n_pos(trace) ? fd_trace_step_of(trace, pos) : -1;
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
    *d = (fd_divergence){
        .kind = FD_DIVERGED_TOKENS, .layer = -1, .step = step < 0 ? fd_trace_n_step(ref) : step, .pos = p};
    snprintf(d->node, sizeof d->node, "tokens");
    d->step_kind = step < 0 ? FD_STEP_DECODE : fd_trace_steps(ref)[step].kind;
    d->ref_token = fd_trace_tokens(ref)[p];
    d->cand_token = fd_trace_tokens(cand)[p];
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
        fd_verdict_note(verdict, (fd_remark){FD_NOTE_TOKENIZERS_DIFFER, .n = {p}});
        return;
    }
    fd_verdict_reason(verdict, (fd_remark){FD_REASON_PROMPTS_DIFFER,
                                           .n = {p, fd_trace_tokens(ref)[p], fd_trace_tokens(cand)[p]}, .flag = known});
    if (verdict->divergence.kind == FD_DIVERGED_TOKENS) verdict->divergence = (fd_divergence){0};
}
