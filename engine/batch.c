/* A token of each of several sequences in one step: rows of the same products, each with its own position and cache. */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

/* A step's rows as the host writes them down: tokens, positions, sequences. */
static void write_rows(fd_engine *e, int32_t row, int32_t token, int32_t position, int32_t sequence) {
    int32_t *rows = (int32_t *)e->state.batch_inputs_host.data + FD_INPUT_TOKENS, n_seq = e->exec.n_seq;
    rows[row] = token;
    rows[n_seq + row] = position;
    rows[2 * n_seq + row] = sequence;
}

static fd_code upload_rows(fd_engine *e, fd_error *err) {
    return fd_cuda_check(cudaMemcpyAsync(e->state.batch_inputs, e->state.batch_inputs_host.data,
                                         e->state.batch_inputs_host.size, cudaMemcpyHostToDevice, e->device.ctx.stream),
                         "token upload", err);
}

/* ---- a step whose logits go to the host ---- */

fd_code fd_engine_decode(fd_exec *exec, const fd_decode *d, fd_error *err) {
    fd_engine *e = (fd_engine *)exec;
    int32_t last = 0;
    FD_TRY(fd_cuda_check(cudaSetDevice(e->device.id), "device", err));
    for (int32_t i = 0; i < d->n; i++) {
        int32_t position = fd_exec_past(exec, d->sequences[i]);
        write_rows(e, i, d->tokens[i], position, d->sequences[i]);
        if (position > last) last = position;
    }
    FD_TRY(upload_rows(e, err));
    fd_code code = fd_engine_step_many(e, d->n, false, last, err);
    if (code == FD_OK && d->logits) code = fd_copy_logits(e, e->logits, d->n, d->n, d->logits, err);
    fd_error ignored;
    fd_code through = fd_engine_wait(e, NULL, "decode step", code == FD_OK ? err : &ignored);
    return code == FD_OK ? through : code; /* nothing of a failed call is still under way */
}

/* ---- generation ---- */

typedef struct many {
    fd_engine *engine;
    const fd_generation *runs;
    int32_t *n_done;
    int32_t *active; /* [n_active] sequences that go on */
    int32_t n_active;
} many;

static int32_t next_position(const many *m, int32_t sequence) {
    return m->runs[sequence].n_token + m->n_done[sequence] - 1;
}

/* The rows for the next steps. Returns how many steps all of them have left. */
static int32_t write_active(many *m, int32_t *last) {
    int32_t steps = INT32_MAX;
    *last = 0;
    for (int32_t k = 0; k < m->n_active; k++) {
        int32_t i = m->active[k], position = next_position(m, i), left = m->runs[i].n_new - m->n_done[i];
        write_rows(m->engine, k, m->runs[i].tokens[position], position, i);
        if (position > *last) *last = position;
        if (left < steps) steps = left;
    }
    return steps;
}

/* The samples of one step. *stopped: someone wants no more; what is still on its way for them is left lying. */
static fd_code take_step(many *m, bool *stopped, fd_error *err) {
    for (int32_t k = 0; k < m->n_active; k++) {
        int32_t i = m->active[k];
        if (i < 0) continue;
        FD_TRY(fd_exec_select(&m->engine->exec, i, err));
        m->engine->exec.n_past++;
        fd_code code = fd_engine_take_sample(m->engine, &m->runs[i], i, &m->n_done[i], err);
        if (code == FD_STOP)
            m->active[k] = -1;
        else if (code != FD_OK)
            return fd_error_prefix(err, "sequence %d", i);
        *stopped = *stopped || code == FD_STOP;
    }
    m->engine->exec.step++;
    return FD_OK;
}

/* Steps of the active sequences until one of them is through. */
static fd_code run_together(many *m, fd_error *err) {
    fd_engine *e = m->engine;
    int32_t last, steps = write_active(m, &last), launched = 0, taken = 0;
    bool stopped = false;
    FD_TRY(upload_rows(e, err));
    while (taken < steps && !(stopped && taken == launched)) {
        for (; launched < steps && !stopped && launched - taken < FD_SAMPLED_AHEAD - 1; launched++) {
            FD_TRY(fd_engine_step_many(e, m->n_active, true, last + launched, err));
            FD_TRY(fd_engine_mark_sample(e, launched, err));
        }
        FD_TRY(fd_engine_await_sample(e, taken, err));
        FD_TRY(take_step(m, &stopped, err));
        taken++;
    }
    int32_t n = 0;
    for (int32_t k = 0; k < m->n_active; k++) {
        int32_t i = m->active[k];
        if (i >= 0 && m->n_done[i] < m->runs[i].n_new) m->active[n++] = i;
    }
    m->n_active = n;
    return FD_OK;
}

static fd_code begin(many *m, int32_t sequence, fd_error *err) {
    const fd_generation *run = &m->runs[sequence];
    FD_TRY(fd_exec_select(&m->engine->exec, sequence, err));
    FD_TRY(fd_engine_begin_generation(m->engine, run, err));
    FD_TRY(fd_engine_wait(m->engine, NULL, "prompt", err));
    fd_code code = fd_engine_take_sample(m->engine, run, sequence, &m->n_done[sequence], err);
    if (code == FD_STOP) return FD_OK;
    if (code != FD_OK) return fd_error_prefix(err, "sequence %d", sequence);
    if (m->n_done[sequence] < run->n_new) m->active[m->n_active++] = sequence;
    return FD_OK;
}

fd_code fd_engine_generate_many(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done,
                                fd_error *err) {
    fd_engine *e = (fd_engine *)exec;
    if (!e->sampling.possible || e->has_override || exec->observer.observe)
        return fd_exec_generate_many_on_host(exec, runs, n_run, n_done, err);
    FD_TRY(fd_cuda_check(cudaSetDevice(e->device.id), "device", err));
    many m = {.engine = e, .runs = runs, .n_done = n_done, .active = malloc(sizeof(int32_t) * (size_t)n_run)};
    if (!m.active) return fd_fail(err, FD_ERR_MEMORY, "%d sequences: out of memory", n_run);
    fd_code code = FD_OK;
    for (int32_t i = 0; i < n_run && code == FD_OK; i++) code = begin(&m, i, err);
    while (m.n_active > 0 && code == FD_OK) code = run_together(&m, err);
    fd_error ignored;
    fd_code through = fd_engine_wait(e, NULL, "decode step", code == FD_OK ? err : &ignored);
    free(m.active);
    return code == FD_OK ? through : code;
}
