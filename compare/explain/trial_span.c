/* What the span that a node is computed through is made of. */
#include <string.h>

#include "compare/explain/trial.h"

/* Additions to the stream and norms, of tensors that were recorded, are no layer that one looks through. */
static bool is_between_layers(fd_op op) {
    return op == FD_OP_ADD || op == FD_OP_RMS_NORM || op == FD_OP_LAYER_NORM || op == FD_OP_SCALE;
}

bool fd_trial_many_layers(const fd_trial *t) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t layer = -1;
    for (int32_t i = 0; i < t->n_span; i++) {
        int32_t own = nodes[t->span[i]].layer;
        if (is_between_layers(nodes[t->span[i]].op)) continue;
        if (own >= 0 && layer >= 0 && own != layer) return true;
        if (own >= 0) layer = own;
    }
    return false;
}

const fd_node *fd_trial_norm_of_both(const fd_trial *t, int32_t n_dim) {
    const fd_node *first[3] = {NULL};
    for (int32_t i = 0; i < t->n_span; i++) {
        const fd_node *node = &t->all.request->args.graph->nodes[t->span[i]];
        if (fd_node_is_norm(node) && node->n_dim <= 2 && !first[node->n_dim]) first[node->n_dim] = node;
    }
    return first[1] && first[2] ? first[n_dim] : NULL;
}

int32_t fd_trial_heads_of(const fd_trial *t, const fd_node *node) {
    const fd_graph *graph = t->all.request->args.graph;
    if (node->n_dim == 2) return node->shape[0];
    for (int32_t i = node->id + 1; i < graph->n_node && node->op == FD_OP_MATMUL && node->layer >= 0; i++) {
        const fd_node *rope = &graph->nodes[i];
        const bool of_it = strncmp(rope->name, node->name, strlen(node->name)) == 0;
        if (rope->op == FD_OP_ROPE && of_it && fd_node_width(rope) == fd_node_width(node)) return rope->shape[0];
    }
    return 1;
}

bool fd_trial_alone(const fd_trial *t) {
    for (int32_t i = 0; i < t->n_span - 1; i++) {
        const fd_node *node = &t->all.request->args.graph->nodes[t->span[i]];
        if (node->op != FD_OP_KV_WRITE && !node->over_kv) return false;
    }
    return true;
}

/* Beside what shows the finding. */
#define HARDLY_ANYTHING 0.1

bool fd_trial_begins_late(const fd_trial *t) {
    return t->early.bench && t->early_left <= HARDLY_ANYTHING * t->few_left;
}

bool fd_trial_may_guess(const fd_trial *t) {
    return t->few.bench && !t->all.request->table_alone;
}
