#include "compare/attribute/draws.h"

#include <math.h>
#include <stdlib.h>

#include "base/order.h"
#include "compare/attribute/residuals.h"
#include "compare/attribute/row_errors.h"
#include "compare/bounds/dot_inputs.h"
#include "faults/faults.h"

/* How far off a sound engine may be, over the farthest of four draws: 0.72 was measured, and 1.17 where K and V are in another type. */
#define MOST 2.0

enum { N_DRAW = 4, FEWEST_MOVED = 2, FEWEST_SHOWN = 2, FEWEST_BEYOND = 2, FEWEST_APART = 4 };
enum { MOST_ELEMENTS = 1024 }; /* of a row: they know its size to a thirtieth */

typedef struct drawing {
    const fd_graph *graph;
    int32_t n_pos;
    bool *wanted;            /* [n_node]; owned */
    bool *steps;             /* [n_node] behind an unrecorded product that makes blocks, or one itself; owned */
    float **plain;           /* [n_node] [n_pos, n_kept] what the class gives; NULL: no such rows; owned */
    float *left;             /* [n_node, n_pos] of the candidate's row; -1: none; owned */
    float *most;             /* [n_node, n_pos] of the farthest draw's; owned */
    int32_t *n_to_last_bits; /* [n_node] of the candidate's rows after the first; owned */
    fd_code code;            /* of keep_plain */
} drawing;

/* Every so many elements of a row are kept, the first of each. */
static int64_t every(int64_t stride) {
    return (stride + MOST_ELEMENTS - 1) / MOST_ELEMENTS;
}

static int64_t n_kept(int64_t stride) {
    return (stride - 1) / every(stride) + 1;
}

static size_t index_of(const drawing *d, const fd_attribution_row *row) {
    return (size_t)row->node->id * (size_t)d->n_pos + (size_t)row->pos;
}

static void keep_plain(void *user, const fd_attribution_row *row) {
    drawing *d = user;
    const int32_t node = row->node->id;
    const int64_t n = n_kept(row->stride);
    if (row->span_first == node || row->node->op == FD_OP_TOP_K || row->node->over_kv || !d->steps[node]) return;
    if (!d->plain[node]) d->plain[node] = malloc(sizeof(float) * (size_t)(n * d->n_pos));
    if (!d->plain[node]) {
        d->code = FD_ERR_MEMORY;
        return;
    }
    d->left[index_of(d, row)] = (float)fd_row_left(row);
    /* RoPE and masks change nothing in the first */
    d->n_to_last_bits[node] += row->pos > 0 && fd_row_oddness(row) <= 1;
    float *plain = d->plain[node] + row->pos * n;
    for (int64_t i = 0; i < n; i++) plain[i] = (float)row->replayed[i * every(row->stride)];
}

static void add_draw(void *user, const fd_attribution_row *row) {
    drawing *d = user;
    const size_t at = index_of(d, row);
    const int64_t n = n_kept(row->stride);
    double moved = 0, size = 0;
    if (!(d->left[at] >= 0)) return;
    const float *plain = d->plain[row->node->id] + row->pos * n;
    for (int64_t i = 0; i < n; i++) {
        const double was = (double)plain[i], by = (double)(float)row->replayed[i * every(row->stride)] - was;
        moved += by * by;
        size += was * was;
    }
    const float left = (float)sqrt(moved / size);
    if (!(left <= d->most[at])) d->most[at] = left;
}

/* Without a product of blocks on the way no value lies near a step: what is left is the class's, or another's. */
static void find_steps(const fd_attribution_options *o, const fd_numerics_class *c, bool *steps) {
    for (int32_t i = 0; i < o->graph->n_node; i++) {
        const fd_node *node = &o->graph->nodes[i];
        steps[i] =
            node->weight[0] >= 0 && fd_dot_is_blocks(fd_dot_type_of(c, node, &o->graph->weights[node->weight[0]], 0));
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (node->input[k] >= 0 && !fd_trace_has_data(o->cand, o->graph->nodes[node->input[k]].name))
                steps[i] |= steps[node->input[k]];
    }
}

/* Tensors with such rows, and their like in other layers, which may show the class. */
static bool choose(const fd_attribution *of, drawing *d) {
    const fd_node *nodes = d->graph->nodes;
    bool any = false;
    for (int32_t i = 0; i < d->graph->n_node; i++) {
        if (of->n_moved[i] < FEWEST_MOVED) continue;
        any = true;
        for (int32_t k = 0; k < d->graph->n_node; k++) d->wanted[k] |= fd_fault_same_kind(&nodes[k], &nodes[i]);
    }
    return any;
}

static bool is_shown(const drawing *d, int32_t node) {
    int32_t n = 0;
    for (int32_t i = 0; i < d->graph->n_node; i++)
        if (fd_fault_same_kind(&d->graph->nodes[i], &d->graph->nodes[node])) n += d->n_to_last_bits[i];
    return n >= FEWEST_SHOWN;
}

