/* Tensors that an op has on its way to a node's values, and no node: a product before its bias is added, and the activation of the gate before
 * it is multiplied by `up`. A product lacks the same in every row, beside a name that does not; no copy such as a cache is like that. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

/* In squares: what is lacking is one vector but for so much of it, and of how the node's rows vary: where a bias outweighs the rows, any two
 * tensors differ by nearly one vector. Of the values: a bias is larger than a rounding of 16 bits. */
#define REST  1e-3
#define LEAST 1e-3
enum { FEWEST_ROWS = 3 };

typedef struct lacking {
    double *sum, *ref; /* [n] over rows, of what is lacking and of the node's rows */
    int64_t n;
    double squares, values;
    int32_t n_row;
    bool failed;
} lacking;

/* fd_propose_row_fn */
static void add_row(void *user, const double *x, const float *ref, int64_t n) {
    lacking *to = user;
    if (!to->sum) {
        to->sum = calloc(2 * (size_t)n, sizeof *to->sum);
        to->ref = to->sum ? to->sum + n : NULL;
        to->n = n;
    }
    to->failed |= !to->sum || to->n != n;
    for (int64_t i = 0; i < n && !to->failed; i++) {
        const double d = (double)ref[i] - x[i];
        to->sum[i] += d;
        to->ref[i] += (double)ref[i];
        to->squares += d * d;
        to->values += (double)ref[i] * (double)ref[i];
    }
    to->n_row++;
}

static bool lacks_a_bias(const fd_proposer *p, const fd_proposed *item) {
    lacking all = {0};
    const fd_code code = fd_propose_visit_rows(p, item, add_row, &all);
    double common = 0, middle = 0;
    for (int64_t i = 0; i < all.n && !all.failed; i++) {
        common += all.sum[i] * all.sum[i] / all.n_row;
        middle += all.ref[i] * all.ref[i] / all.n_row;
    }
    const bool known = code == FD_OK && !all.failed && all.n_row >= FEWEST_ROWS;
    const double rest = all.squares - common;
    free(all.sum);
    return known && all.squares > LEAST * LEAST * all.values && rest <= REST * all.squares &&
           rest <= REST * (all.values - middle);
}

/* Another name that has the values of the same node, nearer. */
static bool has_nearer(const fd_proposer *p, const fd_proposed *item) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *other = &p->items[i];
        const bool same =
            other != item && other->clear && !other->slice[0] && other->best[0].node == item->best[0].node;
        if (same && other->best[0].away < item->best[0].away) return true;
    }
    return false;
}

/* Has the graph's node a bias that its product is without? */
static bool adds_a_bias(const fd_proposer *p, int32_t node) {
    const int32_t id = fd_graph_find(p->plan.graph, fd_trace_node_at(p->ref, node)->name);
    const fd_node *of = id >= 0 ? &p->plan.graph->nodes[id] : NULL;
    return of && of->op == FD_OP_MATMUL && of->weight[1] >= 0;
}

static bool same_shape(const fd_proposer *p, const fd_proposed *a, const fd_proposed *b) {
    const fd_source_tensor *x = fd_source_at(p->source, a->tensors[0]), *y = fd_source_at(p->source, b->tensors[0]);
    return x->rank == y->rank && memcmp(x->shape, y->shape, sizeof *x->shape * (size_t)x->rank) == 0;
}

/* A bias may outweigh the product, whose own values then are near nothing: read as the clear names of nodes with a bias are, it says which of them it is
 * the product of; -1: of none. */
static int32_t product_of(const fd_proposer *p, const fd_proposed *item) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *other = &p->items[i];
        const bool may_be = other != item && other->clear && !other->slice[0] && other->best[0].node >= 0 &&
                            adds_a_bias(p, other->best[0].node) && same_shape(p, item, other);
        fd_proposed as = *item;
        as.best[0] = other->best[0];
        if (may_be && lacks_a_bias(p, &as)) return other->best[0].node;
    }
    return -1;
}

