#include "compare/attribute/unrounded.h"

#include <stdlib.h>

#include "compare/attribute/unrounded_internal.h"
#include "faults/faults.h"

/* What one more kind has to leave of what the others leave. */
#define BETTER FD_SHOWN_SHARE

/* Tensors before the op: gate and up, their norm, the stream. */
enum { MOST_KINDS = 6 };

/* Multiply-adds of one replay. */
#define MOST_WORK 4e9

bool fd_unrounded_can_ask(const fd_attribution_options *o) {
    return fd_graph_n_parameter(o->graph) * o->n_pos <= MOST_WORK;
}

fd_code fd_unrounded_open(const fd_attribution_options *o, fd_unrounded **out, fd_error *err) {
    const size_t n_node = (size_t)o->graph->n_node, n_pos = (size_t)o->n_pos;
    fd_unrounded *u = *out = calloc(1, sizeof *u);
    if (!u) return fd_fail(err, FD_ERR_MEMORY, "unrounded inputs: out of memory");
    u->o = *o;
    u->memo = u->o.memo = fd_product_memo_new(FD_MEMO_MOST);
    u->rounds_products = *o->numerics;
    u->rounds_products.u_product = o->numerics->u_out;
    u->kind = malloc(sizeof *u->kind * (n_node + 1));
    u->rows = calloc(n_pos, sizeof *u->rows);
    u->shares = malloc(sizeof *u->shares * n_node * n_pos);
    if (!u->kind || !u->rows || !u->shares) return fd_fail(err, FD_ERR_MEMORY, "unrounded inputs: out of memory");
    FD_TRY(fd_rounded_weights_open(o->graph, o->numerics->u_out, &u->weights, err));
    fd_reading none;
    FD_TRY(fd_reading_new(u, &none, err));
    fd_unrounded_ask(u, -1);
    const fd_code code = fd_reading_measure(u, &none, err);
    u->recorded = none.errors;
    none.errors = (fd_row_errors){0};
    fd_reading_free(&none);
    return code;
}

void fd_unrounded_free(fd_unrounded *u) {
    if (!u) return;
    fd_product_memo_free(u->memo);
    fd_rounded_weights_free(&u->weights);
    fd_row_errors_free(&u->recorded);
    fd_reading_free(&u->stream);
    free(u->kind);
    free(u->rows);
    free(u->shares);
    free(u);
}

/* It does more with its product before it is recorded. */
static bool goes_on_with_product(const fd_node *node) {
    return (node->op == FD_OP_MATMUL && node->weight[1] >= 0) || node->op == FD_OP_ATTN_SCORES;
}

/* `next` is tried, and taken where it leaves less than *best. Frees the other. */
static fd_code keep_better(fd_unrounded *u, fd_reading *next, fd_reading *best, fd_error *err) {
    const fd_code code = fd_reading_measure(u, next, err);
    if (code == FD_OK && next->left < best->left) {
        fd_reading_free(best);
        *best = *next;
        *next = (fd_reading){0};
    }
    fd_reading_free(next);
    return code;
}

/* With the tensors of the kind of `node` (-1: none) as well, and those that these are made of. */
static fd_code try_with(fd_unrounded *u, const fd_reading *from, int32_t node, bool and_inputs, bool rounds_products,
                        fd_reading *best, fd_error *err) {
    fd_reading next;
    FD_TRY(fd_reading_copy(u, from, &next, err));
    if (node >= 0) fd_reading_set_kind(u, node, true, &next);
    for (int k = 0; k < FD_MAX_INPUTS && and_inputs; k++)
        if (u->o.graph->nodes[node].input[k] >= 0)
            fd_reading_set_kind(u, u->o.graph->nodes[node].input[k], true, &next);
    next.rounds_products |= rounds_products;
    return keep_better(u, &next, best, err);
}

/* One more kind: one that the readers read, or that those read which are unrounded already; its products rounded or not. */
static fd_code try_one_more(fd_unrounded *u, const fd_reading *from, fd_reading *best, fd_error *err) {
    const fd_graph *graph = u->o.graph;
    bool *tried = calloc((size_t)graph->n_node, sizeof *tried), products = false;
    if (!tried) return fd_fail(err, FD_ERR_MEMORY, "unrounded inputs: out of memory");
    fd_code code = FD_OK;
    for (int32_t i = 0; i < graph->n_node && code == FD_OK; i++) {
        if (!u->kind[i] && !from->of[i]) continue;
        products |= goes_on_with_product(&graph->nodes[i]);
        for (int k = 0; k < FD_MAX_INPUTS && code == FD_OK; k++) {
            const int32_t in = graph->nodes[i].input[k];
            if (in < 0 || tried[in] || from->of[in] || !fd_reading_may_take(u, in)) continue;
            for (int32_t j = 0; j < graph->n_node; j++)
                tried[j] |= fd_fault_same_kind(&graph->nodes[j], &graph->nodes[in]);
            code = try_with(u, from, in, false, false, best, err);
            if (code == FD_OK) code = try_with(u, from, in, true, false, best, err);
            if (code == FD_OK && !from->rounds_products && goes_on_with_product(&graph->nodes[in]))
                code = try_with(u, from, in, false, true, best, err);
        }
    }
    if (code == FD_OK && products && !from->rounds_products) code = try_with(u, from, -1, false, true, best, err);
    free(tried);
    return code;
}

/* Kind by kind, as long as less is left. */
static fd_code find_inputs(fd_unrounded *u, fd_reading *out, fd_error *err) {
    FD_TRY(fd_reading_new(u, out, err));
    for (int k = 0; k < MOST_KINDS; k++) {
        fd_reading best = {.left = BETTER * out->left};
        const fd_code code = try_one_more(u, out, &best, err);
        if (code != FD_OK || !best.of) {
            fd_reading_free(&best);
            return code;
        }
        fd_reading_free(out);
        *out = best;
    }
    return FD_OK;
}

fd_code fd_unrounded_inputs(fd_unrounded *u, int32_t node, fd_row_errors *errors, bool *shown, fd_error *err) {
    *shown = false;
    fd_unrounded_ask(u, node);
    for (int single = 0; single < 2; single++) {
        fd_reading r = {0};
        int32_t n;
        fd_unrounded_ask_steps(u, single, !single);
        fd_reading_share(u, &u->recorded, -1, &n);
        if (n == 0) continue;
        const fd_code code = find_inputs(u, &r, err);
        if (code == FD_OK) fd_reading_take(u, &r, FD_SHOWN_SHARE, errors, shown);
        fd_reading_free(&r);
        FD_TRY(code);
    }
    return FD_OK;
}
