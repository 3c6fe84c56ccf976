/* Launchers of the ops that recurrent layers and latent attention bring: parts of heads, and states over a cache. */
#include "engine/launch_op.h"
#include "engine/recurrent.h"
#include "kernels/elementwise/heads.h"
#include "kernels/elementwise/norm.h"
#include "kernels/elementwise/position.h"
#include "kernels/matvec/experts.h"
#include "kernels/recurrent/recurrent.h"

/* ---- heads ---- */

fd_code fd_launch_op_slice(const fd_node_job *j, fd_error *err) {
    const fd_node *x = fd_job_input(j, 0);
    fd_slice in = {.x = j->in[0], .n_in = x->shape[x->n_dim - 1], .first = j->node->first, .out = j->out};
    int64_t heads = fd_job_row(x) / in.n_in;
    in.n_head = j->n_tok * heads;
    in.n = fd_job_row(j->node) / heads;
    return fd_launch_slice(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_concat(const fd_node_job *j, fd_error *err) {
    const fd_node *a = fd_job_input(j, 0), *b = fd_job_input(j, 1);
    fd_concat in = {.a = j->in[0],
                    .b = j->in[1],
                    .n_tok = j->n_tok,
                    .n_head = a->shape[0],
                    .n_head_b = b->shape[0],
                    .n_a = a->shape[1],
                    .n_b = b->shape[1],
                    .out = j->out};
    return fd_launch_concat(&j->pass->ctx, &in, err);
}

/* Each head's own matrix: experts of which every head takes the one of its number. */
fd_code fd_launch_op_head_matmul(const fd_node_job *j, fd_error *err) {
    fd_expert_matmul in = {.weight = *fd_pass_matrix(j->pass, j->node),
                           .n_out = j->node->shape[1],
                           .x = j->in[0],
                           .x_each = true,
                           .n_row = j->n_tok,
                           .k = j->node->shape[0],
                           .out = j->out};
    return fd_launch_expert_matmul(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_mul(const fd_node_job *j, fd_error *err) {
    int64_t n = fd_job_row(j->node);
    return fd_launch_mul(&j->pass->ctx, j->in[0], j->in[1], j->n_tok * n, n / fd_job_row(fd_job_input(j, 1)), j->out,
                         err);
}

fd_code fd_launch_op_mul_vector(const fd_node_job *j, fd_error *err) {
    return fd_launch_mul_vector(&j->pass->ctx, fd_pass_vector(j->pass, j->node->weight[0]), j->in[0],
                                fd_job_row(j->node), j->n_tok, j->out, err);
}

fd_code fd_launch_op_l2_norm(const fd_node_job *j, fd_error *err) {
    fd_rms_norm in = {.x = j->in[0], .eps = j->node->eps, .n = j->node->shape[j->node->n_dim - 1]};
    in.n_tok = (int32_t)(j->n_tok * fd_job_row(j->node) / in.n);
    return fd_launch_l2_norm(&j->pass->ctx, &in, j->out, err);
}

/* ---- over a cache's rows ---- */

static fd_recurrent_rows rows_of(const fd_node_job *j) {
    return (fd_recurrent_rows){.cache = j->in[0], .pos0 = j->pos0, .n_tok = j->n_tok, .out = j->out};
}

static int32_t weight_columns(const fd_node_job *j, int slot) {
    return (int32_t)j->pass->engine->exec.graph->weights[j->node->weight[slot]].n_col;
}

fd_code fd_launch_op_conv(const fd_node_job *j, fd_error *err) {
    fd_conv in = {.rows = rows_of(j),
                  .weight = fd_pass_vector(j->pass, j->node->weight[0]),
                  .bias = fd_pass_vector(j->pass, j->node->weight[1]),
                  .n = fd_job_row(j->node),
                  .n_tap = weight_columns(j, 0)};
    return fd_launch_conv(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_token_shift(const fd_node_job *j, fd_error *err) {
    fd_recurrent_rows rows = rows_of(j);
    return fd_launch_token_shift(&j->pass->ctx, &rows, fd_pass_vector(j->pass, j->node->weight[0]), fd_job_row(j->node),
                                 err);
}

fd_code fd_launch_op_ssm_scan(const fd_node_job *j, fd_error *err) {
    const fd_node *c = fd_job_input(j, 1);
    fd_ssm_scan in = {.rows = rows_of(j),
                      .c = j->in[1],
                      .a = fd_pass_vector(j->pass, j->node->weight[0]),
                      .d = fd_pass_vector(j->pass, j->node->weight[1]),
                      .a_each = weight_columns(j, 0) > 1,
                      .n_head = j->node->shape[0],
                      .n_dim = j->node->shape[1],
                      .n_group = c->shape[0],
                      .n_state = c->shape[1],
                      .kept = fd_recurrent_kept(j->pass->engine, j->node)};
    return fd_launch_ssm_scan(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_gated_delta(const fd_node_job *j, fd_error *err) {
    const fd_node *q = fd_job_input(j, 1);
    fd_gated_delta in = {.rows = rows_of(j),
                         .q = j->in[1],
                         .n_key = q->shape[0],
                         .each = j->node->shape[0] / q->shape[0],
                         .n_dim = j->node->shape[1],
                         .n_state = q->shape[1],
                         .scale = j->node->scale,
                         .kept = fd_recurrent_kept(j->pass->engine, j->node)};
    return fd_launch_gated_delta(&j->pass->ctx, &in, err);
}

fd_code fd_launch_op_wkv7(const fd_node_job *j, fd_error *err) {
    fd_wkv7 in = {.rows = rows_of(j),
                  .r = j->in[1],
                  .n_head = j->node->shape[0],
                  .n_state = j->node->shape[1],
                  .kept = fd_recurrent_kept(j->pass->engine, j->node)};
    return fd_launch_wkv7(&j->pass->ctx, &in, err);
}
