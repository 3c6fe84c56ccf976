/* How each op is cut into items and what it costs, in multiply-adds or what takes as long. */
#include "reference_cpu/ops.h"

static fd_ref_cost per_position(const fd_op_args *args, int64_t work_each) {
    return (fd_ref_cost){args->n_pos, args->n_pos * work_each};
}

static fd_ref_cost per_element(const fd_op_args *args, int64_t work_each) {
    int64_t n = args->n_pos * fd_node_width(args->node);
    return (fd_ref_cost){n, n * work_each};
}

/* A row: the last dimension. */
static fd_ref_cost per_row(const fd_op_args *args, int64_t work_each_element) {
    int64_t width = fd_node_width(args->node), n = args->node->shape[args->node->n_dim - 1];
    return (fd_ref_cost){args->n_pos * (width / n), args->n_pos * width * work_each_element};
}

static fd_ref_cost per_head(const fd_op_args *args, int64_t work_each) {
    int64_t n = (int64_t)args->n_pos * args->node->shape[0];
    return (fd_ref_cost){n, n * work_each};
}

#define COST(op, value)                                                                                                \
    static fd_ref_cost cost_##op(const fd_op_args *args) {                                                             \
        return value;                                                                                                  \
    }

COST(embed, per_position(args, fd_node_width(args->node)))
COST(rms_norm, per_row(args, 2))
COST(layer_norm, per_row(args, 4))
COST(add_position, per_position(args, 2 * fd_node_width(args->node)))
COST(add_vector, per_position(args, 2 * fd_node_width(args->node)))
COST(attn_temperature, per_position(args, fd_node_width(args->node) + 64))
COST(attn_alibi, per_head(args, (int64_t)args->n_kv + 64))
COST(rope, per_position(args, 2 * fd_node_width(args->node)))
COST(kv_write, per_position(args, fd_node_width(args->node)))

static fd_ref_cost cost_matmul(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    return (fd_ref_cost){w->n_row, w->n_row * w->n_col * args->n_pos};
}

/* Short dots: the tree of 64 partial sums weighs as much as 64 products. */
COST(attn_scores, per_head(args, (fd_ref_input(args, 0)->shape[1] + 64) * (int64_t)args->n_kv))
COST(attn_softmax, per_head(args, 16 * (int64_t)args->n_kv))
COST(attn_mix, per_head(args, (int64_t)args->n_kv * args->node->shape[1]))
COST(silu_mul, per_element(args, 16))
COST(add, per_element(args, 1))
COST(gelu_mul, per_element(args, 16))
COST(swiglu_clamp, per_element(args, 16))
COST(gelu, per_element(args, 16))
COST(relu_squared, per_element(args, 1))
COST(sigmoid, per_element(args, 16))
COST(clamp, per_element(args, 1))
COST(scale, per_element(args, 1))
COST(softcap, per_element(args, 16))
COST(softmax, per_row(args, 16))
COST(top_k, per_position(args, 2 * fd_node_width(fd_ref_input(args, 0))))
COST(expert_weights, per_position(args, 16 * fd_node_width(args->node)))

static fd_ref_cost cost_expert_matmul(const fd_op_args *args) {
    int64_t n_out = args->node->shape[1], rows = (int64_t)args->n_pos * args->node->shape[0];
    return (fd_ref_cost){n_out, n_out * args->weight[0]->n_col * rows};
}

COST(expert_sum, per_element(args, fd_ref_input(args, 1)->shape[0]))
COST(slice, per_element(args, 1))
COST(concat, per_element(args, 1))
COST(head_matmul, cost_matmul(args))
COST(silu, per_element(args, 16))
COST(softplus, per_element(args, 32))

static fd_ref_cost cost_conv(const fd_op_args *args) {
    int64_t n = fd_node_width(args->node);
    return (fd_ref_cost){n, n * args->n_pos * args->weight[0]->n_col};
}

static fd_ref_cost cost_ssm_scan(const fd_op_args *args) {
    int64_t n = fd_node_width(args->node);
    return (fd_ref_cost){n, n * (args->pos0 + args->n_pos) * fd_ref_input(args, 1)->shape[1] * 16};
}

COST(mul, per_element(args, 1))
COST(exp, per_element(args, 16))
COST(mul_vector, per_position(args, 2 * fd_node_width(args->node)))
COST(l2_norm, cost_rms_norm(args))

static fd_ref_cost cost_token_shift(const fd_op_args *args) {
    int64_t n = fd_node_width(args->node);
    return (fd_ref_cost){n, n * args->n_pos * 4};
}

/* Each element of the output has a part of the state, which every position reads and writes. */
static fd_ref_cost per_state(const fd_op_args *args) {
    int64_t n = fd_node_width(args->node);
    return (fd_ref_cost){n, n * (args->pos0 + args->n_pos) * fd_ref_input(args, 1)->shape[1] * 4};
}

COST(gated_delta, per_state(args))
COST(wkv7, per_state(args))

fd_ref_cost fd_ref_cost_of(const fd_op_args *args) {
    static fd_ref_cost (*const of[FD_OP_COUNT])(const fd_op_args *) = {
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = cost_##name,
#include "model/ops.def"
#undef FD_OP
    };
    return of[args->node->op](args);
}
