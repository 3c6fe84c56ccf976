/* Sampling on the device: each step reads the token that the one before it sampled, and the host, which is told each
 * token as it is known, is never waited for. */
#include "engine/internal.h"

static fd_code prepare(fd_engine *e, const fd_generation *run, fd_error *err) {
    const fd_sampler_options *o = fd_sampler_options_of(run->sampler);
    int32_t sequence = e->exec.sequence;
    fd_sample_state state = {.temperature = o->temperature,
                             .top_p = o->top_p,
                             .min_p = o->min_p,
                             .repeat_penalty = o->repeat_penalty,
                             .top_k = o->top_k,
                             .repeat_last = o->repeat_last,
                             .seed = o->seed,
                             .n_draw = fd_sampler_draws(run->sampler),
                             .n_history = run->n_token};
    FD_TRY(fd_pinned_reserve(&e->sampling.results, sizeof(fd_sample_result) * FD_SAMPLED_AHEAD * (size_t)e->exec.n_seq,
                             "sampled tokens", err));
    for (int i = 0; i < FD_SAMPLED_AHEAD; i++)
        if (!e->sampling.done[i])
            FD_TRY(fd_cuda_check(cudaEventCreateWithFlags(&e->sampling.done[i], cudaEventDisableTiming), "event", err));
    FD_TRY(fd_cuda_check(cudaMemcpy(e->sampling.states + sequence, &state, sizeof state, cudaMemcpyHostToDevice),
                         "sampler", err));
    return fd_cuda_check(cudaMemcpy(e->sampling.history + (int64_t)sequence * (e->exec.n_ctx + 1), run->tokens,
                                    sizeof *run->tokens * (size_t)run->n_token, cudaMemcpyHostToDevice),
                         "sampler", err);
}

fd_code fd_engine_begin_generation(fd_engine *e, const fd_generation *run, fd_error *err) {
    int32_t n_past = e->exec.n_past;
    fd_batch batch = {.tokens = run->tokens + n_past, .n_tok = run->n_token - n_past, .pos0 = n_past};
    e->keep_logits = true;
    fd_code code = fd_exec_forward(&e->exec, &batch, err);
    e->keep_logits = false;
    FD_TRY(code);
    FD_TRY(prepare(e, run, err));
    if (e->ranks) FD_TRY(fd_ranks_meet(e->ranks, err)); /* memory has been made */
    return fd_engine_sample(e, &e->device.ctx, false, 1, err);
}

/* Sample number `launched`, of the prompt's logits for 0. */
static fd_code launch(fd_engine *e, const fd_generation *run, int32_t launched, fd_error *err) {
    FD_TRY(launched == 0 ? fd_engine_begin_generation(e, run, err)
                         : fd_engine_step_one(e, 0, run->n_token + launched - 1, true, err));
    return fd_engine_mark_sample(e, launched, err);
}

/* Sample number *n_done, when it is there. */
static fd_code take(fd_engine *e, const fd_generation *run, int32_t *n_done, fd_error *err) {
    FD_TRY(fd_engine_await_sample(e, *n_done, err));
    if (*n_done > 0) { /* the step that it was sampled from */
        e->exec.n_past++;
        e->exec.step++;
    }
    return fd_engine_take_sample(e, run, e->exec.sequence, n_done, err);
}

fd_code fd_engine_generate(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err) {
    fd_engine *e = (fd_engine *)exec;
    if (!e->sampling.possible || e->has_override || exec->observer.observe)
        return fd_exec_generate_on_host(exec, run, n_done, err);
    fd_code code = fd_cuda_check(cudaSetDevice(e->device.id), "device", err);
    *n_done = 0;
    for (int32_t launched = 0; code == FD_OK && *n_done < run->n_new;) {
        /* Ahead of what the host has seen: the device never waits for it. One place of the results stays free, which the
         * host reads while the device writes others. */
        while (code == FD_OK && launched < run->n_new && launched - *n_done < FD_SAMPLED_AHEAD - 1)
            code = launch(e, run, launched++, err);
        if (code == FD_OK) code = take(e, run, n_done, err);
    }
    if (code == FD_STOP) code = FD_OK;
    fd_error ignored;
    fd_code through = fd_engine_wait(e, NULL, "decode step", code == FD_OK ? err : &ignored);
    return code == FD_OK ? through : code; /* steps launched before a stop are forgotten */
}
