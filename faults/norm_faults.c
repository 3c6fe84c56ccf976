/* RMSNorm bugs. Each computes y = x·r·w (binary32, sums in contract order, written apart from reference_cpu) with one
 * thing wrong. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/contract.h"

/* r of one row. */
typedef float (*scale_fn)(const fd_node *node, const float *x, int64_t n);
/* What w becomes. */
typedef float (*weight_fn)(float w);

static float scale_right(const fd_node *node, const float *x, int64_t n) {
    return 1.0f / sqrtf(fd_dot(x, x, n) / (float)n + node->eps);
}
static float scale_eps_outside(const fd_node *node, const float *x, int64_t n) {
    return 1.0f / (sqrtf(fd_dot(x, x, n) / (float)n) + node->eps);
}
static float scale_eps_max(const fd_node *node, const float *x, int64_t n) {
    return 1.0f / sqrtf(fmaxf(fd_dot(x, x, n) / (float)n, node->eps));
}
static float scale_sum(const fd_node *node, const float *x, int64_t n) {
    return 1.0f / sqrtf(fd_dot(x, x, n) + node->eps);
}
static float scale_half(const fd_node *node, const float *x, int64_t n) {
    return 1.0f / sqrtf(fd_dot(x, x, n / 2) / (float)n + node->eps);
}
static float scale_no_root(const fd_node *node, const float *x, int64_t n) {
    return 1.0f / (fd_dot(x, x, n) / (float)n + node->eps);
}
static float scale_one(const fd_node *node, const float *x, int64_t n) {
    (void)node, (void)x, (void)n;
    return 1.0f;
}
static float scale_n_less_one(const fd_node *node, const float *x, int64_t n) {
    return 1.0f / sqrtf(fd_dot(x, x, n) / (float)(n - 1) + node->eps);
}
static float weight_right(float w) {
    return w;
}
static float weight_one(float w) {
    (void)w;
    return 1.0f;
}
static float weight_plus_one(float w) {
    return w + 1.0f;
}
static float weight_squared(float w) {
    return w * w;
}
static float weight_minus_one(float w) {
    return w - 1.0f;
}

/* What is another about RMSNorm; one row of n elements. */
typedef struct row_rule {
    scale_fn scale;
    weight_fn weight;
    fd_fault_round round;
} row_rule;
typedef void (*row_fn)(const fd_node *node, row_rule rule, const float *x, const float *w, float *y, int64_t n);

static void each_row(const fd_op_args *args, row_fn of_row, row_rule rule) {
    int64_t n = args->weight[0]->n_col, rows = args->n_pos * fd_node_width(args->node) / n;
    float *w = fd_fault_row(args->weight[0], 0);
    if (!w) {
        fd_fault_nan(args, fd_node_width(args->node));
        return;
    }
    for (int64_t row = 0; row < rows; row++)
        of_row(args->node, rule, (const float *)args->in[0] + row * n, w, (float *)args->out + row * n, n);
    free(w);
}

static void norm_row(const fd_node *node, row_rule rule, const float *x, const float *w, float *y, int64_t n) {
    float scale = rule.scale(node, x, n);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * rule.weight(w[i]);
}

static void norm(const fd_op_args *args, scale_fn scale_of, weight_fn weight_of) {
    each_row(args, norm_row, (row_rule){.scale = scale_of, .weight = weight_of});
}

FD_OVERRIDE(eps_outside, norm(args, scale_eps_outside, weight_right))
FD_OVERRIDE(eps_max, norm(args, scale_eps_max, weight_right))
FD_OVERRIDE(sum_for_mean, norm(args, scale_sum, weight_right))
FD_OVERRIDE(n_less_one, norm(args, scale_n_less_one, weight_right))
FD_OVERRIDE(in_f16, norm(args, scale_right, fd_fault_to_f16))
FD_OVERRIDE(in_bf16, norm(args, scale_right, fd_fault_to_bf16))
FD_OVERRIDE(half_length, norm(args, scale_half, weight_right))
FD_OVERRIDE(root_missing, norm(args, scale_no_root, weight_right))
FD_OVERRIDE(undivided, norm(args, scale_one, weight_right))
FD_OVERRIDE(weight_missing, norm(args, scale_right, weight_one))
FD_OVERRIDE(plus_one, norm(args, scale_right, weight_plus_one))
FD_OVERRIDE(weight_twice, norm(args, scale_right, weight_squared))
FD_OVERRIDE(plus_one_missing, norm(args, scale_right, weight_minus_one))

