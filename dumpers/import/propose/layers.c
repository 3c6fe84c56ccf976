/* Do the layers' names say the same? */
#include <math.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

/* The names that stand for the same tensor in the layers: those with the rule's source, as far as their values decide. */
typedef struct group {
    size_t n, n_same;         /* with clear values; with the rule's own node and operations */
    size_t n_unclear;         /* whose values say nothing */
    bool same_source;         /* of all n: no other number of the names is the layer */
    const fd_proposed *other; /* the first that says something else; NULL: none */
} group;

static bool is_clear(const fd_proposer *p, const fd_proposed *item) {
    return item->clear && fd_trace_node_at(p->ref, item->best[0].node)->layer >= 0;
}

/* Is it the same tensor as `like` by its name? Another number of axes is another layout, not another order. */
static bool is_of_group(const fd_proposer *p, const fd_proposed *item, const fd_proposed *like,
                        const fd_proposed_rule *rule, fd_name_map_capture *capture) {
    return strcmp(item->slice, like->slice) == 0 && fd_name_map_matches(rule->source, item->name, capture) &&
           fd_source_at(p->source, item->tensors[0])->rank == fd_source_at(p->source, like->tensors[0])->rank;
}

/* The rule's node in the layer of the name; -1 when the model has none. */
static int32_t node_of(const fd_proposer *p, const fd_proposed_rule *rule, const fd_name_map_capture *capture) {
    char node[96];
    const fd_name_map_rule named = {.node = (char *)(uintptr_t)rule->node};
    return capture->layer >= 0 && fd_name_map_node(&named, capture, node, sizeof node) ? fd_trace_find(p->ref, node)
                                                                                       : -1;
}

static group group_of(const fd_proposer *p, const fd_proposed *like, const fd_proposed_rule *rule, int number) {
    group g = {.same_source = true};
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *item = &p->items[i];
        fd_name_map_capture capture;
        if (item->written || !is_of_group(p, item, like, rule, &capture) || node_of(p, rule, &capture) < 0) continue;
        if (!item->clear) g.n_unclear++;
        if (!is_clear(p, item)) continue;
        fd_proposed_rule own = fd_propose_rule(p, item, number);
        bool same = fd_propose_same_rule(&own, rule);
        g.n++;
        g.n_same += same;
        g.same_source = g.same_source && strcmp(own.source, rule->source) == 0;
        if (!same && !g.other) g.other = item;
    }
    return g;
}

static void mark_others(fd_proposer *p, const fd_proposed *like, const fd_proposed_rule *rule, int number) {
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        fd_name_map_capture capture;
        if (item->written || !is_clear(p, item) || !is_of_group(p, item, like, rule, &capture) ||
            node_of(p, rule, &capture) < 0)
            continue;
        fd_proposed_rule own = fd_propose_rule(p, item, number);
        if (fd_propose_same_rule(&own, rule)) continue;
        item->clear = false;
        item->differs = true;
    }
}

static bool is_reading(const char *word) {
    static const char *const words[] = {"shape=", "axis=", "rows=", "as=", "slice="};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(word, words[i], strlen(words[i])) == 0) return true;
    return false;
}

/* The words of `a` that `b` lacks; `reading`: of these only how the array is read. False when there are none. */
static bool words_of(const char *a, const char *b, bool reading, char *out, size_t size) {
    size_t at = 0;
    out[0] = '\0';
    for (const char *word = a + strspn(a, " "); *word; word += strspn(word, " ")) {
        size_t n = strcspn(word, " ");
        char padded_word[320], padded[320];
        snprintf(padded_word, sizeof padded_word, " %.*s ", (int)n, word);
        snprintf(padded, sizeof padded, " %s ", b);
        bool reads = is_reading(word);
        if (!strstr(padded, padded_word) && (!reading || reads) && at + n + 2 < size)
            at += (size_t)snprintf(out + at, size - at, "%s%.*s", at ? " " : "", (int)n, word);
        word += n;
    }
    return at > 0;
}

