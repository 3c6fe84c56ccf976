/* What executors rely on, one shape rule an op: inputs come earlier in the list, shapes follow from them, weights
 * fit. */
#include "model/graph.h"

#include <string.h>

typedef struct checker {
    const fd_graph *graph;
    const fd_node *node;
    fd_error *err;
} checker;

static const fd_node *input(const checker *c, int i) {
    return &c->graph->nodes[c->node->input[i]];
}

static bool same_shape(const fd_node *a, const fd_node *b) {
    return a->n_dim == b->n_dim && a->over_kv == b->over_kv && a->shape[0] == b->shape[0] &&
           (a->n_dim == 1 || a->shape[1] == b->shape[1]);
}

static fd_code broken(const checker *c, const char *what) {
    return fd_fail(c->err, FD_ERR_INPUT, "node %s (%s): %s", c->node->name, fd_op_name(c->node->op), what);
}

/* An op whose rule is another's. */
#define RULE(op, rule)                                                                                                 \
    static fd_code check_##op(const checker *c) {                                                                      \
        return check_##rule(c);                                                                                        \
    }

/* Weight slot i holds n_row × n_col; -1 (absent) passes only when optional. */
static fd_code check_weight(const checker *c, int i, int64_t n_row, int64_t n_col, bool optional) {
    int32_t id = c->node->weight[i];
    if (id < 0) return optional ? FD_OK : broken(c, "lacks its weight");
    if (id >= c->graph->n_weight) return broken(c, "weight index past the table");
    const fd_weight *w = &c->graph->weights[id];
    if (w->n_row != n_row || w->n_col != n_col)
        return fd_fail(c->err, FD_ERR_INPUT, "node %s: weight %s is [%lld, %lld], expected [%lld, %lld]", c->node->name,
                       w->name, (long long)w->n_row, (long long)w->n_col, (long long)n_row, (long long)n_col);
    if (!w->data) return broken(c, "weight without data");
    return FD_OK;
}

static fd_code check_embed(const checker *c) {
    return check_weight(c, 0, c->graph->hparams.n_vocab, fd_node_width(c->node), false);
}

/* One row for all heads, or one a head. */
static fd_code check_norm_weight(const checker *c, int i, bool optional) {
    const fd_node *n = c->node;
    int32_t w = n->weight[i];
    bool each = n->n_dim == 2 && w >= 0 && w < c->graph->n_weight && c->graph->weights[w].n_row > 1;
    return check_weight(c, i, each ? n->shape[0] : 1, n->shape[n->n_dim - 1], optional);
}

static fd_code check_rms_norm(const checker *c) {
    if (!same_shape(c->node, input(c, 0))) return broken(c, "shape differs from its input's");
    if (!(c->node->eps >= 0.0f)) return broken(c, "eps is negative or NaN");
    return check_norm_weight(c, 0, false);
}

static fd_code check_layer_norm(const checker *c) {
    const fd_node *n = c->node;
    if (!same_shape(n, input(c, 0)) || n->over_kv) return broken(c, "shape differs from its input's");
    if (!(n->eps >= 0.0f)) return broken(c, "eps is negative or NaN");
    if (n->weight[0] < 0) return n->weight[1] < 0 ? FD_OK : broken(c, "has a bias and no weight");
    FD_TRY(check_norm_weight(c, 0, false));
    return check_norm_weight(c, 1, true);
}

static fd_code check_add_position(const checker *c) {
    if (!same_shape(c->node, input(c, 0)) || c->node->n_dim != 1) return broken(c, "shape differs from its input's");
    if (c->node->weight[0] < 0) return broken(c, "lacks its table");
    return check_weight(c, 0, c->graph->weights[c->node->weight[0]].n_row, c->node->shape[0], false);
}

/* It may flatten heads. */
static fd_code check_add_vector(const checker *c) {
    if (c->node->n_dim != 1 || input(c, 0)->over_kv || c->node->shape[0] != fd_node_width(input(c, 0)))
        return broken(c, "expected the elements of its input in one row");
    return check_weight(c, 0, 1, c->node->shape[0], false);
}

static fd_code check_attn_alibi(const checker *c) {
    if (!(c->node->max_bias > 0.0f)) return broken(c, "max_bias is not positive");
    return c->node->over_kv && same_shape(c->node, input(c, 0)) ? FD_OK : broken(c, "expected scores");
}

static fd_code check_attn_temperature(const checker *c) {
    if (c->node->length < 1) return broken(c, "length is not positive");
    return same_shape(c->node, input(c, 0)) && !c->node->over_kv ? FD_OK : broken(c, "shape differs from its input's");
}