/* One r for all heads of a position, as of a row that is no heads. */
static void over_all_heads(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node), head_dim = args->weight[0]->n_col, n_row = args->weight[0]->n_row;
    for (int64_t head = 0; head < n / head_dim; head++) {
        float *w = fd_fault_row(args->weight[0], n_row > 1 ? head : 0);
        for (int32_t p = 0; p < args->n_pos; p++) {
            const float *x = (const float *)args->in[0] + p * n, scale = scale_right(args->node, x, n);
            float *y = (float *)args->out + p * n;
            for (int64_t i = head * head_dim; i < (head + 1) * head_dim; i++)
                y[i] = w ? x[i] * scale * w[i % head_dim] : NAN;
        }
        free(w);
    }
}

FD_APPLIES(of_several_heads, node->n_dim == 2 && node->shape[0] > 1)
/* Gemma's converters add the 1 to the file's weights. */
FD_APPLIES(of_gemma, strncmp(graph->hparams.arch, "gemma", 5) == 0)

/* (x − mean) / sqrt(variance + eps) · w */
static void layer_norm_row(const fd_node *node, row_rule rule, const float *x, const float *w, float *y, int64_t n) {
    float mean = fd_sum(x, n) / (float)n;
    (void)rule;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - mean;
    float scale = scale_right(node, y, n);
    for (int64_t i = 0; i < n; i++) y[i] = y[i] * scale * w[i];
}

static void layer_norm(const fd_op_args *args) {
    each_row(args, layer_norm_row, (row_rule){0});
}

/* x·r·w with every step rounded; the squares are summed in binary32, as 16-bit reductions are. */
static void norm_row_rounded(const fd_node *node, row_rule rule, const float *x, const float *w, float *y, int64_t n) {
    fd_fault_round round = rule.round;
    for (int64_t i = 0; i < n; i++) y[i] = round(round(x[i]) * round(x[i]));
    float mean = round(fd_sum(y, n) / (float)n), scale = round(1.0f / round(sqrtf(round(mean + node->eps))));
    for (int64_t i = 0; i < n; i++) y[i] = round(round(round(x[i]) * scale) * round(w[i]));
}

/* The row is cast to 16 bits before the weight, and so is the product. */
static void norm_row_cast(const fd_node *node, row_rule rule, const float *x, const float *w, float *y, int64_t n) {
    float scale = scale_right(node, x, n);
    for (int64_t i = 0; i < n; i++) y[i] = rule.round(rule.round(x[i] * scale) * w[i]);
}

FD_OVERRIDE(cast_f16, each_row(args, norm_row_cast, (row_rule){.round = fd_fault_to_f16}))
FD_OVERRIDE(cast_bf16, each_row(args, norm_row_cast, (row_rule){.round = fd_fault_to_bf16}))
static void norm_rounded(const fd_op_args *args, fd_fault_round round) {
    each_row(args, norm_row_rounded, (row_rule){.round = round});
}
FD_OVERRIDE(all_in_f16, norm_rounded(args, fd_fault_to_f16))
FD_OVERRIDE(all_in_bf16, norm_rounded(args, fd_fault_to_bf16))
/* 1e-5 and 1e-6 are the two that models have: each taken for the other. */
FD_EDIT(eps_value, node->eps = node->eps < 5e-6f ? 1e-5f : 1e-6f)
FD_APPLIES(has_eps, node->eps > 0.0f)
FD_EDIT(eps_missing, node->eps = 0.0f)

typedef struct layer_rule {
    scale_fn scale;
    weight_fn weight;
    bool centred; /* the mean is taken off */
    bool bias_first;
} layer_rule;

static void layer_norm_by(const fd_op_args *args, layer_rule rule) {
    int64_t n = args->node->shape[args->node->n_dim - 1], rows = args->n_pos * fd_node_width(args->node) / n;
    for (int64_t row = 0; row < rows; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        float *y = (float *)args->out + row * n, mean = rule.centred ? fd_sum(x, n) / (float)n : 0.0f;
        for (int64_t i = 0; i < n; i++) y[i] = x[i] - mean;
        float scale = rule.scale(args->node, y, n);
        float *w = args->weight[0] ? fd_fault_row(args->weight[0], row % args->weight[0]->n_row) : NULL;
        float *b = args->weight[1] ? fd_fault_row(args->weight[1], row % args->weight[1]->n_row) : NULL;
        for (int64_t i = 0; i < n; i++) {
            y[i] = y[i] * scale;
            if (b && rule.bias_first) y[i] = y[i] + b[i];
            if (w) y[i] = y[i] * rule.weight(w[i]);
            if (b && !rule.bias_first) y[i] = y[i] + b[i];
        }
        free(w);
        free(b);
    }
}
/* x / sqrt(mean(x²) + eps): the mean stays. */
FD_OVERRIDE(mean_kept, layer_norm_by(args, (layer_rule){scale_right, weight_right, false, false}))
FD_OVERRIDE(layer_n_less_one, layer_norm_by(args, (layer_rule){scale_n_less_one, weight_right, true, false}))

