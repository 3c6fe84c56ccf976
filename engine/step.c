/* Steps: one token, or one of each of several sequences, as one CUDA graph. Its kernels read tokens and positions from
 * device memory, and their grids do not depend on the position: one graph serves short contexts and one all others. */
#include <string.h>

#include "engine/pass.h"
#include "kernels/attention/attention.h"

static fd_pass step_pass(fd_engine *e, const fd_plan *plan, const fd_slots *slots, int32_t n_row, int32_t last) {
    fd_pass pass = {.engine = e,
                    .plan = plan,
                    .slots = slots,
                    .ctx = e->device.ctx,
                    .n_tok = n_row,
                    .n_kv = e->exec.n_ctx,
                    .inputs = e->state.inputs,
                    .halves = e->step.halves.data,
                    .tail = FD_ROWS_ALL,
                    .short_context = last < FD_ATTENTION_SHORT_CONTEXT};
    pass.ctx.overlap = e->device.overlap;
    return pass;
}

static void write_inputs(fd_engine *e, int32_t token, int32_t pos) {
    int32_t *inputs = e->state.inputs_host.data;
    inputs[FD_INPUT_FIRST] = inputs[FD_INPUT_LAST] = pos;
    inputs[FD_INPUT_SEQUENCE] = e->exec.sequence;
    inputs[FD_INPUT_TOKENS] = token;
}

fd_code fd_engine_step_one(fd_engine *e, int32_t token, int32_t pos, bool sampled, fd_error *err) {
    fd_pass pass = step_pass(e, &e->step.one, &e->step.one_slots, 1, pos);
    pass.uploads = !sampled;
    pass.samples = sampled;
    if (!sampled) write_inputs(e, token, pos);
    e->logits = fd_pass_tensor(&pass, e->exec.graph->n_node - 1);
    return fd_graph_run(&e->step.graphs[sampled][pass.short_context], &pass, err);
}

fd_code fd_engine_step_kept(fd_engine *e, float *const *tensors, fd_captured graphs[2], int32_t token, int32_t pos,
                            fd_error *err) {
    fd_pass pass = step_pass(e, &e->step.one, NULL, 1, pos);
    pass.tensors = tensors;
    pass.uploads = true;
    write_inputs(e, token, pos);
    e->logits = fd_pass_tensor(&pass, e->exec.graph->n_node - 1);
    return fd_graph_run(&graphs[pass.short_context], &pass, err);
}

fd_code fd_engine_step_many(fd_engine *e, int32_t n_row, bool sampled, int32_t last, fd_error *err) {
    bool few = n_row <= e->step.one_rows; /* they run as one does */
    fd_pass pass =
        step_pass(e, few ? &e->step.one : &e->step.many, few ? &e->step.one_slots : &e->step.many_slots, n_row, last);
    const int32_t *rows = e->state.batch_inputs + FD_INPUT_TOKENS;
    pass.inputs = e->state.batch_inputs;
    pass.positions = rows + e->exec.n_seq;
    pass.sequences = rows + 2 * e->exec.n_seq;
    pass.q8_rows = e->step.q8_rows.data;
    pass.samples = sampled;
    e->logits = fd_pass_tensor(&pass, e->exec.graph->n_node - 1);
    return fd_graph_run(&e->step.batch_graphs[4 * n_row + 2 * sampled + pass.short_context], &pass, err);
}

fd_code fd_copy_logits(fd_engine *e, const float *from, int32_t have, int32_t n_row, float *to, fd_error *err) {
    size_t row = sizeof(float) * (size_t)e->exec.graph->hparams.n_vocab;
    FD_TRY(fd_pinned_reserve(&e->logits_host, row, "logits", err));
    int32_t at_once = (int32_t)(e->logits_host.size / row);
    for (int32_t i = 0, n; i < n_row; i += n) {
        n = n_row - i < at_once ? n_row - i : at_once;
        FD_TRY(fd_cuda_check(cudaMemcpyAsync(e->logits_host.data, (const char *)from + row * (size_t)(have - n_row + i),
                                             row * (size_t)n, cudaMemcpyDeviceToHost, e->device.ctx.stream),
                             "logits", err));
        FD_TRY(fd_engine_wait(e, NULL, "logits", err));
        memcpy((char *)to + row * (size_t)i, e->logits_host.data, row * (size_t)n);
    }
    return FD_OK;
}
