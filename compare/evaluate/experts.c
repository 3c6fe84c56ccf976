/* A mixture of experts under a hypothesis: with fewer experts, with others' biases, weighted elsewhere. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/evaluate/workbench.h"
#include "compare/products/run_op.h"
#include "model/weight_rows.h"

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
static void sum_some(const fd_evaluation *ev, const fd_op_args *args) {
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

/* An expert's bias into `out` [n]; zeros where it has none. */
static void bias_of(const fd_weight *biases, float id, float *out, int64_t n) {
    const int64_t expert = biases ? fd_expert_of((double)id, biases->n_row) : -1;
    memset(out, 0, sizeof *out * (size_t)n);
    if (expert >= 0) fd_weight_row(biases, expert, out);
}

static bool are_equal(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!(a[i] >= b[i] && a[i] <= b[i])) return false;
    return true;
}

/* A product of experts: those of which the candidate has zeros, or the bias alone, give that. */
static void zero_some(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_explain_request *r = ev->bench->request;
    const int64_t n = args->node->shape[1], n_row = args->n_pos * args->node->shape[0];
    const float *ids = args->in[1], *candidate = r->output + (args->pos0 - r->args.pos0) * args->node->shape[0] * n;
    float *nothing = malloc(sizeof *nothing * (size_t)n);
    fd_call_op(r->op, FD_NUMERICS_EXACT, args);
    for (int64_t row = 0; nothing && row < n_row; row++)
        for (int with = 0; with < 2; with++) {
            bias_of(with ? args->weight[1] : NULL, ids[row], nothing, n);
            if (are_equal(candidate + row * n, nothing, n))
                memcpy((float *)args->out + row * n, nothing, sizeof *nothing * (size_t)n);
        }
    free(nothing);
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

/* Expert h.n gives zeros, or its bias alone. */
static void leave_one_out(const fd_evaluation *ev, const fd_op_args *args) {
    const int64_t n = args->node->shape[1], n_row = args->n_pos * args->node->shape[0];
    const float *ids = args->in[1];
    float *nothing = malloc(sizeof *nothing * (size_t)n);
    fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, args);
    if (nothing) bias_of(ev->h.before_bias ? args->weight[1] : NULL, (float)ev->h.n, nothing, n);
    for (int64_t row = 0; nothing && row < n_row; row++)
        if (ids[row] == (float)ev->h.n) memcpy((float *)args->out + row * n, nothing, sizeof *nothing * (size_t)n);
    free(nothing);
}

/* The chosen experts' weights at the rows of args, as they should be; NULL: they are not known. */
static const float *weights_of(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_explain_request *r = ev->bench->request;
    const fd_graph *graph = r->args.graph;
    int32_t id = args->node->id;
    while (id >= 0 && (graph->nodes[id].layer != args->node->layer || graph->nodes[id].op != FD_OP_EXPERT_WEIGHTS))
        id--;
    const float *rows = id < 0 ? NULL : fd_bench_recorded(r, id);
    fd_work *work = NULL;
    fd_error ignored;
    if (id >= 0 && !rows && fd_bench_unrecorded(&ev->bench->plain, id, &work, &ignored) == FD_OK && work)
        rows = work->v.memory;
    return rows ? rows + (args->pos0 - r->args.pos0) * graph->nodes[id].shape[0] : NULL;
}

/* W(w x) + b = W x + b + (w - 1) W x; of what is computed from it nothing is weighted. */
static void weigh_inputs(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_node *node = args->node;
    const bool sum = node->op == FD_OP_EXPERT_SUM;
    const bool first = !sum && args->graph->nodes[node->input[0]].n_dim == 1;
    const int64_t k = sum ? args->graph->nodes[node->input[1]].shape[0] : node->shape[0], n_row = args->n_pos * k;
    const int64_t n = sum ? n_row : n_row * node->shape[1];
    const float *weights = first ? weights_of(ev, args) : NULL;
    float *other = malloc(sizeof *other * (size_t)n);
    fd_op_args with = *args;
    for (int64_t i = 0; other && i < n && sum; i++) other[i] = 1;
    if (sum && other) with.in[1] = other;
    fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, &with);
    if (weights && other) {
        with.out = other;
        with.weight[1] = NULL;
        fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, &with);
        for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] += (weights[i / node->shape[1]] - 1.0f) * other[i];
    }
    free(other);
}

bool fd_bench_changes_experts(const fd_evaluation *ev, const fd_node *node) {
    if (ev->h.guess == FD_GUESS_EXPERTS) return true;
    /* at the node asked about alone, whose rows are the candidate's */
    return ev->h.guess == FD_GUESS_OWN && ev->h.which >= FD_OWN_EXPERTS &&
           node->id == ev->bench->request->args.node->id;
}

void fd_bench_run_experts(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_hypothesis *h = &ev->h;
    if (h->guess == FD_GUESS_EXPERTS && h->which == FD_EXPERTS_LEFT_OUT)
        leave_one_out(ev, args);
    else if (h->guess == FD_GUESS_EXPERTS)
        weigh_inputs(ev, args);
    else if (h->which == FD_OWN_EXPERT_BIAS)
        run_other_biases(ev, args);
    else if (args->node->op == FD_OP_EXPERT_SUM)
        sum_some(ev, args);
    else
        zero_some(ev, args);
}
