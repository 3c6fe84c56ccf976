/* Names that are nodes' own, where values decide nothing: behind a bug nothing has the right values, and the name still says
 * it. So does one that ends as the node's does, in an engine whose other names are seen by their values to do so. */
#include <stdio.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

/* Scores and weights without dimensions have the order in which they are nearest to that node, else tokens first. */
static const char *reading_over_keys(const fd_proposer *p, const fd_trace_node *node, const fd_proposed *item) {
    const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
    if (t->step < 0 || t->rank != 1) return "";
    const bool nearest = item->best[0].node >= 0 && fd_trace_node_at(p->ref, item->best[0].node) == node;
    return nearest && strstr(item->best[0].ops, "n_head,n_tok") ? " shape=n_head,n_tok,-1 axis=-2"
                                                                : " shape=n_tok,n_head,-1 axis=-3";
}

/* As the map gguf reads a tensor of that name; behind the last layer the last tokens' rows may be all. */
static const char *reading_of(const fd_proposer *p, const fd_trace_node *node, const fd_proposed *item) {
    const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
    if (node->over_kv) return reading_over_keys(p, node, item);
    const bool one_row = t->step >= 0 && fd_source_elements(t) == fd_trace_elements(node, 0);
    const int32_t n_pos = t->step < 0 ? 0 : p->plan.steps[t->step].n_pos;
    const bool columns = t->rank == 2 && t->shape[0] != n_pos && t->shape[1] == n_pos && n_pos > 1;
    if (columns && t->shape[0] == fd_trace_elements(node, 0)) return " axis=-1";
    if (strcmp(node->name, "logits") == 0 || one_row) return " axis=first rows=last";
    if (node->layer >= 0 || t->step < 0 || t->rank == 0) return " axis=first";
    const int64_t rows = fd_source_elements(t) / fd_trace_elements(node, 0);
    return rows == p->plan.steps[t->step].n_pos ? " axis=first" : t->rank > 1 ? " axis=-2 rows=last" : " rows=last";
}

const char *fd_propose_words(const fd_proposer *p, const fd_proposed *item) {
    const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
    if (t->type != FD_ARRAY_U16 || strstr(t->name, "bf16")) return "";
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].clear && strstr(p->items[i].best[0].ops, "as=f16")) return " as=f16";
    return " as=bf16";
}

/* What a layer ends with, in the words of engines: "layer0_out", "blk3_hidden", "x_after_layer_3". */
static bool says_output(const char *pattern, const char *ending) {
    static const char *const after[] = {"out", "output", "hidden_states", "resid_post", "x_out"};
    static const char *const before[] = {"after_layer",  "layer_out",   "layer_output", "block_out",
                                         "block_output", "after_block", "hidden_states"};
    const char *number = strstr(pattern, "{layer}");
    size_t n = (size_t)(number - pattern);
    for (size_t i = 0; i < sizeof after / sizeof *after; i++)
        if (strcmp(ending, after[i]) == 0) return true;
    while (n > 0 && strchr("._-/", pattern[n - 1])) n--;
    for (size_t i = 0; i < sizeof before / sizeof *before && !*ending; i++) {
        const size_t m = strlen(before[i]);
        if (n >= m && memcmp(pattern + n - m, before[i], m) == 0) return true;
    }
    return false;
}

/* Of no layer: what goes into the first, and the norm behind the last; -1. */
static int32_t node_of_ends(const fd_proposer *p, const char *name) {
    const bool embeds = strstr(name, "emb") != NULL, norm = strstr(name, "norm") != NULL;
    if (fd_propose_name_has_layer(p, name) || embeds == norm) return -1;
    return fd_trace_find(p->ref, embeds ? "token_embd" : "output_norm");
}

/* What engines call a node, where it is not as the GGUF's tensors are called. */
static const struct {
    const char *word, *node;
} words[] = {
    {"down_proj", "ffn_down"}, {"up_proj", "ffn_up"},     {"gate_proj", "ffn_gate"}, {"input_layernorm", "attn_norm"},
    {"q_proj", "attn_q"},      {"k_proj", "attn_k"},      {"v_proj", "attn_v"},      {"o_proj", "attn_proj"},
    {"mlp_out", "ffn_down"},   {"mlp_out", "ffn_moe_out"}};

/* What a pattern calls its tensor: what stands after the layer's number, after its last dot; else before it: "h.{layer}.mlp.down",
 * "layer{layer}_down", "down-{layer}". */
