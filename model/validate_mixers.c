/* The shape rules of what stands for attention, or beside it: heads in parts, convolutions, states. */
#include "model/validate.h"

/* The parts of all heads together may be shaped otherwise. */
fd_code fd_check_slice(const fd_checker *c) {
    const fd_node *n = c->node, *x = fd_checker_input(c, 0);
    int64_t n_head = x->n_dim == 2 ? x->shape[0] : 1, width = fd_node_width(n);
    if (x->over_kv || n->over_kv || width < 1 || width % n_head != 0)
        return fd_checker_broken(c, "expected a part of each head of its input");
    if (n->first < 0 || n->first > x->shape[x->n_dim - 1] - width / n_head)
        return fd_checker_broken(c, "reaches beyond its input");
    return FD_OK;
}

fd_code fd_check_concat(const fd_checker *c) {
    const fd_node *n = c->node, *a = fd_checker_input(c, 0), *b = fd_checker_input(c, 1);
    if (n->n_dim != 2 || a->n_dim != 2 || b->n_dim != 2 || a->over_kv || b->over_kv)
        return fd_checker_broken(c, "expected two inputs of heads");
    if (n->shape[0] != a->shape[0] || (b->shape[0] != 1 && b->shape[0] != a->shape[0]))
        return fd_checker_broken(c, "its inputs' heads differ in number");
    return n->shape[1] == a->shape[1] + b->shape[1] ? FD_OK
                                                    : fd_checker_broken(c, "expected heads of both sizes together");
}

fd_code fd_check_head_matmul(const fd_checker *c) {
    const fd_node *n = c->node, *x = fd_checker_input(c, 0);
    if (n->n_dim != 2 || x->n_dim != 2 || n->shape[0] != x->shape[0])
        return fd_checker_broken(c, "expected heads of heads");
    return fd_checker_weight(c, 0, (int64_t)n->shape[0] * n->shape[1], x->shape[1], false);
}

RULE(silu, like_input)

/* It may make heads of its input. */
fd_code fd_check_as_wide(const fd_checker *c) {
    return fd_node_width(c->node) == fd_node_width(fd_checker_input(c, 0)) && !c->node->over_kv
               ? FD_OK
               : fd_checker_broken(c, "width differs from its input's");
}

RULE(softplus, as_wide)

fd_code fd_check_conv(const fd_checker *c) {
    const fd_node *n = c->node;
    if (fd_checker_input(c, 0)->op != FD_OP_KV_WRITE || !fd_checker_same_shape(n, fd_checker_input(c, 0)))
        return fd_checker_broken(c, "expected the shape of a cache that it reads");
    if (n->weight[0] < 0) return fd_checker_broken(c, "lacks its weight");
    FD_TRY(fd_checker_weight(c, 0, fd_node_width(n), c->graph->weights[n->weight[0]].n_col, false));
    return fd_checker_weight(c, 1, 1, fd_node_width(n), true);
}

/* The cache has dt of each head, x as the output's shape, and B as C's. */
fd_code fd_check_ssm_scan(const fd_checker *c) {
    const fd_node *n = c->node, *cache = fd_checker_input(c, 0), *read = fd_checker_input(c, 1);
    if (cache->op != FD_OP_KV_WRITE || n->n_dim != 2 || read->n_dim != 2 || n->shape[0] % read->shape[0] != 0)
        return fd_checker_broken(c, "expected a cache, heads and groups of heads");
    if (fd_node_width(cache) != n->shape[0] + fd_node_width(n) + fd_node_width(read))
        return fd_checker_broken(c, "expected a cache of dt, x and B");
    if (read->shape[1] > FD_MAX_STATE) return fd_checker_broken(c, "the state is too large");
    if (n->weight[0] < 0 || n->weight[1] < 0) return fd_checker_broken(c, "lacks its weights");
    const fd_weight *d = &c->graph->weights[n->weight[1]];
    if (d->n_row * d->n_col != n->shape[0]) return fd_checker_broken(c, "expected a D for each head");
    bool each = c->graph->weights[n->weight[0]].n_col > 1;
    return fd_checker_weight(c, 0, n->shape[0], each ? read->shape[1] : 1, false);
}

/* b is as wide, or has one element a head. */
fd_code fd_check_mul(const fd_checker *c) {
    const fd_node *n = c->node, *b = fd_checker_input(c, 1);
    bool by_head = n->n_dim == 2 && fd_node_width(b) == n->shape[0];
    if (b->over_kv || (fd_node_width(b) != fd_node_width(n) && !by_head))
        return fd_checker_broken(c, "expected a second input as wide as the first, or of one element a head");
    return fd_check_like_input(c);
}

fd_code fd_check_mul_vector(const fd_checker *c) {
    FD_TRY(fd_check_as_wide(c));
    return fd_checker_weight(c, 0, 1, fd_node_width(c->node), false);
}

RULE(exp, as_wide)

fd_code fd_check_l2_norm(const fd_checker *c) {
    if (!(c->node->eps >= 0.0f)) return fd_checker_broken(c, "eps is negative or NaN");
    return fd_check_like_input(c);
}

fd_code fd_check_token_shift(const fd_checker *c) {
    if (fd_checker_input(c, 0)->op != FD_OP_KV_WRITE || c->node->over_kv ||
        fd_node_width(c->node) != fd_node_width(fd_checker_input(c, 0)))
        return fd_checker_broken(c, "expected the width of a cache that it reads");
    return fd_checker_weight(c, 0, 1, fd_node_width(c->node), false);
}

/* The cache has of each key head, r value heads together: r decays, r betas, k, and r rows of v. */
fd_code fd_check_gated_delta(const fd_checker *c) {
    const fd_node *n = c->node, *cache = fd_checker_input(c, 0), *q = fd_checker_input(c, 1);
    if (cache->op != FD_OP_KV_WRITE || n->n_dim != 2 || q->n_dim != 2 || n->shape[0] % q->shape[0] != 0)
        return fd_checker_broken(c, "expected a cache, heads and groups of heads");
    int64_t r = n->shape[0] / q->shape[0];
    if (fd_node_width(cache) != q->shape[0] * (2 * r + q->shape[1] + r * n->shape[1]))
        return fd_checker_broken(c, "expected a cache of decay, beta, k and v");
    return q->shape[1] <= FD_MAX_STATE ? FD_OK : fd_checker_broken(c, "the state is too large");
}

/* The cache has of each head w, k, v, a and b. */
fd_code fd_check_wkv7(const fd_checker *c) {
    const fd_node *n = c->node, *cache = fd_checker_input(c, 0), *r = fd_checker_input(c, 1);
    if (cache->op != FD_OP_KV_WRITE || n->n_dim != 2 || !fd_checker_same_shape(n, r))
        return fd_checker_broken(c, "expected a cache, and heads as they are read");
    if (fd_node_width(cache) != 5 * fd_node_width(n))
        return fd_checker_broken(c, "expected a cache of w, k, v, a and b");
    return n->shape[1] <= FD_MAX_STATE ? FD_OK : fd_checker_broken(c, "the state is too large");
}
