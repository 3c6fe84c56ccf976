/* Sampling on the device: one launch, and its results on their way to the host. */
#include "engine/internal.h"

fd_code fd_engine_sample(const fd_engine *e, const fd_launch_context *ctx, bool batch, int32_t n_row, fd_error *err) {
    int32_t *inputs = batch ? e->state.batch_inputs : e->state.inputs, n_seq = e->exec.n_seq;
    fd_sampling in = {.n_seq = n_row,
                      .n_vocab = e->exec.graph->hparams.n_vocab,
                      .logits = e->logits,
                      .states = e->sampling.states,
                      .history = e->sampling.history,
                      .history_stride = e->exec.n_ctx + 1,
                      .tokens = inputs + FD_INPUT_TOKENS,
                      .results = e->sampling.results.data,
                      .n_result = FD_SAMPLED_AHEAD,
                      .result_stride = n_seq};
    if (batch) {
        in.positions[0] = inputs + FD_INPUT_TOKENS + n_seq;
        in.sequences = inputs + FD_INPUT_TOKENS + 2 * n_seq;
    } else {
        in.positions[0] = inputs + FD_INPUT_FIRST;
        in.positions[1] = inputs + FD_INPUT_LAST;
        in.sequences = inputs + FD_INPUT_SEQUENCE;
    }
    return fd_launch_sample(ctx, &in, err);
}

fd_code fd_engine_mark_sample(fd_engine *e, int32_t launched, fd_error *err) {
    return fd_cuda_check(cudaEventRecord(e->sampling.done[launched % FD_SAMPLED_AHEAD], e->device.ctx.stream), "event",
                         err);
}

fd_code fd_engine_await_sample(fd_engine *e, int32_t sample, fd_error *err) {
    return fd_engine_wait(e, e->sampling.done[sample % FD_SAMPLED_AHEAD], "decode step", err);
}

void fd_sampling_release(fd_engine *engine) {
    for (int i = 0; i < FD_SAMPLED_AHEAD; i++)
        if (engine->sampling.done[i]) (void)cudaEventDestroy(engine->sampling.done[i]);
    fd_pinned_free(&engine->sampling.results);
}

fd_code fd_engine_take_sample(fd_engine *e, const fd_generation *run, int32_t sequence, int32_t *n_done,
                              fd_error *err) {
    int32_t at = *n_done % FD_SAMPLED_AHEAD * e->exec.n_seq + sequence;
    fd_sample_result result = ((const fd_sample_result *)e->sampling.results.data)[at];
    if (result.token < 0) return fd_sampler_refuse(run->sampler, (fd_bad_logit)result.bad, result.id, err);
    if (fd_sampler_options_of(run->sampler)->temperature != 0.0f) fd_sampler_skip(run->sampler, 1);
    run->tokens[run->n_token + (*n_done)++] = result.token;
    return run->on_token ? run->on_token(run->user, result.token, err) : FD_OK;
}
