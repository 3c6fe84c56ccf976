/* The order of execution of tensors that a foreign trace lists without saying. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/reader.h"

/* Inside a layer, as in docs/trace-format.md. */
static const char *const in_layer[] = {
    "attn_norm", "attn_q",      "attn_k",       "attn_v",   "attn_q_rope", "attn_k_rope", "cache_k",
    "cache_v",   "attn_scores", "attn_weights", "attn_out", "attn_proj",   "ffn_inp",     "ffn_norm",
    "ffn_gate",  "ffn_up",      "ffn_act",      "ffn_down", "l_out",
};
enum {
    N_IN_LAYER = sizeof in_layer / sizeof *in_layer,
    STAGE_FIRST = 0,
    STAGE_LAYERS,
    STAGE_NORM,
    STAGE_LOGITS,
    STAGE_OTHER
};

typedef struct order_key {
    int32_t seq, stage, layer, rank, at;
    const char *name;
} order_key;

static order_key key_of(const fd_trace_node *node, int32_t at, bool by_seq) {
    order_key key = {by_seq ? node->seq : 0, STAGE_OTHER, 0, 0, at, node->name};
    if (strcmp(node->name, "token_embd") == 0)
        key.stage = STAGE_FIRST;
    else if (strcmp(node->name, "output_norm") == 0)
        key.stage = STAGE_NORM;
    else if (strcmp(node->name, "logits") == 0)
        key.stage = STAGE_LOGITS;
    if (node->layer < 0 || strncmp(node->name, "blk.", 4) != 0) return key;
    const char *suffix = strchr(node->name + 4, '.');
    key.stage = STAGE_LAYERS;
    key.layer = node->layer;
    while (key.rank < N_IN_LAYER && strcmp(suffix + 1, in_layer[key.rank]) != 0) key.rank++;
    return key;
}

static int by_key(const void *a, const void *b) {
    const order_key *x = a, *y = b;
    if (x->seq != y->seq) return x->seq < y->seq ? -1 : 1;
    if (x->stage != y->stage) return x->stage < y->stage ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Puts element keys[i].at at place i, cycle by cycle: copies of it all would touch as much memory again. */
static void permute(order_key *keys, int32_t n, fd_trace_node *nodes, fd_trace_set *sets) {
    for (int32_t i = 0; i < n; i++) {
        if (keys[i].at == i) continue; /* most, where headers lie nearly in order */
        fd_trace_node node = nodes[i];
        fd_trace_set set = sets[i];
        int32_t to = i;
        for (int32_t from; (from = keys[to].at) != i; to = from) {
            nodes[to] = nodes[from];
            sets[to] = sets[from];
            keys[to].at = to;
        }
        nodes[to] = node;
        sets[to] = set;
        keys[to].at = to;
    }
}

fd_code fd_trace_order(fd_trace_node *nodes, fd_trace_set *sets, int32_t n, fd_error *err) {
    order_key *keys = malloc((size_t)(n > 0 ? n : 1) * sizeof *keys);
    if (!keys) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    bool by_seq = true;
    for (int32_t i = 0; i < n; i++) by_seq = by_seq && nodes[i].seq >= 0;
    bool sorted = true;
    for (int32_t i = 0; i < n; i++) {
        keys[i] = key_of(&nodes[i], i, by_seq);
        sorted = sorted && (i == 0 || by_key(&keys[i - 1], &keys[i]) < 0);
    }
    if (!sorted) {
        qsort(keys, (size_t)n, sizeof *keys, by_key);
        permute(keys, n, nodes, sets);
    }
    for (int32_t i = 0; i < n; i++) nodes[i].seq = i;
    free(keys);
    return FD_OK;
}
