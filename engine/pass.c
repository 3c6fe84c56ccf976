#include "engine/pass.h"

#include <assert.h>

#include "engine/budget.h"

/* ---- where things are ---- */

const fd_node *fd_pass_node(const fd_pass *pass, int32_t node) {
    return &pass->plan->graph->nodes[node];
}

fd_rows fd_pass_rows(const fd_pass *pass, int32_t node) {
    return pass->plan->all_rows[node] ? FD_ROWS_ALL : pass->tail;
}

int64_t fd_pass_row_bytes(const fd_pass *pass, const fd_node *node) {
    return fd_node_row_stride(node, pass->n_kv) * (int64_t)sizeof(float);
}

float *fd_pass_tensor(const fd_pass *pass, int32_t id) {
    const fd_engine *e = pass->engine;
    const fd_node *node = fd_pass_node(pass, id);
    if (node->op == FD_OP_KV_WRITE) {
        size_t bytes = fd_cache_bytes(node, e->exec.n_ctx, e->fast) * (size_t)e->exec.sequence;
        return (float *)(void *)((char *)e->state.cache[id] + bytes);
    }
    if (pass->tensors) return pass->tensors[id];
    int32_t slot = pass->plan->slot_of[FD_REAL][id];
    return slot < 0 ? NULL : pass->slots->of[FD_REAL][slot].data;
}

uint16_t *fd_pass_half(const fd_pass *pass, int32_t node) {
    int32_t slot = pass->plan->slot_of[FD_HALF][node];
    return slot < 0 ? NULL : pass->slots->of[FD_HALF][slot].data;
}

const float *fd_pass_input(const fd_pass *pass, int32_t node, int32_t input) {
    const fd_node *from = fd_pass_node(pass, input);
    const float *rows = fd_pass_tensor(pass, input);
    bool last_of_all = fd_pass_rows(pass, node) == FD_ROWS_LAST && fd_pass_rows(pass, input) == FD_ROWS_ALL;
    if (from->op == FD_OP_KV_WRITE || !last_of_all) return rows;
    return rows + (pass->n_tok - 1) * fd_node_row_stride(from, pass->n_kv);
}

float *fd_pass_inner(const fd_pass *pass, int32_t node) {
    return pass->tensors ? fd_pass_tensor(pass, node) : NULL;
}

const fd_device_matrix *fd_pass_matrix(const fd_pass *pass, const fd_node *node) {
    const fd_device_matrix *matrix = &pass->engine->weights.matrix[node->weight[0]];
    assert(matrix->data);
    return matrix;
}

const float *fd_pass_vector(const fd_pass *pass, int32_t weight) {
    return weight < 0 ? NULL : pass->engine->weights.vector[weight];
}

fd_rope_shape fd_pass_rope(const fd_pass *pass, int32_t id) {
    if (id < 0) return (fd_rope_shape){.n_rot = 0};
    const fd_node *node = fd_pass_node(pass, id);
    const fd_rope_tables *tables = &pass->engine->state.ropes[pass->engine->state.rope_of[id]];
    return (fd_rope_shape){.n_head = node->shape[0],
                           .head_dim = node->shape[1],
                           .n_rot = node->rope.n_rot,
                           .interleaved = node->rope.pairing == FD_ROPE_INTERLEAVED,
                           .cosine = tables->cosine,
                           .sine = tables->sine};
}

/* ---- the walk ---- */

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
    [FD_KERNEL_ATTN_DECODE_F16] = {fd_run_attn_decode_f16, true},
    [FD_KERNEL_ATTN_ROW_F16] = {fd_run_attention_f16, true},
    [FD_KERNEL_ATTENTION_F16] = {fd_run_attention_f16, true},
    [FD_KERNEL_ROPE_KV_WRITE_F16] = {fd_run_rope_kv_write_f16, true},
    [FD_KERNEL_KV_WRITE_F16] = {fd_run_kv_write_f16, true},
    [FD_KERNEL_GEMM_F16] = {fd_run_gemm_f16, false},
    [FD_KERNEL_GEMM_ADD_F16] = {fd_run_gemm_add_f16, false},
    [FD_KERNEL_NORM_F16] = {fd_run_norm_f16, true},
    [FD_KERNEL_GATE_F16] = {fd_run_gate_f16, true},
};

/* Whether one launch can take all members: of products of int8 blocks each is launched by itself, and so is every node
 * where some are computed for other rows than the rest. */
static bool runs_together(const fd_pass *pass, const fd_item *item) {
    if (item->n_member == 1) return true;
    if (item->int8 && item->kernel == FD_KERNEL_MATMULS) return false;
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
    if (item->n_member == 1 && fd_pass_rows(pass, item->node) == FD_ROWS_NONE) return FD_OK;
    fd_code code = launchers[item->kernel].launch(pass, item, err);
    if (code == FD_STOP) return code; /* an observer's */
    if (code != FD_OK) return fd_error_prefix(err, "node %s", fd_pass_node(pass, item->node)->name);
    return pass->observe && !launchers[item->kernel].shows ? fd_observe_node(pass, item->node, err) : FD_OK;
}

fd_code fd_pass_run(fd_pass *pass, fd_error *err) {
    const fd_engine_state *state = &pass->engine->state;
    bool overlap = pass->ctx.overlap;
    if (pass->uploads)
        FD_TRY(fd_cuda_check(cudaMemcpyAsync(state->inputs, state->inputs_host.data,
                                             sizeof(int32_t) * (FD_INPUT_TOKENS + 1), cudaMemcpyHostToDevice,
                                             pass->ctx.stream),
                             "token upload", err));
    for (int32_t i = 0; i < pass->plan->n_item; i++) {
        /* The first kernel follows a copy, not a kernel: it waits for it in the ordinary way. */
        pass->ctx.overlap = overlap && i > 0;
        FD_TRY(run_item(pass, &pass->plan->items[i], err));
    }
    pass->ctx.overlap = overlap;
    if (pass->samples) FD_TRY(fd_engine_sample(pass->engine, &pass->ctx, pass->positions != NULL, pass->n_tok, err));
    return pass->observe ? fd_observe_flush(pass->engine, err) : FD_OK;
}
