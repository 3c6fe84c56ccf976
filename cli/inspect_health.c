/* firstdiff inspect TRACE.h5 --health: what each position looked like while the model ran. */
#include <jansson.h>
#include <math.h>

#include "cli/cli.h"
#include "cli/inspect.h"

typedef struct spread {
    double mean, min, max;
} spread;

/* Over n entropies; NaN stays visible. */
static spread spread_of(const float *x, int32_t n) {
    spread s = {0, INFINITY, -INFINITY};
    for (int32_t i = 0; i < n; i++) {
        s.mean += (double)x[i] / n;
        s.min = isnan(x[i]) ? NAN : fmin(s.min, (double)x[i]);
        s.max = fmax(s.max, (double)x[i]);
    }
    if (n == 0) s = (spread){NAN, NAN, NAN};
    return s;
}

static void print_positions(const fd_trace *trace) {
    printf("%8s %8s %6s  %-26s %8s %10s  %-28s %s\n", "position", "token", "n_kv", "entropy mean (min…max)", "top-1 p",
           "logits", "top ids", "");
    for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++) {
        const fd_trace_health *h = fd_trace_health_at(trace, pos);
        int32_t n_layer = 0, n_head = 0;
        const float *entropy = fd_trace_entropy(trace, pos, &n_layer, &n_head);
        char text[64] = "-", ids[64] = "";
        printf("%8d %8d", pos, fd_trace_tokens(trace)[pos]);
        if (!h) {
            printf("  not recorded\n");
            continue;
        }
        if (entropy) {
            spread s = spread_of(entropy, n_layer * n_head);
            snprintf(text, sizeof text, "%.4f (%.4f…%.4f)", s.mean, s.min, s.max);
        }
        for (int32_t i = 0, at = 0; i < 4 && h->top_id[i] >= 0; i++)
            at += snprintf(ids + at, sizeof ids - (size_t)at, "%s%d", i ? " " : "", h->top_id[i]);
        /* "…" is three bytes and one column, hence 28 for 26. */
        printf(" %6d  %-*s %8.5f %10.4g  %-28s", h->n_kv, entropy ? 28 : 26, text, (double)h->top1_probability,
               (double)h->logit_range, ids);
        if (h->loop_length > 0) printf(" LOOP of %d", h->loop_length);
        printf("\n");
    }
}

/* Mean over positions of the heads' mean, and the extremes, of every layer. */
static void print_layers(const fd_trace *trace) {
    int32_t n_layer = 0, n_head = 0, n_pos = fd_trace_n_pos(trace);
    for (int32_t layer = 0; layer == 0 || layer < n_layer; layer++) {
        double mean = 0, min = INFINITY, max = -INFINITY, sink = 0;
        int32_t n = 0, n_sink = 0;
        for (int32_t pos = 0; pos < n_pos; pos++) {
            const float *entropy = fd_trace_entropy(trace, pos, &n_layer, &n_head);
            if (!entropy || layer >= n_layer) continue;
            spread s = spread_of(entropy + layer * n_head, n_head);
            mean += s.mean;
            min = isnan(s.min) ? NAN : fmin(min, s.min);
            max = fmax(max, s.max);
            n++;
            const float *on_first = fd_trace_sink(trace, pos, &n_layer, &n_head);
            if (!on_first || pos == 0) continue; /* at position 0 there is nothing else to attend to */
            sink += spread_of(on_first + layer * n_head, n_head).mean;
            n_sink++;
        }
        if (!n) return;
        if (layer == 0)
            printf("\nentropy of the attention weights in nats, over heads and positions; sink: mean weight on "
                   "position 0\n");
        printf("  layer %-4d mean %.4f   min %.4f   max %.4f", layer, mean / n, min, max);
        if (n_sink) printf("   sink %.4f", sink / n_sink);
        printf("\n");
    }
}

static fd_code print_heads(const fd_trace *trace, int32_t layer, fd_error *err) {
    int32_t n_layer = 0, n_head = 0, n_shown = 0;
    for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++) {
        const float *entropy = fd_trace_entropy(trace, pos, &n_layer, &n_head);
        if (!entropy) continue;
        if (layer >= n_layer)
            return fd_fail(err, FD_ERR_INPUT, "--layer %d: the trace has layers 0 to %d", layer, n_layer - 1);
        if (n_shown++ == 0) {
            printf("entropy of the attention weights in nats, layer %d\n%8s", layer, "position");
            for (int32_t head = 0; head < n_head; head++) printf("  head %-2d", head);
            printf("\n");
        }
        printf("%8d", pos);
        for (int32_t head = 0; head < n_head; head++) printf("  %7.4f", (double)entropy[layer * n_head + head]);
        printf("\n");
    }
    if (n_shown) return FD_OK;
    return fd_fail(err, FD_ERR_INCOMPLETE, "%s: no entropy recorded", fd_trace_path(trace));
}

static json_t *position_json(const fd_trace *trace, int32_t pos, int32_t only_layer) {
    const fd_trace_health *h = fd_trace_health_at(trace, pos);
    int32_t n_layer = 0, n_head = 0;
    const float *entropy = fd_trace_entropy(trace, pos, &n_layer, &n_head);
    json_t *top = json_array(), *layers = json_array();
    for (int32_t i = 0; h && i < FD_TOP_K && h->top_id[i] >= 0; i++)
        json_array_append_new(
            top, json_pack("{s:i, s:o}", "id", h->top_id[i], "logit", fd_inspect_number((double)h->top_logit[i])));
    for (int32_t layer = 0; entropy && layer < n_layer; layer++) {
        if (only_layer >= 0 && layer != only_layer) continue;
        json_t *heads = json_array();
        for (int32_t head = 0; head < n_head; head++)
            json_array_append_new(heads, fd_inspect_number((double)entropy[layer * n_head + head]));
        json_array_append_new(layers, json_pack("{s:i, s:o}", "layer", layer, "entropy", heads));
    }
    if (!h) return json_pack("{s:i, s:o, s:o, s:n}", "position", pos, "top", top, "layers", layers, "token");
    return json_pack("{s:i, s:i, s:i, s:o, s:o, s:i, s:o, s:o}", "position", pos, "token", fd_trace_tokens(trace)[pos],
                     "n_kv", h->n_kv, "top1_probability", fd_inspect_number((double)h->top1_probability), "logit_range",
                     fd_inspect_number((double)h->logit_range), "loop_length", h->loop_length, "top", top, "layers",
                     layers);
}

fd_code fd_inspect_health(const fd_inspect *in, fd_error *err) {
    const fd_trace *trace = in->trace;
    int32_t n_known = 0;
    for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++) n_known += fd_trace_health_at(trace, pos) != NULL;
    if (n_known == 0 || !fd_trace_tokens(trace))
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s: no health recorded", fd_trace_path(trace));
    if (in->json) {
        json_t *list = json_array();
        for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++)
            json_array_append_new(list, position_json(trace, pos, in->layer));
        return fd_inspect_print_json(json_pack("{s:s, s:o}", "path", fd_trace_path(trace), "positions", list), err);
    }
    if (in->layer >= 0) return print_heads(trace, in->layer, err);
    print_positions(trace);
    print_layers(trace);
    return FD_OK;
}
