/* Bugs of a mixture of experts: of the choice, of its weights, and of which matrix an expert reads. */
#include "faults/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/contract.h"

/* ---- router ---- */

static void sigmoid_for_softmax(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = 1.0f / (1.0f + fd_exp32(-((const float *)args->in[0])[i]));
}

static void softmax_for_sigmoid(const fd_op_args *args) {
    int64_t n = fd_node_width(args->node);
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *x = (const float *)args->in[0] + p * n;
        float *y = (float *)args->out + p * n, max = -INFINITY, sum;
        for (int64_t i = 0; i < n; i++) max = fmaxf(max, x[i]);
        for (int64_t i = 0; i < n; i++) y[i] = fd_exp32(x[i] - max);
        sum = fd_sum(y, n);
        for (int64_t i = 0; i < n; i++) y[i] = y[i] / sum;
    }
}

/* Sorted the other way round. */
static void smallest_chosen(const fd_op_args *args) {
    int32_t n = fd_fault_input(args, 0)->shape[0], k = args->node->shape[0];
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *x = (const float *)args->in[0] + (int64_t)p * n;
        float *id = (float *)args->out + (int64_t)p * k;
        for (int32_t r = 0; r < k; r++) {
            int32_t best = -1;
            for (int32_t i = 0; i < n; i++) {
                bool taken = false;
                for (int32_t m = 0; m < r; m++) taken = taken || id[m] == (float)i;
                if (!taken && (best < 0 || x[i] < x[best])) best = i;
            }
            id[r] = (float)best;
        }
    }
}

FD_EDIT(bias_missing, node->weight[1] = -1)
FD_APPLIES(has_bias, fd_fault_weight(graph, node, 1) != NULL)

/* ---- weights ---- */

FD_APPLIES(normalises, node->gating == FD_GATING_NORMALISED)
FD_APPLIES(softmaxes, node->gating == FD_GATING_SOFTMAX)
FD_APPLIES(in_groups, node->n_group > node->n_group_used)
FD_EDIT(groups_ignored, node->n_group = 0)
FD_EDIT(not_normalised, node->gating = FD_GATING_GATHER)
FD_APPLIES(gathers, node->gating == FD_GATING_GATHER)
FD_EDIT(normalised, node->gating = FD_GATING_NORMALISED)
FD_APPLIES(has_logits, fd_fault_sibling(graph, node, "ffn_moe_logits") >= 0)
FD_EDIT(logits_as_weights, node->gating = FD_GATING_GATHER;
        node->input[0] = fd_fault_sibling(site->graph, node, "ffn_moe_logits"))
FD_EDIT(softmax_twice, node->gating = FD_GATING_SOFTMAX)

/* The chosen ones' share of all experts. */
static void softmax_over_all(const fd_op_args *args) {
    int32_t n = fd_fault_input(args, 0)->shape[0], k = args->node->shape[0];
    float *e = malloc(sizeof *e * (size_t)n);
    if (!e) {
        fd_fault_nan(args, k);
        return;
    }
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *x = (const float *)args->in[0] + (int64_t)p * n, *id = (const float *)args->in[1] + (int64_t)p * k;
        float max = -INFINITY, sum;
        for (int32_t i = 0; i < n; i++) max = fmaxf(max, x[i]);
        for (int32_t i = 0; i < n; i++) e[i] = fd_exp32(x[i] - max);
        sum = fd_sum(e, n);
        for (int32_t r = 0; r < k; r++) {
            int64_t expert = fd_expert_of((double)id[r], n);
            ((float *)args->out)[(int64_t)p * k + r] = expert < 0 ? NAN : e[expert] / sum * args->node->scale;
        }
    }
    free(e);
}

/* ---- products ---- */

/* The op with other ids: what `other` makes of the id of rank r at position p. */
typedef float (*id_fn)(const fd_op_args *args, int32_t p, int32_t r);

static float id_at(const fd_op_args *args, int32_t p, int32_t r) {
    return ((const float *)args->in[1])[(int64_t)p * args->node->shape[0] + r];
}

