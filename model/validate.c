/* What executors rely on, one shape rule an op: inputs come earlier in the list, shapes follow from them, weights
 * fit. */
#include "model/validate.h"

const fd_node *fd_checker_input(const fd_checker *c, int i) {
    return &c->graph->nodes[c->node->input[i]];
}

bool fd_checker_same_shape(const fd_node *a, const fd_node *b) {
    return a->n_dim == b->n_dim && a->over_kv == b->over_kv && a->shape[0] == b->shape[0] &&
           (a->n_dim == 1 || a->shape[1] == b->shape[1]);
}

fd_code fd_checker_broken(const fd_checker *c, const char *what) {
    return fd_fail(c->err, FD_ERR_INPUT, "node %s (%s): %s", c->node->name, fd_op_name(c->node->op), what);
}

fd_code fd_checker_weight(const fd_checker *c, int i, int64_t n_row, int64_t n_col, bool optional) {
    int32_t id = c->node->weight[i];
    if (id < 0) return optional ? FD_OK : fd_checker_broken(c, "lacks its weight");
    if (id >= c->graph->n_weight) return fd_checker_broken(c, "weight index past the table");
    const fd_weight *w = &c->graph->weights[id];
    if (w->n_row != n_row || w->n_col != n_col)
        return fd_fail(c->err, FD_ERR_INPUT, "node %s: weight %s is [%lld, %lld], expected [%lld, %lld]", c->node->name,
                       w->name, (long long)w->n_row, (long long)w->n_col, (long long)n_row, (long long)n_col);
    if (!w->data) return fd_checker_broken(c, "weight without data");
    return FD_OK;
}

fd_code fd_check_embed(const fd_checker *c) {
    return fd_checker_weight(c, 0, c->graph->hparams.n_vocab, fd_node_width(c->node), false);
}

/* One row for all heads, or one a head. */
static fd_code check_norm_weight(const fd_checker *c, int i, bool optional) {
    const fd_node *n = c->node;
    int32_t w = n->weight[i];
    bool each = n->n_dim == 2 && w >= 0 && w < c->graph->n_weight && c->graph->weights[w].n_row > 1;
    return fd_checker_weight(c, i, each ? n->shape[0] : 1, n->shape[n->n_dim - 1], optional);
}

fd_code fd_check_rms_norm(const fd_checker *c) {
    if (!fd_checker_same_shape(c->node, fd_checker_input(c, 0)))
        return fd_checker_broken(c, "shape differs from its input's");
    if (!(c->node->eps >= 0.0f)) return fd_checker_broken(c, "eps is negative or NaN");
    return check_norm_weight(c, 0, false);
}

fd_code fd_check_layer_norm(const fd_checker *c) {
    const fd_node *n = c->node;
    if (!fd_checker_same_shape(n, fd_checker_input(c, 0)) || n->over_kv)
        return fd_checker_broken(c, "shape differs from its input's");
    if (!(n->eps >= 0.0f)) return fd_checker_broken(c, "eps is negative or NaN");
    if (n->weight[0] < 0) return n->weight[1] < 0 ? FD_OK : fd_checker_broken(c, "has a bias and no weight");
    FD_TRY(check_norm_weight(c, 0, false));
    return check_norm_weight(c, 1, true);
}

fd_code fd_check_add_position(const fd_checker *c) {
    if (!fd_checker_same_shape(c->node, fd_checker_input(c, 0)) || c->node->n_dim != 1)
        return fd_checker_broken(c, "shape differs from its input's");
    if (c->node->weight[0] < 0) return fd_checker_broken(c, "lacks its table");
    return fd_checker_weight(c, 0, c->graph->weights[c->node->weight[0]].n_row, c->node->shape[0], false);
}

/* It may flatten heads. */
fd_code fd_check_add_vector(const fd_checker *c) {
    if (c->node->n_dim != 1 || fd_checker_input(c, 0)->over_kv ||
        c->node->shape[0] != fd_node_width(fd_checker_input(c, 0)))
        return fd_checker_broken(c, "expected the elements of its input in one row");
    return fd_checker_weight(c, 0, 1, c->node->shape[0], false);
}

fd_code fd_check_attn_alibi(const fd_checker *c) {
    if (!(c->node->max_bias > 0.0f)) return fd_checker_broken(c, "max_bias is not positive");
    return c->node->over_kv && fd_checker_same_shape(c->node, fd_checker_input(c, 0))
               ? FD_OK
               : fd_checker_broken(c, "expected scores");
}

fd_code fd_check_attn_temperature(const fd_checker *c) {
    if (c->node->length < 1) return fd_checker_broken(c, "length is not positive");
    return fd_checker_same_shape(c->node, fd_checker_input(c, 0)) && !c->node->over_kv
               ? FD_OK
               : fd_checker_broken(c, "shape differs from its input's");
}

