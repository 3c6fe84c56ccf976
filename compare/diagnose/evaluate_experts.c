/* Experts that a hypothesis runs in another way: fewer of them, with other biases, weighed before and not behind. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/diagnose/workbench.h"
#include "compare/products/run_op.h"
#include "model/gguf/quant.h"

/* What the experts of `set` leave of the candidate's row: Σ (c - Σ w x)². */
static double left_by(uint32_t set, const float *candidate, const float *x, const float *w, int32_t k, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) {
        double y = 0;
        for (int32_t e = 0; e < k; e++)
            if (set >> e & 1) y += (double)w[e] * (double)x[e * n + i];
        squares += ((double)candidate[i] - y) * ((double)candidate[i] - y);
    }
    return squares;
}

/* In each row of the candidate's the experts that come nearest to it, all of them where none come nearer. */
static void run_some_experts(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_explain_request *r = ev->bench->request;
    const int32_t k = args->graph->nodes[args->node->input[1]].shape[0];
    const int64_t n = fd_node_width(args->node);
    const float *candidate = r->output + (args->pos0 - r->args.pos0) * n;
    const size_t size = sizeof(float) * (size_t)(args->n_pos * k);
    float *weights = malloc(size);
    fd_op_args some = *args;
    if (weights) memcpy(weights, args->in[1], size);
    for (int64_t row = 0; weights && row < args->n_pos; row++) {
        const float *x = (const float *)args->in[0] + row * k * n, *c = candidate + row * n;
        float *w = weights + row * k;
        const uint32_t all = (1u << k) - 1;
        uint32_t best = all;
        double least = left_by(all, c, x, w, k, n);
        for (uint32_t set = 0; set < all; set++) {
            const double left = left_by(set, c, x, w, k, n);
            if (left < least) least = left, best = set;
        }
        for (int32_t e = 0; e < k; e++)
            if (!(best >> e & 1)) w[e] = 0;
    }
    if (weights) some.in[1] = weights;
    fd_call_op(r->op, FD_NUMERICS_EXACT, &some);
    free(weights);
}

/* Of each chosen expert in each row the bias that comes nearest to the candidate, the right one where none comes nearer. */
static void run_other_biases(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_explain_request *r = ev->bench->request;
    const fd_weight *bias = args->weight[1];
    const int64_t n = bias->n_col, n_expert = bias->n_row, n_row = args->n_pos * args->node->shape[0];
    const float *ids = args->in[1], *candidate = r->output + (args->pos0 - r->args.pos0) * args->node->shape[0] * n;
    float *biases = malloc(sizeof *biases * (size_t)(n_expert * n));
    fd_call_op(r->op, FD_NUMERICS_EXACT, args);
    if (biases) fd_dot_widen_weight(FD_DOT_AS_IS, bias, biases);
    for (int64_t row = 0; biases && row < n_row; row++) {
        const int64_t own = fd_expert_of((double)ids[row], n_expert);
        float *y = (float *)args->out + row * n;
        double least = INFINITY;
        int64_t best = own;
        for (int64_t e = 0; own >= 0 && e < n_expert; e++) {
            double left = 0;
            for (int64_t i = 0; i < n; i++) {
                const double with = (double)y[i] - (double)biases[own * n + i] + (double)biases[e * n + i];
                left += ((double)candidate[row * n + i] - with) * ((double)candidate[row * n + i] - with);
            }
            if (left < least) least = left, best = e;
        }
        for (int64_t i = 0; i < n && best != own; i++) y[i] += biases[best * n + i] - biases[own * n + i];
    }
    free(biases);
}

/* The weights of the chosen experts at the op's rows, as they should be; NULL: they are not known. */
static const float *chosen_weights(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_explain_request *r = ev->bench->request;
    const fd_node *sum = args->node;
    while (sum->op != FD_OP_EXPERT_SUM && sum->id + 1 < args->graph->n_node) sum = &args->graph->nodes[sum->id + 1];
    if (sum->op != FD_OP_EXPERT_SUM || sum->layer != args->node->layer || args->pos0 != r->args.pos0) return NULL;
    const float *recorded = fd_bench_recorded(r, sum->input[1]);
    const fd_variant *plain = &ev->bench->plain.works[sum->input[1]].v;
    return recorded ? recorded : plain->state == FD_VARIANT_COMPUTED ? plain->rows : NULL;
}

/* Rows that are weighed before the product: as many times as large, but for the bias. */
static void run_weighed(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_weight *bias = args->weight[1];
    const int64_t k = args->node->shape[0], n = args->node->shape[1], n_row = args->n_pos * k;
    const float *ids = args->in[1], *weights = chosen_weights(ev, args);
    float *biases = bias ? malloc(sizeof *biases * (size_t)(bias->n_row * n)) : NULL;
    fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, args);
    if (biases) fd_dot_widen_weight(FD_DOT_AS_IS, bias, biases);
    for (int64_t row = 0; row < n_row && weights && (biases || !bias); row++) {
        const int64_t own = bias ? fd_expert_of((double)ids[row], bias->n_row) : 0;
        float *y = (float *)args->out + row * n;
        for (int64_t i = 0; i < n && own >= 0; i++) {
            const float b = biases ? biases[own * n + i] : 0;
            y[i] = (y[i] - b) * weights[row] + b;
        }
    }
    free(biases);
}

static void run_unweighed(const fd_evaluation *ev, const fd_op_args *args) {
    const int64_t n = args->n_pos * args->graph->nodes[args->node->input[1]].shape[0];
    float *ones = malloc(sizeof *ones * (size_t)n);
    fd_op_args own = *args;
    for (int64_t i = 0; i < n && ones; i++) ones[i] = 1;
    if (ones) own.in[1] = ones;
    fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, &own);
    free(ones);
}

/* What the experts read is no row for each of them, and what weighs them is. */
static bool is_weighed_otherwise(const fd_evaluation *ev, const fd_node *node) {
    const fd_node *nodes = ev->bench->request->args.graph->nodes;
    return node->op == FD_OP_EXPERT_SUM ? nodes[node->input[0]].op == FD_OP_EXPERT_MATMUL
                                        : node->op == FD_OP_EXPERT_MATMUL && nodes[node->input[0]].n_dim == 1;
}

bool fd_bench_is_of_experts(const fd_evaluation *ev, const fd_node *node) {
    if (ev->h.guess != FD_GUESS_OWN || ev->h.which < FD_OWN_EXPERTS) return false;
    if (ev->h.which == FD_OWN_EXPERT_INPUTS) return is_weighed_otherwise(ev, node);
    return node->id == ev->bench->request->args.node->id; /* whose rows are the candidate's */
}

void fd_bench_run_experts(const fd_evaluation *ev, const fd_op_args *args) {
    if (ev->h.which == FD_OWN_EXPERTS) run_some_experts(ev, args);
    if (ev->h.which == FD_OWN_EXPERT_BIAS) run_other_biases(ev, args);
    if (ev->h.which != FD_OWN_EXPERT_INPUTS) return;
    if (args->node->op == FD_OP_EXPERT_SUM)
        run_unweighed(ev, args);
    else
        run_weighed(ev, args);
}