static const char *word_of(const char *pattern, char *out, size_t size) {
    const char *number = strstr(pattern, "{layer}"), *after = number + strlen("{layer}");
    after += strspn(after, "._-/");
    size_t n = (size_t)(number - pattern);
    while (n > 0 && strchr("._-/", pattern[n - 1])) n--;
    snprintf(out, size, "%.*s", *after ? (int)strlen(after) : (int)n, *after ? after : pattern);
    for (char *c = out; *c; c++)
        if (strchr("./", *c) && c[1]) memmove(out, c + 1, strlen(c)), c = out;
    return out;
}

static int32_t find_in_layer(const fd_proposer *p, int32_t layer, const char *before, const char *word) {
    char node[400];
    snprintf(node, sizeof node, "blk.%d.%s%s", layer, before, word);
    return fd_trace_find(p->ref, node);
}

/* The node of that layer which the name's word is: "layer0_attn_norm", "h.0.q", "blocks.0.gate", "layer0_out", "ffn_norm-0"; -1. */
static int32_t node_of_ending(const fd_proposer *p, const char *name) {
    static const char *const before[] = {"", "attn_", "ffn_"};
    char pattern[300], room[300];
    int32_t found = -1;
    for (int number = 0; number < 4 && found < 0; number++) {
        int32_t layer = fd_propose_layer_of(p, name, number, false, pattern, sizeof pattern);
        if (layer < 0 || !strstr(pattern, "{layer}")) continue;
        const char *ending = strstr(pattern, "{layer}") + strlen("{layer}"),
                   *word = word_of(pattern, room, sizeof room);
        if (says_output(pattern, ending + strspn(ending, "._-/"))) word = "l_out";
        for (int i = 0; i < 3 && found < 0 && *word; i++) found = find_in_layer(p, layer, before[i], word);
        for (size_t i = 0; i < sizeof words / sizeof *words && found < 0; i++)
            if (strcmp(word, words[i].word) == 0) found = find_in_layer(p, layer, "", words[i].node);
    }
    return found;
}

/* Names of layers that values decide end in their nodes' names, and none in another's. Without any, where little was recorded and the
 * first of it is wrong, those alone are believed that mean the same in all engines (`alone`). */
static bool endings_say_it(const fd_proposer *p, bool *alone) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *item = &p->items[i];
        int32_t v = item->clear && item->best[0].node >= 0 && !item->slice[0] ? node_of_ending(p, item->name) : -1;
        if (v >= 0 && v != item->best[0].node) return false;
        n += v >= 0;
    }
    *alone = n == 0;
    return true;
}

/* Before RoPE or after it, before a projection or after it: Q, K and what attention gives are called alike. */
static bool means_one_thing(const fd_trace_node *node) {
    static const char *const own[] = {".l_out", ".attn_norm", ".ffn_norm", ".ffn_gate", ".ffn_up", ".ffn_down"};
    const char *tail = strrchr(node->name, '.');
    for (size_t i = 0; tail && i < sizeof own / sizeof *own; i++)
        if (strcmp(tail, own[i]) == 0) return true;
    return false;
}

/* Rows first in every step, in an array of one dimension too, or the last row alone; axes of 1 may stand before them. */
static bool has_rows_first(const fd_proposer *p, const fd_proposed *item) {
    for (size_t i = 0; i < item->n; i++) {
        const fd_source_tensor *t = fd_source_at(p->source, item->tensors[i]);
        int axis = 0;
        if (t->step < 0 || t->rank == 1) continue;
        while (axis + 1 < t->rank && t->shape[axis] == 1) axis++;
        const int64_t rows = axis + 1 < t->rank ? t->shape[axis] : 1;
        if (t->rank == 0 || (rows != 1 && rows != p->plan.steps[t->step].n_pos)) return false;
    }
    return true;
}

static void take(fd_proposer *p, fd_proposed *item, int32_t v, const char *why) {
    const fd_trace_node *node = fd_trace_node_at(p->ref, v);
    fprintf(p->out, "%-44s -> %s%s%s  # by %s", item->name, node->name, reading_of(p, node, item),
            fd_propose_words(p, item), why);
    if (item->best[0].node < 0)
        fprintf(p->out, "\n");
    else
        fprintf(p->out, ": its values decide nothing, nearest %s, cosine %.4f\n",
                fd_trace_node_at(p->ref, item->best[0].node)->name, 1 - item->best[0].away);
    item->written = item->matched = true;
    item->best[0].node = v;
    p->total->n_by_name++;
}

bool fd_propose_name_has_layer(const fd_proposer *p, const char *name) {
    char pattern[300];
    for (int number = 0; number < 4; number++)
        if (fd_propose_layer_of(p, name, number, false, pattern, sizeof pattern) >= 0) return true;
    return false;
}