fd_code fd_check_matmul(const fd_checker *c) {
    FD_TRY(fd_checker_weight(c, 0, fd_node_width(c->node), fd_node_width(fd_checker_input(c, 0)), false));
    return fd_checker_weight(c, 1, 1, fd_node_width(c->node), true);
}

fd_code fd_check_rope(const fd_checker *c) {
    const fd_node *n = c->node;
    if (fd_node_width(n) != fd_node_width(fd_checker_input(c, 0)) || n->n_dim != 2)
        return fd_checker_broken(c, "expected [n_head, head_dim] of its input");
    if (n->rope.n_rot < 2 || n->rope.n_rot % 2 != 0 || n->rope.n_rot > n->shape[1])
        return fd_checker_broken(c, "n_rot is odd or wider than a head");
    if (n->weight[1] >= 0 && n->weight[0] < 0) return fd_checker_broken(c, "factors of one context length alone");
    FD_TRY(fd_checker_weight(c, 1, 1, n->rope.n_rot / 2, true));
    return fd_checker_weight(c, 0, 1, n->rope.n_rot / 2, true);
}

/* A row may become one head. */
fd_code fd_check_kv_write(const fd_checker *c) {
    const fd_node *n = c->node;
    bool one_head = n->n_dim == 2 && n->shape[0] == 1 && !fd_checker_input(c, 0)->over_kv;
    if (one_head && fd_node_width(n) == fd_node_width(fd_checker_input(c, 0))) return FD_OK;
    return fd_checker_same_shape(n, fd_checker_input(c, 0)) ? FD_OK
                                                            : fd_checker_broken(c, "shape differs from its input's");
}

fd_code fd_check_attn_scores(const fd_checker *c) {
    const fd_node *q = fd_checker_input(c, 0), *k = fd_checker_input(c, 1);
    if (k->op != FD_OP_KV_WRITE) return fd_checker_broken(c, "second input is not a cache");
    if (q->n_dim != 2 || k->n_dim != 2 || q->shape[1] != k->shape[1])
        return fd_checker_broken(c, "q and k heads differ in size");
    if (q->shape[0] % k->shape[0] != 0) return fd_checker_broken(c, "heads are no multiple of K/V heads");
    if (c->node->window < 0) return fd_checker_broken(c, "window is negative");
    if (!(c->node->softcap >= 0.0f)) return fd_checker_broken(c, "softcap is negative or NaN");
    return c->node->over_kv && c->node->shape[0] == q->shape[0] ? FD_OK
                                                                : fd_checker_broken(c, "expected [n_head, positions]");
}

fd_code fd_check_attn_softmax(const fd_checker *c) {
    if (!c->node->over_kv || !fd_checker_same_shape(c->node, fd_checker_input(c, 0)))
        return fd_checker_broken(c, "shape differs from its input's");
    return fd_checker_weight(c, 0, 1, c->node->shape[0], true);
}

fd_code fd_check_attn_mix(const fd_checker *c) {
    const fd_node *weights = fd_checker_input(c, 0), *v = fd_checker_input(c, 1);
    if (v->op != FD_OP_KV_WRITE) return fd_checker_broken(c, "second input is not a cache");
    if (!weights->over_kv || weights->shape[0] % v->shape[0] != 0)
        return fd_checker_broken(c, "heads are no multiple of K/V heads");
    return c->node->n_dim == 2 && c->node->shape[0] == weights->shape[0] && c->node->shape[1] == v->shape[1]
               ? FD_OK
               : fd_checker_broken(c, "expected [n_head, head_dim]");
}

fd_code fd_check_elementwise(const fd_checker *c) {
    return fd_node_width(c->node) == fd_node_width(fd_checker_input(c, 0)) &&
                   fd_node_width(c->node) == fd_node_width(fd_checker_input(c, 1))
               ? FD_OK
               : fd_checker_broken(c, "shape differs from its inputs'");
}

RULE(silu_mul, elementwise)
RULE(gelu_mul, elementwise)
RULE(add, elementwise)

fd_code fd_check_swiglu_clamp(const fd_checker *c) {
    if (!(c->node->limit > 0.0f)) return fd_checker_broken(c, "limit is not positive");
    return fd_check_elementwise(c);
}

fd_code fd_check_like_input(const fd_checker *c) {
    return fd_checker_same_shape(c->node, fd_checker_input(c, 0)) && !c->node->over_kv
               ? FD_OK
               : fd_checker_broken(c, "shape differs from its input's");
}