static fd_code check_matmul(const checker *c) {
    FD_TRY(check_weight(c, 0, fd_node_width(c->node), fd_node_width(input(c, 0)), false));
    return check_weight(c, 1, 1, fd_node_width(c->node), true);
}

static fd_code check_rope(const checker *c) {
    const fd_node *n = c->node;
    if (fd_node_width(n) != fd_node_width(input(c, 0)) || n->n_dim != 2)
        return broken(c, "expected [n_head, head_dim] of its input");
    if (n->rope.n_rot < 2 || n->rope.n_rot % 2 != 0 || n->rope.n_rot > n->shape[1])
        return broken(c, "n_rot is odd or wider than a head");
    if (n->weight[1] >= 0 && n->weight[0] < 0) return broken(c, "factors of one context length alone");
    FD_TRY(check_weight(c, 1, 1, n->rope.n_rot / 2, true));
    return check_weight(c, 0, 1, n->rope.n_rot / 2, true);
}

/* A row may become one head. */
static fd_code check_kv_write(const checker *c) {
    const fd_node *n = c->node;
    bool one_head = n->n_dim == 2 && n->shape[0] == 1 && !input(c, 0)->over_kv;
    if (one_head && fd_node_width(n) == fd_node_width(input(c, 0))) return FD_OK;
    return same_shape(n, input(c, 0)) ? FD_OK : broken(c, "shape differs from its input's");
}

static fd_code check_attn_scores(const checker *c) {
    const fd_node *q = input(c, 0), *k = input(c, 1);
    if (k->op != FD_OP_KV_WRITE) return broken(c, "second input is not a cache");
    if (q->n_dim != 2 || k->n_dim != 2 || q->shape[1] != k->shape[1]) return broken(c, "q and k heads differ in size");
    if (q->shape[0] % k->shape[0] != 0) return broken(c, "heads are no multiple of K/V heads");
    if (c->node->window < 0) return broken(c, "window is negative");
    if (!(c->node->softcap >= 0.0f)) return broken(c, "softcap is negative or NaN");
    return c->node->over_kv && c->node->shape[0] == q->shape[0] ? FD_OK : broken(c, "expected [n_head, positions]");
}

static fd_code check_attn_softmax(const checker *c) {
    if (!c->node->over_kv || !same_shape(c->node, input(c, 0))) return broken(c, "shape differs from its input's");
    return check_weight(c, 0, 1, c->node->shape[0], true);
}

static fd_code check_attn_mix(const checker *c) {
    const fd_node *weights = input(c, 0), *v = input(c, 1);
    if (v->op != FD_OP_KV_WRITE) return broken(c, "second input is not a cache");
    if (!weights->over_kv || weights->shape[0] % v->shape[0] != 0)
        return broken(c, "heads are no multiple of K/V heads");
    return c->node->n_dim == 2 && c->node->shape[0] == weights->shape[0] && c->node->shape[1] == v->shape[1]
               ? FD_OK
               : broken(c, "expected [n_head, head_dim]");
}

static fd_code check_elementwise(const checker *c) {
    return fd_node_width(c->node) == fd_node_width(input(c, 0)) && fd_node_width(c->node) == fd_node_width(input(c, 1))
               ? FD_OK
               : broken(c, "shape differs from its inputs'");
}

RULE(silu_mul, elementwise)
RULE(gelu_mul, elementwise)
RULE(add, elementwise)

static fd_code check_swiglu_clamp(const checker *c) {
    if (!(c->node->limit > 0.0f)) return broken(c, "limit is not positive");
    return check_elementwise(c);
}

static fd_code check_like_input(const checker *c) {
    return same_shape(c->node, input(c, 0)) && !c->node->over_kv ? FD_OK : broken(c, "shape differs from its input's");
}

RULE(scale, like_input)
RULE(softmax, like_input)
RULE(gelu, like_input)
RULE(relu_squared, like_input)
RULE(sigmoid, like_input)

static fd_code check_clamp(const checker *c) {
    if (!(c->node->limit > 0.0f)) return broken(c, "limit is not positive");
    return check_like_input(c);
}

static fd_code check_softcap(const checker *c) {
    if (!(c->node->softcap > 0.0f)) return broken(c, "softcap is not positive");
    return check_like_input(c);
}

static fd_code check_top_k(const checker *c) {
    const fd_node *row = input(c, 0);
    if (row->n_dim != 1 || c->node->n_dim != 1) return broken(c, "expected rows of one dimension");
    if (c->node->n_group > 0) {
        int32_t each = row->shape[0] / c->node->n_group;
        if (row->shape[0] % c->node->n_group != 0 || each < 2 || c->node->n_group > FD_MAX_GROUPS ||
            c->node->n_group_used < 1 || c->node->n_group_used > c->node->n_group ||
            c->node->shape[0] > c->node->n_group_used * each)
            return broken(c, "its groups do not fit its input");
    }
    return c->node->shape[0] <= row->shape[0] ? FD_OK : broken(c, "chooses more elements than its input has");
}

