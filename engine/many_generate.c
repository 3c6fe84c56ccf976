/* Generation on several GPUs: every rank samples for itself, from the same logits, and all of them go on for as long
 * as the caller wants. */
#include <stdlib.h>
#include <string.h>

#include "engine/many.h"

typedef struct generation {
    const fd_generation *run;
    int32_t n_done; /* of the first rank */
    /* Under ranks.lock: tokens that the caller has seen, and whether it wants no more. */
    int32_t n_seen;
    bool stopped;
} generation;

typedef struct listener {
    fd_many *m;
    generation *all;
    int32_t n_heard;
} listener;

/* The caller's word on a token, for the others. */
static fd_code tell(void *user, int32_t token, fd_error *err) {
    listener *l = user;
    const fd_generation *run = l->all->run;
    fd_code code = run->on_token ? run->on_token(run->user, token, err) : FD_OK;
    if (code != FD_OK && code != FD_STOP) return code;
    pthread_mutex_lock(&l->m->ranks.lock);
    l->all->n_seen++;
    l->all->stopped = code == FD_STOP;
    pthread_cond_broadcast(&l->m->ranks.changed);
    pthread_mutex_unlock(&l->m->ranks.lock);
    return code;
}

static fd_code listen(void *user, int32_t token, fd_error *err) {
    (void)token;
    listener *l = user;
    fd_ranks *ranks = &l->m->ranks;
    pthread_mutex_lock(&ranks->lock);
    l->n_heard++;
    while (l->all->n_seen < l->n_heard && !ranks->failed) pthread_cond_wait(&ranks->changed, &ranks->lock);
    bool last = l->all->stopped && l->all->n_seen == l->n_heard;
    fd_code code = last ? FD_STOP : FD_OK;
    if (l->all->n_seen < l->n_heard) {
        *err = ranks->why;
        code = err->code;
    }
    pthread_mutex_unlock(&ranks->lock);
    return code;
}

/* A rank's own tokens and sampler, which go the caller's way. */
static fd_code generate_apart(fd_engine *e, const fd_generation *run, listener *l, fd_error *err) {
    size_t n = (size_t)run->n_token + (size_t)run->n_new;
    int32_t n_done;
    fd_generation own = *run;
    FD_TRY(fd_sampler_new(fd_sampler_options_of(run->sampler), e->exec.graph->hparams.n_vocab, &own.sampler, err));
    fd_sampler_skip(own.sampler, fd_sampler_draws(run->sampler));
    own.on_token = listen;
    own.user = l;
    own.tokens = malloc(n * sizeof *own.tokens);
    fd_code code = FD_OK;
    if (own.tokens)
        memcpy(own.tokens, run->tokens, (size_t)run->n_token * sizeof *own.tokens);
    else
        code = fd_fail(err, FD_ERR_MEMORY, "generation: out of memory for %zu tokens", n);
    if (code == FD_OK) code = fd_engine_generate(&e->exec, &own, &n_done, err);
    free(own.tokens);
    fd_sampler_free(own.sampler);
    return code;
}

static fd_code generate_rank(fd_many *m, int32_t rank, void *call, fd_error *err) {
    generation *all = call;
    fd_engine *e = m->engines[rank];
    listener l = {.m = m, .all = all};
    FD_TRY(fd_many_follow(m, rank, err));
    e->exec.observer = (fd_observer){0};
    if (rank > 0) return generate_apart(e, all->run, &l, err);
    fd_generation own = *all->run;
    own.on_token = tell;
    own.user = &l;
    e->exec.progress = m->exec.progress;
    e->exec.progress_user = m->exec.progress_user;
    return fd_engine_generate(&e->exec, &own, &all->n_done, err);
}

fd_code fd_many_generate(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err) {
    fd_many *m = (fd_many *)exec;
    bool possible = !m->engines[0]->has_override && !exec->observer.observe;
    for (int32_t r = 0; r < m->n; r++) possible = possible && m->engines[r]->sampling.possible;
    if (!possible) return fd_exec_generate_on_host(exec, run, n_done, err);
    generation all = {.run = run};
    fd_code code = fd_many_call(m, generate_rank, &all, err);
    *n_done = all.n_done;
    exec->n_past = m->engines[0]->exec.n_past;
    exec->step = m->engines[0]->exec.step;
    return code;
}
