#include "compare/attribute/local_errors.h"

#include <math.h>
#include <stdlib.h>

#include "base/order.h"
#include "compare/attribute/row_errors.h"
#include "compare/attribute/unrounded.h"
#include "compare/bounds/dot_inputs.h"
#include "faults/faults.h"

/* Of the middle row, in squares. Of 74 runs of transformers in bfloat16 and binary16 that were sound (llama and qwen2, eager and fused, six
 * caches and chunkings, norms, RoPE, softmax or the head in binary32) a tensor had at most 1.4 times as much, and of fewer rows 2.1: where
 * a few elements are large, as Q's with their bias, their roundings alone count. Sums of two rounded parts have 1.6 (with a bias 2.5), so
 * such an engine is another class. A norm rounds its result and hardly anything else: at most 1.1 and 1.2. GELU as a formula of tensors
 * (gpt2, phi, bloom), each rounded, has 1.7 to 2.4 times what it has as one operation; SiLU whose exponential, sum and quotient are (JAX on a CPU) 1.6 to 2.5. A table of blocks that is dequantised in binary16
 * (bounds/matmul.c) rounds numbers as large as its blocks' largest where one operation rounds the value: 7 and 9.5 times in MLX; simulated, 4 to 16 times
 * of 4, 5 and 8 bits by how the values are distributed (uniform, normal, Laplace). */
static const struct most {
    double of_many, of_few;
} most = {1.6, 3.0}, most_of_norm = {1.3, 1.6}, most_of_formula = {3.2, 5.0}, most_of_table = {24, 32};

/* In rows of few elements, a router's of 4 experts, the middle row is itself a matter of chance: the logarithm of the ratio of two sums
 * of w squares has a standard deviation of about 2/√w, the middle of n of them 1.25/√n of that. This is four of these: of
 * transformers' sound runs, 36 architectures, routers' logits and weights in rows of 2 to 4 elements were beyond `most`. A norm's errors are as
 * large as its values: where a few weights are large, the row has hardly more elements than these (stories260K's last norm 7 of 64). */
static double most_by_chance(int32_t n_row, double width) {
    return exp(4 * 1.25 * 2 / sqrt((double)n_row * width));
}

/* So many elements of one size have as much of the squares; the mean of rows [first, n_pos). */
static double elements_that_count(const fd_row_errors *of, int32_t node, int32_t first) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t p = first; p < of->n_pos; p++) {
        const fd_row_error *row = fd_row_errors_of(of, node, p);
        if (row->error < 0 || !(row->fourth > 0)) continue;
        sum += row->size / row->fourth * row->size;
        n++;
    }
    return n ? sum / n : 1;
}

enum { FEWEST_ROWS = 4, MANY_ROWS = 12, N_TAIL = 4 };

/* Rows [first, n_pos) of a node: the middle one of how many times as much the candidate's error is, of two the smaller. */
static double look(const fd_row_errors *here, const fd_row_errors *there, int32_t node, int32_t first, double *times,
                   fd_local_excess *out) {
    fd_row_error c = {0}, e = {0};
    *out = (fd_local_excess){.node = node, .first = first};
    for (int32_t p = first; p < here->n_pos; p++) {
        const fd_row_error *a = fd_row_errors_of(here, node, p), *b = fd_row_errors_of(there, node, p);
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

/* Of several operations, each of which an engine may round. */
static bool is_formula(const fd_node *node) {
    return node->op == FD_OP_GELU || node->op == FD_OP_SILU || node->op == FD_OP_SILU_MUL;
}

static bool is_table_of_blocks(const fd_attribution_options *o, int32_t node) {
    const fd_node *n = &o->graph->nodes[node];
    return n->op == FD_OP_EMBED && o->numerics->u_out == fd_dtype_roundoff(FD_F16) &&
           fd_dot_is_of_integers(&o->graph->weights[n->weight[0]]);
}

static void find_first(const fd_attribution_options *o, const fd_row_errors *here, const fd_row_errors *there,
                       double *times, fd_local_excess *out) {
    int32_t first[N_TAIL];
    list_tails(o, first);
    *out = (fd_local_excess){.node = -1};
    for (int32_t i = 0; i < o->graph->n_node; i++)
        for (int k = 0; k < N_TAIL; k++) {
            fd_local_excess x;
            const double middle = look(here, there, i, first[k], times, &x);
            if (x.n < FEWEST_ROWS) continue;
            const struct most *of = is_norm_alone(o, i)               ? &most_of_norm
                                    : is_table_of_blocks(o, i)        ? &most_of_table
                                    : is_formula(&o->graph->nodes[i]) ? &most_of_formula
                                                                      : &most;
            const double limit = x.n >= MANY_ROWS ? of->of_many : of->of_few;
            const double width = is_norm_alone(o, i)
                                     ? elements_that_count(here, i, first[k])
                                     : (double)fd_node_elements(&o->graph->nodes[i], first[k] + x.n / 2 + 1);
            if (middle <= fmax(limit, most_by_chance(x.n, width))) continue;
            *out = x;
            return;
        }
}

/* The first that has too much whatever its inputs were before they were rounded. */
static fd_code find_unexplained(const fd_attribution_options *o, fd_row_errors *here, const fd_row_errors *there,
                                double *times, fd_local_excess *out, fd_error *err) {
    const fd_graph *graph = o->graph;
    uint8_t *asked = calloc((size_t)graph->n_node + 1, sizeof *asked);
    fd_unrounded *unrounded = NULL;
    const bool can_ask = fd_unrounded_can_ask(o);
    int32_t first = -1;
    fd_code code = asked ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "errors of nodes: out of memory");
    for (find_first(o, here, there, times, out); code == FD_OK && out->node >= 0 && can_ask && asked[out->node] < 2;) {
        const bool again = asked[out->node] > 0;
        const int32_t node = out->node;
        bool shown = false;
        if (!unrounded) code = fd_unrounded_open(o, &unrounded, err);
        if (code == FD_OK)
            code = again ? fd_unrounded_stream(unrounded, out->node, here, &shown, err)
                         : fd_unrounded_inputs(unrounded, out->node, here, &shown, err);
        for (int32_t i = 0; i < graph->n_node; i++)
            asked[i] += fd_fault_same_kind(&graph->nodes[i], &graph->nodes[node]);
        if (shown && (first < 0 || node < first)) first = node;
        find_first(o, here, there, times, out);
    }
    out->unrounded = first;
    fd_unrounded_free(unrounded);
    free(asked);
    return code;
}

fd_code fd_find_local_excess(const fd_attribution_options *candidate, const fd_trace *emulated, fd_local_excess *out,
                             fd_error *err) {
    const fd_graph *graph = candidate->graph;
    fd_attribution_options other = *candidate;
    fd_row_errors here = {0}, there = {0};
    bool *ignored = calloc((size_t)graph->n_node + 1, sizeof *ignored);
    double *times = malloc(sizeof *times * (size_t)candidate->n_pos);
    fd_code code = ignored && times ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "errors of nodes: out of memory");
    for (int32_t i = 0; i < graph->n_node && code == FD_OK; i++)
        ignored[i] = !fd_trace_has_data(candidate->cand, graph->nodes[i].name);
    other.cand = emulated;
    other.ignored = ignored;
    if (code == FD_OK) code = fd_row_errors_measure(candidate, &here, err);
    if (code == FD_OK) code = fd_row_errors_measure(&other, &there, err);
    if (code == FD_OK) code = find_unexplained(candidate, &here, &there, times, out, err);
    fd_row_errors_free(&here);
    fd_row_errors_free(&there);
    free(ignored);
    free(times);
    return code;
}