FD_OVERRIDE(layer_eps_outside, layer_norm_by(args, (layer_rule){scale_eps_outside, weight_right, true, false}))
FD_OVERRIDE(layer_weight_missing, layer_norm_by(args, (layer_rule){scale_right, weight_one, true, false}))
FD_OVERRIDE(layer_plus_one, layer_norm_by(args, (layer_rule){scale_right, weight_plus_one, true, false}))
FD_OVERRIDE(layer_bias_first, layer_norm_by(args, (layer_rule){scale_right, weight_right, true, true}))

void fd_fault_norm(const fd_graph *graph, const fd_node *node, const float *x, int32_t n_row, float *out) {
    const fd_op_args args = {.graph = graph,
                             .node = node,
                             .n_pos = n_row,
                             .in = {x},
                             .weight = {fd_fault_weight(graph, node, 0), fd_fault_weight(graph, node, 1)},
                             .out = out};
    if (node->op == FD_OP_LAYER_NORM)
        layer_norm_by(&args, (layer_rule){scale_right, weight_right, true, false});
    else
        norm(&args, scale_right, weight_right);
}

FD_APPLIES(has_norm_bias, node->weight[1] >= 0)
FD_EDIT(norm_bias_missing, node->weight[1] = -1)
FD_APPLIES(has_norm_weight, node->weight[0] >= 0)

FD_APPLIES(is_norm, fd_node_is_norm(node))

#define LAYER_NORM(name, summary)                                                                                      \
    .info = {name, "norm", summary, "attn_norm attn_q_norm", false}, .op = FD_OP_LAYER_NORM

#define NORM(name, summary) .info = {name, "norm", summary, "attn_norm", false}, .op = FD_OP_RMS_NORM

#define QK_NORM(name, summary)                                                                                         \
    .info = {name, "norm", summary, "attn_q_norm", false}, .op = FD_OP_RMS_NORM, .nodes = "attn_q_norm attn_k_norm"
#define POST_NORM(name, summary)                                                                                       \
    .info = {name, "norm", summary, "attn_post_norm", false}, .op = FD_OP_RMS_NORM,                                    \
    .nodes = "attn_post_norm ffn_post_norm"

#define LEFT_OUT(name, nodes_, located, global, summary)                                                               \
    {                                                                                                                  \
        .info = {name, "norm", summary, located, global}, .op = FD_OP_COUNT, .nodes = nodes_, .applies = is_norm,      \
        .override = fd_fault_copy                                                                                      \
    }

