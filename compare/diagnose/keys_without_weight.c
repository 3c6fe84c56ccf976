/* Scores of keys that a mask hides need not be -Inf: an engine that never computes them leaves what its buffer held before. The weights
 * beside them tell such keys from rows of K that are wrong, which would be attended to. */
#include <math.h>

#include "compare/diagnose/guesses.h"

/* e^-80 is 2e-35: a float holds it. */
static const float most_below = 80;

/* The softmax that reads these scores, as recorded. */
static const float *recorded_weights(const fd_explain_request *r) {
    const fd_graph *graph = r->args.graph;
    for (int32_t i = r->args.node->id + 1; r->tensor && i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ATTN_SOFTMAX && graph->nodes[i].input[0] == r->args.node->id)
            return r->tensor(r->user, i);
    return NULL;
}

/* Of the keys that have a weight. */
static float largest_score(const float *score, const float *weight, int64_t n_kv) {
    float most = -INFINITY;
    for (int64_t key = 0; key < n_kv; key++) most = weight[key] > 0 ? fmaxf(most, score[key]) : most;
    return most;
}

bool fd_keys_have_no_weight(const fd_trial *t) {
    const fd_explain_request *r = t->all.request;
    const fd_variant *plain = &t->all.plain;
    const float *weights = recorded_weights(r);
    const int64_t n_kv = r->args.n_kv, stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    int64_t n = 0;
    for (int64_t row = r->n_unjudged; weights && row < r->args.n_pos; row++)
        for (int64_t head = 0; head < r->args.node->shape[0]; head++) {
            const int64_t at = row * stride + head * n_kv;
            const float most = largest_score(r->output + at, weights + at, n_kv);
            for (int64_t key = at; key < at + n_kv && key <= at + r->args.pos0 + row; key++) {
                const double tau = plain->tau ? plain->tau[key] : 0;
                if (fabs((double)r->output[key] - (double)plain->rows[key]) <= tau) continue;
                if (!(weights[key] == 0)) return false;
                n += r->output[key] > most - most_below;
            }
        }
    return n > 0;
}