/* A row whose draws all fell to the same side says less than the others of its tensor do. */
static fd_code set_against_draws(const drawing *d, bool known, fd_draws *out, fd_error *err) {
    const size_t n_pos = (size_t)d->n_pos;
    float *rows = malloc(sizeof *rows * n_pos);
    if (!rows) return fd_fail(err, FD_ERR_MEMORY, "draws of %zu rows: out of memory", n_pos);
    for (size_t i = 0; i < (size_t)d->graph->n_node; i++) {
        int32_t n = 0;
        if (!d->plain[i] || !(known || is_shown(d, (int32_t)i))) continue;
        for (size_t p = 0; p < n_pos; p++)
            if (d->left[i * n_pos + p] >= 0) rows[n++] = d->most[i * n_pos + p];
        qsort(rows, (size_t)n, sizeof *rows, fd_order_floats);
        for (size_t p = 0; p < n_pos; p++) {
            const float most = d->most[i * n_pos + p] > rows[n / 2] ? d->most[i * n_pos + p] : rows[n / 2];
            if (d->left[i * n_pos + p] >= 0 && most > 0) out->excess[i * n_pos + p] = d->left[i * n_pos + p] / most;
        }
    }
    free(rows);
    return FD_OK;
}

static fd_code draw(const fd_attribution_options *options, drawing *d, fd_error *err) {
    fd_attribution_options how = *options;
    how.wanted = d->wanted;
    find_steps(options, options->numerics, d->steps);
    FD_TRY(fd_row_errors_show(&how, keep_plain, d, err));
    if (d->code != FD_OK) return fd_fail(err, d->code, "draws of %d nodes: out of memory", d->graph->n_node);
    for (how.draw = 1; how.draw <= N_DRAW; how.draw++) FD_TRY(fd_row_errors_show(&how, add_draw, d, err));
    return FD_OK;
}

static void drawing_free(drawing *d) {
    for (int32_t i = 0; d->plain && i < d->graph->n_node; i++) free(d->plain[i]);
    free(d->plain);
    free(d->wanted);
    free(d->steps);
    free(d->left);
    free(d->most);
    free(d->n_to_last_bits);
}

fd_code fd_draws_measure(const fd_attribution_options *options, const fd_attribution *of, bool known, fd_draws *out,
                         fd_error *err) {
    const size_t n_node = (size_t)options->graph->n_node, n = n_node * (size_t)options->n_pos;
    *out = (fd_draws){.n_pos = options->n_pos};
    if (!fd_class_leaves_nothing(of->numerics) || !fd_class_makes_blocks(of->numerics, options->graph)) return FD_OK;
    drawing d = {.graph = options->graph,
                 .n_pos = options->n_pos,
                 .wanted = calloc(n_node, sizeof *d.wanted),
                 .steps = calloc(n_node, sizeof *d.steps),
                 .plain = calloc(n_node, sizeof *d.plain),
                 .left = malloc(sizeof *d.left * n),
                 .most = calloc(n, sizeof *d.most),
                 .n_to_last_bits = calloc(n_node, sizeof *d.n_to_last_bits)};
    fd_code code = FD_OK;
    if (!d.wanted || !d.steps || !d.plain || !d.left || !d.most || !d.n_to_last_bits)
        code = fd_fail(err, FD_ERR_MEMORY, "draws of %zu nodes: out of memory", n_node);
    if (code == FD_OK && choose(of, &d)) {
        out->excess = malloc(sizeof *out->excess * n);
        if (!out->excess) code = fd_fail(err, FD_ERR_MEMORY, "draws of %zu nodes: out of memory", n_node);
        for (size_t i = 0; i < n && out->excess; i++) out->excess[i] = d.left[i] = -1;
        if (code == FD_OK) code = draw(options, &d, err);
        if (code == FD_OK) code = set_against_draws(&d, known, out, err);
    }
    drawing_free(&d);
    return code;
}

void fd_draws_free(fd_draws *draws) {
    free(draws->excess);
    draws->excess = NULL;
}

static double excess_of(const fd_draws *draws, int32_t node, int32_t pos) {
    return (double)draws->excess[(size_t)node * (size_t)draws->n_pos + (size_t)pos];
}

fd_drawn fd_draws_of(const fd_draws *draws, int32_t node, int32_t pos) {
    const double excess = draws ? excess_of(draws, node, pos) : -1;
    if (excess < 0) return FD_DRAWN_NOT;
    return !(excess <= MOST) ? FD_DRAWN_BEYOND : excess > 1 ? FD_DRAWN_APART : FD_DRAWN_AMONG;
}

bool fd_draws_mostly_apart(int32_t n_apart, int32_t n_row) {
    return n_apart >= FEWEST_APART && 2 * n_apart > n_row;
}

bool fd_draws_say_more(const fd_draws *draws, const fd_graph *graph) {
    for (int32_t i = 0; draws->excess && i < graph->n_node; i++) {
        int32_t n[FD_DRAWN_COUNT] = {0};
        for (int32_t p = 0; p < draws->n_pos; p++) n[fd_draws_of(draws, i, p)]++;
        const int32_t n_apart = n[FD_DRAWN_APART] + n[FD_DRAWN_BEYOND];
        if (n[FD_DRAWN_BEYOND] >= FEWEST_BEYOND || fd_draws_mostly_apart(n_apart, n_apart + n[FD_DRAWN_AMONG]))
            return true;
    }
    return false;
}