/* The only node of a row's size, where no name is it: logits, behind a bug of all layers, whatever they were before a softcap or a factor.
 * A name without a layer is no layer's node. -1. */
static int32_t only_of_size(const fd_proposer *p, const fd_proposed *item) {
    const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
    int32_t found = -1, logits = fd_trace_n_node(p->ref) - 1;
    const bool of_layer = fd_propose_name_has_layer(p, item->name);
    for (int32_t v = 0; v <= logits; v++) {
        const fd_trace_node *node = fd_trace_node_at(p->ref, v);
        if ((node->layer >= 0 && !of_layer) || !fd_propose_size_fits(p, t, node)) continue;
        if (v < logits && strcmp(node->name, fd_trace_node_at(p->ref, logits)->inputs[0]) == 0) continue;
        if (found >= 0) return -1;
        found = v;
    }
    return found == logits && !fd_propose_is_ids(&p->plan, item->tensors[0]) ? found : -1;
}

/* Are the logits, and what they were before a softcap or a factor, all that the name is near to? Of the two it then is the nearer one. */
static int32_t nearer_logits(const fd_proposer *p, const fd_proposed *item) {
    const int32_t last = fd_trace_n_node(p->ref) - 1;
    const int32_t raw = fd_trace_find(p->ref, fd_trace_node_at(p->ref, last)->inputs[0]);
    const int32_t a = item->best[0].node, b = item->best[1].node;
    return item->matched && ((a == last && b == raw) || (a == raw && b == last)) && a >= 0 && b >= 0 ? a : -1;
}

/* Beside names that values decide, else it is the whole dump that is another; or alone. */
static void take_logits_by_size(fd_proposer *p) {
    fd_proposed *only = NULL;
    int32_t node = -1;
    bool known = p->n == 1;
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        known |= item->clear;
        int32_t v = item->slice[0] ? -1 : only_of_size(p, item);
        if (v < 0) continue;
        const int32_t nearer = nearer_logits(p, item);
        if (only || item->written || (item->matched && nearer < 0)) return;
        only = item;
        node = nearer < 0 ? v : nearer;
    }
    if (only && known && has_rows_first(p, only)) take(p, only, node, "its size, which no other node has");
}

static bool may_be(const fd_proposer *p, const fd_proposed *item, int32_t v) {
    return !item->written && !item->slice[0] && v >= 0 && !fd_propose_is_named(p, v, item) &&
           fd_propose_size_fits(p, fd_source_at(p->source, item->tensors[0]), fd_trace_node_at(p->ref, v));
}

bool fd_propose_is_further(const fd_proposer *p, const fd_proposed *item) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *other = &p->items[i];
        if (other == item || !other->clear || other->best[0].node != item->best[0].node || other->slice[0]) continue;
        if (2 * other->best[0].away + 1e-11 < item->best[0].away) return true;
    }
    return false;
}

void fd_propose_ends(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        const int32_t v = node_of_ends(p, item->name);
        if ((!item->clear || fd_propose_is_further(p, item)) && may_be(p, item, v)) take(p, item, v, "its name alone");
    }
}

/* Engines call so what attention gives before its projection, and behind it: without another name for the latter the word says neither. */
static bool may_be_projection(const fd_proposer *p, const fd_proposed *item, int32_t v) {
    const fd_trace_node *node = fd_trace_node_at(p->ref, v);
    const char *tail = strrchr(node->name, '.');
    if (!tail || strcmp(tail, ".attn_out") != 0) return false;
    const int32_t behind = find_in_layer(p, node->layer, "", "attn_proj");
    if (behind < 0 || !may_be(p, item, behind)) return false;
    for (size_t i = 0; i < p->n; i++)
        if (&p->items[i] != item && node_of_ending(p, p->items[i].name) == behind) return false;
    return true;
}

void fd_propose_by_name(fd_proposer *p) {
    bool alone = false;
    const bool endings = endings_say_it(p, &alone);
    for (int pass = 0; pass < 1 + endings; pass++)
        for (size_t i = 0; i < p->n; i++) {
            fd_proposed *item = &p->items[i];
            const int32_t v = pass ? node_of_ending(p, item->name) : fd_trace_find(p->ref, item->name);
            if (item->clear || !may_be(p, item, v) || (pass && may_be_projection(p, item, v))) continue;
            if (pass && (!has_rows_first(p, item) || (alone && !means_one_thing(fd_trace_node_at(p->ref, v)))))
                continue;
            take(p, item, v, pass ? "the end of its name" : "its name alone");
        }
    take_logits_by_size(p);
}
