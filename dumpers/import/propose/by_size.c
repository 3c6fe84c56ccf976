/* Names whose values decide in no layer, as those behind a bug of every layer: what they may be by their sizes. */
#include <stdio.h>
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

/* The rows of the embedding, scaled or not. */
static bool is_embedding(const fd_proposer *p, int32_t v) {
    const fd_trace_node *node = fd_trace_node_at(p->ref, v);
    const int32_t from = node->layer < 0 ? fd_trace_find(p->ref, node->inputs[0]) : -1;
    return strcmp(node->op, "embed") == 0 || (from >= 0 && strcmp(fd_trace_node_at(p->ref, from)->op, "embed") == 0);
}

/* Of "h{layer+1}" h0; NULL: there is none. */
static fd_proposed *name_before(const fd_proposer *p, const char *pattern) {
    const char *number = strstr(pattern, "{layer+1}");
    char first[300];
    if (!number) return NULL;
    snprintf(first, sizeof first, "%.*s0%s", (int)(number - pattern), pattern, number + strlen("{layer+1}"));
    for (size_t i = 0; i < p->n; i++)
        if (!p->items[i].slice[0] && strcmp(p->items[i].name, first) == 0) return &p->items[i];
    return NULL;
}

/* Is h0 the embeddings? The names are then what goes into the layers, and the last layer's output has none. */
static bool begins_with_embeddings(const fd_proposer *p, const char *pattern) {
    const fd_proposed *first = name_before(p, pattern);
    return first && first->written && first->best[0].node >= 0 && is_embedding(p, first->best[0].node);
}

/* The names that fit the pattern, of two layers and more, or one for each that is recorded, none of which is written; else 0. Marks them when
 * `write`. */
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
    return n > 1 || fd_propose_covers(p, pattern) || begins_with_embeddings(p, pattern) ? n : 0;
}

/* The layers' outputs lie along the residual stream, whose length is that of what most bugs leave. Another node comes first where it is
 * clearly nearer to the names' lengths: half as far, and those are a third longer or shorter than the outputs' and more. */
#define OFF_AT_ALL 0.3
#define NEARER     0.5

enum { MOST_NODES = 64 };

static size_t first_by_length(const fd_proposer *p, const char *pattern, const char *const *tails, size_t n) {
    double off[MOST_NODES];
    size_t first = 0, output = n;
    for (size_t i = 0; i < n; i++) {
        off[i] = fd_propose_length_off(p, pattern, tails[i]);
        if (strcmp(tails[i], ".l_out") == 0) output = i;
        if (off[i] < off[first]) first = i;
    }
    return output < n && !(off[output] > OFF_AT_ALL && off[first] < NEARER * off[output]) ? output : first;
}

/* How an array lies that is near to nothing: as what it is nearest to, or, where its shape alone says it, so, and then how many elements a
 * row has; 0: not known. Of several steps the longest. */
static int64_t reading_of_shape(const fd_proposer *p, const fd_proposed *item, char *out, size_t size) {
    const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
    int n_axis = 0, axis = 0;
    for (size_t i = 1; i < item->n; i++) {
        const fd_source_tensor *other = fd_source_at(p->source, item->tensors[i]);
        if (other->step >= 0 && p->plan.steps[other->step].n_pos > p->plan.steps[t->step].n_pos) t = other;
    }
    const int32_t n_pos = t->step < 0 ? 1 : p->plan.steps[t->step].n_pos;
    for (int k = 0; k < t->rank && n_pos > 1; k++)
        if (t->shape[k] == n_pos && fd_import_is_row(p->plan.graph, fd_source_elements(t) / n_pos)) n_axis++, axis = k;
    if (n_axis == 1) {
        snprintf(out, size, "axis=%d", axis - t->rank);
        return fd_source_elements(t) / n_pos;
    }
    if (n_axis == 0 && t->rank > 1 && n_pos > 1 && fd_import_is_row(p->plan.graph, fd_source_elements(t))) {
        snprintf(out, size, "rows=last");
        return fd_source_elements(t);
    }
    if (t->rank == 1 && n_pos > 1 && item->best[0].node < 0)
        snprintf(out, size, "shape=n_tok,-1 axis=-2");
    else
        fd_propose_reading(item->best[0].node >= 0 ? item->best[0].ops : "", out, size);
    return 0;
}

/* A name more than there are layers, from the embeddings on: the stream between them, whatever its values. transformers' hidden_states begin
 * with the embeddings even where these are wrong. */
static bool is_stream(fd_proposer *p, const char *pattern, int64_t width) {
    const fd_hparams *h = &p->plan.graph->hparams;
    const fd_proposed *first = name_before(p, pattern);
    const bool known = first && !first->written && strstr(pattern, "hidden_states");
    return width == h->n_embd && (known || begins_with_embeddings(p, pattern)) &&
           take_layers(p, pattern, false) == (size_t)h->n_layer;
}