void fd_propose_reading(const char *ops, char *out, size_t size) {
    words_of(ops, "", true, out, size);
}

static bool has_known_order_of_input(const fd_proposer *p, const fd_proposed *item) {
    const int32_t input = fd_trace_find(p->ref, fd_trace_node_at(p->ref, item->best[0].node)->inputs[0]);
    return input >= 0 && p->known_turned[input];
}

/* Without most, or where one layer decides alone and its values are in another order: what else it may be. */
static void mark_undecided(fd_proposer *p, fd_proposed *item, const fd_proposed_rule *rule, int number,
                           const group *g) {
    const fd_proposed_rule own = fd_propose_rule(p, item, -1);
    char plain[FD_PROPOSE_MAX_OPS + 64], order[FD_PROPOSE_MAX_OPS + 64];
    fd_name_map_capture capture;
    if (g->n > 1 && g->n_same < g->n && g->same_source) {
        const fd_proposed_rule other = fd_propose_rule(p, g->other, number);
        fd_name_map_matches(rule->source, item->name, &capture);
        int32_t node = node_of(p, &other, &capture);
        if (node < 0) return;
        fd_propose_rule_text(&other, g->other, fd_trace_node_at(p->ref, node)->name, item->other, sizeof item->other);
    } else if (g->n == 1 && g->n_unclear > 0 && own.factor_known && !has_known_order_of_input(p, item)) {
        fd_propose_reading(own.ops, plain, sizeof plain);
        if (!words_of(own.ops, plain, false, order, sizeof order)) return;
        snprintf(item->other, sizeof item->other, "%s%s%s", own.node, *plain ? " " : "", plain);
    }
    item->n_same = g->n_same;
    item->n_layer = g->n;
}

/* Is the name one that every layer has, and none besides? The first of h_0…h_n may be the embeddings. */
static bool every_layer_has(const fd_proposer *p, const char *name) {
    for (int number = 0; number < 4; number++) {
        char pattern[300];
        int32_t n = 0, n_beyond = 0;
        if (fd_propose_layer_of(p, name, number, false, pattern, sizeof pattern) < 0) continue;
        for (size_t i = 0; i < p->n; i++) {
            fd_name_map_capture capture;
            if (p->items[i].slice[0] || !fd_name_map_matches(pattern, p->items[i].name, &capture)) continue;
            *(capture.layer < p->plan.graph->hparams.n_layer ? &n : &n_beyond) += 1;
        }
        if (n > 1 && n_beyond == 0 && fd_propose_covers(p, pattern)) return true;
    }
    return false;
}

/* Layers' streams that a scaled embedding outweighs are near to it: of these values only its own, as of what goes into a layer,
 * say that a layer's name is the embedding. */
#define OWN_VALUES 1e-4

static void refuse_outside(const fd_proposer *p, fd_proposed *item) {
    const fd_candidate *best = &item->best[0];
    if (!item->clear || item->slice[0] || best->node < 0 || fd_trace_node_at(p->ref, best->node)->layer >= 0) return;
    if (best->away <= OWN_VALUES || !every_layer_has(p, item->name)) return;
    item->clear = item->matched = false;
    item->best[0].node = -1;
}

/* Of names of layers that all have one form: are they, but for one at most, near to no node? */
static bool stands_alone(const fd_proposer *p, const fd_proposed *item) {
    for (int number = 0; number < 4; number++) {
        char pattern[300];
        bool same = fd_propose_layer_of(p, item->name, number, false, pattern, sizeof pattern) >= 0;
        for (size_t i = 0; i < p->n && same; i++) {
            const fd_proposed *other = &p->items[i];
            fd_name_map_capture capture;
            if (other == item || !fd_propose_name_has_layer(p, other->name)) continue;
            same = fd_name_map_matches(pattern, other->name, &capture) && !is_clear(p, other);
        }
        if (same) return true;
    }
    return false;
}

