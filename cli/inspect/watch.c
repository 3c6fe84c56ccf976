/* firstdiff inspect --watch: a trace while it is written, a line for each step. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cli/inspect/inspect.h"
#include "compare/measure/token_texts.h"

/* The first node, in order of execution, with NaN or +Inf at a position (-Inf is what a mask gives); -1: none, as far as is recorded. */
static int32_t first_nan(const fd_trace *trace, int32_t pos) {
    fd_trace_stats stats;
    fd_error unused;
    bool known;
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++)
        if (fd_inspect_stats(trace, i, pos, &stats, &known, &unused) == FD_OK && known &&
            stats.n_nan + stats.n_pos_inf > 0)
            return i;
    return -1;
}

static void show_token(const char *what, int32_t token, const fd_tokenizer *tokenizer) {
    fd_token_text text = {.token = token};
    if (tokenizer) fd_token_text_read(tokenizer, &text);
    printf(tokenizer ? "  %s %d '%s'" : "  %s %d", what, token, text.text);
}

static void show_step(const fd_trace *trace, int32_t step, const fd_tokenizer *tokenizer) {
    static const char *const kinds[] = {"prefill", "decode", "verify"};
    const fd_trace_step *s = &fd_trace_steps(trace)[step];
    int32_t last = s->pos0 + s->n_pos - 1;
    char where[40];
    if (s->n_pos == 1)
        snprintf(where, sizeof where, "position %d", last);
    else
        snprintf(where, sizeof where, "positions %d…%d", s->pos0, last);
    printf("step %-5d %-8s %s", step, kinds[s->kind], where);
    show_token("token", fd_trace_tokens(trace)[last], tokenizer);
    const fd_trace_health *health = fd_trace_health_at(trace, last);
    if (health && health->top_id[0] >= 0) show_token("best next", health->top_id[0], tokenizer);
    int32_t bad = -1, pos = s->pos0;
    for (; pos <= last && bad < 0; pos++) bad = first_nan(trace, pos);
    if (bad >= 0) printf("  NaN or Inf: first in %s at position %d", fd_trace_node_at(trace, bad)->name, pos - 1);
    printf("\n");
}

/* A file in the middle of a write may look damaged, and no longer does a moment later: three seconds are no moment. */
enum { MOST_FAILURES = 10 };

fd_code fd_inspect_watch(const char *path, const fd_tokenizer *tokenizer, fd_error *err) {
    int32_t shown = 0, n_failed = 0;
    bool complete = false, waits = false;
    while (!complete) {
        fd_trace *trace;
        const bool there = access(path, F_OK) == 0;
        const fd_code code = there ? fd_trace_open(path, &trace, err) : FD_OK;
        if (code != FD_OK && (code != FD_ERR_INPUT || ++n_failed == MOST_FAILURES)) return code;
        if (there && code == FD_OK) {
            n_failed = 0;
            if (fd_trace_n_step(trace) < shown) shown = 0; /* another run's */
            for (; shown < fd_trace_n_step(trace); shown++) show_step(trace, shown, tokenizer);
            complete = fd_trace_get_info(trace)->complete;
            if (complete) printf("complete: %d positions in %d steps\n", fd_trace_n_pos(trace), shown);
            fd_trace_close(trace);
        } else if (!there && !waits) {
            fprintf(stderr, "%s: not there yet\n", path);
            waits = true;
        }
        fflush(stdout);
        if (!complete) nanosleep(&(struct timespec){0, 300000000}, NULL);
    }
    return FD_OK;
}
