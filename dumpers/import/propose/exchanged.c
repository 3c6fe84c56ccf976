/* Two names of a layer that have each other's values: K's and V's, gate's and up's, of which the words in the names say which is
 * which. Then it is the engine that exchanges them, or the biases that it adds to them would be the other's, too; a dump that
 * exchanged the names alone is found by what reads the tensors. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "dumpers/import/propose/internal.h"

/* Nearer than this to a node are its own values, rounded. */
#define OWN_VALUES 1e-4

/* The last word that says what a tensor is: "k" of "L0_att_k", "h.0.k_proj" and "k-0". */
static void word_of(const char *name, char *out, size_t size) {
    const char *end = name + strcspn(name, "#");
    out[0] = '\0';
    while (end > name) {
        const char *from = end;
        while (from > name && !strchr("._-/", from[-1])) from--;
        const size_t n = (size_t)(end - from);
        if (n > 0 && strspn(from, "0123456789") < n && strncasecmp(from, "proj", n) != 0) {
            snprintf(out, size, "%.*s", (int)n, from);
            return;
        }
        end = from > name ? from - 1 : name;
    }
}

static bool has_word(const fd_proposer *p, const fd_proposed *item, int32_t node) {
    char own[64], of[64];
    word_of(item->name, own, sizeof own);
    word_of(fd_trace_node_at(p->ref, node)->name, of, sizeof of);
    return own[0] && strcasecmp(own, of) == 0;
}

/* Made of the same tensor by the same op, and as large. */
static bool are_siblings(const fd_proposer *p, int32_t a, int32_t b) {
    const fd_trace_node *x = fd_trace_node_at(p->ref, a), *y = fd_trace_node_at(p->ref, b);
    return a != b && x->layer >= 0 && x->layer == y->layer && strcmp(x->op, y->op) == 0 &&
           strcmp(x->inputs[0], y->inputs[0]) == 0 && fd_trace_elements(x, 0) == fd_trace_elements(y, 0);
}

/* The node that the name says, where the values say one of its siblings; -1. */
static int32_t meant(const fd_proposer *p, const fd_proposed *item) {
    const int32_t node = item->best[0].node;
    if (node < 0 || !item->matched || item->slice[0] || has_word(p, item, node)) return -1;
    for (int32_t v = 0; v < fd_trace_n_node(p->ref); v++)
        if (are_siblings(p, v, node) && has_word(p, item, v)) return v;
    return -1;
}

/* The layer of the name; -1. */
static int32_t layer_of(const fd_proposer *p, const fd_proposed *item) {
    char pattern[300];
    int32_t layer = -1;
    for (int number = 0; number < 4 && layer < 0; number++)
        layer = fd_propose_layer_of(p, item->name, number, false, pattern, sizeof pattern);
    return layer;
}

/* The name that says the node whose values `item` has, and has not got them itself. */
static fd_proposed *other_of(const fd_proposer *p, const fd_proposed *item) {
    const int32_t node = item->best[0].node;
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *other = &p->items[i];
        if (other != item && !other->slice[0] && other->best[0].node >= 0 && other->best[0].node != node &&
            layer_of(p, other) == fd_trace_node_at(p->ref, node)->layer && has_word(p, other, node) &&
            fd_propose_size_fits(p, fd_source_at(p->source, other->tensors[0]), fd_trace_node_at(p->ref, node)))
            return other;
    }
    return NULL;
}

/* What was taken for the node besides, and has not its own values, is something else. */
static void leave_to(const fd_proposer *p, const fd_proposed *item) {
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *other = &p->items[i];
        if (other == item || other->exchanged || other->best[0].node != item->best[0].node ||
            other->best[0].away <= OWN_VALUES)
            continue;
        other->clear = other->matched = false;
        other->best[0].node = -1;
    }
}

/* `values_of`: the other of the two. */
static void take(fd_proposed *item, int32_t node, int32_t values_of) {
    item->values_of = values_of;
    item->best[0].node = node;
    item->best[0].away = item->best[0].factor = 1;
    item->best[1].node = -1;
    item->clear = item->matched = item->exchanged = true;
    item->part_first = item->part_last = -1;
}

void fd_propose_undo_exchanges(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        const int32_t node = item->clear && !item->exchanged && !item->other[0] ? meant(p, item) : -1;
        fd_proposed *other = node >= 0 ? other_of(p, item) : NULL;
        if (!other || (other->clear && other->best[0].node != node)) continue;
        const int32_t its = item->best[0].node;
        take(item, node, its);
        take(other, its, node);
        leave_to(p, item);
        leave_to(p, other);
    }
}
