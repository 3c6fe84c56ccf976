/* From single nodes to kernels: pointers and sizes out of the graph. */
#include "engine/launch_op.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/embed.h"
#include "kernels/matvec/experts.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/int8/q8.h"
#include "kernels/matmul/matmul.h"
#include "kernels/elementwise/layer_norm.h"
#include "kernels/elementwise/norm.h"
#include "kernels/elementwise/position.h"
#include "kernels/elementwise/rows_f16.h"

static fd_attention attention_shape(const fd_node_job *j, int32_t n_head, int32_t n_head_kv, int32_t head_dim) {
    return (fd_attention){.n_head = n_head,
                          .n_head_kv = n_head_kv,
                          .head_dim = head_dim,
                          .n_tok = j->n_tok,
                          .n_kv = j->pass->n_kv,
                          .causal_only = j->pass->kernels_only,
                          .pos0 = j->pos0};
}

fd_code fd_launch_op_embed(const fd_node_job *j, fd_error *err) {
    const int32_t *tokens = j->pass->inputs + FD_INPUT_TOKENS + (j->pass->n_tok - j->n_tok);
    return fd_launch_embed(&j->pass->ctx, fd_pass_matrix(j->pass, j->node), tokens, j->n_tok, j->out, err);
}

static int32_t weight_rows(const fd_node_job *j, int slot) {
    int32_t weight = j->node->weight[slot];
    return weight < 0 ? 0 : (int32_t)j->pass->engine->exec.graph->weights[weight].n_row;
}

fd_code fd_launch_op_rms_norm(const fd_node_job *j, fd_error *err) {
    fd_rms_norm in = {.x = j->in[0],
                      .weight = fd_pass_vector(j->pass, j->node->weight[0]),
                      .eps = j->node->eps,
                      .n = j->node->shape[j->node->n_dim - 1],
                      .n_weight_row = weight_rows(j, 0)};
    in.n_tok = (int32_t)(j->n_tok * fd_job_row(j->node) / in.n);
    if (j->half) return fd_launch_rms_norm_f16(&j->pass->ctx, &in, (fd_f16_out){j->half, j->out}, err);
    return fd_launch_rms_norm(&j->pass->ctx, &in, j->out, err);
}

fd_code fd_launch_op_matmul(const fd_node_job *j, fd_error *err) {
    fd_matmul in = fd_matmul_of(fd_pass_matrix(j->pass, j->node), fd_pass_vector(j->pass, j->node->weight[1]), j->in[0],
                                j->n_tok, j->out);
    return fd_launch_products(j->pass, j->node->id, j->int8, &in, err);
}

fd_code fd_launch_op_rope(const fd_node_job *j, fd_error *err) {
    fd_rope_shape shape = fd_pass_rope(j->pass, j->node->id);
    return fd_launch_rope(&j->pass->ctx, &shape, j->in[0], j->n_tok, j->pos0, j->out, err);
}

