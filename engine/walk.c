/* The walk over a plan: each item by its kernel's launcher. */
#include "engine/pass.h"

enum { DRAIN_EVERY = 100 }; /* items */

static const struct {
    fd_launcher *launch;
    bool shows; /* the launcher shows an observer what its item leaves; else the walk does */
} launchers[FD_KERNEL_COUNT] = {
    [FD_KERNEL_OP] = {fd_run_op, false},
    [FD_KERNEL_MATVEC] = {fd_run_matvec, true}, /* steps are observed with all their tensors, not by the walk */
    [FD_KERNEL_ATTN_DECODE] = {fd_run_attn_decode, true},
    [FD_KERNEL_MATMULS] = {fd_run_matmuls, true}, /* prompts that are observed run a node each */
    [FD_KERNEL_ADD_NORM] = {fd_run_add_norm, true},
    [FD_KERNEL_ROPE_KV_WRITE] = {fd_run_rope_kv_write, true},
    [FD_KERNEL_GATHER_ADD] = {fd_run_gather_add, true},
    [FD_KERNEL_ATTN_DECODE_F16] = {fd_run_attn_decode_f16, true},
    [FD_KERNEL_ATTN_ROW_F16] = {fd_run_attention_f16, true},
    [FD_KERNEL_ATTENTION_F16] = {fd_run_attention_f16, true},
    [FD_KERNEL_GEMM_F16] = {fd_run_gemm_f16, false},
    [FD_KERNEL_GEMM_ADD_F16] = {fd_run_gemm_add_f16, false},
};

/* Whether one launch can take all members: not where some are computed for other rows than the rest. */
static bool runs_together(const fd_pass *pass, const fd_item *item) {
    if (item->n_member == 1) return true;
    for (int i = 0; i < item->n_member && pass->tail != FD_ROWS_ALL; i++)
        if (!pass->plan->all_rows[item->members[i]]) return false;
    return true;
}

static fd_code run_apart(fd_pass *pass, const fd_item *item, fd_error *err) {
    for (int i = 0; i < item->n_member; i++)
        if (fd_pass_rows(pass, item->members[i]) != FD_ROWS_NONE)
            FD_TRY(fd_run_node(pass, item->members[i], item->int8, err));
    return FD_OK;
}

static fd_code run_item(fd_pass *pass, const fd_item *item, fd_error *err) {
    if (!runs_together(pass, item)) return run_apart(pass, item, err);
    const fd_node *node = fd_pass_node(pass, item->node);
    if (item->n_member == 1 && fd_pass_rows(pass, item->node) == FD_ROWS_NONE) return FD_OK;
    if (node->op == FD_OP_GATHER && node->input[0] < 0 && !pass->observe) return FD_OK;
    fd_ranks *ranks = node->override ? NULL : pass->engine->ranks; /* a fault waits for its rank's stream */
    fd_ranks_begin_launch(ranks);
    fd_code code = launchers[item->kernel].launch(pass, item, err);
    fd_ranks_end_launch(ranks);
    if (code == FD_STOP) return code; /* an observer's */
    if (code != FD_OK) return fd_error_prefix(err, "node %s", node->name);
    return pass->observe && !launchers[item->kernel].shows ? fd_observe_node(pass, item->node, err) : FD_OK;
}

fd_code fd_pass_run(fd_pass *pass, fd_error *err) {
    const fd_engine_state *state = &pass->engine->state;
    bool overlap = pass->ctx.overlap;
    FD_TRY(fd_ranks_begin_pass(pass, err));
    if (pass->uploads)
        FD_TRY(fd_cuda_check(cudaMemcpyAsync(state->inputs, state->inputs_host.data,
                                             sizeof(int32_t) * (FD_INPUT_TOKENS + 1), cudaMemcpyHostToDevice,
                                             pass->ctx.stream),
                             "token upload", err));
    for (int32_t i = 0; i < pass->plan->n_item; i++) {
        /* The first kernel follows a copy, not a kernel: it waits for it in the ordinary way. */
        pass->ctx.overlap = overlap && i > 0;
        FD_TRY(run_item(pass, &pass->plan->items[i], err));
        if (i % DRAIN_EVERY == DRAIN_EVERY - 1) FD_TRY(fd_ranks_drain(pass, err));
    }
    pass->ctx.overlap = overlap;
    if (pass->samples) FD_TRY(fd_engine_sample(pass->engine, &pass->ctx, pass->positions != NULL, pass->n_tok, err));
    if (pass->observe) FD_TRY(fd_observe_flush(pass->engine, err));
    return fd_ranks_end_pass(pass, err);
}