/* Rows of experts whose id `other` turns into -1 stay zero. */
static void products(const fd_op_args *args, id_fn other) {
    const fd_weight *w = args->weight[0];
    int64_t n = w->n_col, k = args->node->shape[0], n_out = args->node->shape[1], n_expert = w->n_row / n_out;
    bool own_rows = fd_fault_input(args, 0)->n_dim == 2;
    memset(args->out, 0, sizeof(float) * (size_t)(args->n_pos * k * n_out));
    for (int64_t row = 0; row < w->n_row; row++) { /* rows outside: each is dequantised once */
        float *values = fd_fault_row(w, row),
              *bias = args->weight[1] ? fd_fault_row(args->weight[1], row / n_out) : NULL;
        for (int64_t item = 0; item < args->n_pos * k; item++) {
            float id = other(args, (int32_t)(item / k), (int32_t)(item % k));
            float *y = (float *)args->out + item * n_out + row % n_out;
            if (id != -1.0f && fd_expert_of((double)id, n_expert) < 0) *y = NAN;
            if (id != (float)(row / n_out)) continue;
            *y = values ? fd_fault_dot(values, (const float *)args->in[0] + (own_rows ? item : item / k) * n, n) : NAN;
            if (bias) *y = *y + bias[row % n_out];
        }
        free(values);
        free(bias);
    }
}

static int64_t n_expert_of(const fd_op_args *args) {
    return args->weight[0]->n_row / args->node->shape[1];
}
static float next_id(const fd_op_args *args, int32_t p, int32_t r) {
    return fmodf(id_at(args, p, r) + 1.0f, (float)n_expert_of(args));
}
static float first_rows_id(const fd_op_args *args, int32_t p, int32_t r) {
    (void)p;
    return id_at(args, 0, r);
}
/* As ids beyond a type's range would be: here the upper half is lost, whatever the number of experts. */
static float low_id(const fd_op_args *args, int32_t p, int32_t r) {
    float id = id_at(args, p, r);
    return id >= (float)((n_expert_of(args) + 1) / 2) ? -1.0f : id;
}
FD_OVERRIDE(next_expert, products(args, next_id))
FD_OVERRIDE(first_rows_experts, products(args, first_rows_id))
FD_OVERRIDE(high_ids_ignored, products(args, low_id))

/* The gate's matrices for up and up's for gate, biases with them, by their names in the file. */
static void gate_up_swapped(fd_fault_site *site) {
    const fd_graph *graph = site->graph;
    bool gate = fd_fault_is_one_of(site->node, "ffn_moe_gate");
    for (int slot = 0; slot < FD_MAX_WEIGHTS; slot++) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "blk.%d.ffn_%s_exps.%s", site->node->layer, gate ? "up" : "gate",
                 slot ? "bias" : "weight");
        for (int32_t i = 0; i < graph->n_weight && site->node->weight[slot] >= 0; i++)
            if (strcmp(graph->weights[i].name, wanted) == 0) site->node->weight[slot] = i;
    }
}

/* ---- sum ---- */

/* y = Σ weight(r)·x[r]. */
typedef float (*share_fn)(const float *weights, int32_t n, int32_t r);

static void sum(const fd_op_args *args, share_fn share) {
    int32_t n = args->node->shape[0], k = fd_fault_input(args, 1)->shape[0];
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *w = (const float *)args->in[1] + (int64_t)p * k;
        for (int32_t i = 0; i < n; i++) {
            float acc = 0.0f;
            for (int32_t r = 0; r < k; r++)
                acc = fmaf(share(w, k, r), ((const float *)args->in[0])[((int64_t)p * k + r) * n + i], acc);
            ((float *)args->out)[(int64_t)p * n + i] = acc;
        }
    }
}

static float share_one(const float *weights, int32_t n, int32_t r) {
    (void)weights, (void)n, (void)r;
    return 1.0f;
}
static float share_reversed(const float *weights, int32_t n, int32_t r) {
    return weights[n - 1 - r];
}
static float share_of_first(const float *weights, int32_t n, int32_t r) {
    (void)n;
    return r == 0 ? weights[0] : 0.0f;
}
FD_OVERRIDE(unweighted, sum(args, share_one))
FD_OVERRIDE(reversed, sum(args, share_reversed))
FD_OVERRIDE(first_alone, sum(args, share_of_first))
FD_APPLIES(several, graph->nodes[node->input[1]].shape[0] > 1)