static void write_stream(fd_proposer *p, const char *pattern, const char *reading) {
    static const char why[] = "by its name: no layer's values decide";
    fd_proposed *first = name_before(p, pattern);
    int32_t scaled = fd_trace_find(p->ref, "token_embd_scaled");
    if (!first->written) {
        first->best[0].node = scaled >= 0 ? scaled : fd_trace_find(p->ref, "token_embd");
        first->written = first->matched = true;
        fprintf(p->out, "%-44s -> %s %s  # %s\n", first->name, fd_trace_node_at(p->ref, first->best[0].node)->name,
                reading, why);
        p->total->n_by_name++;
    }
    fprintf(p->out, "%-44s -> blk.{layer}.l_out %s else  # %s\n", pattern, reading, why);
    p->total->n_by_name += take_layers(p, pattern, true);
}

/* The nodes of that size, the one that the names are taken for if nothing says which first. */
static size_t write_nodes(fd_proposer *p, const fd_proposed *item, int32_t layer, const char *pattern, int64_t width) {
    const bool cache = strcasestr(pattern, "cache") != NULL; /* a copy of another node, else never meant */
    const char *tails[MOST_NODES];
    size_t n = 0;
    for (int32_t v = 0; v < fd_trace_n_node(p->ref) && n < MOST_NODES; v++) {
        const fd_trace_node *node = fd_trace_node_at(p->ref, v);
        const char *tail = node->layer == layer ? strchr(node->name + 4, '.') : NULL;
        if (!tail || (strcmp(node->op, "kv_write") == 0) != cache || is_taken(p, tail) ||
            !fd_propose_size_fits(p, fd_source_at(p->source, item->tensors[0]), node) ||
            (width > 0 && !node->over_kv && fd_trace_elements(node, 0) != width))
            continue;
        tails[n++] = tail;
    }
    if (n == 0) return 0;
    const size_t first = first_by_length(p, pattern, tails, n);
    fprintf(p->out, "ask %s -> blk.{layer}%s", pattern, tails[first]);
    for (size_t i = 0; i < n; i++)
        if (i != first) fprintf(p->out, " | blk.{layer}%s", tails[i]);
    return n;
}

static void ask_about_last(fd_proposer *p, const char *pattern, const char *reading, bool stream) {
    const int32_t last = p->plan.graph->hparams.n_layer - 1;
    fd_proposed_rule rule = {0};
    char node[96];
    if (!stream && !begins_with_embeddings(p, pattern)) return;
    snprintf(rule.source, sizeof rule.source, "%s", pattern);
    snprintf(rule.ops, sizeof rule.ops, "%s", reading);
    if (stream) snprintf(rule.node, sizeof rule.node, "blk.{layer}.l_out");
    snprintf(node, sizeof node, "blk.%d.l_out", last);
    for (size_t i = 0; i < p->n && fd_trace_find(p->ref, node) >= 0; i++) {
        fd_name_map_capture capture;
        if (!p->items[i].slice[0] && fd_name_map_matches(pattern, p->items[i].name, &capture) && capture.layer == last)
            fd_propose_ask_last(p, &rule, &p->items[i], fd_trace_find(p->ref, node));
    }
}

/* In what form 16-bit words are read is the whole dump's: what one array is near to by chance does not say it. */
static void read_words_alike(const fd_proposer *p, const fd_proposed *item, char *reading, size_t size) {
    const char *words = fd_propose_words(p, item);
    char *own = strstr(reading, "as=");
    if (own) {
        const char *rest = own + strcspn(own, " ");
        rest += strspn(rest, " ");
        memmove(own, rest, strlen(rest) + 1);
    }
    const size_t n = strlen(reading);
    snprintf(reading + n, size - n, "%s", n > 0 && reading[n - 1] != ' ' ? words : words + strspn(words, " "));
}

static void take_stream(fd_proposer *p, const fd_proposed *item, int number) {
    char pattern[300], reading[FD_PROPOSE_MAX_OPS];
    if (fd_propose_layer_of(p, item->name, number, true, pattern, sizeof pattern) < 0 || item->slice[0] ||
        fd_propose_is_ids(&p->plan, item->tensors[0]))
        return;
    const int64_t width = reading_of_shape(p, item, reading, sizeof reading);
    if (!is_stream(p, pattern, width)) return;
    read_words_alike(p, item, reading, sizeof reading);
    ask_about_last(p, pattern, reading, true);
    write_stream(p, pattern, reading);
}

void fd_propose_streams(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++)
        for (int number = 0; number < 4 && !p->items[i].written; number++) take_stream(p, &p->items[i], number);
}

static void ask_by_size(fd_proposer *p, const fd_proposed *item, int number, bool after) {
    char pattern[300], reading[FD_PROPOSE_MAX_OPS];
    int32_t layer = fd_propose_layer_of(p, item->name, number, after, pattern, sizeof pattern);
    if (layer < 0 || item->slice[0] || fd_propose_is_ids(&p->plan, item->tensors[0]) || !take_layers(p, pattern, false))
        return;
    const int64_t width = reading_of_shape(p, item, reading, sizeof reading);
    read_words_alike(p, item, reading, sizeof reading);
    if (after) ask_about_last(p, pattern, reading, false);
    size_t n = write_nodes(p, item, layer, pattern, width);
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
