#include "tests/compare/bounds_trial.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "reference_cpu/reference.h"
#include "tests/compare/rounding_engine.h"

/* Every other one with a softcap and a window, or with sinks. */
static op_case *case_of_attention(fd_op op, int kind) {
    op_case *c = case_attention(op, 4, 2, 64, kind * 9, 4);
    if (kind % 2 == 0) return c;
    if (op == FD_OP_ATTN_SOFTMAX) case_add_sinks(c, FD_F32);
    c->nodes[2].softcap = 50.0f;
    c->nodes[2].window = 5;
    return c;
}

/* A case of another op, whose inputs and weights are as this one wants them. */
static op_case *taken_by(fd_op op, op_case *c) {
    fd_node *node = &c->nodes[2];
    node->op = op;
    node->max_bias = 8;
    node->limit = 0.5f;
    node->length = 2;
    if (op == FD_OP_ATTN_TEMPERATURE) node->scale = 0.1f;
    return c;
}

static op_case *make_case(fd_op op, int kind) {
    switch (op) {
    case FD_OP_EMBED: return case_embed(kind % 2 ? FD_F16 : FD_Q8_0, 50, 128, 5);
    case FD_OP_RMS_NORM: return case_norm(FD_F32, 256, 3, 1e-5f);
    case FD_OP_MATMUL:
        return case_matmul(kind % 3 == 0   ? kind % 2 ? FD_Q8_0 : FD_NVFP4
                           : kind % 3 == 1 ? FD_F16
                                           : FD_F32,
                           256, 40, 3, kind % 2 ? FD_F32 : -1);
    case FD_OP_ROPE: return case_rope(kind % 2 ? FD_ROPE_HALF : FD_ROPE_INTERLEAVED, 32, 4, 40, kind * 37, 3);
    case FD_OP_KV_WRITE: return case_kv_write(64, 0, 5, 5, 0);
    case FD_OP_ATTN_SCORES:
    case FD_OP_ATTN_SOFTMAX:
    case FD_OP_ATTN_MIX: return case_of_attention(op, kind);
    case FD_OP_LAYER_NORM: return taken_by(op, case_norm(FD_F32, 256, 3, 1e-5f));
    case FD_OP_MUL_VECTOR:
    case FD_OP_ADD_VECTOR: return taken_by(op, case_norm(FD_F32, 200, 3, 1e-5f));
    case FD_OP_ADD_POSITION: return taken_by(op, case_matmul(FD_F32, 200, 200, 3, -1));
    case FD_OP_ATTN_ALIBI: return taken_by(op, case_attention(FD_OP_ATTN_SOFTMAX, 4, 2, 64, kind * 9, 4));
    case FD_OP_ATTN_TEMPERATURE:
    case FD_OP_GELU:
    case FD_OP_RELU_SQUARED:
    case FD_OP_SIGMOID:
    case FD_OP_SILU:
    case FD_OP_SOFTPLUS:
    case FD_OP_EXP:
    case FD_OP_CLAMP: return taken_by(op, case_unary(FD_OP_SCALE, 200, 3));
    case FD_OP_SCALE:
    case FD_OP_SOFTCAP: return case_unary(op, 200, 3);
    case FD_OP_L2_NORM: return case_unary(op, 200, 3);
    case FD_OP_SOFTMAX: return case_unary(op, 60, 3);
    case FD_OP_TOP_K: return case_top_k(6);
    case FD_OP_EXPERT_WEIGHTS: return case_expert_weights((fd_gating)(kind % 3), kind % 2 ? 2.5f : 1.0f, 5);
    case FD_OP_EXPERT_MATMUL:
        return case_expert_matmul(kind % 2 ? FD_F16 : FD_Q8_0, 256, 12, 2, kind % 3 == 0, kind % 4 ? FD_F32 : -1);
    case FD_OP_EXPERT_SUM: return case_expert_sum(120, 2);
    case FD_OP_CONV: return case_conv(kind, 4);
    case FD_OP_SSM_SCAN: return case_ssm_scan(kind % 2, kind * 3, 4);
    case FD_OP_TOKEN_SHIFT: return case_token_shift(kind, 4);
    case FD_OP_GATED_DELTA: return case_gated_delta(kind * 9, 4);
    case FD_OP_WKV7: return case_wkv7(kind * 9, 4);
    case FD_OP_SLICE: return case_slice(3);
    case FD_OP_CONCAT: return case_concat(kind % 2, 3);
    case FD_OP_HEAD_MATMUL: return case_head_matmul(kind % 2 ? FD_F16 : FD_Q8_0, 256, 12, 2);
    default: return case_elementwise(op, 200, 3);
    }
}

