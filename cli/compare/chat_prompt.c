#include "cli/compare/chat_prompt.h"

#include <stdlib.h>
#include <string.h>

#include "cli/chat.h"

static int32_t prompt_length(const fd_trace *trace) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    int32_t n = 0;
    for (int32_t i = 0; i < fd_trace_n_step(trace) && steps[i].kind == FD_STEP_PREFILL; i++) n += steps[i].n_pos;
    return n > 0 ? n : fd_trace_n_pos(trace);
}

static void say_token(const fd_cli_model *model, const char *who, int32_t token) {
    char text[64];
    int32_t n = token < 0 ? -1 : fd_token_bytes(model->tokenizer, token, true, text, sizeof text - 1);
    if (token < 0) {
        fprintf(stderr, "%s ends there", who);
        return;
    }
    text[n < 0 ? 0 : n < (int32_t)sizeof text ? n : (int32_t)sizeof text - 1] = '\0';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127) *c = '?'; /* a terminal obeys them */
    fprintf(stderr, "%s has token %d \"%s\"", who, token, text);
}

static void diverge(const fd_cli_model *model, const fd_trace *candidate, int32_t pos, int32_t expected, int32_t found,
                    fd_verdict *verdict) {
    fprintf(stderr, "prompt: at position %d ", pos);
    say_token(model, "the chat template", expected);
    say_token(model, ", the trace", found);
    fputc('\n', stderr);
    fd_verdict_side_of_trace(candidate, &verdict->cand);
    snprintf(verdict->ref.label, sizeof verdict->ref.label, "the model's chat template");
    verdict->ref.complete = true;
    snprintf(verdict->ref.arch, sizeof verdict->ref.arch, "%s", verdict->cand.arch);
    verdict->divergence = (fd_divergence){.kind = FD_DIVERGED_TOKENS,
                                          .node = "tokens",
                                          .layer = -1,
                                          .pos = pos,
                                          .ref_token = expected,
                                          .cand_token = found};
    fd_verdict_decide(verdict);
}

fd_code fd_cli_check_chat_prompt(const fd_cli_model *model, const char *messages, const fd_trace *candidate,
                                 fd_verdict *verdict, bool *differs, fd_error *err) {
    char *rendered, *text;
    int32_t *ids, n, pos = 0;
    bool whole;
    *differs = false;
    if (!fd_trace_tokens(candidate))
        return fd_fail(err, FD_ERR_INPUT, "%s: records no tokens, --chat compares them", fd_trace_path(candidate));
    FD_TRY(fd_cli_chat_file(model, messages, &rendered, &whole, err));
    const fd_cli_prompt prompt = {.text = rendered, .whole = whole};
    fd_code code = fd_cli_prompt_ids(&prompt, model, &ids, &n, &text, err);
    free(rendered);
    FD_TRY(code);
    const int32_t *found = fd_trace_tokens(candidate), n_found = prompt_length(candidate);
    while (pos < n && pos < n_found && ids[pos] == found[pos]) pos++;
    *differs = pos < n || pos < n_found;
    if (*differs) diverge(model, candidate, pos, pos < n ? ids[pos] : -1, pos < n_found ? found[pos] : -1, verdict);
    free(ids);
    free(text);
    return FD_OK;
}
