#include "compare/replay/local_errors.h"

#include <math.h>
#include <stdlib.h>

#include "base/order.h"

/* Of the middle row, in squares. Of 74 runs of transformers in bfloat16 and binary16 that were sound (llama and qwen2, eager and fused, six
 * caches and chunkings, norms, RoPE, softmax or the head in binary32) a tensor had at most 1.4 times as much, and of fewer rows 2.1: where
 * a few elements are large, as Q's with their bias, their roundings alone count. Sums of two rounded parts have 1.6 (with a bias 2.5), so
 * such an engine is another class. A norm rounds its result and hardly anything else: at most 1.1 and 1.2. */
static const struct { double of_many, of_few; } most = {1.6, 3.0}, most_of_norm = {1.3, 1.6};

enum { FEWEST_ROWS = 4, MANY_ROWS = 12, N_TAIL = 4 };

typedef struct sums {
    double error, size; /* Σ of squares, of one row; error < 0: not judged */
} sums;

typedef struct table {
    int32_t n_pos;
    sums *row; /* [n_node, n_pos]; owned */
} table;

static void add_row(void *user, const fd_attribution_row *row) {
    table *t = user;
    sums s = {0};
    for (int64_t i = 0; i < row->stride; i++) {
        const double c = row->candidate[i], y = row->replayed[i];
        if (isinf(c) && isinf(y)) continue; /* masked scores */
        s.error += (c - y) * (c - y);
        s.size += y * y;
    }
    if (isfinite(s.error) && isfinite(s.size) && s.size > 0 && row->node->op != FD_OP_TOP_K)
        t->row[(int64_t)row->node->id * t->n_pos + row->pos] = s;
}

static fd_code measure(const fd_attribution_options *options, table *t, fd_error *err) {
    fd_attribution_options how = *options;
    fd_attribution unused;
    const size_t n = (size_t)how.graph->n_node * (size_t)how.n_pos;
    t->n_pos = how.n_pos;
    t->row = malloc(sizeof *t->row * n);
    if (!t->row) return fd_fail(err, FD_ERR_MEMORY, "errors of %d nodes: out of memory", how.graph->n_node);
    for (size_t i = 0; i < n; i++) t->row[i] = (sums){.error = -1};
    how.on_row = add_row;
    how.user = t;
    how.progress = NULL;
    how.rows_alone = how.values_alone = true;
    const fd_code code = fd_attribute_errors(&how, &unused, err);
    fd_attribution_free(&unused);
    return code;
}

/* Rows [first, n_pos) of a node: the middle one of how many times as much the candidate's error is, of two the smaller. */
static double look(const table *here, const table *there, int32_t node, int32_t first, double *times,
                   fd_local_excess *out) {
    sums c = {0}, e = {0};
    *out = (fd_local_excess){.node = node, .first = first};
    for (int32_t p = first; p < here->n_pos; p++) {
        const sums *a = &here->row[(int64_t)node * here->n_pos + p], *b = &there->row[(int64_t)node * here->n_pos + p];
        if (a->error < 0 || b->error < 0) continue;
        times[out->n++] = b->error > 0 ? a->error / b->error : a->error > 0 ? INFINITY : 0;
        c.error += a->error, c.size += a->size, e.error += b->error, e.size += b->size;
    }
    if (out->n < FEWEST_ROWS) return 0;
    qsort(times, (size_t)out->n, sizeof *times, fd_order_doubles);
    out->here = c.error / c.size;
    out->there = e.error / e.size;
    return times[(out->n - 1) / 2];
}

/* Rows that have errors of their own in a bug of decode, or from a position on. */
static void list_tails(const fd_attribution_options *o, int32_t first[N_TAIL]) {
    first[0] = 0;
    first[1] = fd_trace_steps(o->cand)[0].n_pos;
    first[2] = o->n_pos / 2;
    first[3] = o->n_pos - o->n_pos / 4;
}

static bool is_norm_alone(const fd_attribution_options *o, int32_t node) {
    const fd_node *n = &o->graph->nodes[node];
    return fd_node_is_norm(n) && n->input[0] >= 0 && fd_trace_has_data(o->cand, o->graph->nodes[n->input[0]].name);
}

static void find_first(const fd_attribution_options *o, const table *here, const table *there, double *times,
                       fd_local_excess *out) {
    int32_t first[N_TAIL];
    list_tails(o, first);
    *out = (fd_local_excess){.node = -1};
    for (int32_t i = 0; i < o->graph->n_node; i++)
        for (int k = 0; k < N_TAIL; k++) {
            fd_local_excess x;
            const double middle = look(here, there, i, first[k], times, &x);
            const bool many = x.n >= MANY_ROWS, norm = is_norm_alone(o, i);
            const double of_norm = many ? most_of_norm.of_many : most_of_norm.of_few;
            if (middle <= (norm ? of_norm : many ? most.of_many : most.of_few)) continue;
            *out = x;
            return;
        }
}

fd_code fd_find_local_excess(const fd_attribution_options *candidate, const fd_trace *emulated, fd_local_excess *out,
                             fd_error *err) {
    const fd_graph *graph = candidate->graph;
    fd_attribution_options other = *candidate;
    table here = {0}, there = {0};
    bool *ignored = calloc((size_t)graph->n_node + 1, sizeof *ignored);
    double *times = malloc(sizeof *times * (size_t)candidate->n_pos);
    fd_code code = ignored && times ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "errors of nodes: out of memory");
    for (int32_t i = 0; i < graph->n_node && code == FD_OK; i++)
        ignored[i] = !fd_trace_has_data(candidate->cand, graph->nodes[i].name);
    other.cand = emulated;
    other.ignored = ignored;
    if (code == FD_OK) code = measure(candidate, &here, err);
    if (code == FD_OK) code = measure(&other, &there, err);
    if (code == FD_OK) find_first(candidate, &here, &there, times, out);
    free(here.row);
    free(there.row);
    free(ignored);
    free(times);
    return code;
}