static bool has_state(fd_op op) {
    return op == FD_OP_SSM_SCAN || op == FD_OP_GATED_DELTA || op == FD_OP_WKV7;
}

trial open_trial(fd_op op, const fd_numerics_class *class_, int kind) {
    trial t = {.c = make_case(op, kind)};
    t.args = t.c->args;
    for (int i = 0; i < FD_MAX_INPUTS; i++) {
        if (!t.c->in[i]) continue;
        t.in[i] = malloc(sizeof(double) * (size_t)t.c->n_in[i]);
        for (int64_t k = 0; k < t.c->n_in[i]; k++) {
            double spread = exp((double)(draw() % 6)) / 20; /* magnitudes over two decades, as activations have */
            bool as_is = op == FD_OP_ATTN_SOFTMAX || op == FD_OP_ATTN_MIX || op == FD_OP_SOFTMAX || has_state(op) ||
                         (i == 1 && (op == FD_OP_EXPERT_WEIGHTS || op == FD_OP_EXPERT_MATMUL));
            t.in[i][k] = round_to((double)(float)(t.c->in[i][k] * (as_is ? 1 : spread)), class_->u_out);
        }
        t.args.in[i] = t.in[i];
        bool cache = op == FD_OP_CONV || op == FD_OP_TOKEN_SHIFT || has_state(op)
                         ? i == 0
                         : i == 1 && (op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX);
        if (cache)
            t.c->nodes[i].op = FD_OP_KV_WRITE; /* a cache, all positions from 0 */
        else
            t.c->nodes[i].op = FD_OP_ADD;
    }
    if (op == FD_OP_ROPE) {
        int64_t n = (int64_t)t.args.n_kv * t.c->nodes[2].rope.n_rot / 2;
        t.tables = malloc(2 * sizeof(double) * (size_t)n);
        fd_rope_table_f64(&t.c->nodes[2].rope, NULL, 0, t.args.n_kv, t.tables, t.tables + n);
        t.args.rope_cos = t.tables;
        t.args.rope_sin = t.tables + n;
    }
    t.n = fd_node_row_stride(t.args.node, t.args.n_kv) * t.args.n_pos;
    t.width = t.args.node->over_kv      ? t.args.n_kv
              : t.args.node->n_dim == 2 ? t.args.node->shape[1]
                                        : t.args.node->shape[0];
    t.y = malloc(sizeof(double) * (size_t)t.n);
    t.candidate = malloc(sizeof(double) * (size_t)t.n);
    t.tau = malloc(sizeof(double) * (size_t)t.n);
    t.args.out = t.y;
    fd_reference_op(FD_NUMERICS_F64, &t.args);
    rounding_engine(&t.args, class_, t.n, t.y, t.candidate);
    return t;
}

void close_trial(trial *t) {
    for (int i = 0; i < FD_MAX_INPUTS; i++) free(t->in[i]);
    free(t->tables);
    free(t->y);
    free(t->candidate);
    free(t->tau);
    case_free(t->c);
}

double largest_z(trial *t, const fd_numerics_class *class_) {
    fd_bound_args args = {
        .op = &t->args, .candidate = t->candidate, .stored = FD_F64, .numerics = class_, .n_output = 1e6};
    fd_error err = {0};
    double most = 0;
    cr_assert_eq(fd_bound(&args, t->tau, &err), FD_OK, "%s", err.message);
    for (int64_t i = 0; i < t->n; i++) {
        double z = fd_bound_z(t->candidate[i], t->y[i], t->tau[i]);
        if (!(z <= most)) most = z;
    }
    return most;
}
