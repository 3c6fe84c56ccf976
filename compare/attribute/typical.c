#include "compare/attribute/typical.h"

#include <math.h>
#include <stdlib.h>

#include "base/order.h"
#include "compare/attribute/attribution_row.h"
#include "compare/attribute/residuals.h"
#include "faults/faults.h"

/* Half of that is too large, too, where it is many times what most rows of the kind have. */
#define MANY_TIMES 8.0f

enum { FEWEST_ROWS = 2 };

/* Passes over the same rows: what is left of them, what the class leaves, and the findings. */
typedef struct search {
    const fd_graph *graph;
    int32_t n_pos;
    bool *wanted;           /* [n_node]; owned */
    float *error;           /* [n_node, n_pos] root mean square; then over that of roundings; -1: not known; owned */
    float *usual, *most;    /* [n_node] of rows of its kind; beyond which a row's is too large; owned */
    bool *far;              /* [n_node] through a long span; owned */
    fd_node_finding *large; /* [n_node] the first row with too large an error, n_odd of them; owned */
} search;

static float *error_of(const search *s, const fd_attribution_row *row) {
    return &s->error[(int64_t)row->node->id * s->n_pos + row->pos];
}

/* Root mean square of x, or of what it is more than y; NaN where a number is none. Masked scores do not count. */
static double size_of(const double *x, const double *y, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isinf(x[i]) || (y && !isinf(y[i]))) squares += y ? (x[i] - y[i]) * (x[i] - y[i]) : x[i] * x[i];
    return sqrt(squares / (double)n);
}

static void add_error(void *user, const fd_attribution_row *row) {
    search *s = user;
    if (row->node->op != FD_OP_TOP_K) *error_of(s, row) = (float)size_of(row->candidate, row->replayed, row->stride);
}

/* A class that leaves as much as the row says nothing of it. */
static void add_typical(void *user, const fd_attribution_row *row) {
    search *s = user;
    float *error = error_of(s, row);
    double typical = size_of(row->tau, NULL, row->stride), size = size_of(row->replayed, NULL, row->stride);
    if (*error >= 0 && !(typical <= size)) *error = -1;
    if (*error > 0) *error /= (float)typical;
    s->far[row->node->id] |= row->node->id - row->span_first >= FD_LONG_SPAN;
}

static void add_finding(void *user, const fd_attribution_row *row) {
    search *s = user;
    fd_node_finding *first = &s->large[row->node->id];
    float error = *error_of(s, row);
    if (error <= s->most[row->node->id]) return;
    if (first->n_odd++ > 0) return;
    *first = fd_attribute_row(row, NULL);
    first->n_odd = 1;
    first->finding = first->finding == FD_FOUND_INHERITED ? FD_FOUND_BOTH : FD_FOUND_INTRODUCED;
    first->left = fd_row_left(row);
    first->usual = first->left / (double)error * fmin((double)s->usual[row->node->id], 1);
}

/* Of the rows of the node's kind, a quarter of which have less. */
static float usual_of_kind(const search *s, int32_t node, float *scratch) {
    int64_t n = 0;
    for (int32_t i = 0; i < s->graph->n_node; i++) {
        if (!fd_fault_same_kind(&s->graph->nodes[i], &s->graph->nodes[node])) continue;
        for (int32_t p = 0; p < s->n_pos; p++)
            if (s->error[(int64_t)i * s->n_pos + p] >= 0) scratch[n++] = s->error[(int64_t)i * s->n_pos + p];
    }
    qsort(scratch, (size_t)n, sizeof *scratch, fd_order_floats);
    return n ? scratch[n / 4] : INFINITY;
}

static fd_code pass(const fd_attribution_options *options, const fd_numerics_class *numerics, search *s,
                    void (*add)(void *, const fd_attribution_row *), fd_error *err) {
    fd_attribution_options how = *options;
    fd_attribution unused;
    how.numerics = numerics;
    how.wanted = s->wanted;
    how.on_row = add;
    how.rows_alone = true;
    how.progress = NULL;
    how.user = s;
    fd_code code = fd_attribute_errors(&how, &unused, err);
    fd_attribution_free(&unused);
    return code;
}

