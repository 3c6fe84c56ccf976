/* Two names that have the values of what a cache is written, K behind RoPE or V: where they differ, the cache is made of the other:
 * rounded, or with a row that a bug lost. So it is the one whose values alone have 16 bits, else the one that is further from the
 * reference. Names that never differ are copies, and either is as good. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

/* Less than this apart are two roundings of binary32. */
#define SAME 1e-11

typedef struct sums {
    double product, own, ref;
    bool wide; /* a value has more digits than a type of 16 bits */
} sums;

static bool has_16_bits(double x) {
    int exponent;
    const double digits = ldexp(frexp(x, &exponent), 11);
    return digits == rint(digits);
}

/* fd_propose_row_fn */
static void add_row(void *user, const double *x, const float *ref, int64_t n) {
    sums *to = user;
    for (int64_t i = 0; i < n; i++) {
        to->product += x[i] * (double)ref[i];
        to->own += x[i] * x[i];
        to->wide |= !has_16_bits(x[i]);
        to->ref += (double)ref[i] * (double)ref[i];
    }
}

/* The angle between the name's values and its node's, over all positions, as fd_candidate's `away`; NAN: they cannot be read. *wide: one of
 * them is. */
static double away_of(const fd_proposer *p, const fd_proposed *item, bool *wide) {
    sums all = {0};
    const fd_code code = fd_propose_visit_rows(p, item, add_row, &all);
    const double norms = sqrt(all.own * all.ref);
    *wide |= all.wide;
    return code == FD_OK && norms > 0 ? 1 - fabs(all.product) / norms : NAN;
}

bool fd_propose_has_values_of(const fd_proposer *p, const fd_proposed *item, const char *node) {
    return item->clear && !item->slice[0] && item->best[0].node >= 0 &&
           strcmp(fd_trace_node_at(p->ref, item->best[0].node)->name, node) == 0;
}

/* The first two names that have the node's values; false: there are no two, or more. */
static bool pair_of(fd_proposer *p, const char *node, fd_proposed *pair[2]) {
    int n = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (!fd_propose_has_values_of(p, &p->items[i], node)) continue;
        if (n == 2) return false;
        pair[n++] = &p->items[i];
    }
    return n == 2;
}

/* Do the names differ in the layer alone? *layer: b's. */
static bool same_form(const fd_proposer *p, const fd_proposed *a, const fd_proposed *b, int32_t *layer) {
    for (int number = 0; number < 4; number++) {
        char x[300], y[300];
        const int32_t of = fd_propose_layer_of(p, a->name, number, false, x, sizeof x);
        *layer = fd_propose_layer_of(p, b->name, number, false, y, sizeof y);
        if (of >= 0 && *layer >= 0 && strcmp(x, y) == 0) return true;
    }
    return false;
}

/* The name of that layer with the form of `of`; NULL. */
static const fd_proposed *in_layer(const fd_proposer *p, const fd_proposed *of, int32_t layer) {
    for (size_t i = 0; i < p->n; i++) {
        int32_t own;
        if (!p->items[i].slice[0] && same_form(p, of, &p->items[i], &own) && own == layer) return &p->items[i];
    }
    return NULL;
}

/* The cache nodes that are written alike: all of K, or all of V. */
static bool is_alike(const fd_trace_node *a, const fd_trace_node *b) {
    const char *x = strchr(a->name + 4, '.'), *y = strchr(b->name + 4, '.');
    return strcmp(a->op, "kv_write") == 0 && strcmp(b->op, "kv_write") == 0 && x && y && strcmp(x, y) == 0;
}

/* How much further the first name's form is than the second's, summed over the layers. A name that has nobody's values is far away, and one
 * of 16 bits beside one of more further than any. */
static double further(const fd_proposer *p, const fd_trace_node *cache, fd_proposed *const of[2]) {
    bool wide[2] = {false, false};
    double sum = 0;
    for (int32_t v = 0; v < fd_trace_n_node(p->ref); v++) {
        const fd_trace_node *node = fd_trace_node_at(p->ref, v);
        if (!is_alike(cache, node)) continue;
        for (int i = 0; i < 2; i++) {
            const fd_proposed *own = in_layer(p, of[i], node->layer);
            const double away = !own                                                ? 0
                                : fd_propose_has_values_of(p, own, node->inputs[0]) ? away_of(p, own, &wide[i])
                                                                                    : 1;
            if (isfinite(away)) sum += i ? -away : away;
        }
    }
    if (wide[0] != wide[1]) return wide[0] ? -INFINITY : INFINITY;
    return sum;
}

void fd_propose_name_caches(fd_proposer *p) {
    const int32_t n = fd_trace_n_node(p->ref);
    fd_proposed **found = calloc((size_t)n + 1, sizeof(fd_proposed *));
    for (int32_t v = 0; found && v < n; v++) {
        const fd_trace_node *node = fd_trace_node_at(p->ref, v);
        fd_proposed *pair[2];
        if (strcmp(node->op, "kv_write") != 0 || fd_propose_is_named(p, v, NULL) || !pair_of(p, node->inputs[0], pair))
            continue;
        const double apart = further(p, node, pair);
        if (fabs(apart) > SAME) found[v] = pair[apart > 0 ? 0 : 1];
    }
    for (int32_t v = 0; found && v < n; v++)
        if (found[v]) found[v]->best[0].node = v;
    free(found);
}
