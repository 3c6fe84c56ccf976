/* Bugs of a mixture of experts behind its router: which matrix an expert reads, its biases, and how outputs are added. */
#include "faults/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/contract.h"

FD_EDIT(bias_missing, node->weight[1] = -1)
FD_APPLIES(has_bias, fd_fault_weight(graph, node, 1) != NULL)

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
static float first_id_for_second(const fd_op_args *args, int32_t p, int32_t r) {
    return id_at(args, p, r == 1 ? 0 : r);
}
static float reversed_id(const fd_op_args *args, int32_t p, int32_t r) {
    return id_at(args, p, args->node->shape[0] - 1 - r);
}

static float next_slots_id(const fd_op_args *args, int32_t p, int32_t r) {
    return id_at(args, p, (r + 1) % args->node->shape[0]);
}

/* The op on what the first of the chosen experts was given, for all of them. */
static void first_ones_input(const fd_op_args *args) {
    const int64_t n = args->weight[0]->n_col, k = args->node->shape[0], n_row = args->n_pos * k;
    float *rows = malloc(sizeof *rows * (size_t)(n_row * n));
    fd_op_args own = *args;
    if (!rows) {
        fd_fault_nan(args, k * args->node->shape[1]);
        return;
    }
    for (int64_t i = 0; i < n_row; i++)
        memcpy(rows + i * n, (const float *)args->in[0] + i / k * k * n, sizeof *rows * (size_t)n);
    own.in[0] = rows;
    products(&own, id_at);
    free(rows);
}
FD_APPLIES(several_inputs, node->shape[0] > 1 && graph->nodes[node->input[0]].n_dim == 2)
FD_OVERRIDE(experts_rotated, products(args, next_slots_id))
FD_OVERRIDE(experts_reversed, products(args, reversed_id))
FD_OVERRIDE(next_expert, products(args, next_id))
FD_OVERRIDE(first_expert_twice, products(args, first_id_for_second))
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
static float share_twice(const float *weights, int32_t n, int32_t r) {
    (void)n;
    return weights[r] * weights[r];
}
static float share_of_first(const float *weights, int32_t n, int32_t r) {
    (void)n;
    return r == 0 ? weights[0] : 0.0f;
}
static float share_but_of_last(const float *weights, int32_t n, int32_t r) {
    return r == n - 1 ? 0.0f : weights[r];
}
FD_OVERRIDE(unweighted, sum(args, share_one))
FD_OVERRIDE(last_missing, sum(args, share_but_of_last))
FD_OVERRIDE(weighted_twice, sum(args, share_twice))
FD_OVERRIDE(reversed, sum(args, share_reversed))
FD_OVERRIDE(first_alone, sum(args, share_of_first))
FD_APPLIES(several, graph->nodes[node->input[1]].shape[0] > 1)
FD_APPLIES(three_or_more_added, graph->nodes[node->input[1]].shape[0] > 2) /* of two the first alone is left */

FD_APPLIES(several_chosen, node->shape[0] > 1)
FD_APPLIES(three_or_more, node->shape[0] > 2) /* two are reversed */

#define MOE(name, located, op_, summary) .info = {name, "moe", summary, located, false}, .op = op_

static const fd_fault rows[] = {
    {MOE("moe_next_expert", "ffn_moe_gate", FD_OP_EXPERT_MATMUL, "the matrices of expert id + 1 are read"),
     .override = next_expert},
    {MOE("moe_first_rows_experts", "ffn_moe_gate", FD_OP_EXPERT_MATMUL,
         "every row of a batch goes to the experts of the first row"),
     .override = first_rows_experts, .info.whole_batch = true},
    {MOE("moe_high_ids_ignored", "ffn_moe_gate", FD_OP_EXPERT_MATMUL,
         "experts with an id in the upper half are ignored, as ids beyond a type's range would be"),
     .override = high_ids_ignored},
    {MOE("moe_gate_up_swapped", "ffn_moe_gate", FD_OP_EXPERT_MATMUL, "the experts' gate and up matrices are exchanged"),
     .nodes = "ffn_moe_gate ffn_moe_up", .edit = gate_up_swapped, .info.pair = true},
    {MOE("moe_first_expert_twice", "ffn_moe_gate", FD_OP_EXPERT_MATMUL,
         "the second of the chosen experts is computed with the matrices of the first"),
     .applies = several_chosen, .override = first_expert_twice},
    {MOE("moe_experts_reversed", "ffn_moe_gate", FD_OP_EXPERT_MATMUL,
         "the chosen experts' matrices are in the other order: the last one's go to the first"),
     .applies = several_chosen, .override = experts_reversed},
    {MOE("moe_experts_rotated", "ffn_moe_gate", FD_OP_EXPERT_MATMUL,
         "each of the chosen experts is computed with the matrices of the next one, the last with the first one's"),
     .applies = three_or_more, .override = experts_rotated},
    {MOE("moe_first_input_for_all", "ffn_moe_down", FD_OP_EXPERT_MATMUL,
         "every chosen expert reads what the first one's gate and up gave"),
     .nodes = "ffn_moe_down", .applies = several_inputs, .override = first_ones_input},
    {MOE("moe_gate_up_bias_missing", "ffn_moe_gate", FD_OP_EXPERT_MATMUL,
         "the biases of the experts' gate and up are not added"),
     .nodes = "ffn_moe_gate ffn_moe_up", .applies = has_bias, .edit = bias_missing},
    {MOE("moe_bias_missing", "ffn_moe_gate", FD_OP_EXPERT_MATMUL, "the experts' biases are not added"),
     .applies = has_bias, .edit = bias_missing},
    {MOE("moe_unweighted", "ffn_moe_out", FD_OP_EXPERT_SUM, "the experts' outputs are added without their weights"),
     .nodes = "ffn_moe_out", .override = unweighted},
    {MOE("moe_shared_ungated", "ffn_shexp_gated", FD_OP_EXPERT_SUM,
         "the expert that every token uses is added without its gate"),
     .nodes = "ffn_shexp_gated", .override = unweighted},
    {MOE("moe_weighted_twice", "ffn_moe_out", FD_OP_EXPERT_SUM,
         "each expert's output is multiplied by its weight twice"),
     .override = weighted_twice},
    {MOE("moe_weights_reversed", "ffn_moe_out", FD_OP_EXPERT_SUM,
         "the weights are in the other order than the experts: the last one's goes to the first"),
     .applies = several, .override = reversed},
    {MOE("moe_first_alone", "ffn_moe_out", FD_OP_EXPERT_SUM, "only the first of the chosen experts is added"),
     .applies = several, .override = first_alone},
    {MOE("moe_last_missing", "ffn_moe_out", FD_OP_EXPERT_SUM, "the last of the chosen experts is not added"),
     .applies = three_or_more_added, .override = last_missing},
    {MOE("moe_shared_missing", "ffn_out", FD_OP_ADD, "the experts that every token uses are left out"),
     .nodes = "ffn_out", .override = fd_fault_copy},
};
const fd_fault_family fd_moe_faults = FD_FAULT_FAMILY(rows);
