/* firstdiff inspect TRACE.h5 --health: what each position looked like while the model ran. */
#include <math.h>

#include "cli/inspect/inspect.h"
#include "cli/output.h"
#include "compare/measure/token_texts.h"

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

static const float *entropy_at(const fd_inspect_health_table *t, int32_t pos) {
    return t->has_entropy[pos] ? t->entropy + (size_t)pos * (size_t)t->n_layer * (size_t)t->n_head : NULL;
}

/* True where the logits are known; with a NaN among them top_id[0] says where. */
static bool has_logits(const fd_trace_health *h) {
    return h->top_id[0] >= 0;
}

static void print_positions(const fd_inspect *in, const fd_inspect_health_table *t) {
    const fd_trace *trace = in->trace;
    printf("%8s %8s %6s  %-26s %8s %10s  %-28s %s\n", "position", "token", "n_kv", "entropy mean (min…max)", "top-1 p",
           "logits", "top ids", in->tokenizer ? "token → best" : "");
    for (int32_t pos = 0; pos < t->n_pos; pos++) {
        const fd_trace_health *h = &t->of[pos];
        const float *entropy = entropy_at(t, pos);
        char text[64] = "-", ids[64] = "";
        if (entropy) {
            spread s = spread_of(entropy, t->n_layer * t->n_head);
            snprintf(text, sizeof text, "%.4f (%.4f…%.4f)", s.mean, s.min, s.max);
        }
        for (int32_t i = 0, at = 0; i < 4 && h->top_id[i] >= 0; i++)
            at += snprintf(ids + at, sizeof ids - (size_t)at, "%s%d", i ? " " : "", h->top_id[i]);
        /* "…" is three bytes and one column, hence 28 for 26. */
        printf("%8d %8d %6d  %-*s", pos, fd_trace_tokens(trace)[pos], h->n_kv, entropy ? 28 : 26, text);
        if (has_logits(h))
            printf(" %8.5f %10.4g  %-28s", (double)h->top1_probability, (double)h->logit_range, ids);
        else
            printf(" %8s %10s  %-28s", "-", "-", "-");
        if (in->tokenizer) {
            fd_token_text now = {.token = fd_trace_tokens(trace)[pos]}, best = {.token = h->top_id[0]};
            fd_token_text_read(in->tokenizer, &now);
            fd_token_text_read(in->tokenizer, &best);
            printf(has_logits(h) ? " '%s' → '%s'" : " '%s'", now.text, best.text);
        }
        if (h->loop_length > 0) printf(" LOOP of %d", h->loop_length);
        printf("\n");
    }
}

/* Mean over positions of the heads' mean, and the extremes, of every layer. */
static void print_layers(const fd_inspect_health_table *t) {
    if (t->n_entropy)
        printf(
            "\nentropy of the attention weights in nats, over heads and positions; sink: mean weight on position 0\n");
    for (int32_t layer = 0; t->n_entropy && layer < t->n_layer; layer++) {
        double mean = 0, min = INFINITY, max = -INFINITY, sink = 0;
        int32_t n_sink = 0;
        for (int32_t pos = 0; pos < t->n_pos; pos++) {
            const float *entropy = entropy_at(t, pos);
            if (!entropy) continue;
            spread s = spread_of(entropy + layer * t->n_head, t->n_head);
            mean += s.mean;
            min = isnan(s.min) ? NAN : fmin(min, s.min);
            max = fmax(max, s.max);
            if (pos == 0) continue; /* nothing else to attend to */
            sink += spread_of(t->sink + (entropy - t->entropy) + layer * t->n_head, t->n_head).mean;
            n_sink++;
        }
        printf("  layer %-4d mean %.4f   min %.4f   max %.4f", layer, mean / t->n_entropy, min, max);
        if (n_sink && !isnan(sink)) printf("   sink %.4f", sink / n_sink);
        printf("\n");
    }
}

static void print_words(const fd_health_words *words) {
    printf("\n");
    for (int32_t i = 0; i < words->n; i++) printf("odd: %s\n", words->line[i]);
    if (!words->n)
        printf("nothing odd: no head of entropy near zero, no logits within 1, no repeated token, no weights that do "
               "not sum to 1\n");
}

