/* The lines of a proposed map. */
#include <math.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

static const char *node_name(const fd_proposer *p, int32_t node) {
    return fd_trace_node_at(p->ref, node)->name;
}

static double confidence(const fd_proposed *item) {
    if (item->turned) return 1;
    double next = item->best[1].node >= 0 ? item->best[1].away : 1;
    return (1 - item->best[0].away) * (1 - (next > 0 ? item->best[0].away / next : 1));
}

/* Would the pattern also take a name whose values say something else? */
static bool pattern_misleads(const fd_proposer *p, const fd_proposed_rule *l, int number) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *item = &p->items[i];
        fd_name_map_capture capture;
        if (item->written || !item->clear || item->slice[0] || !fd_name_map_matches(l->source, item->name, &capture))
            continue;
        fd_proposed_rule other = fd_propose_rule(p, item, number);
        if (!fd_propose_same_rule(l, &other)) return true;
    }
    return false;
}

/* Names that the pattern takes although their own values decide nothing, as those after a bug: the other layers'
 * names speak for them. Appends their layers to `said`. `of` is one of the n_layer names whose values say `l`. */
static void take_by_name(fd_proposer *p, const fd_proposed_rule *l, const fd_proposed *of, size_t n_layer, char *said,
                         size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        fd_name_map_capture capture;
        char node[96];
        const fd_name_map_rule rule = {.node = (char *)(uintptr_t)l->node};
        if (item->written || item->clear || strcmp(item->slice, of->slice) != 0 ||
            !fd_name_map_matches(l->source, item->name, &capture))
            continue;
        if (capture.layer < 0 || !fd_name_map_node(&rule, &capture, node, sizeof node) ||
            fd_trace_find(p->ref, node) < 0)
            continue;
        if (fd_propose_ask_last(p, l, item, fd_trace_find(p->ref, node))) continue;
        item->written = true;
        if (item->differs) fd_propose_ask_layer(p, item, l, of, fd_trace_find(p->ref, node), n_layer);
        item->best[0].node = fd_trace_find(p->ref, node);
        item->matched = true;
        p->total->n_by_name++;
        if (at + 12 < size) at += (size_t)snprintf(said + at, size - at, "%s%d", at ? ", " : "", capture.layer);
    }
}

/* Would the pattern also take a name that has a line of its own above, for another node? */
static bool takes_written(const fd_proposer *p, const fd_proposed_rule *l) {
    for (size_t i = 0; i < p->n && fd_propose_has_layer(l); i++) {
        const fd_proposed *item = &p->items[i];
        fd_name_map_capture capture;
        if (!item->written || !item->matched || item->slice[0] || !fd_name_map_matches(l->source, item->name, &capture))
            continue;
        char node[96];
        const fd_name_map_rule rule = {.node = (char *)(uintptr_t)l->node};
        if (!fd_name_map_node(&rule, &capture, node, sizeof node) ||
            strcmp(node, node_name(p, item->best[0].node)) != 0)
            return true;
    }
    return false;
}

static void write_line(fd_proposer *p, const fd_proposed_rule *l, double sure, const fd_proposed *item, size_t n,
                       const char *by_name) {
    char next[160] = "no other node has its size";
    if (item->best[1].node >= 0)
        snprintf(next, sizeof next, "next %s, cosine %.4f", node_name(p, item->best[1].node), 1 - item->best[1].away);
    const char *space = *l->ops ? " " : "";
    if (item->other[0]) {
        char own[300];
        fd_propose_rule_text(l, item, l->node, own, sizeof own);
        fprintf(p->out, "ask %s -> %s | %s", l->source, own, item->other);
    } else if (l->factor_known)
        fprintf(p->out, "%-44s -> %s%s%s%s", l->source, l->node, space, l->ops, takes_written(p, l) ? " else" : "");
    else /* the engine's own scale, or an error of it: values do not tell */
        fprintf(p->out, "ask %s -> %s%s%s | %s%s%s scale=%.6g", l->source, l->node, space, l->ops, l->node, space,
                l->ops, item->best[0].factor);
    if (item->exchanged)
        fprintf(p->out, "  # by its name");
    else
        fprintf(p->out, "  # %.3f: cosine %.6f, %s", sure, 1 - item->best[0].away, next);
    if (item->turned) fprintf(p->out, "; its heads are as long as that node's, and turned otherwise");
    if (item->part_first >= 0)
        fprintf(p->out, "; by positions %d to %d alone, the others are otherwise", item->part_first, item->part_last);
    if (n > 1) fprintf(p->out, "; the least of %zu layers", n);
    if (*by_name) fprintf(p->out, "; by name alone in layers %s", by_name);
    if (item->left_out)
        fprintf(p->out, "; another name has its values, and nothing is the other: a copy, or an op left out?");
    else if (item->other[0] && item->n_layer == 0)
        fprintf(p->out, "; before the last op of the model, or an op left out?");
    else if (item->other[0] && item->n_layer == 1)
        fprintf(p->out, "; its layer's values alone decide: the engine's own layout, or its bug?");
    else if (item->other[0])
        fprintf(p->out, "; no majority, %zu of %zu layers fit with the first: the engine's own layout, or its bug?",
                item->n_same, item->n_layer);
    if (!l->factor_known) fprintf(p->out, "; its values are %.6g times the node's", 1 / item->best[0].factor);
    fprintf(p->out, "\n");
}