fd_code fd_launch_op_kv_write(const fd_node_job *j, fd_error *err) {
    fd_kv_write in = {.x = j->in[0],
                      .n_tok = j->n_tok,
                      .width = fd_job_row(j->node),
                      .pos0 = j->pos0,
                      .row_offset = j->node->row_offset,
                      .halves = fd_cache_is_half(j->node, j->pass->engine->fast),
                      .cache = j->out,
                      .n_ctx = j->pass->engine->exec.n_ctx};
    return fd_launch_kv_write(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_attn_scores(const fd_node_job *j, fd_error *err) {
    const fd_node *q = fd_job_input(j, 0), *k = fd_job_input(j, 1);
    fd_attention shape = attention_shape(j, q->shape[0], k->shape[0], q->shape[1]);
    shape.window = j->node->chunked ? 0 : j->node->window; /* the engine takes no context beyond a chunk */
    shape.softcap = j->node->softcap;
    shape.halves = fd_cache_is_half(k, false);
    return fd_launch_attn_scores(&j->pass->ctx, &shape, j->in[0], j->in[1], j->node->scale, j->out, err);
}

fd_code fd_launch_op_attn_softmax(const fd_node_job *j, fd_error *err) {
    fd_attention shape = attention_shape(j, j->node->shape[0], 1, 1);
    shape.sinks = fd_pass_vector(j->pass, j->node->weight[0]);
    return fd_launch_attn_softmax(&j->pass->ctx, &shape, j->in[0], j->out, err);
}

fd_code fd_launch_op_attn_mix(const fd_node_job *j, fd_error *err) {
    const fd_node *v = fd_job_input(j, 1);
    fd_attention shape = attention_shape(j, j->node->shape[0], v->shape[0], j->node->shape[1]);
    shape.halves = fd_cache_is_half(v, false);
    return fd_launch_attn_mix(&j->pass->ctx, &shape, j->in[0], j->in[1], j->out, err);
}

static fd_code launch_gate(const fd_node_job *j, fd_gate_kind kind, fd_error *err) {
    fd_gate in = {.kind = kind,
                  .gate = j->in[0],
                  .up = j->in[1],
                  .n = j->n_tok * fd_job_row(j->node),
                  .slope = j->node->slope,
                  .limit = j->node->limit};
    if (j->half) return fd_launch_gate_f16(&j->pass->ctx, &in, (fd_f16_out){j->half, j->out}, err);
    return fd_launch_gate(&j->pass->ctx, &in, j->out, err);
}

fd_code fd_launch_op_silu_mul(const fd_node_job *j, fd_error *err) {
    return launch_gate(j, FD_GATE_SILU, err);
}

fd_code fd_launch_op_add(const fd_node_job *j, fd_error *err) {
    return fd_launch_add(&j->pass->ctx, j->in[0], j->in[1], j->n_tok * fd_job_row(j->node), j->out, err);
}

fd_code fd_launch_op_gelu_mul(const fd_node_job *j, fd_error *err) {
    return launch_gate(j, FD_GATE_GELU, err);
}

fd_code fd_launch_op_swiglu_clamp(const fd_node_job *j, fd_error *err) {
    return launch_gate(j, FD_GATE_SWIGLU_CLAMP, err);
}

fd_code fd_launch_op_scale(const fd_node_job *j, fd_error *err) {
    return fd_launch_scale(&j->pass->ctx, j->in[0], j->node->scale, j->n_tok * fd_job_row(j->node), j->out, err);
}

fd_code fd_launch_op_softcap(const fd_node_job *j, fd_error *err) {
    return fd_launch_softcap(&j->pass->ctx, j->in[0], j->node->softcap, j->n_tok * fd_job_row(j->node), j->out, err);
}

fd_code fd_launch_op_softmax(const fd_node_job *j, fd_error *err) {
    int64_t n = j->node->shape[j->node->n_dim - 1];
    return fd_launch_softmax(&j->pass->ctx, j->in[0], j->n_tok * fd_job_row(j->node) / n, n, j->out, err);
}

fd_code fd_launch_op_top_k(const fd_node_job *j, fd_error *err) {
    fd_top_k in = {.x = j->in[0],
                   .n_row = j->n_tok,
                   .n = fd_job_row(fd_job_input(j, 0)),
                   .k = j->node->shape[0],
                   .n_group = j->node->n_group,
                   .n_group_used = j->node->n_group_used,
                   .ids = j->out};
    return fd_launch_top_k(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_expert_weights(const fd_node_job *j, fd_error *err) {
    fd_expert_weights in = {.x = j->in[0],
                            .ids = j->in[1],
                            .n_row = j->n_tok,
                            .n = fd_job_row(fd_job_input(j, 0)),
                            .k = j->node->shape[0],
                            .gating = j->node->gating == FD_GATING_SOFTMAX      ? FD_EXPERTS_SOFTMAX
                                      : j->node->gating == FD_GATING_NORMALISED ? FD_EXPERTS_NORMALISED
                                                                                : FD_EXPERTS_GATHER,
                            .scale = j->node->scale,
                            .out = j->out};
    return fd_launch_expert_weights(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_expert_matmul(const fd_node_job *j, fd_error *err) {
    const fd_node *x = fd_job_input(j, 0);
    fd_expert_matmul in = {.weight = *fd_pass_matrix(j->pass, j->node),
                           .bias = fd_pass_vector(j->pass, j->node->weight[1]),
                           .n_out = j->node->shape[1],
                           .x = j->in[0],
                           .x_each = x->n_dim == 2 && x->shape[0] > 1,
                           .ids = j->in[1],
                           .n_row = j->n_tok,
                           .k = j->node->shape[0],
                           .out = j->out};
    return j->int8 ? fd_launch_q8_expert_matmul(&j->pass->ctx, &in, err)
                   : fd_launch_expert_matmul(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_expert_sum(const fd_node_job *j, fd_error *err) {
    fd_expert_sum in = {.x = j->in[0],
                        .w = j->in[1],
                        .n_row = j->n_tok,
                        .n = j->node->shape[0],
                        .k = fd_job_input(j, 1)->shape[0],
                        .out = j->out};
    return fd_launch_expert_sum(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_layer_norm(const fd_node_job *j, fd_error *err) {
    fd_layer_norm in = {.x = j->in[0],
                        .weight = fd_pass_vector(j->pass, j->node->weight[0]),
                        .bias = fd_pass_vector(j->pass, j->node->weight[1]),
                        .n_weight_row = weight_rows(j, 0),
                        .n_bias_row = weight_rows(j, 1),
                        .eps = j->node->eps,
                        .n = j->node->shape[j->node->n_dim - 1]};
    in.n_row = (int32_t)(j->n_tok * fd_job_row(j->node) / in.n);
    return fd_launch_layer_norm(&j->pass->ctx, &in, j->out, err);
}

fd_code fd_launch_op_add_position(const fd_node_job *j, fd_error *err) {
    return fd_launch_add_position(&j->pass->ctx, fd_pass_matrix(j->pass, j->node), j->in[0], j->pos0, j->n_tok, j->out,
                                  err);
}

fd_code fd_launch_op_add_vector(const fd_node_job *j, fd_error *err) {
    return fd_launch_add_vector(&j->pass->ctx, fd_pass_vector(j->pass, j->node->weight[0]), j->in[0],
                                fd_job_row(j->node), j->n_tok, j->out, err);
}

fd_code fd_launch_op_attn_alibi(const fd_node_job *j, fd_error *err) {
    return fd_launch_attn_alibi(&j->pass->ctx, j->node->max_bias, j->node->shape[0], j->pass->n_kv, j->in[0], j->pos0,
                                j->n_tok, j->out, err);
}

fd_code fd_launch_op_attn_temperature(const fd_node_job *j, fd_error *err) {
    fd_attn_temperature_rows in = {.scale = j->node->scale,
                                   .length = j->node->length,
                                   .first = j->node->first,
                                   .x = j->in[0],
                                   .pos0 = j->pos0,
                                   .n = fd_job_row(j->node),
                                   .n_tok = j->n_tok,
                                   .out = j->out};
    return fd_launch_attn_temperature(&j->pass->ctx, &in, err);
}

static fd_code launch_activation(const fd_node_job *j, fd_activation_kind kind, fd_error *err) {
    return fd_launch_activation(&j->pass->ctx, kind, j->in[0], j->node->limit, j->n_tok * fd_job_row(j->node), j->out,
                                err);
}

fd_code fd_launch_op_gelu(const fd_node_job *j, fd_error *err) {
    return launch_activation(j, FD_ACTIVATION_GELU, err);
}

fd_code fd_launch_op_relu_squared(const fd_node_job *j, fd_error *err) {
    return launch_activation(j, FD_ACTIVATION_RELU_SQUARED, err);
}

fd_code fd_launch_op_sigmoid(const fd_node_job *j, fd_error *err) {
    return launch_activation(j, FD_ACTIVATION_SIGMOID, err);
}

fd_code fd_launch_op_clamp(const fd_node_job *j, fd_error *err) {
    return launch_activation(j, FD_ACTIVATION_CLAMP, err);
}

fd_code fd_launch_op_silu(const fd_node_job *j, fd_error *err) {
    return launch_activation(j, FD_ACTIVATION_SILU, err);
}

fd_code fd_launch_op_softplus(const fd_node_job *j, fd_error *err) {
    return launch_activation(j, FD_ACTIVATION_SOFTPLUS, err);
}

fd_code fd_launch_op_exp(const fd_node_job *j, fd_error *err) {
    return launch_activation(j, FD_ACTIVATION_EXP, err);
}

static fd_code launch_gather(const fd_node_job *j, fd_error *err) {
    int32_t part = j->node->id - 1;
    if (fd_pass_half(j->pass, part)) {
        fd_gather halves = fd_ranks_gather_half(j->pass, j->node->id, j->n_tok);
        FD_TRY(fd_ranks_launch_gather(j->pass, j->node->id, &halves, err));
        if (!j->out) return FD_OK;
    }
    bool of_cache = fd_pass_node(j->pass, part)->op == FD_OP_KV_WRITE;
    fd_gather in = fd_ranks_gather(j->pass, j->node->id, fd_pass_input(j->pass, j->node->id, part),
                                   of_cache ? j->pos0 : NULL, j->n_tok);
    return fd_ranks_launch_gather(j->pass, j->node->id, &in, err);
}

/* From ops.def: an op without a launcher does not link. */
static fd_code (*const launchers[FD_OP_COUNT + 1])(const fd_node_job *job, fd_error *err) = {
    [FD_OP_GATHER] = launch_gather,
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = fd_launch_op_##name,
#include "model/ops.def"
#undef FD_OP
};

fd_code fd_run_node(fd_pass *pass, int32_t id, bool int8, fd_error *err) {
    const fd_node *node = fd_pass_node(pass, id);
    if (node->override) return fd_run_override(pass, id, err);
    bool last = fd_pass_rows(pass, id) == FD_ROWS_LAST;
    fd_node_job j = {.pass = pass, .node = node, .int8 = int8, .n_tok = last ? 1 : pass->n_tok};
    j.pos0 = pass->inputs + (last ? FD_INPUT_LAST : FD_INPUT_FIRST);
    j.out = fd_observed_tensor(pass, id);
    if (fd_op_leaves_half(node->op)) j.half = fd_pass_half(pass, id);
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) j.in[k] = fd_pass_input(pass, id, node->input[k]);
    return launchers[node->op](&j, err);
}

fd_code fd_run_op(fd_pass *pass, const fd_item *item, fd_error *err) {
    const fd_node *node = fd_pass_node(pass, item->node);
    FD_TRY(fd_run_node(pass, item->node, item->int8, err));
    bool left = node->op == FD_OP_GATHER ? fd_pass_half(pass, node->id - 1) != NULL
                                         : fd_op_leaves_half(node->op) && !node->override;
    return left ? FD_OK : fd_round_to_half(pass, item->node, err);
}