/* Columns that stay empty, and what would fill them. */
static void print_unknown(const fd_inspect_health_table *t) {
    int32_t without = 0;
    for (int32_t pos = 0; pos < t->n_pos; pos++) without += !has_logits(&t->of[pos]);
    if (without || t->n_entropy < t->n_pos) printf("\n");
    if (without)
        printf("no top ids at %d of %d positions: the trace has no elements of logits there\n", without, t->n_pos);
    if (t->n_entropy < t->n_pos)
        printf(
            "no entropy at %d of %d positions: the trace has no attention weights there (blk.N.attn_weights of every "
            "layer)\n",
            t->n_pos - t->n_entropy, t->n_pos);
}

static fd_code print_heads(const fd_trace *trace, const fd_inspect_health_table *t, int32_t layer, fd_error *err) {
    if (!t->n_entropy)
        return fd_fail(
            err, FD_ERR_INCOMPLETE,
            "%s: no entropy recorded, and no attention weights (blk.N.attn_weights of every layer) to compute "
            "it from",
            fd_trace_path(trace));
    if (layer >= t->n_layer)
        return fd_fail(err, FD_ERR_INPUT, "--layer %d: the trace has layers 0 to %d", layer, t->n_layer - 1);
    printf("entropy of the attention weights in nats, layer %d\n%8s", layer, "position");
    for (int32_t head = 0; head < t->n_head; head++) printf("  head %-2d", head);
    printf("\n");
    for (int32_t pos = 0; pos < t->n_pos; pos++) {
        const float *entropy = entropy_at(t, pos);
        if (!entropy) continue;
        printf("%8d", pos);
        for (int32_t head = 0; head < t->n_head; head++) printf("  %7.4f", (double)entropy[layer * t->n_head + head]);
        printf("\n");
    }
    return FD_OK;
}

static json_t *position_json(const fd_trace *trace, const fd_inspect_health_table *t, int32_t pos, int32_t only_layer) {
    const fd_trace_health *h = &t->of[pos];
    const float *entropy = entropy_at(t, pos);
    json_t *top = json_array(), *layers = json_array();
    for (int32_t i = 0; i < FD_TOP_K && h->top_id[i] >= 0; i++)
        json_array_append_new(
            top, json_pack("{s:i, s:o}", "id", h->top_id[i], "logit", fd_inspect_number((double)h->top_logit[i])));
    for (int32_t layer = 0; entropy && layer < t->n_layer; layer++) {
        if (only_layer >= 0 && layer != only_layer) continue;
        json_t *heads = json_array();
        for (int32_t head = 0; head < t->n_head; head++)
            json_array_append_new(heads, fd_inspect_number((double)entropy[layer * t->n_head + head]));
        json_array_append_new(layers, json_pack("{s:i, s:o}", "layer", layer, "entropy", heads));
    }
    return json_pack("{s:i, s:i, s:i, s:o, s:o, s:i, s:o, s:o}", "position", pos, "token", fd_trace_tokens(trace)[pos],
                     "n_kv", h->n_kv, "top1_probability", fd_inspect_number((double)h->top1_probability), "logit_range",
                     fd_inspect_number((double)h->logit_range), "loop_length", h->loop_length, "top", top, "layers",
                     layers);
}

static fd_code show_health(const fd_inspect *in, const fd_inspect_health_table *t, fd_error *err) {
    const fd_trace *trace = in->trace;
    fd_health_words words;
    if (t->n_recorded + t->n_logits + t->n_entropy == 0)
        return fd_fail(err, FD_ERR_INCOMPLETE,
                       "%s: no health recorded, and neither logits nor attention weights (blk.N.attn_weights of every "
                       "layer) to compute it from",
                       fd_trace_path(trace));
    FD_TRY(fd_inspect_health_rules(trace, t, &words, err));
    if (in->json) {
        json_t *list = json_array(), *odd = json_array();
        for (int32_t i = 0; i < words.n; i++) json_array_append_new(odd, json_string(words.line[i]));
        for (int32_t pos = 0; pos < t->n_pos; pos++)
            json_array_append_new(list, position_json(trace, t, pos, in->layer));
        return fd_cli_print_json(
            json_pack("{s:s, s:o, s:o}", "path", fd_trace_path(trace), "positions", list, "odd", odd), err);
    }
    if (in->layer >= 0) return print_heads(trace, t, in->layer, err);
    print_positions(in, t);
    print_layers(t);
    print_words(&words);
    print_unknown(t);
    return FD_OK;
}

fd_code fd_inspect_health(const fd_inspect *in, fd_error *err) {
    fd_inspect_health_table table;
    fd_code code = fd_inspect_health_load(in->trace, &table, err);
    if (code == FD_OK) code = show_health(in, &table, err);
    fd_inspect_health_free(&table);
    return code;
}