/* Where layers left one tensor each, one of which is near to some node and has not its values, that says nothing of what they are:
 * behind a bug of every layer any tensor of the first may be near to any of them. */
static void refuse_single(const fd_proposer *p, fd_proposed *item) {
    if (!is_clear(p, item) || item->best[0].away <= OWN_VALUES || !every_layer_has(p, item->name)) return;
    if (stands_alone(p, item)) item->clear = item->matched = false;
}

/* Are names with a number that node in two other layers or more, and none is any node of its own layer? */
static bool is_numbered_elsewhere(const fd_proposer *p, int32_t node) {
    const fd_trace_node *own = fd_trace_node_at(p->ref, node);
    int32_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *other = &p->items[i];
        if (!is_clear(p, other) || !fd_propose_name_has_layer(p, other->name)) continue;
        const fd_trace_node *its = fd_trace_node_at(p->ref, other->best[0].node);
        if (its->layer == own->layer) return false;
        n += its->layer >= 0 && strcmp(strrchr(its->name, '.'), strrchr(own->name, '.')) == 0;
    }
    return n >= 2;
}

/* Behind a layer that was left out, and has no names, the last norm has nearly the values of that layer's first. A name without a
 * number is no layer's node, unless it has its very values: it is one outside the layers, if any. */
static void refuse_layer(const fd_proposer *p, fd_proposed *item) {
    fd_candidate *best = item->best;
    int32_t n = 0;
    if (!is_clear(p, item) || fd_trace_node_at(p->ref, best[0].node)->layer < 0 || best[0].away <= OWN_VALUES) return;
    if (fd_propose_name_has_layer(p, item->name) || !is_numbered_elsewhere(p, best[0].node)) return;
    for (int k = 0; k < FD_PROPOSE_KEEP; k++)
        if (best[k].node >= 0 && fd_trace_node_at(p->ref, best[k].node)->layer < 0) best[n++] = best[k];
    for (int k = n; k < FD_PROPOSE_KEEP; k++) best[k].node = -1;
    item->matched = item->clear = n == 1 && best[0].away <= FD_PROPOSE_FAR;
}

/* The later of two layers' names that have one node's values, the earlier being that layer's: what a layer that does nothing leaves.
 * The name says more of the later than its values do. */
static bool repeats(const fd_proposer *p, const fd_proposed *item) {
    for (int number = 0; number < 4; number++)
        for (size_t i = 0; i < p->n; i++) {
            const fd_proposed *other = &p->items[i];
            fd_name_map_capture own;
            if (other == item || !is_clear(p, other) || other->best[0].node != item->best[0].node) continue;
            const fd_proposed_rule rule = fd_propose_rule(p, other, number);
            if (fd_propose_has_layer(&rule) && is_of_group(p, item, other, &rule, &own) &&
                own.layer > fd_trace_node_at(p->ref, item->best[0].node)->layer)
                return true;
        }
    return false;
}

void fd_propose_compare_layers(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++) refuse_outside(p, &p->items[i]);
    for (size_t i = 0; i < p->n; i++) refuse_layer(p, &p->items[i]);
    for (size_t i = 0; i < p->n; i++) refuse_single(p, &p->items[i]);
    for (size_t i = p->n; i-- > 0;)
        if (is_clear(p, &p->items[i]) && repeats(p, &p->items[i]))
            p->items[i].clear = false, p->items[i].differs = true;
    for (int pass = 0; pass < 2; pass++) /* what most layers say, then what is left without most */
        for (size_t i = 0; i < p->n; i++)
            for (int number = 0; number < 4; number++) {
                fd_proposed *item = &p->items[i];
                if (item->written || item->other[0] || !is_clear(p, item)) break;
                const fd_proposed_rule rule = fd_propose_rule(p, item, number);
                if (!fd_propose_has_layer(&rule)) continue;
                const group g = group_of(p, item, &rule, number);
                bool most = g.n_same >= 2 && 2 * g.n_same > g.n;
                if (pass == 0 && most && g.other) mark_others(p, item, &rule, number);
                if (pass == 1) mark_undecided(p, item, &rule, number, &g);
            }
}