/* As `node`, a pattern if the rule's own is one. */
static void node_like(const fd_proposer *p, const fd_proposed_rule *l, int32_t node, char *out, size_t size) {
    const char *name = node_name(p, node), *tail = strchr(name + 4, '.');
    bool pattern = strstr(l->node, "{layer}") && fd_trace_node_at(p->ref, node)->layer >= 0 && tail;
    snprintf(out, size, "%s%s", pattern ? "blk.{layer}" : "", pattern ? tail : name);
}

static void ask_exchanged(fd_proposer *p, const fd_proposed_rule *l, const fd_proposed *item) {
    char values[96];
    node_like(p, l, item->values_of, values, sizeof values);
    fprintf(p->out,
            "# ask: %s and the name that says %s have each other's values: the engine's own names, or its bug?\n"
            "#      (The next line takes it for the bug. If it is the names, write above it: %s -> %s%s%s)\n",
            l->source, values, l->source, values, *l->ops ? " " : "", l->ops);
    p->total->n_differ++;
}

/* One layer's values say it without any doubt, every other layer has such a name, and none of these is clear: what a bug in
 * every layer leaves of the first. */
static bool speaks_for_all(const fd_proposer *p, const fd_proposed_rule *l, const fd_proposed *item) {
    int32_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *other = &p->items[i];
        fd_name_map_capture capture;
        if (!fd_name_map_matches(l->source, other->name, &capture)) continue;
        if (other != item && (other->clear || other->written || strcmp(other->slice, item->slice) != 0)) return false;
        n++;
    }
    return (item->exchanged || item->turned || item->best[0].away <= 1e-3) && n > 1 && fd_propose_covers(p, l->source);
}

bool fd_propose_is_named(const fd_proposer *p, int32_t node, const fd_proposed *but) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *item = &p->items[i];
        if (item != but && item->best[0].node == node && (item->clear || (item->written && item->matched))) return true;
    }
    return false;
}

static bool is_cache(const fd_trace_node *node) {
    return strcmp(node->op, "kv_write") == 0;
}

/* Two names have the values of one node, and a node that reads it has no name, or the layer's other cache: that node, else
 * -1. One of the names may be a copy, or an op that the engine leaves out. */
static int32_t left_out(const fd_proposer *p, const fd_proposed *item) {
    const fd_trace_node *own = fd_trace_node_at(p->ref, item->best[0].node);
    if (item->slice[0] || !fd_propose_is_named(p, item->best[0].node, item)) return -1;
    for (int32_t v = 0; v < fd_trace_n_node(p->ref); v++) {
        const fd_trace_node *node = fd_trace_node_at(p->ref, v);
        bool reads = strcmp(node->inputs[0], own->name) == 0 || strcmp(node->inputs[1], own->name) == 0;
        bool same_size = !node->over_kv && fd_trace_elements(node, 0) == fd_trace_elements(own, 0);
        bool next = is_cache(own) ? is_cache(node) && node->layer == own->layer : reads && !is_cache(node);
        if (next && same_size && !fd_propose_is_named(p, v, NULL)) return v;
    }
    return -1;
}

