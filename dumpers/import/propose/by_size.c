/* Names whose values decide in no layer, as those behind a bug of every layer: what they may be by their sizes. */
#include <string.h>

#include "dumpers/import/propose/internal.h"

/* The rows of a step: of the node, or the last token's alone. */
static bool has_size(const fd_import_step *step, int64_t n, const fd_trace_node *node) {
    int64_t each = node->over_kv ? 0 : fd_trace_elements(node, 0);
    return each > 0 && (n == each * step->n_pos || n == each);
}

/* Any number of keys, as an engine may store its whole context: what has the size of another node is not attention's. */
static bool may_be_attention(const fd_proposer *p, const fd_import_step *step, int64_t n, const fd_trace_node *node) {
    int64_t lines = (int64_t)node->shape[0] * step->n_pos;
    if (!node->over_kv || n % lines != 0 || n / lines < step->pos0 + step->n_pos) return false;
    for (int32_t v = 0; v < fd_trace_n_node(p->ref); v++)
        if (has_size(step, n, fd_trace_node_at(p->ref, v))) return false;
    return true;
}

bool fd_propose_size_fits(const fd_proposer *p, const fd_source_tensor *t, const fd_trace_node *node) {
    const fd_import_step whole = {0, p->plan.n_token, FD_STEP_PREFILL};
    const fd_import_step *step = t->step < 0 ? &whole : &p->plan.steps[t->step];
    int64_t n = fd_source_elements(t);
    return has_size(step, n, node) || may_be_attention(p, step, n, node);
}

/* Is a name of some layer this node of its layer? `tail`: after the layer's number. */
static bool is_taken(const fd_proposer *p, const char *tail) {
    for (size_t i = 0; i < p->n; i++) {
        if (!p->items[i].written || p->items[i].best[0].node < 0) continue;
        const fd_trace_node *node = fd_trace_node_at(p->ref, p->items[i].best[0].node);
        const char *own = node->layer >= 0 ? strchr(node->name + 4, '.') : NULL;
        if (own && strcmp(own, tail) == 0) return true;
    }
    return false;
}

/* Of "h{layer+1}", is h0 the embeddings? The names are then what goes into the layers, and the last layer's output has none. */
static bool begins_with_embeddings(const fd_proposer *p, const char *pattern) {
    const char *number = strstr(pattern, "{layer+1}");
    char first[300];
    if (!number) return false;
    snprintf(first, sizeof first, "%.*s0%s", (int)(number - pattern), pattern, number + strlen("{layer+1}"));
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *item = &p->items[i];
        if (item->written && strcmp(item->name, first) == 0 && item->best[0].node >= 0)
            return strcmp(fd_trace_node_at(p->ref, item->best[0].node)->op, "embed") == 0;
    }
    return false;
}

/* The names that fit the pattern, one for each layer, none of which is written; else 0. Marks them when `write`. */
static size_t take_layers(fd_proposer *p, const char *pattern, bool write) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        fd_name_map_capture capture;
        if (p->items[i].slice[0] || !fd_name_map_matches(pattern, p->items[i].name, &capture)) continue;
        if (p->items[i].written && !write) return 0;
        if (capture.layer >= 0 && capture.layer < p->plan.graph->hparams.n_layer) n++;
        if (!write) continue;
        p->items[i].written = true;
        p->items[i].matched = false;
        p->items[i].best[0].node = -1; /* what it is nearest to is not what it is */
    }
    const size_t n_layer = (size_t)p->plan.graph->hparams.n_layer;
    return fd_propose_covers(p, pattern) || (n + 1 == n_layer && begins_with_embeddings(p, pattern)) ? n : 0;
}

static size_t write_nodes(fd_proposer *p, const fd_proposed *item, int32_t layer, const char *pattern) {
    const bool cache = strcasestr(pattern, "cache") != NULL; /* a copy of another node, else never meant */
    size_t n = 0;
    for (int32_t v = 0; v < fd_trace_n_node(p->ref); v++) {
        const fd_trace_node *node = fd_trace_node_at(p->ref, v);
        const char *tail = node->layer == layer ? strchr(node->name + 4, '.') : NULL;
        if (!tail || (strcmp(node->op, "kv_write") == 0) != cache || is_taken(p, tail) ||
            !fd_propose_size_fits(p, fd_source_at(p->source, item->tensors[0]), node))
            continue;
        if (n++ == 0)
            fprintf(p->out, "ask %s ->", pattern);
        else
            fprintf(p->out, " |");
        fprintf(p->out, " blk.{layer}%s", tail);
    }
    return n;
}

static void ask_about_last(fd_proposer *p, const char *pattern, const char *reading) {
    const int32_t last = p->plan.graph->hparams.n_layer - 1;
    fd_proposed_rule rule = {0};
    char node[96];
    if (!begins_with_embeddings(p, pattern)) return;
    snprintf(rule.source, sizeof rule.source, "%s", pattern);
    snprintf(rule.ops, sizeof rule.ops, "%s", reading);
    snprintf(node, sizeof node, "blk.%d.l_out", last);
    for (size_t i = 0; i < p->n && fd_trace_find(p->ref, node) >= 0; i++) {
        fd_name_map_capture capture;
        if (!p->items[i].slice[0] && fd_name_map_matches(pattern, p->items[i].name, &capture) && capture.layer == last)
            fd_propose_ask_last(p, &rule, &p->items[i], fd_trace_find(p->ref, node));
    }
}

static void ask_by_size(fd_proposer *p, const fd_proposed *item, int number, bool after) {
    const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
    char pattern[300], reading[FD_PROPOSE_MAX_OPS];
    int32_t layer = fd_propose_layer_of(p, item->name, number, after, pattern, sizeof pattern);
    if (layer < 0 || item->slice[0] || !fd_array_is_float(t->type) || !take_layers(p, pattern, false)) return;
    fd_propose_reading(item->best[0].node >= 0 ? item->best[0].ops : "", reading, sizeof reading);
    if (after) ask_about_last(p, pattern, reading);
    size_t n = write_nodes(p, item, layer, pattern);
    if (n == 0) return;
    fprintf(p->out, "%s%s  # by size alone%s: no layer's values decide\n", *reading ? " " : "", reading,
            n == 1 ? ", the only node of it that no name is" : "");
    p->total->n_ask += take_layers(p, pattern, true);
}

/* Of names with one number more than there are layers the first may be the embeddings: then the number is what a layer ends with. */
void fd_propose_ask_by_size(fd_proposer *p) {
    for (int after = 0; after < 2; after++)
        for (size_t i = 0; i < p->n; i++)
            for (int number = 0; number < 4 && !p->items[i].written; number++)
                ask_by_size(p, &p->items[i], number, after);
}
