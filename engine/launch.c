/* From nodes to kernels: pointers and sizes out of the graph. */
#include "engine/fast.h"
#include "engine/internal.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/embed.h"
#include "kernels/matvec/experts.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/matmul/matmul.h"
#include "kernels/elementwise/norm.h"

/* A node of a pass, as launchers want it. */
typedef struct job {
    const fd_engine *engine;
    const fd_run *run;
    const fd_node *node;
    int32_t n_tok;       /* rows it computes */
    const int32_t *pos0; /* device: position of the first of them */
    const float *in[FD_MAX_INPUTS];
    float *out;
} job;

static const fd_node *input_of(const job *j, int i) {
    return &j->engine->exec.graph->nodes[j->node->input[i]];
}

static int64_t elements(const fd_node *node) {
    return fd_node_row_stride(node, 0);
}

static fd_attention attention_shape(const job *j, int32_t n_head, int32_t n_head_kv, int32_t head_dim) {
    return (fd_attention){.n_head = n_head,
                          .n_head_kv = n_head_kv,
                          .head_dim = head_dim,
                          .n_tok = j->n_tok,
                          .n_kv = j->run->n_kv,
                          .seen_alone = j->run->unobserved,
                          .pos0 = j->pos0};
}

static fd_code launch_embed(const job *j, fd_error *err) {
    const int32_t *tokens = j->run->inputs + FD_INPUT_TOKENS + (j->run->n_tok - j->n_tok);
    return fd_launch_embed(j->run->queue, fd_node_matrix(j->engine, j->node), tokens, j->n_tok, j->out, err);
}

static fd_code launch_rms_norm(const job *j, fd_error *err) {
    fd_rms_norm in = {.x = j->in[0],
                      .weight = fd_engine_vector(j->engine, j->node->weight[0]),
                      .eps = j->node->eps,
                      .n = j->node->shape[j->node->n_dim - 1]};
    in.n_tok = (int32_t)(j->n_tok * elements(j->node) / in.n);
    return fd_launch_rms_norm(j->run->queue, &in, j->out, err);
}

bool fd_engine_in_q8(const fd_engine *engine, const fd_node *node) {
    if (engine->fast) return engine->fast->int8[node->id];
    return engine->exec.numerics == FD_NUMERICS_Q8ACT && fd_q8_can(fd_node_matrix(engine, node)->dtype);
}

/* True when the product before this one has left the same input's blocks in q8_rows. Nodes run in the graph's order. */
static bool has_blocks(const job *j) {
    const fd_graph *graph = j->engine->exec.graph;
    fd_rows rows = fd_run_rows(j->engine, j->run, j->node->id);
    for (int32_t i = j->node->id - 1; i >= 0; i--) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_MATMUL || node->override || !fd_q8_can(graph->weights[node->weight[0]].dtype)) continue;
        if (fd_run_rows(j->engine, j->run, i) == FD_ROWS_NONE) continue;
        return node->input[0] == j->node->input[0] && fd_run_rows(j->engine, j->run, i) == rows;
    }
    return false;
}

static fd_code launch_q8_matmul(const job *j, const fd_device_matrix *weight, fd_error *err) {
    const float *bias = fd_engine_vector(j->engine, j->node->weight[1]);
    if (j->n_tok == 1) {
        fd_matvec in = {.x = j->in[0], .n_tok = 1, .n_part = 1};
        in.part[0] = (fd_matvec_part){.weight = *weight, .bias = bias, .out = j->out};
        return fd_launch_q8_matvec(j->run->queue, &in, NULL, err);
    }
    fd_q8_matmul in = {.weight = *weight, .bias = bias, .n_tok = j->n_tok, .out = j->out};
    in.x = fd_q8_rows_at(j->run->q8_rows, weight->n_col, j->n_tok);
    if (!has_blocks(j))
        FD_TRY(fd_launch_q8_quantize(j->run->queue, j->in[0], j->n_tok, weight->n_col, &in.x, err));
    return fd_launch_q8_matmul(j->run->queue, &in, err);
}

static fd_code launch_matmul(const job *j, fd_error *err) {
    if (fd_engine_in_q8(j->engine, j->node))
        return launch_q8_matmul(j, fd_node_matrix(j->engine, j->node), err);
    fd_matmul in = fd_matmul_of(fd_node_matrix(j->engine, j->node), fd_engine_vector(j->engine, j->node->weight[1]),
                                j->in[0], j->n_tok, j->out);
    return fd_launch_matmul(j->run->queue, &in, err);
}

static fd_code launch_rope(const job *j, fd_error *err) {
    fd_rope_shape shape = fd_node_rope(j->engine, j->node->id);
    return fd_launch_rope(j->run->queue, &shape, j->in[0], j->n_tok, j->pos0, j->out, err);
}

static fd_code launch_kv_write(const job *j, fd_error *err) {
    if (j->engine->fast) return fd_fast_kv_write(j->engine, j->run, j->node->id, err);
    fd_kv_write in = {.x = j->in[0],
                      .n_tok = j->n_tok,
                      .width = elements(j->node),
                      .pos0 = j->pos0,
                      .row_offset = j->node->row_offset,
                      .cache = j->out,
                      .n_ctx = j->engine->exec.n_ctx};
    return fd_launch_kv_write(j->run->queue, &in, err);
}

static fd_code launch_attn_scores(const job *j, fd_error *err) {
    const fd_node *q = input_of(j, 0), *k = input_of(j, 1);
    fd_attention shape = attention_shape(j, q->shape[0], k->shape[0], q->shape[1]);
    shape.window = j->node->window;
    shape.softcap = j->node->softcap;
    return fd_launch_attn_scores(j->run->queue, &shape, j->in[0], j->in[1], j->node->scale, j->out, err);
}

