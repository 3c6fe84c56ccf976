/* The runs of firstdiff sweep: fingerprints of the baseline, and a run that is compared with them while it runs. */
#include "cli/sweep/sweep.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool same(fd_fingerprint a, fd_fingerprint b) {
    return a.lo == b.lo && a.hi == b.hi;
}

typedef struct watcher {
    fd_sweep_baseline *recorded;     /* the baseline's own run, else NULL */
    const fd_sweep_baseline *expect; /* every other run's, else NULL */
    bool *seen;                      /* [n_pos, n_node] */
    fd_sweep_result *result;
} watcher;

static fd_code watch(void *user, const fd_observation *o, fd_error *err) {
    watcher *w = user;
    const fd_sweep_baseline *b = w->recorded ? w->recorded : w->expect;
    assert(o->node->id < b->n_node && o->pos0 + o->n_pos <= b->n_pos);
    (void)err;
    for (int32_t row = 0; row < o->n_pos; row++) {
        int64_t at = (int64_t)(o->pos0 + row) * b->n_node + o->node->id;
        fd_fingerprint now_seen = fd_observation_fingerprint(o, row);
        w->seen[at] = true;
        if (w->recorded) {
            w->recorded->fingerprints[at] = now_seen;
        } else if (!same(now_seen, w->expect->fingerprints[at])) {
            w->result->diverged = true;
            w->result->step = o->step;
            w->result->pos = o->pos0 + row;
            memcpy(w->result->node, o->node->name, sizeof w->result->node);
            return FD_STOP; /* what comes after it is no news */
        }
        w->result->n_compared++;
    }
    return FD_OK;
}

static fd_code all_seen(const watcher *w, const fd_sweep_baseline *b, const fd_graph *graph, fd_error *err) {
    for (int64_t i = 0; i < (int64_t)b->n_pos * b->n_node; i++)
        if (!w->seen[i])
            return fd_fail(err, FD_ERR_INCOMPLETE, "the executor did not show %s at position %lld",
                           graph->nodes[i % b->n_node].name, (long long)(i / b->n_node));
    return FD_OK;
}

fd_code fd_sweep_record(fd_exec *exec, const int32_t *tokens, int32_t n_pos, fd_sweep_baseline *out, fd_error *err) {
    int32_t n_node = exec->graph->n_node, n_vocab = exec->graph->hparams.n_vocab;
    *out = (fd_sweep_baseline){.tokens = tokens, .n_pos = n_pos, .n_node = n_node, .n_vocab = n_vocab};
    out->fingerprints = calloc((size_t)n_pos * (size_t)n_node, sizeof *out->fingerprints);
    out->logits = calloc((size_t)n_pos * (size_t)n_vocab, sizeof *out->logits);
    bool *seen = calloc((size_t)n_pos * (size_t)n_node, sizeof *seen);
    fd_code code = FD_OK;
    if (!out->fingerprints || !out->logits || !seen)
        code = fd_fail(err, FD_ERR_MEMORY, "baseline of %d positions: out of memory", n_pos);
    if (code == FD_OK) {
        fd_sweep_result unused = {0};
        watcher w = {.recorded = out, .seen = seen, .result = &unused};
        fd_batch batch = {.tokens = tokens, .n_tok = n_pos, .all_logits = true, .logits = out->logits};
        fd_exec_reset(exec);
        fd_exec_set_observer(exec, (fd_observer){.observe = watch, .wants = fd_want_fingerprints, .user = &w});
        code = fd_exec_forward(exec, &batch, err);
        fd_exec_set_observer(exec, (fd_observer){0});
        if (code == FD_OK) code = all_seen(&w, out, exec->graph, err);
    }
    free(seen);
    return code;
}

void fd_sweep_baseline_free(fd_sweep_baseline *baseline) {
    free(baseline->fingerprints);
    free(baseline->logits);
    *baseline = (fd_sweep_baseline){0};
}

/* Rows of logits that end at position `end`, against the baseline's. */
static void compare_logits(const fd_sweep_baseline *b, const float *logits, int32_t n_row, int32_t end, int32_t step,
                           fd_sweep_result *out) {
    for (int32_t row = 0; row < n_row; row++) {
        int32_t pos = end - n_row + row;
        const float *mine = logits + (int64_t)row * b->n_vocab, *expected = b->logits + (int64_t)pos * b->n_vocab;
        for (int32_t i = 0; i < b->n_vocab; i++) {
            if (fd_canonical32(mine[i]) == fd_canonical32(expected[i])) continue;
            out->diverged = true;
            out->step = step;
            out->pos = pos;
            snprintf(out->node, sizeof out->node, "logits");
            return;
        }
        out->n_compared++;
    }
}

static fd_code run_split(fd_exec *exec, const fd_sweep_baseline *b, const fd_sweep_split *split, float *logits,
                         fd_sweep_result *out, fd_error *err) {
    for (int32_t pos = 0, step = 0; pos < b->n_pos && !out->diverged; step++) {
        int32_t n = pos == 0 ? split->first : split->batch;
        if (n > b->n_pos - pos) n = b->n_pos - pos;
        fd_batch batch = {.tokens = b->tokens + pos,
                          .n_tok = n,
                          .pos0 = pos,
                          .all_logits = split->all_logits,
                          .logits = split->unobserved ? logits : NULL};
        FD_TRY(fd_exec_forward(exec, &batch, err));
        pos += n;
        if (split->unobserved) compare_logits(b, logits, split->all_logits ? n : 1, pos, step, out);
    }
    return FD_OK;
}

fd_code fd_sweep_run(fd_exec *exec, const fd_sweep_baseline *b, const fd_sweep_split *split, fd_sweep_result *out,
                     fd_error *err) {
    assert(split->first >= 1 && split->batch >= 1 && exec->graph->n_node == b->n_node);
    *out = (fd_sweep_result){0};
    bool *seen = calloc((size_t)b->n_pos * (size_t)b->n_node, sizeof *seen);
    float *logits = malloc(sizeof *logits * (size_t)b->n_pos * (size_t)b->n_vocab);
    fd_code code = seen && logits ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%d positions: out of memory", b->n_pos);
    if (code == FD_OK) {
        watcher w = {.expect = b, .seen = seen, .result = out};
        double start = fd_cli_seconds();
        fd_exec_reset(exec);
        fd_observer observer = {.observe = watch, .wants = fd_want_fingerprints, .user = &w};
        if (!split->unobserved) fd_exec_set_observer(exec, observer);
        code = run_split(exec, b, split, logits, out, err);
        fd_exec_set_observer(exec, (fd_observer){0});
        out->seconds = fd_cli_seconds() - start;
        if (code == FD_STOP && out->diverged) code = FD_OK;
        if (code == FD_OK && !split->unobserved && !out->diverged) code = all_seen(&w, b, exec->graph, err);
    }
    free(logits);
    free(seen);
    return code;
}
