/* Logits, and what the head gave before a softcap or a factor. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

static const char *node_name(const fd_proposer *p, int32_t node) {
    return fd_trace_node_at(p->ref, node)->name;
}

/* A name that is the logits' own is the logits, though its values are those before the softcap or factor: the op is missing. */
static void prefer_logits(const fd_proposer *p, fd_proposed *item) {
    const int32_t last = fd_trace_n_node(p->ref) - 1;
    if (item->clear && strcmp(item->name, node_name(p, last)) == 0 &&
        strcmp(fd_trace_node_at(p->ref, last)->inputs[0], node_name(p, item->best[0].node)) == 0 &&
        fd_trace_elements(fd_trace_node_at(p->ref, last), 0) ==
            fd_trace_elements(fd_trace_node_at(p->ref, item->best[0].node), 0))
        item->best[0].node = last;
}

/* Does another name have the logits, or what the head gave? Then the two tell each other apart. */
static bool has_other_logits(const fd_proposer *p, const fd_proposed *but, int32_t raw) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *item = &p->items[i];
        if (item != but && item->matched &&
            (item->best[0].node == raw || item->best[0].node == fd_trace_n_node(p->ref) - 1))
            return true;
    }
    return false;
}

/* What a name says of itself: the values before a softcap or factor, or those behind it; else nothing. */
static bool says_raw(const char *name) {
    return strcasestr(name, "raw") || strcasestr(name, "head") || strcasestr(name, "unembed") ||
           strcasestr(name, "pre") || strcasestr(name, "before");
}

/* A name that speaks of logits, or is the only one that may be them and says nothing: that, or the logits of an engine that leaves the op
 * out. */
static void doubt_logits(const fd_proposer *p, fd_proposed *item) {
    const fd_trace_node *last = fd_trace_node_at(p->ref, fd_trace_n_node(p->ref) - 1);
    const bool says = strcasestr(item->name, "logit") && !strcasestr(item->name, "raw");
    if (!item->clear || item->best[0].node < 0 || strcmp(last->inputs[0], node_name(p, item->best[0].node)) != 0 ||
        fd_trace_elements(last, 0) != fd_trace_elements(fd_trace_node_at(p->ref, item->best[0].node), 0))
        return;
    if (!says && (says_raw(item->name) || has_other_logits(p, item, item->best[0].node))) return;
    snprintf(item->other, sizeof item->other, "%s%s%s", last->name, *item->best[0].ops ? " " : "", item->best[0].ops);
}

static bool is_one_of(int32_t node, int32_t a, int32_t b) {
    return node == a || node == b;
}

/* In 16 bits a softcap hardly shows, and values do not tell logits from what the head gave: that is what a head's module gives. */
static void prefer_head(const fd_proposer *p, fd_proposed *item) {
    const int32_t last = fd_trace_n_node(p->ref) - 1,
                  raw = fd_trace_find(p->ref, fd_trace_node_at(p->ref, last)->inputs[0]);
    fd_candidate *best = item->best;
    if (item->clear || raw < 0 || !strcasestr(item->name, "head") || strcasestr(item->name, "logit")) return;
    if (best[0].node < 0 || best[1].node < 0 || !is_one_of(best[0].node, last, raw) ||
        !is_one_of(best[1].node, last, raw) || !(best[0].away <= FD_PROPOSE_FAR) ||
        (best[2].node >= 0 && !(best[2].away >= FD_PROPOSE_CLEAR * best[0].away)))
        return;
    if (best[1].node == raw) best[0] = best[1];
    item->clear = true;
}

void fd_propose_logits(const fd_proposer *p, fd_proposed *item) {
    prefer_head(p, item);
    prefer_logits(p, item);
}

void fd_propose_doubt_logits(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++) doubt_logits(p, &p->items[i]);
}
