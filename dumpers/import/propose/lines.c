/* The lines of a proposed map. */
#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

static const char *node_name(const fd_proposer *p, int32_t node) {
    return fd_trace_node_at(p->ref, node)->name;
}

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

static void node_pattern(const char *node, int32_t layer, char out[96]) {
    const char *tail = layer >= 0 ? strchr(node + 4, '.') : NULL;
    if (tail)
        snprintf(out, 96, "blk.{layer}%s", tail);
    else
        snprintf(out, 96, "%s", node);
}

static double confidence(const fd_proposed *item) {
    double next = item->best[1].node >= 0 ? item->best[1].away : 1;
    return (1 - item->best[0].away) * (1 - (next > 0 ? item->best[0].away / next : 1));
}

/* The factor as an operation: 1, or one of those that attention and embeddings use. They are far apart, and behind a
 * bug lengths change as well: a fifth is allowed. */
static bool factor_text(const fd_proposer *p, double factor, char out[40]) {
    const double head_dim = (double)p->plan.values.of[FD_NAME_MAP_HEAD_DIM],
                 n_embd = (double)p->plan.values.of[FD_NAME_MAP_N_EMBD];
    const struct {
        double value;
        const char *text;
    } known[] = {{1, ""},
                 {1 / sqrt(head_dim), " scale=1/sqrt(head_dim)"},
                 {sqrt(head_dim), " scale=sqrt(head_dim)"},
                 {1 / sqrt(n_embd), " scale=1/sqrt(n_embd)"},
                 {sqrt(n_embd), " scale=sqrt(n_embd)"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (fabs(factor / known[i].value - 1) < 0.2) return snprintf(out, 40, "%s", known[i].text), true;
    return out[0] = '\0', false;
}

/* What would be written for the item, and whether two items say the same. */
typedef struct line {
    char source[300], node[96], ops[FD_PROPOSE_MAX_OPS + 40];
    bool factor_known;
} line;

static line line_of(const fd_proposer *p, const fd_proposed *item, int number) {
    const fd_candidate *best = &item->best[0];
    const fd_trace_node *node = fd_trace_node_at(p->ref, best->node);
    line l = {0};
    char factor[40];
    l.factor_known = factor_text(p, best->factor, factor);
    snprintf(l.ops, sizeof l.ops, "%s%s", best->ops, factor);
    if (number >= 0 && node->layer >= 0 && with_layer(item->name, number, node->layer, l.source, sizeof l.source)) {
        node_pattern(node->name, node->layer, l.node);
    } else {
        snprintf(l.source, sizeof l.source, "%s", item->name);
        snprintf(l.node, sizeof l.node, "%s", node->name);
    }
    return l;
}

static bool same_line(const line *a, const line *b) {
    return strcmp(a->source, b->source) == 0 && strcmp(a->node, b->node) == 0 && strcmp(a->ops, b->ops) == 0 &&
           a->factor_known == b->factor_known;
}

/* Would the pattern also take a name whose values say something else? */
static bool pattern_misleads(const fd_proposer *p, const line *l, int number) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *item = &p->items[i];
        fd_name_map_capture capture;
        if (item->written || !item->clear || item->slice[0] || !fd_name_map_matches(l->source, item->name, &capture))
            continue;
        line other = line_of(p, item, number);
        if (!same_line(l, &other)) return true;
    }
    return false;
}

/* Names that the pattern takes although their own values decide nothing, as those after a bug: the other layers'
 * names speak for them. Appends their layers to `said`. */
static void take_by_name(fd_proposer *p, const line *l, const char *slice, char *said, size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        fd_name_map_capture capture;
        char node[96];
        const fd_name_map_rule rule = {.node = (char *)(uintptr_t)l->node};
        if (item->written || item->clear || strcmp(item->slice, slice) != 0 ||
            !fd_name_map_matches(l->source, item->name, &capture))
            continue;
        if (capture.layer < 0 || !fd_name_map_node(&rule, &capture, node, sizeof node) ||
            fd_trace_find(p->ref, node) < 0)
            continue;
        item->written = true;
        item->best[0].node = fd_trace_find(p->ref, node);
        item->matched = true;
        p->total->n_by_name++;
        if (at + 12 < size) at += (size_t)snprintf(said + at, size - at, "%s%d", at ? ", " : "", capture.layer);
    }
}