/* Writes the item's line together with all others that it stands for with {layer}. */
static void write_sure(fd_proposer *p, fd_proposed *item) {
    fd_proposed_rule single = fd_propose_rule(p, item, -1), best = single;
    size_t most = 1;
    int number = -1;
    for (int k = 0; k < 4 && !item->other[0]; k++) { /* the layers disagree: each has its own line */
        fd_proposed_rule l = fd_propose_rule(p, item, k);
        size_t n = 0;
        if (strcmp(l.source, single.source) == 0) continue;
        for (size_t i = 0; i < p->n; i++) {
            if (!p->items[i].clear || p->items[i].written) continue;
            fd_proposed_rule other = fd_propose_rule(p, &p->items[i], k);
            n += fd_propose_same_rule(&l, &other);
        }
        bool speaks = n > most || (n == 1 && number < 0 && speaks_for_all(p, &l, item));
        if (speaks && !pattern_misleads(p, &l, k)) {
            most = n;
            best = l;
            number = k;
        }
    }
    const fd_proposed *least = item;
    const int32_t skipped = item->other[0] ? -1 : left_out(p, item);
    bool all_skipped = skipped >= 0;
    for (size_t i = 0; number >= 0 && all_skipped && i < p->n; i++) {
        if (!p->items[i].clear || p->items[i].written) continue;
        fd_proposed_rule l = fd_propose_rule(p, &p->items[i], number);
        if (fd_propose_same_rule(&best, &l)) all_skipped = left_out(p, &p->items[i]) >= 0;
    }
    if (all_skipped) {
        node_like(p, &best, skipped, item->other, sizeof item->other);
        item->left_out = true;
    }
    size_t *count = best.factor_known && !item->other[0] ? &p->total->n_sure : &p->total->n_ask;
    for (size_t i = 0; number >= 0 && i < p->n; i++) {
        fd_proposed *other = &p->items[i];
        if (!other->clear || other->written) continue;
        fd_proposed_rule l = fd_propose_rule(p, other, number);
        if (!fd_propose_same_rule(&best, &l)) continue;
        other->written = true;
        ++*count;
        if (!all_skipped && confidence(other) < confidence(least)) least = other;
    }
    if (!item->written) ++*count;
    item->written = true;
    char by_name[80] = "";
    if (number >= 0) take_by_name(p, &best, item, most, by_name, sizeof by_name);
    if (item->exchanged) ask_exchanged(p, &best, item);
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
    return fd_source_is_tokens(t) || fd_source_is_weight(t->name) ||
           (o->allow && fd_name_map_listed(o->allow, t->name));
}

static void write_rest(fd_proposer *p, const fd_import_options *o) {
    char shape[128];
    fd_propose_streams(p);
    fd_propose_by_name(p);
    fd_propose_ask_by_size(p);
    for (size_t i = 0; i < p->n; i++)
        if (!p->items[i].written && p->items[i].matched) write_ask(p, &p->items[i]);
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        if (item->on_the_way) fprintf(p->out, "skip %s  # %s %s\n", item->name, item->on_the_way_to, item->on_the_way);
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
        bool found = p->known[v] || is_cache(fd_trace_node_at(p->ref, v)); /* a cache: a copy, never proposed */
        for (size_t i = 0; !found && i < p->n; i++) found = p->items[i].matched && p->items[i].best[0].node == v;
        if (!found) fprintf(p->out, "# nothing is %s\n", node_name(p, v));
        p->total->n_missing += !found;
    }
}

/* Is every node as near as that, up to where the next would be clear, another name, and the nearest none? The name is then that one. */
static bool left_over(const fd_proposer *p, const fd_proposed *item) {
    if (item->written || item->clear || !item->matched || item->slice[0] ||
        fd_propose_is_named(p, item->best[0].node, item))
        return false;
    for (int i = 1; i < FD_PROPOSE_KEEP; i++) {
        if (item->best[i].node < 0 || item->best[i].away >= FD_PROPOSE_CLEAR * item->best[0].away + 1e-11) return true;
        if (!fd_propose_is_named(p, item->best[i].node, item)) return false;
    }
    return false; /* there may be others */
}

void fd_propose_lines(fd_proposer *p, const fd_import_options *options) {
    fprintf(p->out, "# Proposed for %s. Each line: confidence, cosine with the node's values, the next best node.\n",
            fd_source_path(p->source));
    fd_propose_compare_layers(p);
    fd_propose_undo_exchanges(p);
    for (size_t i = 0; i < p->n; i++) p->total->agreement += fd_propose_agreement(&p->items[i]);
    for (int pass = 0; pass < 2; pass++) { /* the nearer first: the first line that finds its tensor is the node */
        if (pass) fd_propose_ends(p);
        for (size_t i = 0; i < p->n; i++)
            if (p->items[i].clear && !p->items[i].written && (pass || !fd_propose_is_further(p, &p->items[i])))
                write_sure(p, &p->items[i]);
    }
    for (size_t i = 0; i < p->n; i++)
        if (left_over(p, &p->items[i])) write_sure(p, &p->items[i]);
    write_rest(p, options);
    write_missing(p);
}
