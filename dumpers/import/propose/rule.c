/* The rule that a name's values say. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

/* The name with its k-th number (from 0) as {layer}, or {layer+1} when it is one more than the layer; false when it is
 * neither, or there is no such number. */
static bool with_layer(const char *name, int k, int32_t layer, char *out, size_t size) {
    size_t at = 0;
    for (const char *c = name; *c;) {
        const char *end = c;
        while (isdigit((unsigned char)*end)) end++;
        bool number = end > c && !(c > name && c[-1] == '#');
        long value = number ? strtol(c, NULL, 10) : 0;
        if (number && k-- == 0) {
            if (value != layer && value != layer + 1) return false;
            int n = snprintf(out + at, size - at, "%s%s", value == layer ? "{layer}" : "{layer+1}", end);
            return n > 0 && (size_t)n < size - at;
        }
        if (end == c) end++;
        if (at + (size_t)(end - c) >= size) return false;
        memcpy(out + at, c, (size_t)(end - c));
        at += (size_t)(end - c);
        out[at] = '\0';
        c = end;
    }
    return false;
}

int32_t fd_propose_layer_of(const fd_proposer *p, const char *name, int number, bool after, char *pattern,
                            size_t size) {
    for (int32_t layer = 0; layer < p->plan.graph->hparams.n_layer; layer++)
        if (with_layer(name, number, layer, pattern, size) && strstr(pattern, after ? "{layer+1}" : "{layer}"))
            return layer;
    return -1;
}

static void node_pattern(const char *node, int32_t layer, char out[96]) {
    const char *tail = layer >= 0 ? strchr(node + 4, '.') : NULL;
    if (tail)
        snprintf(out, 96, "blk.{layer}%s", tail);
    else
        snprintf(out, 96, "%s", node);
}

static bool scales_embeddings(const fd_proposer *p) {
    return fd_trace_find(p->ref, "token_embd_scaled") >= 0;
}

/* The factor as an operation: 1, or one of those that attention and, in models that scale them, embeddings use. They are far apart,
 * and behind a bug lengths change as well: a fifth is allowed. */
static bool factor_text(const fd_proposer *p, double factor, char out[40]) {
    const double head_dim = (double)p->plan.values.of[FD_NAME_MAP_HEAD_DIM],
                 n_embd = (double)p->plan.values.of[FD_NAME_MAP_N_EMBD];
    const size_t n = scales_embeddings(p) ? 5 : 3;
    const struct {
        double value;
        const char *text;
    } known[5] = {{1, ""},
                  {1 / sqrt(head_dim), " scale=1/sqrt(head_dim)"},
                  {sqrt(head_dim), " scale=sqrt(head_dim)"},
                  {1 / sqrt(n_embd), " scale=1/sqrt(n_embd)"},
                  {sqrt(n_embd), " scale=sqrt(n_embd)"}};
    for (size_t i = 0; i < n; i++)
        if (fabs(factor / known[i].value - 1) < 0.2) return snprintf(out, 40, "%s", known[i].text), true;
    return out[0] = '\0', false;
}

static int32_t last_node(const fd_proposer *p) {
    return fd_trace_n_node(p->ref) - 1;
}

/* Larger by the same factor, and not by the tenth of a bias that it leaves alone. */
#define SAME_FACTOR 0.01

bool fd_propose_is_taken_for(const fd_proposer *p, const fd_proposed *item, const char *of) {
    for (size_t i = 0; p->own && i < p->own->n_rule; i++) {
        const fd_name_map_rule *rule = &p->own->rules[i];
        fd_name_map_capture capture;
        char node[96];
        if (fd_name_map_computes(rule) || fd_name_map_is_asked(p->own, rule, item->name)) continue;
        for (size_t k = 0; k < rule->n_source; k++)
            if (fd_name_map_matches(rule->sources[k].pattern, item->name, &capture) &&
                fd_name_map_node(rule, &capture, node, sizeof node) && strcmp(node, of) == 0)
                return true;
    }
    return false;
}

/* Has what a product makes of these values that factor, too, or follows it from them? Then the engine has gone on with them. */
static bool is_used(const fd_proposer *p, const fd_proposed *item) {
    const fd_candidate *best = &item->best[0];
    const char *name = fd_trace_node_at(p->ref, best->node)->name;
    const double factor = fd_propose_is_taken_for(p, item, name) ? 1 : best->factor;
    for (size_t i = 0; i < p->n; i++) {
        const fd_candidate *reader = &p->items[i].best[0];
        if (!p->items[i].clear || reader->node < 0 || reader->away > 1e-4) continue;
        const fd_trace_node *node = fd_trace_node_at(p->ref, reader->node);
        if (strcmp(node->op, "matmul") == 0 && strcmp(node->inputs[0], name) == 0 &&
            fabs(reader->factor / factor - 1) < SAME_FACTOR)
            return true;
    }
    return false;
}

/* An unknown factor may be the engine's own scale, or a bug. It is a bug where the directions differ too, which no scale changes,
 * and of the last node's values, what the engine samples from: there it is a bug or a temperature; of embeddings that the model
 * does not scale; and where what reads them has it as well. */
static bool is_no_scale(const fd_proposer *p, const fd_proposed *item) {
    const fd_candidate *best = &item->best[0];
    const bool embeds = strcmp(fd_trace_node_at(p->ref, best->node)->op, "embed") == 0;
    return best->node == last_node(p) || best->away > 1e-4 || (embeds && !scales_embeddings(p)) || is_used(p, item);
}

fd_proposed_rule fd_propose_rule(const fd_proposer *p, const fd_proposed *item, int number) {
    const fd_candidate *best = &item->best[0];
    const fd_trace_node *node = fd_trace_node_at(p->ref, best->node);
    fd_proposed_rule l = {0};
    char factor[40] = "";
    if (best->node != last_node(p)) l.factor_known = factor_text(p, best->factor, factor);
    l.factor_known |= is_no_scale(p, item);
    snprintf(l.ops, sizeof l.ops, "%s%s", best->ops, factor);
    if (number >= 0 && node->layer >= 0 && with_layer(item->name, number, node->layer, l.source, sizeof l.source)) {
        node_pattern(node->name, node->layer, l.node);
    } else {
        snprintf(l.source, sizeof l.source, "%s", item->name);
        snprintf(l.node, sizeof l.node, "%s", node->name);
    }
    return l;
}

void fd_propose_rule_text(const fd_proposed_rule *rule, const fd_proposed *item, const char *node, char *out,
                          size_t size) {
    char factor[32] = "";
    if (!rule->factor_known) snprintf(factor, sizeof factor, " scale=%.6g", item->best[0].factor);
    snprintf(out, size, "%s%s%s%s", node, *rule->ops ? " " : "", rule->ops, factor);
}

bool fd_propose_has_layer(const fd_proposed_rule *rule) {
    return strstr(rule->source, "{layer") != NULL; /* no { in names */
}

bool fd_propose_same_rule(const fd_proposed_rule *a, const fd_proposed_rule *b) {
    return strcmp(a->source, b->source) == 0 && strcmp(a->node, b->node) == 0 && strcmp(a->ops, b->ops) == 0 &&
           a->factor_known == b->factor_known;
}

double fd_propose_agreement(const fd_proposed *item) {
    const double digits = item->best[0].away > 1e-6 ? -log10(item->best[0].away) : 6, more = digits - 2.5;
    return item->clear && more > 0 ? more * more : 0;
}
