/* FD_CACHE_PAST: what attention finds of earlier steps is another cache's, as where a host hands back the caches of a call in another
 * order; the rows of a step itself are its own. */
#include "compare/hypothesis/past.h"

#include <math.h>

/* K's for V, V's for K. */
static int32_t other_of_layer(const fd_graph *graph, const fd_node *cache) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (i != cache->id && graph->nodes[i].layer == cache->layer && fd_node_is_kv_cache(&graph->nodes[i])) return i;
    return -1;
}

int32_t fd_hypothesis_past_of(const fd_hypothesis *h, const fd_graph *graph, const fd_node *node) {
    if (h->guess != FD_GUESS_CACHE || h->which != FD_CACHE_PAST || !fd_reads_kv_cache(node)) return -1;
    const fd_node *cache = &graph->nodes[node->input[1]];
    const int32_t n_layer = graph->hparams.n_layer;
    const int32_t other = h->other ? fd_fault_in_layer(graph, cache, (cache->layer + h->other + n_layer) % n_layer)
                                   : other_of_layer(graph, cache);
    if (other < 0 || other == cache->id) return -1;
    return fd_node_width(&graph->nodes[other]) == fd_node_width(cache) ? other : -1;
}

static double score(const fd_node *node, const float *q, const float *key, int64_t dim) {
    double sum = 0;
    for (int64_t i = 0; i < dim; i++) sum += (double)q[i] * (double)key[i];
    sum *= (double)node->scale;
    return node->softcap > 0 ? (double)node->softcap * tanh(sum / (double)node->softcap) : sum;
}

void fd_hypothesis_past(const fd_node *node, const fd_output_rows *out) {
    const bool keys = node->op == FD_OP_ATTN_SCORES;
    const int64_t n_head = node->shape[0], n_kv = out->pos0 + out->n_row;
    if (!out->other || !out->in[0] || out->n_kv_head <= 0 || (!keys && !out->values)) return;
    const int64_t group = n_head / out->n_kv_head, width = out->other_width, dim = width / out->n_kv_head;
    for (int64_t at = 0; at < out->n_row * n_head; at++) {
        const int64_t own = out->pos0 + at / n_head, head = at % n_head / group * dim;
        const int64_t start = out->step_first < out->step_end && out->step_first < own ? out->step_first : own;
        float *scores = out->rows + at * n_kv, *mixed = out->rows + at * dim;
        for (int64_t t = 0; t < start && keys; t++)
            if (isfinite(scores[t]))
                scores[t] = (float)score(node, out->in[0] + at * dim, out->other + t * width + head, dim);
        for (int64_t i = 0; i < dim && !keys; i++) {
            double more = 0;
            for (int64_t t = 0; t < start; t++) {
                const int64_t from = t * width + head + i;
                more += (double)out->weights[at * n_kv + t] * ((double)out->other[from] - (double)out->values[from]);
            }
            mixed[i] = (float)((double)mixed[i] + more);
        }
    }
}