#define MOE(name, located, op_, summary) .info = {name, "moe", summary, located, false}, .op = op_

static const fd_fault rows[] = {
    {MOE("moe_router_bias_missing", "ffn_moe_logits", FD_OP_MATMUL, "the router's bias is not added"),
     .nodes = "ffn_moe_logits", .applies = has_bias, .edit = bias_missing},
    {MOE("moe_sigmoid", "ffn_moe_probs", FD_OP_SOFTMAX, "the router's logits go through a sigmoid, not a softmax"),
     .override = sigmoid_for_softmax},
    {MOE("moe_softmax", "ffn_moe_probs", FD_OP_SIGMOID, "the router's logits go through a softmax, not a sigmoid"),
     .nodes = "ffn_moe_probs", .override = softmax_for_sigmoid},
    {MOE("moe_smallest", "ffn_moe_topk", FD_OP_TOP_K, "the experts with the smallest probabilities are chosen"),
     .override = smallest_chosen},
    {MOE("moe_groups_ignored", "ffn_moe_topk", FD_OP_TOP_K,
         "experts are chosen from all groups, not from the best alone"),
     .applies = in_groups, .edit = groups_ignored},
    {MOE("moe_not_normalised", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "the chosen experts' probabilities are not divided by their sum"),
     .applies = normalises, .edit = not_normalised},
    {MOE("moe_normalised", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "the chosen experts' probabilities are divided by their sum, which this model does not do"),
     .applies = gathers, .edit = normalised},
    {MOE("moe_logits_as_weights", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "the router's logits are taken for the chosen experts' weights"),
     .applies = has_logits, .edit = logits_as_weights},
    {MOE("moe_softmax_twice", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "a softmax over the chosen experts' probabilities, which are a softmax already"),
     .applies = normalises, .edit = softmax_twice},
    {MOE("moe_softmax_over_all", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "the softmax goes over all experts, not over the chosen ones alone"),
     .applies = softmaxes, .override = softmax_over_all},
    {MOE("moe_next_expert", "ffn_moe_gate", FD_OP_EXPERT_MATMUL, "the matrices of expert id + 1 are read"),
     .override = next_expert},
    {MOE("moe_first_rows_experts", "ffn_moe_gate", FD_OP_EXPERT_MATMUL,
         "every row of a batch goes to the experts of the first row"),
     .override = first_rows_experts, .info.whole_batch = true},
    {MOE("moe_high_ids_ignored", "ffn_moe_gate", FD_OP_EXPERT_MATMUL,
         "experts with an id in the upper half are ignored, as ids beyond a type's range would be"),
     .override = high_ids_ignored},
    {MOE("moe_gate_up_swapped", "ffn_moe_gate", FD_OP_EXPERT_MATMUL, "the experts' gate and up matrices are exchanged"),
     .nodes = "ffn_moe_gate ffn_moe_up", .edit = gate_up_swapped},
    {MOE("moe_bias_missing", "ffn_moe_gate", FD_OP_EXPERT_MATMUL, "the experts' biases are not added"),
     .applies = has_bias, .edit = bias_missing},
    {MOE("moe_unweighted", "ffn_moe_out", FD_OP_EXPERT_SUM, "the experts' outputs are added without their weights"),
     .override = unweighted},
    {MOE("moe_weights_reversed", "ffn_moe_out", FD_OP_EXPERT_SUM,
         "the weights are in the other order than the experts: the last one's goes to the first"),
     .applies = several, .override = reversed},
    {MOE("moe_first_alone", "ffn_moe_out", FD_OP_EXPERT_SUM, "only the first of the chosen experts is added"),
     .applies = several, .override = first_alone},
    {MOE("moe_shared_missing", "ffn_out", FD_OP_ADD, "the experts that every token uses are left out"),
     .nodes = "ffn_out", .override = fd_fault_copy},
};
const fd_fault_family fd_moe_faults = FD_FAULT_FAMILY(rows);