static fd_code check_expert_weights(const checker *c) {
    const fd_node *row = input(c, 0), *ids = input(c, 1);
    if (ids->op != FD_OP_TOP_K) return broken(c, "second input is no choice of experts");
    if (row->n_dim != 1 || (int)c->node->gating < 0 || c->node->gating > FD_GATING_SOFTMAX)
        return broken(c, "expected a router's row and a known gating");
    return same_shape(c->node, ids) ? FD_OK : broken(c, "expected one weight for each chosen expert");
}

static fd_code check_expert_matmul(const checker *c) {
    const fd_node *n = c->node, *x = input(c, 0), *ids = input(c, 1);
    if (ids->op != FD_OP_TOP_K) return broken(c, "second input is no choice of experts");
    if (n->n_dim != 2 || n->shape[0] != ids->shape[0] || (x->n_dim == 2 && x->shape[0] != ids->shape[0]))
        return broken(c, "expected a row for each chosen expert");
    int64_t n_expert = c->graph->hparams.n_expert;
    FD_TRY(check_weight(c, 0, n_expert * n->shape[1], x->shape[x->n_dim - 1], false));
    return check_weight(c, 1, n_expert, n->shape[1], true);
}

static fd_code check_expert_sum(const checker *c) {
    const fd_node *rows = input(c, 0), *weights = input(c, 1);
    if (rows->n_dim != 2 || weights->n_dim != 1 || rows->shape[0] != weights->shape[0])
        return broken(c, "expected a row and a weight for each chosen expert");
    return c->node->n_dim == 1 && c->node->shape[0] == rows->shape[1] ? FD_OK : broken(c, "expected one row");
}

/* The parts of all heads together may be shaped otherwise. */
static fd_code check_slice(const checker *c) {
    const fd_node *n = c->node, *x = input(c, 0);
    int64_t n_head = x->n_dim == 2 ? x->shape[0] : 1, width = fd_node_width(n);
    if (x->over_kv || n->over_kv || width < 1 || width % n_head != 0)
        return broken(c, "expected a part of each head of its input");
    if (n->first < 0 || n->first > x->shape[x->n_dim - 1] - width / n_head)
        return broken(c, "reaches beyond its input");
    return FD_OK;
}

static fd_code check_concat(const checker *c) {
    const fd_node *n = c->node, *a = input(c, 0), *b = input(c, 1);
    if (n->n_dim != 2 || a->n_dim != 2 || b->n_dim != 2 || a->over_kv || b->over_kv)
        return broken(c, "expected two inputs of heads");
    if (n->shape[0] != a->shape[0] || (b->shape[0] != 1 && b->shape[0] != a->shape[0]))
        return broken(c, "its inputs' heads differ in number");
    return n->shape[1] == a->shape[1] + b->shape[1] ? FD_OK : broken(c, "expected heads of both sizes together");
}

static fd_code check_head_matmul(const checker *c) {
    const fd_node *n = c->node, *x = input(c, 0);
    if (n->n_dim != 2 || x->n_dim != 2 || n->shape[0] != x->shape[0]) return broken(c, "expected heads of heads");
    return check_weight(c, 0, (int64_t)n->shape[0] * n->shape[1], x->shape[1], false);
}

RULE(silu, like_input)

/* It may make heads of its input. */
static fd_code check_as_wide(const checker *c) {
    return fd_node_width(c->node) == fd_node_width(input(c, 0)) && !c->node->over_kv
               ? FD_OK
               : broken(c, "width differs from its input's");
}

RULE(softplus, as_wide)

static fd_code check_conv(const checker *c) {
    const fd_node *n = c->node;
    if (input(c, 0)->op != FD_OP_KV_WRITE || !same_shape(n, input(c, 0)))
        return broken(c, "expected the shape of a cache that it reads");
    if (n->weight[0] < 0) return broken(c, "lacks its weight");
    FD_TRY(check_weight(c, 0, fd_node_width(n), c->graph->weights[n->weight[0]].n_col, false));
    return check_weight(c, 1, 1, fd_node_width(n), true);
}