static fd_code launch_attn_softmax(const job *j, fd_error *err) {
    fd_attention shape = attention_shape(j, j->node->shape[0], 1, 1);
    shape.sinks = fd_engine_vector(j->engine, j->node->weight[0]);
    return fd_launch_attn_softmax(j->run->queue, &shape, j->in[0], j->out, err);
}

static fd_code launch_attn_mix(const job *j, fd_error *err) {
    fd_attention shape = attention_shape(j, j->node->shape[0], input_of(j, 1)->shape[0], j->node->shape[1]);
    return fd_launch_attn_mix(j->run->queue, &shape, j->in[0], j->in[1], j->out, err);
}

static fd_code launch_gate(const job *j, fd_gate_kind kind, fd_error *err) {
    fd_gate in = {.kind = kind,
                  .gate = j->in[0],
                  .up = j->in[1],
                  .n = j->n_tok * elements(j->node),
                  .slope = j->node->slope,
                  .limit = j->node->limit};
    return fd_launch_gate(j->run->queue, &in, j->out, err);
}

static fd_code launch_silu_mul(const job *j, fd_error *err) {
    return launch_gate(j, FD_GATE_SILU, err);
}

static fd_code launch_add(const job *j, fd_error *err) {
    return fd_launch_add(j->run->queue, j->in[0], j->in[1], j->n_tok * elements(j->node), j->out, err);
}

static fd_code launch_gelu_mul(const job *j, fd_error *err) {
    return launch_gate(j, FD_GATE_GELU, err);
}

static fd_code launch_swiglu_clamp(const job *j, fd_error *err) {
    return launch_gate(j, FD_GATE_SWIGLU_CLAMP, err);
}

static fd_code launch_scale(const job *j, fd_error *err) {
    return fd_launch_scale(j->run->queue, j->in[0], j->node->scale, j->n_tok * elements(j->node), j->out, err);
}

static fd_code launch_softcap(const job *j, fd_error *err) {
    return fd_launch_softcap(j->run->queue, j->in[0], j->node->softcap, j->n_tok * elements(j->node), j->out, err);
}

static fd_code launch_softmax(const job *j, fd_error *err) {
    int64_t n = j->node->shape[j->node->n_dim - 1];
    return fd_launch_softmax(j->run->queue, j->in[0], j->n_tok * elements(j->node) / n, n, j->out, err);
}

static fd_code launch_top_k(const job *j, fd_error *err) {
    return fd_launch_top_k(j->run->queue, j->in[0], j->n_tok, elements(input_of(j, 0)), j->node->shape[0], j->out, err);
}

static fd_code launch_expert_weights(const job *j, fd_error *err) {
    fd_expert_weights in = {.x = j->in[0],
                            .ids = j->in[1],
                            .n_row = j->n_tok,
                            .n = elements(input_of(j, 0)),
                            .k = j->node->shape[0],
                            .gating = j->node->gating == FD_GATING_SOFTMAX      ? FD_EXPERTS_SOFTMAX
                                      : j->node->gating == FD_GATING_NORMALISED ? FD_EXPERTS_NORMALISED
                                                                                : FD_EXPERTS_GATHER,
                            .scale = j->node->scale,
                            .out = j->out};
    return fd_launch_expert_weights(j->run->queue, &in, err);
}

static fd_code launch_expert_matmul(const job *j, fd_error *err) {
    const fd_node *x = input_of(j, 0);
    fd_expert_matmul in = {.weight = *fd_node_matrix(j->engine, j->node),
                           .bias = fd_engine_vector(j->engine, j->node->weight[1]),
                           .n_out = j->node->shape[1],
                           .x = j->in[0],
                           .x_each = x->n_dim == 2 && x->shape[0] > 1,
                           .ids = j->in[1],
                           .n_row = j->n_tok,
                           .k = j->node->shape[0],
                           .out = j->out};
    return fd_engine_in_q8(j->engine, j->node) ? fd_launch_q8_expert_matmul(j->run->queue, &in, err)
                                               : fd_launch_expert_matmul(j->run->queue, &in, err);
}

static fd_code launch_expert_sum(const job *j, fd_error *err) {
    fd_expert_sum in = {.x = j->in[0],
                        .w = j->in[1],
                        .n_row = j->n_tok,
                        .n = j->node->shape[0],
                        .k = input_of(j, 1)->shape[0],
                        .out = j->out};
    return fd_launch_expert_sum(j->run->queue, &in, err);
}

/* From ops.def: an op without a launcher does not compile. */
static fd_code (*const launchers[FD_OP_COUNT])(const job *j, fd_error *err) = {
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = launch_##name,
#include "model/ops.def"
#undef FD_OP
};

fd_code fd_launch_node(const fd_engine *engine, const fd_run *run, int32_t id, fd_error *err) {
    const fd_node *node = &engine->exec.graph->nodes[id];
    bool last = fd_run_rows(engine, run, id) == FD_ROWS_LAST;
    job j = {.engine = engine, .run = run, .node = node, .n_tok = last ? 1 : run->n_tok};
    j.pos0 = run->inputs + (last ? FD_INPUT_LAST : FD_INPUT_FIRST);
    j.out = fd_run_tensor(engine, run, id);
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) j.in[k] = fd_run_input(engine, run, id, node->input[k]);
    fd_code code = launchers[node->op](&j, err);
    return code == FD_OK ? FD_OK : fd_error_prefix(err, "node %s", node->name);
}
