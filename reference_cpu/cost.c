/* How each op is cut into items and what it costs, in multiply-adds or what takes as long. */
#include "reference_cpu/ops.h"

static fd_ref_cost per_position(const fd_op_args *args, int64_t work_each) {
    return (fd_ref_cost){args->n_pos, args->n_pos * work_each};
}

static fd_ref_cost per_element(const fd_op_args *args, int64_t work_each) {
    int64_t n = args->n_pos * fd_node_width(args->node);
    return (fd_ref_cost){n, n * work_each};
}

static fd_ref_cost per_head(const fd_op_args *args, int64_t work_each) {
    int64_t n = (int64_t)args->n_pos * args->node->shape[0];
    return (fd_ref_cost){n, n * work_each};
}

static fd_ref_cost cost_embed(const fd_op_args *args) {
    return per_position(args, fd_node_width(args->node));
}
static fd_ref_cost cost_rms_norm(const fd_op_args *args) {
    int64_t n = args->node->shape[args->node->n_dim - 1], rows = args->n_pos * (fd_node_width(args->node) / n);
    return (fd_ref_cost){rows, rows * 2 * n};
}
static fd_ref_cost cost_layer_norm(const fd_op_args *args) {
    int64_t n = args->node->shape[args->node->n_dim - 1], rows = args->n_pos * (fd_node_width(args->node) / n);
    return (fd_ref_cost){rows, rows * 4 * n};
}
static fd_ref_cost cost_add_position(const fd_op_args *args) {
    return per_position(args, 2 * fd_node_width(args->node));
}
static fd_ref_cost cost_add_vector(const fd_op_args *args) {
    return per_position(args, 2 * fd_node_width(args->node));
}
static fd_ref_cost cost_attn_temperature(const fd_op_args *args) {
    return per_position(args, fd_node_width(args->node) + 64);
}
static fd_ref_cost cost_attn_alibi(const fd_op_args *args) {
    return per_head(args, (int64_t)args->n_kv + 64);
}
static fd_ref_cost cost_rope(const fd_op_args *args) {
    return per_position(args, 2 * fd_node_width(args->node));
}
static fd_ref_cost cost_kv_write(const fd_op_args *args) {
    return per_position(args, fd_node_width(args->node));
}

static fd_ref_cost cost_matmul(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    return (fd_ref_cost){w->n_row, w->n_row * w->n_col * args->n_pos};
}

static fd_ref_cost cost_attn_scores(const fd_op_args *args) {
    /* short dots: the tree of 64 partial sums weighs as much as 64 products */
    return per_head(args, (int64_t)args->n_kv * (fd_ref_input(args, 0)->shape[1] + 64));
}

static fd_ref_cost cost_attn_softmax(const fd_op_args *args) {
    return per_head(args, 16 * (int64_t)args->n_kv);
}

static fd_ref_cost cost_attn_mix(const fd_op_args *args) {
    return per_head(args, (int64_t)args->n_kv * args->node->shape[1]);
}

static fd_ref_cost cost_silu_mul(const fd_op_args *args) {
    return per_element(args, 16);
}
static fd_ref_cost cost_add(const fd_op_args *args) {
    return per_element(args, 1);
}

static fd_ref_cost cost_gelu_mul(const fd_op_args *args) {
    return per_element(args, 16);
}
static fd_ref_cost cost_swiglu_clamp(const fd_op_args *args) {
    return per_element(args, 16);
}
static fd_ref_cost cost_gelu(const fd_op_args *args) {
    return per_element(args, 16);
}
static fd_ref_cost cost_relu_squared(const fd_op_args *args) {
    return per_element(args, 1);
}
static fd_ref_cost cost_sigmoid(const fd_op_args *args) {
    return per_element(args, 16);
}
static fd_ref_cost cost_clamp(const fd_op_args *args) {
    return per_element(args, 1);
}
static fd_ref_cost cost_scale(const fd_op_args *args) {
    return per_element(args, 1);
}
static fd_ref_cost cost_softcap(const fd_op_args *args) {
    return per_element(args, 16);
}

static fd_ref_cost cost_softmax(const fd_op_args *args) {
    int64_t n = args->node->shape[args->node->n_dim - 1], rows = args->n_pos * (fd_node_width(args->node) / n);
    return (fd_ref_cost){rows, rows * 16 * n};
}
static fd_ref_cost cost_top_k(const fd_op_args *args) {
    return per_position(args, 2 * fd_node_width(fd_ref_input(args, 0)));
}
static fd_ref_cost cost_expert_weights(const fd_op_args *args) {
    return per_position(args, 16 * fd_node_width(args->node));
}
static fd_ref_cost cost_expert_matmul(const fd_op_args *args) {
    int64_t n_out = args->node->shape[1], rows = (int64_t)args->n_pos * args->node->shape[0];
    return (fd_ref_cost){n_out, n_out * args->weight[0]->n_col * rows};
}
static fd_ref_cost cost_expert_sum(const fd_op_args *args) {
    return per_element(args, fd_ref_input(args, 1)->shape[0]);
}

static fd_ref_cost cost_slice(const fd_op_args *args) {
    return per_element(args, 1);
}
static fd_ref_cost cost_concat(const fd_op_args *args) {
    return per_element(args, 1);
}
static fd_ref_cost cost_head_matmul(const fd_op_args *args) {
    return cost_matmul(args);
}

static fd_ref_cost cost_silu(const fd_op_args *args) {
    return per_element(args, 16);
}
static fd_ref_cost cost_softplus(const fd_op_args *args) {
    return per_element(args, 32);
}
static fd_ref_cost cost_conv(const fd_op_args *args) {
    int64_t n = fd_node_width(args->node);
    return (fd_ref_cost){n, n * args->n_pos * args->weight[0]->n_col};
}
static fd_ref_cost cost_ssm_scan(const fd_op_args *args) {
    int64_t n = fd_node_width(args->node);
    return (fd_ref_cost){n, n * (args->pos0 + args->n_pos) * fd_ref_input(args, 1)->shape[1] * 16};
}

static fd_ref_cost cost_mul(const fd_op_args *args) {
    return per_element(args, 1);
}
static fd_ref_cost cost_exp(const fd_op_args *args) {
    return per_element(args, 16);
}
static fd_ref_cost cost_mul_vector(const fd_op_args *args) {
    return per_position(args, 2 * fd_node_width(args->node));
}
static fd_ref_cost cost_l2_norm(const fd_op_args *args) {
    return cost_rms_norm(args);
}
static fd_ref_cost cost_token_shift(const fd_op_args *args) {
    int64_t n = fd_node_width(args->node);
    return (fd_ref_cost){n, n * args->n_pos * 4};
}
/* Each element of the output has a part of the state, which every position reads and writes. */
static fd_ref_cost per_state(const fd_op_args *args) {
    int64_t n = fd_node_width(args->node);
    return (fd_ref_cost){n, n * (args->pos0 + args->n_pos) * fd_ref_input(args, 1)->shape[1] * 4};
}
static fd_ref_cost cost_gated_delta(const fd_op_args *args) {
    return per_state(args);
}
static fd_ref_cost cost_wkv7(const fd_op_args *args) {
    return per_state(args);
}

fd_ref_cost fd_ref_cost_of(const fd_op_args *args) {
    static fd_ref_cost (*const of[FD_OP_COUNT])(const fd_op_args *) = {
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = cost_##name,
#define FD_OP_CPU                           FD_OP
#include "model/ops.def"
#undef FD_OP
    };
    return of[args->node->op](args);
}
