/* Reads elements, and computes from them what a trace does not say: other engines record no statistics. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/inspect/inspect.h"
#include "dumpers/observe/health.h"
#include "dumpers/store/place.h"

const char *fd_trace_level_text(fd_trace_level level) {
    return level == FD_TRACE_FULL ? "full" : level == FD_TRACE_STATS ? "stats" : "fingerprint";
}

json_t *fd_inspect_number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

fd_code fd_inspect_read(const fd_trace *trace, int32_t node, int32_t pos, double **out, int64_t *n, fd_error *err) {
    const fd_trace_node *info = fd_trace_node_at(trace, node);
    *n = fd_trace_elements(info, pos);
    *out = NULL;
    if (!info->has_data)
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s: %s: no elements recorded (level %s)", fd_trace_path(trace),
                       info->name, fd_trace_level_text(fd_trace_get_info(trace)->level));
    *out = malloc(sizeof **out * (size_t)(*n > 0 ? *n : 1));
    if (!*out) return fd_fail(err, FD_ERR_MEMORY, "%s: %lld elements: out of memory", info->name, (long long)*n);
    fd_code code = fd_trace_read(trace, node, pos, NULL, *out, err);
    if (code == FD_OK) return FD_OK;
    free(*out);
    *out = NULL;
    return code;
}

fd_code fd_inspect_stats(const fd_trace *trace, int32_t node, int32_t pos, fd_trace_stats *out, bool *known,
                         fd_error *err) {
    const fd_trace_stats *recorded = fd_trace_stats_at(trace, node, pos);
    *known = recorded || fd_trace_holds(trace, node, pos);
    if (recorded) *out = *recorded;
    if (recorded || !*known) return FD_OK;
    double *data;
    int64_t n;
    FD_TRY(fd_inspect_read(trace, node, pos, &data, &n, err));
    const fd_node flat = {.n_dim = 1, .shape = {(int32_t)n}};
    fd_observation_stats(
        &(fd_observation){.node = &flat, .pos0 = pos, .n_pos = 1, .row_stride = n, .dtype = FD_F64, .data = data}, 0,
        out);
    free(data);
    return FD_OK;
}

/* ---- health ---- */

static fd_code take_logits(const fd_trace *trace, fd_inspect_health_table *t, fd_error *err) {
    int32_t node = fd_trace_find(trace, "logits");
    for (int32_t pos = 0; pos < t->n_pos; pos++) {
        const fd_trace_health *recorded = fd_trace_health_at(trace, pos);
        fd_trace_health *h = &t->of[pos];
        if (recorded) {
            *h = *recorded;
            t->n_recorded++;
            continue;
        }
        fd_health_clear(h);
        h->n_kv = pos + 1;
        h->loop_length = fd_health_loop(fd_trace_tokens(trace), pos + 1);
        if (node < 0 || !fd_trace_holds(trace, node, pos)) continue;
        double *logits;
        int64_t n;
        fd_top_logits top;
        FD_TRY(fd_inspect_read(trace, node, pos, &logits, &n, err));
        fd_health_logits(FD_F64, logits, n, &top);
        fd_health_note(&top, h);
        free(logits);
        t->n_logits++;
    }
    return FD_OK;
}

/* nodes[layer] of the attention weights; layers counted from 0 without a gap and with equally many heads, else none. */
static void find_weights(const fd_trace *trace, int32_t *nodes, fd_inspect_health_table *t) {
    char name[64];
    for (;; t->n_layer++) {
        snprintf(name, sizeof name, "blk.%d.attn_weights", t->n_layer);
        int32_t at = fd_trace_find(trace, name);
        const fd_trace_node *node = at < 0 ? NULL : fd_trace_node_at(trace, at);
        if (!node || !node->over_kv || node->n_dim != 2 || (t->n_head && node->shape[0] != t->n_head)) return;
        t->n_head = node->shape[0];
        nodes[t->n_layer] = at;
    }
}

static fd_code take_attention(const fd_trace *trace, fd_inspect_health_table *t, int32_t *nodes, fd_error *err) {
    fd_trace_entropy(trace, 0, &t->n_layer, &t->n_head);
    bool recorded = t->n_layer > 0 && t->n_head > 0;
    if (!recorded) t->n_layer = t->n_head = 0;
    if (!recorded) find_weights(trace, nodes, t);
    size_t heads = (size_t)t->n_layer * (size_t)t->n_head, n = heads * (size_t)t->n_pos + 1;
    t->entropy = malloc(n * sizeof *t->entropy);
    t->sink = malloc(n * sizeof *t->sink);
    if (!t->entropy || !t->sink) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", fd_trace_path(trace));
    for (int32_t pos = 0; pos < t->n_pos; pos++) {
        int32_t n_layer, n_head, layer = 0;
        float *entropy = t->entropy + (size_t)pos * heads, *sink = t->sink + (size_t)pos * heads;
        const float *e = fd_trace_entropy(trace, pos, &n_layer, &n_head),
                    *s = fd_trace_sink(trace, pos, &n_layer, &n_head);
        if (recorded && e) memcpy(entropy, e, heads * sizeof *e);
        for (size_t i = 0; i < heads; i++) sink[i] = recorded && s ? s[i] : NAN;
        while (!recorded && layer < t->n_layer && fd_trace_holds(trace, nodes[layer], pos)) layer++;
        t->has_entropy[pos] = recorded ? e != NULL : heads > 0 && layer == t->n_layer;
        for (layer = 0; !recorded && t->has_entropy[pos] && layer < t->n_layer; layer++) {
            double *weights;
            int64_t count;
            FD_TRY(fd_inspect_read(trace, nodes[layer], pos, &weights, &count, err));
            fd_health_attention(FD_F64, weights, t->n_head, pos + 1, pos + 1, entropy + layer * t->n_head,
                                sink + layer * t->n_head);
            free(weights);
        }
        t->n_entropy += t->has_entropy[pos];
    }
    return FD_OK;
}

fd_code fd_inspect_health_load(const fd_trace *trace, fd_inspect_health_table *out, fd_error *err) {
    *out = (fd_inspect_health_table){.n_pos = fd_trace_n_pos(trace)};
    out->of = calloc((size_t)out->n_pos + 1, sizeof *out->of);
    out->has_entropy = calloc((size_t)out->n_pos + 1, sizeof *out->has_entropy);
    int32_t *nodes = malloc(sizeof *nodes * ((size_t)fd_trace_n_node(trace) + 1));
    fd_code code = out->of && out->has_entropy && nodes
                       ? FD_OK
                       : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", fd_trace_path(trace));
    if (code == FD_OK) code = take_logits(trace, out, err);
    if (code == FD_OK) code = take_attention(trace, out, nodes, err);
    free(nodes);
    return code;
}

void fd_inspect_health_free(fd_inspect_health_table *table) {
    free(table->of);
    free(table->has_entropy);
    free(table->entropy);
    free(table->sink);
    *table = (fd_inspect_health_table){0};
}
