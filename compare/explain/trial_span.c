/* What the span that a node is computed through is made of. */
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

bool fd_trial_alone(const fd_trial *t) {
    for (int32_t i = 0; i < t->n_span - 1; i++) {
        const fd_node *node = &t->all.request->args.graph->nodes[t->span[i]];
        if (node->op != FD_OP_KV_WRITE && !node->over_kv) return false;
    }
    return true;
}
