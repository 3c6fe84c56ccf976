#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "compare/attribute/unrounded_internal.h"
#include "faults/faults.h"

/* A layer in which the tensors are so small that their rounding does not matter has 1. */
#define CONTRARY  1.1
#define LEAST_OFF 1e-30

/* Of one layer, to contradict. */
enum { FEWEST_ROWS = 4 };

fd_code fd_reading_new(const fd_unrounded *u, fd_reading *out, fd_error *err) {
    *out = (fd_reading){.of = calloc((size_t)u->o.graph->n_node + 1, sizeof *out->of), .left = 1};
    return out->of ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "unrounded inputs: out of memory");
}

fd_code fd_reading_copy(const fd_unrounded *u, const fd_reading *from, fd_reading *out, fd_error *err) {
    FD_TRY(fd_reading_new(u, out, err));
    memcpy(out->of, from->of, sizeof *out->of * (size_t)u->o.graph->n_node);
    out->rounds_products = from->rounds_products;
    return FD_OK;
}

void fd_reading_free(fd_reading *reading) {
    free(reading->of);
    reading->of = NULL;
    fd_row_errors_free(&reading->errors);
}

/* A cache holds what it holds, a table's rows and a choice are not rounded. */
bool fd_reading_may_take(const fd_unrounded *u, int32_t node) {
    const fd_op op = u->o.graph->nodes[node].op;
    const bool ignored = u->o.ignored && u->o.ignored[node];
    return op != FD_OP_EMBED && op != FD_OP_TOP_K && op != FD_OP_KV_WRITE && !ignored &&
           fd_trace_has_data(u->o.cand, u->o.graph->nodes[node].name);
}

void fd_reading_set_kind(const fd_unrounded *u, int32_t node, bool unrounded, fd_reading *reading) {
    const fd_graph *graph = u->o.graph;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (fd_reading_may_take(u, i) && fd_fault_same_kind(&graph->nodes[i], &graph->nodes[node]))
            reading->of[i] = unrounded;
}

fd_code fd_reading_measure(fd_unrounded *u, fd_reading *r, fd_error *err) {
    const int32_t n_node = u->o.graph->n_node;
    fd_attribution_options how = u->o;
    bool *computed = malloc(sizeof *computed * (size_t)n_node);
    int32_t n;
    if (!computed) return fd_fail(err, FD_ERR_MEMORY, "unrounded inputs: out of memory");
    for (int32_t i = 0; i < n_node; i++) computed[i] = r->of[i] || u->kind[i];
    fd_code code = fd_rounded_weights_add(&u->weights, computed, err);
    free(computed);
    how.graph = u->weights.graph;
    how.unrounded = r->of;
    how.wanted = u->kind;
    if (r->rounds_products) how.numerics = &u->rounds_products;
    fd_row_errors_free(&r->errors);
    if (code == FD_OK) code = fd_row_errors_measure(&how, &r->errors, err);
    if (code == FD_OK && u->recorded.row) r->left = fd_reading_share(u, &r->errors, -1, &n);
    return code;
}

double fd_reading_share(const fd_unrounded *u, const fd_row_errors *errors, int32_t node, int32_t *n) {
    int32_t n_same = 0;
    *n = 0;
    for (int32_t i = 0; i < u->o.graph->n_node; i++)
        for (int32_t p = 0; p < u->o.n_pos && u->kind[i] && (node < 0 || i == node); p++) {
            const fd_row_error *was = fd_row_errors_of(&u->recorded, i, p), *is = fd_row_errors_of(errors, i, p);
            if (!u->rows[p] || was->error < 0 || is->error < 0 || !(was->error > LEAST_OFF * was->size)) continue;
            if (is->error == was->error)
                n_same++;
            else
                u->shares[(*n)++] = is->error / was->error;
        }
    if (*n == 0) {
        *n = n_same;
        return 1;
    }
    qsort(u->shares, (size_t)*n, sizeof *u->shares, fd_order_doubles);
    return u->shares[*n / 2];
}

static bool contradicts(const fd_unrounded *u, const fd_reading *r) {
    int32_t n;
    for (int32_t i = 0; i < u->o.graph->n_node; i++) {
        if (!u->kind[i]) continue;
        const double left = fd_reading_share(u, &r->errors, i, &n);
        if (n >= FEWEST_ROWS && !(left <= CONTRARY)) return true;
    }
    return false;
}

void fd_reading_take(const fd_unrounded *u, const fd_reading *r, double most, fd_row_errors *errors, bool *taken) {
    int32_t n;
    if (!r->errors.row || contradicts(u, r)) return;
    const double left = fd_reading_share(u, &r->errors, -1, &n);
    if (!(left <= most) || !(left < (errors ? fd_reading_share(u, errors, -1, &n) : 1))) return;
    *taken = true;
    for (int32_t i = 0; i < u->o.graph->n_node && errors; i++)
        for (int32_t p = 0; p < u->o.n_pos && u->kind[i]; p++)
            if (u->rows[p]) *fd_row_errors_of(errors, i, p) = *fd_row_errors_of(&r->errors, i, p);
}

void fd_unrounded_ask(fd_unrounded *u, int32_t node) {
    const fd_graph *graph = u->o.graph;
    for (int32_t i = 0; i < graph->n_node; i++)
        u->kind[i] = node < 0 || fd_fault_same_kind(&graph->nodes[i], &graph->nodes[node]);
}

void fd_unrounded_ask_steps(fd_unrounded *u, bool single, bool several) {
    const fd_trace_step *steps = fd_trace_steps(u->o.cand);
    int32_t p = 0;
    for (int32_t i = 0; i < fd_trace_n_step(u->o.cand); i++)
        for (int32_t k = 0; k < steps[i].n_pos && p < u->o.n_pos; k++)
            u->rows[p++] = steps[i].n_pos == 1 ? single : several;
}