/* May the name be of that layer? One of its numbers says so. */
static bool may_be_of(const fd_proposer *p, const fd_proposed *item, int32_t layer) {
    char pattern[300];
    for (int number = 0; number < 4; number++)
        if (fd_propose_layer_of(p, item->name, number, false, pattern, sizeof pattern) == layer) return true;
    return false;
}

/* Rows of a name, times those of `up`, beside those of the product of both. */
typedef struct multiplied {
    double *x; /* [n_row · n] */
    int64_t room, n, at;
    double product, own, ref;
    bool failed;
} multiplied;

/* fd_propose_row_fn */
static void keep_times_up(void *user, const double *x, const float *up, int64_t n) {
    multiplied *to = user;
    if (to->n + n > to->room) {
        const int64_t room = 2 * to->room + n;
        double *more = realloc(to->x, sizeof *more * (size_t)room);
        to->failed |= !more;
        if (!more) return;
        to->x = more;
        to->room = room;
    }
    for (int64_t i = 0; i < n; i++) to->x[to->n + i] = x[i] * (double)up[i];
    to->n += n;
}

/* fd_propose_row_fn */
static void set_beside(void *user, const double *x, const float *ref, int64_t n) {
    multiplied *to = user;
    (void)x;
    for (int64_t i = 0; i < n && to->at + i < to->n; i++) {
        const double y = to->x[to->at + i];
        to->product += y * (double)ref[i];
        to->own += y * y;
        to->ref += (double)ref[i] * (double)ref[i];
    }
    to->at += n;
}

/* The node that multiplies by `up` what the name has: 1e-3 from its direction, and ten times nearer than the node whose values the name is
 * nearest to. -1: none does. */
static int32_t activation_in(const fd_proposer *p, const fd_proposed *item) {
    const double nearest = item->best[0].node >= 0 ? item->best[0].away : 1;
    for (int32_t i = 0; i < p->plan.graph->n_node; i++) {
        const fd_node *node = &p->plan.graph->nodes[i];
        const bool gated = node->op == FD_OP_SILU_MUL || node->op == FD_OP_GELU_MUL;
        if (!gated || !may_be_of(p, item, node->layer)) continue;
        const int32_t of = fd_trace_find(p->ref, node->name);
        const int32_t up = fd_trace_find(p->ref, p->plan.graph->nodes[node->input[1]].name);
        if (of < 0 || up < 0) continue;
        multiplied all = {0};
        fd_proposed as = *item;
        if (item->best[0].node < 0) strcpy(as.best[0].ops, "axis=-2"); /* rows of n_ff */
        as.best[0].node = up;
        fd_code code = fd_propose_visit_rows(p, &as, keep_times_up, &all);
        as.best[0].node = of;
        if (code == FD_OK && !all.failed) code = fd_propose_visit_rows(p, &as, set_beside, &all);
        free(all.x);
        const double norms = sqrt(all.own * all.ref), away = norms > 0 ? 1 - all.product / norms : 1;
        if (code == FD_OK && !all.failed && away <= FD_PROPOSE_PART_FAR && FD_PROPOSE_CLEAR * away < nearest) return of;
    }
    return -1;
}

void fd_propose_drop_on_the_way(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
        if (item->slice[0] || !fd_array_is_float(t->type)) continue;
        const bool near = item->clear && item->best[0].node >= 0;
        const bool lacks = near && has_nearer(p, item) && lacks_a_bias(p, item);
        int32_t of = near ? -1 : product_of(p, item);
        if (lacks && adds_a_bias(p, item->best[0].node)) of = item->best[0].node;
        if (of >= 0) item->on_the_way = "before its bias is added";
        if (of < 0 && !lacks && (of = activation_in(p, item)) >= 0) item->on_the_way = "before it is multiplied by up";
        if (lacks || of >= 0) item->clear = item->matched = false;
        if (of < 0) continue;
        item->on_the_way_to = fd_trace_node_at(p->ref, of)->name;
        item->written = true;
    }
}