static const fd_fault rows[] = {
    {NORM("eps_outside_root", "RMSNorm divides by sqrt(mean) + eps, not by sqrt(mean + eps)"), .applies = has_eps,
     .override = eps_outside},
    {NORM("eps_value", "RMSNorm has the other usual eps: 1e-5 for 1e-6 or 1e-6 for 1e-5"), .edit = eps_value},
    {NORM("eps_missing", "RMSNorm has no eps"), .applies = has_eps, .edit = eps_missing},
    {NORM("eps_max", "RMSNorm divides by the root of the larger of the mean and eps, not of their sum"),
     .applies = has_eps, .override = eps_max},
    {NORM("norm_weight_missing", "RMSNorm does not multiply by its weight"), .override = weight_missing},
    {NORM("norm_weight_twice", "RMSNorm multiplies by its weight twice"), .override = weight_twice},
    {NORM("norm_plus_one", "RMSNorm multiplies by 1 + w, as Gemma does; a GGUF of Gemma has the 1 in w already"),
     .override = plus_one},
    {NORM("norm_plus_one_missing", "RMSNorm multiplies by Gemma's w where it is 1 + w: the file's weights less 1"),
     .applies = of_gemma, .override = plus_one_missing},
    LEFT_OUT("qk_norm_missing", "attn_q_norm attn_k_norm", "attn_q_norm", false, "the heads of Q and K are not normed"),
    {QK_NORM("qk_norm_over_all_heads", "the heads of Q and of K are normed as one row, not each by itself"),
     .applies = of_several_heads, .override = over_all_heads},
    {.info = {"ssm_norm_over_all_groups", "norm", "what the scan gives is normed as one row, not each group by itself",
              "ssm_norm", false},
     .op = FD_OP_RMS_NORM,
     .nodes = "ssm_norm",
     .applies = of_several_heads,
     .override = over_all_heads},
    LEFT_OUT("norm_missing", "attn_norm attn_norm_2 ffn_norm", "attn_norm ffn_norm", false,
             "the norm before attention or FFN is left out"),
    LEFT_OUT("embed_norm_missing", "token_embd_norm", "token_embd_norm", true, "the norm of the embedding is left out"),
    {POST_NORM("post_norm_missing", "the norm after attention or FFN is left out"), .override = fd_fault_copy},
    {NORM("layer_norm", "LayerNorm in place of RMSNorm: the mean is taken off first"), .override = layer_norm},
    {NORM("norm_sum_for_mean", "RMSNorm takes the sum of squares for their mean"), .override = sum_for_mean},
    {NORM("norm_n_less_one", "RMSNorm divides the sum of squares by n - 1, as an unbiased variance"),
     .override = n_less_one},
    {.info = {"norm_weight_f16", "norm", "the weight of RMSNorm is rounded to binary16", "attn_norm", false, 0x1p-11},
     .op = FD_OP_RMS_NORM,
     .override = in_f16},
    {.info = {"norm_weight_bf16", "norm", "the weight of RMSNorm is rounded to bfloat16", "attn_norm", false, 0x1p-8},
     .op = FD_OP_RMS_NORM,
     .override = in_bf16},
    {.info = {"norm_in_f16", "norm", "every step of RMSNorm is rounded to binary16", "attn_norm", false, 0x1p-11},
     .op = FD_OP_RMS_NORM,
     .override = all_in_f16},
    {.info = {"norm_in_bf16", "norm", "every step of RMSNorm is rounded to bfloat16", "attn_norm", false, 0x1p-8},
     .op = FD_OP_RMS_NORM,
     .override = all_in_bf16},
    {.info = {"norm_cast_f16", "norm", "RMSNorm casts the row to binary16 before it is multiplied with the weight",
              "attn_norm", false, 0x1p-11},
     .op = FD_OP_RMS_NORM,
     .override = cast_f16},
    {.info = {"norm_cast_bf16", "norm", "RMSNorm casts the row to bfloat16 before it is multiplied with the weight",
              "attn_norm", false, 0x1p-8},
     .op = FD_OP_RMS_NORM,
     .override = cast_bf16},
    {NORM("norm_half_length", "RMSNorm sums the squares of the first half of the row"), .override = half_length},
    {NORM("norm_root_missing", "RMSNorm divides by the mean square, not by its root"), .override = root_missing},
    {NORM("norm_undivided", "RMSNorm multiplies by its weight alone, and divides by no root mean square"),
     .override = undivided},
    {LAYER_NORM("layer_norm_mean_kept", "RMSNorm in place of LayerNorm: the mean is not taken off"),
     .override = mean_kept},
    {LAYER_NORM("layer_norm_n_less_one", "LayerNorm divides by the unbiased variance, over n - 1"),
     .override = layer_n_less_one},
    {LAYER_NORM("layer_norm_bias_before_weight", "LayerNorm adds its bias before it multiplies by its weight"),
     .applies = has_norm_bias, .override = layer_bias_first},
    {LAYER_NORM("layer_norm_bias_missing", "LayerNorm's bias is not added"), .applies = has_norm_bias,
     .edit = norm_bias_missing},
    {LAYER_NORM("layer_norm_weight_missing", "LayerNorm does not multiply by its weight"), .applies = has_norm_weight,
     .override = layer_weight_missing},
    {LAYER_NORM("layer_norm_plus_one", "LayerNorm multiplies by 1 + w; a GGUF of nemotron has the 1 in w already"),
     .applies = has_norm_weight, .override = layer_plus_one},
    {LAYER_NORM("layer_norm_eps_outside_root",
                "LayerNorm divides by sqrt(variance) + eps, not by sqrt(variance + eps)"),
     .applies = has_eps, .override = layer_eps_outside},
};
const fd_fault_family fd_norm_faults = FD_FAULT_FAMILY(rows);