RULE(scale, like_input)
RULE(softmax, like_input)
RULE(gelu, like_input)
RULE(relu_squared, like_input)
RULE(sigmoid, like_input)

fd_code fd_check_clamp(const fd_checker *c) {
    if (!(c->node->limit > 0.0f)) return fd_checker_broken(c, "limit is not positive");
    return fd_check_like_input(c);
}

fd_code fd_check_softcap(const fd_checker *c) {
    if (!(c->node->softcap > 0.0f)) return fd_checker_broken(c, "softcap is not positive");
    return fd_check_like_input(c);
}

fd_code fd_check_top_k(const fd_checker *c) {
    const fd_node *row = fd_checker_input(c, 0);
    if (row->n_dim != 1 || c->node->n_dim != 1) return fd_checker_broken(c, "expected rows of one dimension");
    if (c->node->n_group > 0) {
        int32_t each = row->shape[0] / c->node->n_group;
        if (row->shape[0] % c->node->n_group != 0 || each < 2 || c->node->n_group > FD_MAX_GROUPS ||
            c->node->n_group_used < 1 || c->node->n_group_used > c->node->n_group ||
            c->node->shape[0] > c->node->n_group_used * each)
            return fd_checker_broken(c, "its groups do not fit its input");
    }
    return c->node->shape[0] <= row->shape[0] ? FD_OK
                                              : fd_checker_broken(c, "chooses more elements than its input has");
}

fd_code fd_check_expert_weights(const fd_checker *c) {
    const fd_node *row = fd_checker_input(c, 0), *ids = fd_checker_input(c, 1);
    if (ids->op != FD_OP_TOP_K) return fd_checker_broken(c, "second input is no choice of experts");
    if (row->n_dim != 1 || (int)c->node->gating < 0 || c->node->gating > FD_GATING_SOFTMAX)
        return fd_checker_broken(c, "expected a router's row and a known gating");
    return fd_checker_same_shape(c->node, ids) ? FD_OK
                                               : fd_checker_broken(c, "expected one weight for each chosen expert");
}

fd_code fd_check_expert_matmul(const fd_checker *c) {
    const fd_node *n = c->node, *x = fd_checker_input(c, 0), *ids = fd_checker_input(c, 1);
    if (ids->op != FD_OP_TOP_K) return fd_checker_broken(c, "second input is no choice of experts");
    if (n->n_dim != 2 || n->shape[0] != ids->shape[0] || (x->n_dim == 2 && x->shape[0] != ids->shape[0]))
        return fd_checker_broken(c, "expected a row for each chosen expert");
    int64_t n_expert = c->graph->hparams.n_expert;
    FD_TRY(fd_checker_weight(c, 0, n_expert * n->shape[1], x->shape[x->n_dim - 1], false));
    return fd_checker_weight(c, 1, n_expert, n->shape[1], true);
}

fd_code fd_check_expert_sum(const fd_checker *c) {
    const fd_node *rows = fd_checker_input(c, 0), *weights = fd_checker_input(c, 1);
    if (rows->n_dim != 2 || weights->n_dim != 1 || rows->shape[0] != weights->shape[0])
        return fd_checker_broken(c, "expected a row and a weight for each chosen expert");
    return c->node->n_dim == 1 && c->node->shape[0] == rows->shape[1] ? FD_OK
                                                                      : fd_checker_broken(c, "expected one row");
}

/* From ops.def: an op without a rule does not compile. */
static const struct {
    int n_input;
    fd_code (*check)(const fd_checker *);
} rules[FD_OP_COUNT] = {
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = {n_input, fd_check_##name},
#include "model/ops.def"
#undef FD_OP
};

fd_code fd_graph_validate(const fd_graph *graph, fd_error *err) {
    if (graph->n_node < 1) return fd_fail(err, FD_ERR_INPUT, "graph: no nodes");
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_checker c = {graph, &graph->nodes[i], err};
        if (c.node->id != i) return fd_checker_broken(&c, "id differs from its place in the list");
        if ((int)c.node->op < 0 || c.node->op >= FD_OP_COUNT)
            return fd_fail(err, FD_ERR_INPUT, "node %s: op %d is not in ops.def", c.node->name, (int)c.node->op);
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            bool wanted = k < rules[c.node->op].n_input;
            const bool has = c.node->input[k] >= 0; /* what computes a node instead of its op may read more */
            if (wanted != has && !(has && c.node->override)) return fd_checker_broken(&c, "wrong number of inputs");
            if (c.node->input[k] >= i) return fd_checker_broken(&c, "takes a node that comes later");
        }
        if (c.node->shape[0] < 1) return fd_checker_broken(&c, "empty shape");
        FD_TRY(rules[c.node->op].check(&c));
    }
    return FD_OK;
}