/* Nodes with a few rows that are too large; the others need no finding. */
static fd_code choose(search *s, bool *any, fd_error *err) {
    size_t n = (size_t)s->graph->n_node * (size_t)s->n_pos;
    float *scratch = malloc(sizeof *scratch * (n + 1));
    *any = false;
    if (!scratch) return fd_fail(err, FD_ERR_MEMORY, "sizes of errors: out of memory");
    for (int32_t i = 0; i < s->graph->n_node; i++) {
        int32_t n_large = 0;
        if (!s->wanted[i]) continue;
        s->usual[i] = usual_of_kind(s, i, scratch);
        const float most = s->far[i] ? FD_MOST_ERROR_LONG_SPAN : FD_MOST_ERROR;
        s->most[i] = fminf(most, fmaxf(most / 2, MANY_TIMES * s->usual[i]));
        for (int32_t p = 0; p < s->n_pos; p++) n_large += !(s->error[(int64_t)i * s->n_pos + p] <= s->most[i]);
        s->wanted[i] = n_large >= FEWEST_ROWS;
        *any |= s->wanted[i];
    }
    free(scratch);
    return FD_OK;
}

/* s->wanted is the caller's; s->large the result. */
static fd_code look(const fd_attribution_options *options, const fd_numerics_class *numerics, search *s,
                    fd_error *err) {
    size_t n_node = (size_t)options->graph->n_node, n = n_node * (size_t)options->n_pos;
    const fd_numerics_class typical = fd_numerics_class_typical(numerics);
    bool any;
    s->graph = options->graph;
    s->n_pos = options->n_pos;
    s->error = malloc(sizeof *s->error * n);
    s->usual = calloc(n_node, sizeof *s->usual);
    s->most = calloc(n_node, sizeof *s->most);
    s->far = calloc(n_node, sizeof *s->far);
    s->large = calloc(n_node, sizeof *s->large);
    if (!s->error || !s->usual || !s->most || !s->far || !s->large || !s->wanted)
        return fd_fail(err, FD_ERR_MEMORY, "sizes of errors of %zu nodes: out of memory", n_node);
    for (size_t i = 0; i < n; i++) s->error[i] = -1;
    FD_TRY(pass(options, numerics, s, add_error, err));
    FD_TRY(pass(options, &typical, s, add_typical, err));
    FD_TRY(choose(s, &any, err));
    return any ? pass(options, numerics, s, add_finding, err) : FD_OK;
}

static void search_free(search *s) {
    free(s->wanted);
    free(s->error);
    free(s->usual);
    free(s->most);
    free(s->far);
    free(s->large);
}

static void add_suspects(const search *s, fd_attribution *of) {
    for (int32_t i = 0; i < s->graph->n_node; i++) {
        const fd_node_finding *large = &s->large[i], *found = &of->introduced[i];
        bool earlier = found->finding == FD_FOUND_NOTHING || large->step < found->step;
        if (large->n_odd >= FEWEST_ROWS && earlier) of->suspect[i] = *large;
    }
}

fd_code fd_suspect_large_errors(const fd_attribution_options *options, fd_attribution *of, fd_error *err) {
    const fd_node *nodes = options->graph->nodes;
    fd_attribution_options how = *options;
    search s = {.wanted = calloc((size_t)options->graph->n_node, sizeof *s.wanted)};
    bool any = !of->found;
    how.sample = !of->found;
    for (int32_t i = 0; s.wanted && i < options->graph->n_node; i++) {
        s.wanted[i] = !of->found || (i < of->first.node && fd_fault_same_kind(&nodes[i], &nodes[of->first.node]));
        any |= s.wanted[i];
    }
    bool exact = of->numerics->exact || of->numerics->u_out < 0x1p-24;
    fd_code code = FD_OK;
    if (any && !exact && !fd_class_leaves_nothing(of->numerics)) {
        code = look(&how, of->numerics, &s, err);
        if (code == FD_OK) add_suspects(&s, of);
    }
    search_free(&s);
    return code;
}

fd_code fd_has_large_errors(const fd_attribution_options *options, const fd_numerics_class *numerics, int32_t node,
                            bool *yes, fd_error *err) {
    search s = {.wanted = calloc((size_t)options->graph->n_node, sizeof *s.wanted)};
    if (s.wanted) s.wanted[node] = true;
    fd_code code = look(options, numerics, &s, err);
    *yes = code == FD_OK && s.large[node].n_odd >= FEWEST_ROWS;
    search_free(&s);
    return code;
}
