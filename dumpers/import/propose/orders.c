/* Q and K in each other's order of RoPE's pairs. An engine that keeps the checkpoint's rows has both in the other order; where one of
 * them alone is in it, in every layer, its rows were permuted for nothing: the bug stays in the dump, and is no layout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

static bool pairs_otherwise(const fd_proposed *item) {
    return strstr(item->best[0].ops, "interleave") != NULL; /* or deinterleave */
}

/* The node that RoPE turns is "blk.N.SUFFIX"; "attn_q_norm" where heads are normed before. */
static const fd_proposed *name_of(const fd_proposer *p, int32_t layer, const char *suffix) {
    char node[96];
    snprintf(node, sizeof node, "blk.%d.%s", layer, suffix);
    for (size_t i = 0; i < p->n; i++)
        if (fd_propose_has_values_of(p, &p->items[i], node)) return &p->items[i];
    return NULL;
}

static void read_plainly(fd_proposer *p, const fd_proposed *name) {
    fd_proposed *item = &p->items[name - p->items];
    char plain[FD_PROPOSE_MAX_OPS];
    fd_propose_reading(item->best[0].ops, plain, sizeof plain);
    snprintf(item->best[0].ops, sizeof item->best[0].ops, "%s", plain);
}

/* One layer alone is asked about (layers.c). */
static void keep_order(fd_proposer *p, const char *const pair[2]) {
    int32_t n = 0, n_differ[2] = {0, 0};
    for (int pass = 0; pass < 2; pass++)
        for (int32_t layer = 0; layer < p->plan.graph->hparams.n_layer; layer++) {
            const fd_proposed *of[2] = {name_of(p, layer, pair[0]), name_of(p, layer, pair[1])};
            if (!of[0] || !of[1]) continue;
            for (int i = 0; i < 2; i++) {
                const bool alone = pairs_otherwise(of[i]) && !pairs_otherwise(of[1 - i]);
                if (pass == 0) n_differ[i] += alone;
                if (pass == 1 && alone && n_differ[i] == n) read_plainly(p, of[i]);
            }
            n += pass == 0;
        }
}

/* Pairs stand in the heads that a node has. Rows of K that were permuted in as many heads as Q has are a bug of every layer, not a layout. */
static void keep_heads(fd_proposer *p, fd_proposed *item) {
    char *heads = pairs_otherwise(item) ? strstr(item->best[0].ops, "heads=") : NULL, ops[FD_PROPOSE_MAX_OPS];
    if (!item->clear || !heads || item->best[0].node < 0) return;
    const fd_trace_node *node = fd_trace_node_at(p->ref, item->best[0].node);
    const char *rest = heads + strcspn(heads, " ");
    if (node->n_dim < 2 || atoll(heads + strlen("heads=")) == node->shape[0]) return;
    snprintf(ops, sizeof ops, "%.*sheads=%lld%s", (int)(heads - item->best[0].ops), item->best[0].ops,
             (long long)node->shape[0], rest);
    strcpy(item->best[0].ops, ops);
}

void fd_propose_keep_orders(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++) keep_heads(p, &p->items[i]);
    static const char *const pairs[][2] = {
        {"attn_q", "attn_k"}, {"attn_q_norm", "attn_k_norm"}, {"attn_q_rope", "attn_k_rope"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) keep_order(p, pairs[i]);
}
