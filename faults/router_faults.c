/* Bugs of the router of a mixture of experts: which experts are chosen, and with what weights. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>

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
/* As models have it whose router ends in a sigmoid. */
static void sigmoid_of_logits(const fd_op_args *args) {
    const int32_t n = fd_fault_input(args, 0)->shape[0], k = args->node->shape[0];
    for (int32_t i = 0; i < args->n_pos * k; i++) {
        const float *x = (const float *)args->in[0] + (int64_t)(i / k) * n;
        const int64_t id = fd_expert_of((double)((const float *)args->in[1])[i], n);
        ((float *)args->out)[i] = id < 0 ? NAN : args->node->scale / (1.0f + fd_exp32(-x[id]));
    }
}
FD_EDIT(sigmoid_alone, node->input[0] = fd_fault_sibling(site->graph, node, "ffn_moe_logits");
        node->override = sigmoid_of_logits)
FD_APPLIES(takes_probabilities, normalises(graph, node) || gathers(graph, node))
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

/* The chosen experts' weights with one thing wrong, of models that divide them by their sum or leave them as they are. */
typedef struct weight_rule {
    bool last_left_out; /* fewer experts than the model has */
    bool alike;         /* each has the same */
    bool over_largest;  /* divided by the first one's, not by their sum */
    bool squared;
    bool by_place; /* the probabilities of experts 0, 1, … */
} weight_rule;

/* What is divided by the sum, or stands for itself: of a softmax over the chosen ones e^(x - max). */
static float weight_before_sum(const fd_op_args *args, const float *x, int32_t p, int32_t r, bool by_place) {
    const int32_t n = fd_fault_input(args, 0)->shape[0], k = args->node->shape[0];
    const float *id = (const float *)args->in[1] + (int64_t)p * k;
    const int64_t expert = by_place ? r : fd_expert_of((double)id[r], n);
    float max = -INFINITY;
    if (expert < 0 || args->node->gating != FD_GATING_SOFTMAX) return expert < 0 ? NAN : x[expert];
    for (int32_t i = 0; i < k; i++) {
        const int64_t other = by_place ? i : fd_expert_of((double)id[i], n);
        if (other >= 0) max = fmaxf(max, x[other]);
    }
    return fd_exp32(x[expert] - max);
}

static void weights_by(const fd_op_args *args, weight_rule how) {
    const int32_t n = fd_fault_input(args, 0)->shape[0], k = args->node->shape[0], used = k - how.last_left_out;
    const bool normalised = args->node->gating != FD_GATING_GATHER;
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *x = (const float *)args->in[0] + (int64_t)p * n;
        float *w = (float *)args->out + (int64_t)p * k;
        for (int32_t r = 0; r < k; r++) {
            const float own = weight_before_sum(args, x, p, r, how.by_place);
            w[r] = r >= used ? 0 : how.alike && !isnan(own) ? 1.0f / (float)k : own;
        }
        const float by = how.over_largest ? w[0] : fd_sum(w, used);
        for (int32_t r = 0; r < used; r++) w[r] = (normalised && !how.alike ? w[r] / by : w[r]) * args->node->scale;
        for (int32_t r = 0; r < used && how.squared; r++) w[r] = w[r] * w[r];
    }
}
FD_OVERRIDE(last_left_out, weights_by(args, (weight_rule){.last_left_out = true}))
FD_OVERRIDE(alike, weights_by(args, (weight_rule){.alike = true}))
FD_OVERRIDE(over_largest, weights_by(args, (weight_rule){.over_largest = true}))
FD_OVERRIDE(squared, weights_by(args, (weight_rule){.squared = true}))
FD_OVERRIDE(by_place, weights_by(args, (weight_rule){.by_place = true}))
FD_APPLIES(several_of_no_softmax, node->shape[0] > 1 && !softmaxes(graph, node))
FD_APPLIES(several_normalised, node->shape[0] > 1 && normalises(graph, node))
FD_APPLIES(several_weights, node->shape[0] > 1)

/* All but the one that is `skipped`th in order. */
static void choose_without(const fd_op_args *args, int32_t skipped) {
    const int32_t n = fd_fault_input(args, 0)->shape[0], k = args->node->shape[0];
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *x = (const float *)args->in[0] + (int64_t)p * n;
        float *id = (float *)args->out + (int64_t)p * k;
        int32_t without = -1;
        for (int32_t r = 0, n_chosen = 0; r <= k; r++) {
            int32_t best = -1;
            for (int32_t i = 0; i < n; i++) {
                bool taken = i == without;
                for (int32_t m = 0; m < n_chosen; m++) taken = taken || id[m] == (float)i;
                if (!taken && (best < 0 || x[i] > x[best])) best = i;
            }
            if (r == skipped)
                without = best;
            else if (n_chosen < k)
                id[n_chosen++] = (float)best;
        }
    }
}
FD_OVERRIDE(best_skipped, choose_without(args, 0))
FD_OVERRIDE(second_skipped, choose_without(args, 1))
FD_APPLIES(more_than_two,
           node->n_group <= 1 && node->shape[0] > 1 && graph->nodes[node->input[0]].shape[0] > node->shape[0])
FD_APPLIES(more_than_chosen, node->n_group <= 1 && graph->nodes[node->input[0]].shape[0] > node->shape[0])

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
    {MOE("moe_sigmoid_alone", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "the chosen experts' weights are the sigmoid of the router's logits, and are not divided by their sum"),
     .applies = has_logits, .edit = sigmoid_alone},
    {MOE("moe_softmax_twice", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "a softmax over the chosen experts' probabilities, which are a softmax already"),
     .applies = takes_probabilities, .edit = softmax_twice},
    {MOE("moe_softmax_over_all", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "the softmax goes over all experts, not over the chosen ones alone"),
     .applies = softmaxes, .override = softmax_over_all},
    {MOE("moe_best_skipped", "ffn_moe_topk", FD_OP_TOP_K, "the best expert is skipped: the next ones are chosen"),
     .applies = more_than_chosen, .override = best_skipped},
    {MOE("moe_second_skipped", "ffn_moe_topk", FD_OP_TOP_K,
         "the second best expert is skipped: the best and those from the third on are chosen"),
     .applies = more_than_two, .override = second_skipped},
    {MOE("moe_last_left_out", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "one expert fewer is used: the last of the chosen ones has no weight"),
     .applies = several_of_no_softmax, .override = last_left_out},
    {MOE("moe_weights_alike", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS, "the chosen experts all have the same weight"),
     .applies = several_weights, .override = alike},
    {MOE("moe_weights_squared", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS, "the chosen experts' weights are squared"),
     .override = squared},
    {MOE("moe_over_largest", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "the chosen experts' probabilities are divided by the first one's, not by their sum"),
     .applies = several_normalised, .override = over_largest},
    {MOE("moe_weights_by_place", "ffn_moe_weights", FD_OP_EXPERT_WEIGHTS,
         "the chosen experts have the probabilities of experts 0, 1, …: they are not taken by the experts' numbers"),
     .override = by_place},
};
const fd_fault_family fd_router_faults = FD_FAULT_FAMILY(rows);
