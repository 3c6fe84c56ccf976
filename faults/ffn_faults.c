/* Bugs of the clamped SwiGLU and of residual sums. */
#include "faults/internal.h"

#include <math.h>

#include "numerics/contract.h"

/* ---- the clamped SwiGLU: (g·σ(slope·g))·(u + 1) with g and u clamped ---- */

typedef struct clamped {
    float limit, slope, plus;
} clamped;

static void activate_clamped(const fd_op_args *args, clamped how) {
    const float *gate = args->in[0], *up = args->in[1];
    float *y = args->out;
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        float g = fd_at_most32(gate[i], how.limit), u = fd_at_least32(fd_at_most32(up[i], how.limit), -how.limit);
        y[i] = fd_swish32(g, how.slope) * (u + how.plus);
    }
}
static void clamp_missing(const fd_op_args *args) {
    activate_clamped(args, (clamped){INFINITY, args->node->slope, 1.0f});
}
static void slope_missing(const fd_op_args *args) {
    activate_clamped(args, (clamped){args->node->limit, 1.0f, 1.0f});
}
static void up_plus_one_missing(const fd_op_args *args) {
    activate_clamped(args, (clamped){args->node->limit, args->node->slope, 0.0f});
}
static void swiglu_plain(const fd_op_args *args) {
    activate_clamped(args, (clamped){INFINITY, 1.0f, 0.0f});
}

/* A sum's inputs: 0 the stream, 1 the branch. */
static void branch_alone(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = ((const float *)args->in[1])[i];
}
static void stream_alone(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = ((const float *)args->in[0])[i];
}
static void branch_twice(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        float b = ((const float *)args->in[1])[i];
        ((float *)args->out)[i] = b + b;
    }
}

/* The normed stream in place of the stream. */
static void wrong_branch(fd_fault_site *site) {
    const fd_graph *graph = site->graph;
    fd_node *node = site->node;
    for (int32_t i = 0; i < node->id; i++) {
        const fd_node *norm = &graph->nodes[i];
        if (!fd_node_is_norm(norm) || norm->layer != node->layer || norm->input[0] != node->input[0]) continue;
        node->input[0] = i;
        return;
    }
}

/* The stream as the layer found it: what attention added to it is read by the FFN and is lost. */
static void layer_input(fd_fault_site *site) {
    const int32_t inp = fd_fault_sibling(site->graph, site->node, "ffn_inp");
    if (inp >= 0) site->node->input[0] = site->graph->nodes[inp].input[0];
}
FD_APPLIES(adds_to_ffn_inp, node->input[0] >= 0 && fd_fault_is_one_of(&graph->nodes[node->input[0]], "ffn_inp"))

/* The norm between a branch and its sum, before the edit and after it; -1: there is none. */
static int32_t post_norm_of(const fd_graph *graph, const fd_node *sum) {
    for (int32_t i = 0; i < sum->id; i++) {
        const fd_node *norm = &graph->nodes[i];
        const bool post = norm->layer == sum->layer && fd_fault_is_one_of(norm, "attn_post_norm ffn_post_norm");
        if (post && (sum->input[1] == i || sum->input[1] == norm->input[0])) return i;
    }
    return -1;
}
static void normed_sum(const fd_op_args *args) {
    const float *stream = args->in[0], *branch = args->in[1];
    float *sum = args->out;
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) sum[i] = stream[i] + branch[i];
    fd_fault_norm(args->graph, &args->graph->nodes[post_norm_of(args->graph, args->node)], sum, args->n_pos, sum);
}
static void norm_after_sum(fd_fault_site *site) {
    site->node->input[1] = site->graph->nodes[post_norm_of(site->graph, site->node)].input[0];
    site->node->override = normed_sum;
}
FD_APPLIES(has_post_norm, post_norm_of(graph, node) >= 0)

#define CLAMPED(name, summary) .info = {name, "ffn", summary, "ffn_act ffn_moe_act", false}, .op = FD_OP_SWIGLU_CLAMP
#define RESIDUAL(name, summary)                                                                                        \
    .info = {name, "residual", summary, "ffn_inp", false}, .op = FD_OP_ADD, .nodes = "ffn_inp l_out"

static const fd_fault rows[] = {
    {CLAMPED("swiglu_clamp_missing", "the clamped SwiGLU does not clamp"), .override = clamp_missing},
    {CLAMPED("swiglu_slope_missing", "the clamped SwiGLU takes SiLU: a slope of 1 for 1.702"),
     .override = slope_missing},
    {CLAMPED("swiglu_plus_one_missing", "the clamped SwiGLU multiplies by up, not by up + 1"),
     .override = up_plus_one_missing},
    {CLAMPED("swiglu_plain", "SwiGLU as other models have it, SiLU(gate) · up, in place of the clamped one"),
     .override = swiglu_plain},
    {RESIDUAL("residual_missing", "the stream is not added to the branch"), .override = branch_alone},
    {RESIDUAL("branch_missing", "the branch is not added to the stream"), .override = stream_alone},
    {RESIDUAL("post_norm_after_sum",
              "the norm after attention or FFN is applied to the sum with the stream, not to the branch"),
     .applies = has_post_norm, .edit = norm_after_sum},
    {RESIDUAL("residual_wrong_branch", "the normed stream is added in place of the stream"), .edit = wrong_branch},
    {.info = {"residual_of_layer_input", "residual",
              "the FFN's branch is added to the layer's input: what attention added is lost", "l_out", false},
     .op = FD_OP_ADD,
     .nodes = "l_out",
     .applies = adds_to_ffn_inp,
     .edit = layer_input},
    {RESIDUAL("residual_in_place", "the branch overwrites the stream before it is read: branch + branch"),
     .override = branch_twice},
};
const fd_fault_family fd_ffn_faults = FD_FAULT_FAMILY(rows);