static void write_line(fd_proposer *p, const line *l, double sure, const fd_proposed *item, size_t n,
                       const char *by_name) {
    char next[160] = "no other node has its size";
    if (item->best[1].node >= 0)
        snprintf(next, sizeof next, "next %s, cosine %.4f", node_name(p, item->best[1].node), 1 - item->best[1].away);
    const char *space = *l->ops ? " " : "";
    if (l->factor_known)
        fprintf(p->out, "%-44s -> %s%s%s", l->source, l->node, space, l->ops);
    else /* the engine's own scale, or an error of it: values do not tell */
        fprintf(p->out, "ask %s -> %s%s%s | %s%s%s scale=%.6g", l->source, l->node, space, l->ops, l->node, space, l->ops,
                item->best[0].factor);
    fprintf(p->out, "  # %.3f: cosine %.6f, %s", sure, 1 - item->best[0].away, next);
    if (n > 1) fprintf(p->out, "; the least of %zu layers", n);
    if (*by_name) fprintf(p->out, "; by name alone in layers %s", by_name);
    if (!l->factor_known) fprintf(p->out, "; its values are %.6g times the node's", 1 / item->best[0].factor);
    fprintf(p->out, "\n");
}

/* Writes the item's line together with all others that it stands for with {layer}. */
static void write_sure(fd_proposer *p, fd_proposed *item) {
    line single = line_of(p, item, -1), best = single;
    size_t most = 1;
    int number = -1;
    for (int k = 0; k < 4; k++) {
        line l = line_of(p, item, k);
        size_t n = 0;
        if (strcmp(l.source, single.source) == 0) continue;
        for (size_t i = 0; i < p->n; i++) {
            if (!p->items[i].clear || p->items[i].written) continue;
            line other = line_of(p, &p->items[i], k);
            n += same_line(&l, &other);
        }
        if (n > most && !pattern_misleads(p, &l, k)) {
            most = n;
            best = l;
            number = k;
        }
    }
    const fd_proposed *least = item;
    size_t *count = best.factor_known ? &p->total->n_sure : &p->total->n_ask;
    for (size_t i = 0; number >= 0 && i < p->n; i++) {
        fd_proposed *other = &p->items[i];
        if (!other->clear || other->written) continue;
        line l = line_of(p, other, number);
        if (!same_line(&best, &l)) continue;
        other->written = true;
        ++*count;
        if (confidence(other) < confidence(least)) least = other;
    }
    if (!item->written) ++*count;
    item->written = true;
    char by_name[80] = "";
    if (number >= 0) take_by_name(p, &best, item->slice, by_name, sizeof by_name);
    write_line(p, &best, confidence(least), least, most, by_name);
}

static void write_ask(fd_proposer *p, fd_proposed *item) {
    fprintf(p->out, "ask %s -> %s", item->name, node_name(p, item->best[0].node));
    for (int i = 1; i < FD_PROPOSE_KEEP && item->best[i].node >= 0 &&
                    item->best[i].away < FD_PROPOSE_CLEAR * item->best[0].away + 1e-11;
         i++)
        fprintf(p->out, " | %s", node_name(p, item->best[i].node));
    fprintf(p->out, "%s%s  #", *item->best[0].ops ? " " : "", item->best[0].ops);
    for (int i = 0; i < FD_PROPOSE_KEEP && item->best[i].node >= 0; i++)
        fprintf(p->out, " %.6f", 1 - item->best[i].away);
    fprintf(p->out, "\n");
    item->written = true;
    p->total->n_ask++;
}

static bool is_known(const fd_proposer *p, const fd_import_options *o, const fd_proposed *item) {
    const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
    return fd_source_is_tokens(t) || (o->allow && fd_name_map_listed(o->allow, t->name));
}

static void write_rest(fd_proposer *p, const fd_import_options *o) {
    char shape[128];
    for (size_t i = 0; i < p->n; i++)
        if (!p->items[i].written && p->items[i].matched) write_ask(p, &p->items[i]);
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        if (item->written) continue;
        const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
        bool known = is_known(p, o, item);
        fprintf(p->out, "%s %s  # %s %s", known ? "allow" : "# unmatched", item->name, fd_array_type_name(t->type),
                fd_array_shape_text(t->rank, t->shape, shape));
        if (item->best[0].node >= 0)
            fprintf(p->out, ", nearest %s, cosine %.3f", node_name(p, item->best[0].node), 1 - item->best[0].away);
        fprintf(p->out, "\n");
        if (!known) p->total->n_unmatched++;
    }
}

static void write_missing(fd_proposer *p) {
    for (int32_t v = 0; v < fd_trace_n_node(p->ref); v++) {
        bool found = strcmp(fd_trace_node_at(p->ref, v)->op, "kv_write") == 0; /* a copy, never fd_proposed */
        for (size_t i = 0; !found && i < p->n; i++) found = p->items[i].matched && p->items[i].best[0].node == v;
        if (found) continue;
        fprintf(p->out, "# nothing is %s\n", node_name(p, v));
        p->total->n_missing++;
    }
}

void fd_propose_lines(fd_proposer *p, const fd_import_options *options) {
    fprintf(p->out, "# Proposed for %s. Each line: confidence, cosine with the node's values, the next best node.\n",
            fd_source_path(p->source));
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].clear && !p->items[i].written) write_sure(p, &p->items[i]);
    write_rest(p, options);
    write_missing(p);
}