void fd_propose_ask_layer(fd_proposer *p, const fd_proposed *item, const fd_proposed_rule *rule, const fd_proposed *of,
                          int32_t node, size_t n_layer) {
    const fd_proposed_rule own = fd_propose_rule(p, item, -1);
    const char *meant = fd_trace_node_at(p->ref, node)->name;
    char fits[300], usual[300], with[300], without[300];
    fd_propose_rule_text(&own, item, own.node, fits, sizeof fits);
    fd_propose_rule_text(rule, of, meant, usual, sizeof usual);
    bool more = words_of(fits, usual, false, with, sizeof with),
         less = words_of(usual, fits, false, without, sizeof without);
    if (item->best[0].node != node)
        fprintf(p->out, "# ask: %s has the values of %s, in %zu other layers those of %s", item->name, own.node,
                n_layer, rule->node);
    else if (more && less)
        fprintf(p->out, "# ask: %s fits with %s, %zu other layers with %s", meant, with, n_layer, without);
    else
        fprintf(p->out, "# ask: %s fits %s %s, %zu other layers %s", meant, more ? "with" : "without",
                more ? with : without, n_layer, more ? "without" : "with it");
    fprintf(p->out,
            ": the engine's own layout, or its bug?\n#      (The next line takes it for the bug. If it is the "
            "layout, write above it: %s -> %s)\n",
            own.source, fits);
    p->total->n_differ++;
}

/* The norm behind the layers; -1. */
static int32_t norm_behind(const fd_proposer *p, int32_t last) {
    for (int32_t v = 0; v < fd_trace_n_node(p->ref); v++) {
        const fd_trace_node *node = fd_trace_node_at(p->ref, v);
        if (node->layer < 0 && strcmp(node->inputs[0], fd_trace_node_at(p->ref, last)->name) == 0 &&
            fd_trace_elements(node, 0) == fd_trace_elements(fd_trace_node_at(p->ref, last), 0))
            return v;
    }
    return -1;
}

/* A logarithm: a bug changes sizes by less, a norm by more. */
#define SAME_SIZE 0.4

/* How far from the node's the sizes of its values are, as a logarithm; INFINITY: that node is not near. */
static double other_size(const fd_proposed *item, int32_t node) {
    for (int i = 0; i < FD_PROPOSE_KEEP && item->best[i].node >= 0; i++)
        if (item->best[i].node == node) return fabs(log(fabs(item->best[i].factor)));
    return INFINITY;
}

bool fd_propose_ask_last(fd_proposer *p, const fd_proposed_rule *l, fd_proposed *item, int32_t last) {
    const int32_t n_layer = p->plan.graph->hparams.n_layer, norm = norm_behind(p, last);
    if (!strstr(l->source, "{layer+1}") || fd_trace_node_at(p->ref, last)->layer + 1 != n_layer) return false;
    if (norm < 0 || fd_propose_is_named(p, norm, item)) return false;
    const bool nearest = item->matched && item->best[0].node == last;
    if (nearest && other_size(item, last) <= fmin(other_size(item, norm), SAME_SIZE)) return false;
    /* transformers' hidden_states, whose last one is normed; where no layer's values decide (no node), nothing else is sure either */
    const bool known = l->node[0] && strstr(item->name, "hidden_states");
    const char *reads = fd_trace_node_at(p->ref, last)->name;
    fprintf(p->out, "%s%s -> %s%s%s%s%s  # the last of names numbered from the embeddings on\n", known ? "" : "ask ",
            item->name, fd_trace_node_at(p->ref, norm)->name, known ? "" : " | ", known ? "" : reads,
            *l->ops ? " " : "", l->ops);
    item->written = true;
    if (known)
        item->matched = true, item->best[0].node = norm, p->total->n_by_name++;
    else
        p->total->n_ask++;
    return true;
}