/* The cache has dt of each head, x as the output's shape, and B as C's. */
static fd_code check_ssm_scan(const checker *c) {
    const fd_node *n = c->node, *cache = input(c, 0), *read = input(c, 1);
    if (cache->op != FD_OP_KV_WRITE || n->n_dim != 2 || read->n_dim != 2 || n->shape[0] % read->shape[0] != 0)
        return broken(c, "expected a cache, heads and groups of heads");
    if (fd_node_width(cache) != n->shape[0] + fd_node_width(n) + fd_node_width(read))
        return broken(c, "expected a cache of dt, x and B");
    if (read->shape[1] > FD_MAX_STATE) return broken(c, "the state is too large");
    if (n->weight[0] < 0 || n->weight[1] < 0) return broken(c, "lacks its weights");
    const fd_weight *d = &c->graph->weights[n->weight[1]];
    if (d->n_row * d->n_col != n->shape[0]) return broken(c, "expected a D for each head");
    bool each = c->graph->weights[n->weight[0]].n_col > 1;
    return check_weight(c, 0, n->shape[0], each ? read->shape[1] : 1, false);
}

/* b is as wide, or has one element a head. */
static fd_code check_mul(const checker *c) {
    const fd_node *n = c->node, *b = input(c, 1);
    bool by_head = n->n_dim == 2 && fd_node_width(b) == n->shape[0];
    if (b->over_kv || (fd_node_width(b) != fd_node_width(n) && !by_head))
        return broken(c, "expected a second input as wide as the first, or of one element a head");
    return check_like_input(c);
}

static fd_code check_mul_vector(const checker *c) {
    FD_TRY(check_as_wide(c));
    return check_weight(c, 0, 1, fd_node_width(c->node), false);
}

RULE(exp, as_wide)

static fd_code check_l2_norm(const checker *c) {
    if (!(c->node->eps >= 0.0f)) return broken(c, "eps is negative or NaN");
    return check_like_input(c);
}

static fd_code check_token_shift(const checker *c) {
    if (input(c, 0)->op != FD_OP_KV_WRITE || c->node->over_kv || fd_node_width(c->node) != fd_node_width(input(c, 0)))
        return broken(c, "expected the width of a cache that it reads");
    return check_weight(c, 0, 1, fd_node_width(c->node), false);
}

/* The cache has of each key head, r value heads together: r decays, r betas, k, and r rows of v. */
static fd_code check_gated_delta(const checker *c) {
    const fd_node *n = c->node, *cache = input(c, 0), *q = input(c, 1);
    if (cache->op != FD_OP_KV_WRITE || n->n_dim != 2 || q->n_dim != 2 || n->shape[0] % q->shape[0] != 0)
        return broken(c, "expected a cache, heads and groups of heads");
    int64_t r = n->shape[0] / q->shape[0];
    if (fd_node_width(cache) != q->shape[0] * (2 * r + q->shape[1] + r * n->shape[1]))
        return broken(c, "expected a cache of decay, beta, k and v");
    return q->shape[1] <= FD_MAX_STATE ? FD_OK : broken(c, "the state is too large");
}

/* The cache has of each head w, k, v, a and b. */
static fd_code check_wkv7(const checker *c) {
    const fd_node *n = c->node, *cache = input(c, 0), *r = input(c, 1);
    if (cache->op != FD_OP_KV_WRITE || n->n_dim != 2 || !same_shape(n, r))
        return broken(c, "expected a cache, and heads as they are read");
    if (fd_node_width(cache) != 5 * fd_node_width(n)) return broken(c, "expected a cache of w, k, v, a and b");
    return n->shape[1] <= FD_MAX_STATE ? FD_OK : broken(c, "the state is too large");
}

/* From ops.def: an op without a rule does not compile. */
static const struct {
    int n_input;
    fd_code (*check)(const checker *);
} rules[FD_OP_COUNT] = {
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = {n_input, check_##name},
#include "model/ops.def"
#undef FD_OP
};

fd_code fd_graph_validate(const fd_graph *graph, fd_error *err) {
    if (graph->n_node < 1) return fd_fail(err, FD_ERR_INPUT, "graph: no nodes");
    for (int32_t i = 0; i < graph->n_node; i++) {
        checker c = {graph, &graph->nodes[i], err};
        if (c.node->id != i) return broken(&c, "id differs from its place in the list");
        if ((int)c.node->op < 0 || c.node->op >= FD_OP_COUNT)
            return fd_fail(err, FD_ERR_INPUT, "node %s: op %d is not in ops.def", c.node->name, (int)c.node->op);
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            bool wanted = k < rules[c.node->op].n_input;
            if (wanted != (c.node->input[k] >= 0)) return broken(&c, "wrong number of inputs");
            if (c.node->input[k] >= i) return broken(&c, "takes a node that comes later");
        }
        if (c.node->shape[0] < 1) return broken(&c, "empty shape");
        FD_TRY(rules[c.node->op].check(&c));
    }
    return FD_OK;
}
