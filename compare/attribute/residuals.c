#include "compare/attribute/residuals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "compare/bounds/dot_inputs.h"

/* Nodes that are computed through an unrecorded cache. */
static void find_cached(const fd_graph *graph, const bool *whole, bool *cached) {
    for (int32_t i = 0; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t in = graph->nodes[i].input[k];
            if (in < 0 || whole[in]) continue;
            cached[i] |= cached[in] || graph->nodes[in].op == FD_OP_KV_WRITE;
        }
}

/* Nodes that are computed through an unrecorded choice of experts. */
static void find_routed(const fd_graph *graph, const bool *whole, bool *routed) {
    for (int32_t i = 0; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t in = graph->nodes[i].input[k];
            if (in < 0 || whole[in]) continue;
            routed[i] |= routed[in] || graph->nodes[in].op == FD_OP_TOP_K;
        }
}

/* Nodes that are computed through logits or a router whose factors the class may round. */
static void find_unsure(const fd_graph *graph, const fd_numerics_class *c, const bool *whole, bool *unsure) {
    for (int32_t i = 0; i < graph->n_node && c->u_factor > 0; i++) {
        const fd_node *node = &graph->nodes[i];
        unsure[i] = node->op == FD_OP_MATMUL && !fd_dot_repeats_factors(c, node, &graph->weights[node->weight[0]]);
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t in = node->input[k];
            if (in >= 0 && !whole[in]) unsure[i] |= unsure[in];
        }
    }
}

/* 2^-11: one element of K in binary16, or of a product's input, leaves 3·10^-4 of a layer's output at most. In bfloat16 eight times
 * that. Where products read int8 blocks, one such element moves the next product's inputs over to other steps: of rows of 512, nine
 * thousandths were left, in all rows from the third on. 2^-6. */
#define MUCH_OF_BFLOAT16 256.0f
#define MUCH_OF_BLOCKS   1024.0f

static float much_of(const fd_numerics_class *c, const fd_graph *graph) {
    float much = fd_class_makes_blocks(c, graph) ? MUCH_OF_BLOCKS : FD_RESIDUAL_MUCH;
    for (int32_t i = 0; i < graph->n_node && much <= FD_RESIDUAL_MUCH; i++) {
        const fd_node *node = &graph->nodes[i];
        const fd_weight *weight = node->weight[0] < 0 ? NULL : &graph->weights[node->weight[0]];
        if (weight && fd_dot_type_of(c, node, weight, 0) == FD_DOT_BF16) much = MUCH_OF_BFLOAT16;
    }
    return much;
}

/* Positions of the prompt: of all steps before the first one of a single token, where such a step comes after the first;
 * else of the first step. */
static int32_t prompt_of(const fd_trace *trace) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    for (int32_t s = 1; s < fd_trace_n_step(trace); s++)
        if (steps[s].n_pos == 1) return steps[s].pos0;
    return fd_trace_n_step(trace) > 0 ? steps[0].n_pos : 0;
}

fd_code fd_residuals_open(const fd_attribution_options *options, const bool *whole, fd_residuals *out, fd_error *err) {
    const fd_graph *graph = options->graph;
    const fd_numerics_class *numerics = options->numerics;
    const fd_trace *trace = options->cand;
    const int32_t n_pos = options->n_pos;
    size_t n = (size_t)graph->n_node * (size_t)n_pos;
    *out = (fd_residuals){.graph = graph, .n_pos = n_pos, .shown_at = options->shown_at, .draws = options->draws};
    out->n_first = prompt_of(trace);
    out->left = malloc(sizeof *out->left * (n + 1));
    out->far = calloc(n + 1, sizeof *out->far);
    out->begins = calloc((size_t)n_pos + 1, sizeof *out->begins);
    out->odd = calloc((size_t)graph->n_node * FD_FIRST_COUNT, sizeof *out->odd);
    out->cached = calloc((size_t)graph->n_node, sizeof *out->cached);
    out->routed = calloc((size_t)graph->n_node, sizeof *out->routed);
    out->unsure = calloc((size_t)graph->n_node, sizeof *out->unsure);
    out->n_room = calloc((size_t)graph->n_node, sizeof *out->n_room);
    out->n_moved = calloc((size_t)graph->n_node, sizeof *out->n_moved);
    if (!out->left || !out->far || !out->begins || !out->odd || !out->cached || !out->routed || !out->unsure ||
        !out->n_room || !out->n_moved)
        return fd_fail(err, FD_ERR_MEMORY, "residuals of %d nodes: out of memory", graph->n_node);
    for (size_t i = 0; i < n; i++) out->left[i] = -1;
    for (int32_t s = 1; s < fd_trace_n_step(trace); s++)
        if (fd_trace_steps(trace)[s].pos0 < n_pos) out->begins[fd_trace_steps(trace)[s].pos0] = true;
    if (fd_class_rounds_to_steps(numerics)) find_cached(graph, whole, out->cached);
    find_routed(graph, whole, out->routed);
    find_unsure(graph, numerics, whole, out->unsure);
    out->much = much_of(numerics, graph);
    out->blocks = fd_class_makes_blocks(numerics, graph);
    return FD_OK;
}

void fd_residuals_free(fd_residuals *r) {
    free(r->left);
    free(r->begins);
    free(r->far);
    free(r->odd);
    free(r->cached);
    free(r->routed);
    free(r->unsure);
    free(r->n_room);
    free(r->n_moved);
    *r = (fd_residuals){0};
}

double fd_row_left(const fd_attribution_row *row) {
    double left = 0, size = 0;
    for (int64_t i = 0; i < row->stride; i++) {
        double c = row->candidate[i], y = row->replayed[i];
        if (row->node->over_kv && i % row->n_kv > row->pos) continue;
        if (isfinite(c) != isfinite(y)) return INFINITY;
        if (!isfinite(c)) continue;
        left += (c - y) * (c - y);
        size += y * y;
    }
    return left > 0 ? sqrt(left / size) : 0;
}

static double binary32_leaves(const fd_attribution_row *row) {
    return FD_RESIDUAL_ODD + FD_RESIDUAL_TURN * row->pos;
}

double fd_row_oddness(const fd_attribution_row *row) {
    return fd_row_left(row) / fmax(fmax(binary32_leaves(row), row->steps), row->sums);
}

/* Int8 blocks, all of them rounded another way, leave 2 % of a layer, 3.5 of one of 256 elements in decode; of layers one after the other that
 * by the root of their number: of logits behind four, 4 %. */
#define BEYOND_STEPS 0.045
#define ODD          1.000001

static double beyond_steps(const fd_residuals *r, const fd_attribution_row *row) {
    const int32_t first = r->graph->nodes[row->span_first].layer, last = row->node->layer,
                  end = last < 0 ? r->graph->hparams.n_layer : last + 1, n_layer = end - (first < 0 ? 0 : first);
    return BEYOND_STEPS * (r->blocks && n_layer > 1 ? sqrt(n_layer) : 1);
}

/* More is left than other engines of the class leave, or, where none were drawn, than any steps do. */
static bool is_far(const fd_residuals *r, const fd_attribution_row *row, fd_drawn drawn) {
    if (drawn != FD_DRAWN_NOT) return drawn == FD_DRAWN_BEYOND;
    return !(fd_row_oddness(row) <= 1) && !(fd_row_left(row) <= beyond_steps(r, row));
}

static void note_first(fd_node_finding *first, const fd_attribution_row *row, const fd_node_finding *finding) {
    if (first->finding != FD_FOUND_NOTHING) return;
    *first = *finding;
    first->finding = finding->finding == FD_FOUND_INHERITED ? FD_FOUND_BOTH : FD_FOUND_INTRODUCED;
    first->left = fd_row_left(row);
}

bool fd_residuals_add(fd_residuals *r, const fd_attribution_row *row, const fd_node_finding *finding) {
    int32_t id = row->node->id;
    if (row->span_first == id || row->node->op == FD_OP_TOP_K || row->pos >= r->n_pos) return false;
    if (r->unsure[id]) return false;
    const fd_drawn drawn = fd_draws_of(r->draws, id, row->pos);
    const bool has_room = fd_row_left(row) > binary32_leaves(row), far = is_far(r, row, drawn);
    double oddness = fd_row_oddness(row);
    if (drawn >= FD_DRAWN_APART) oddness = fmax(oddness, ODD); /* though some steps leave as much */
    r->left[(int64_t)id * r->n_pos + row->pos] = (float)oddness;
    r->far[(int64_t)id * r->n_pos + row->pos] = far;
    r->n_moved[id] += has_room;
    r->n_room[id] += has_room ? 1 : -1;
    if (oddness >= FD_RESIDUAL_LEAST) note_first(&r->odd[id * FD_FIRST_COUNT + FD_FIRST_NOTED], row, finding);
    if (oddness <= 1) return true;
    note_first(&r->odd[id * FD_FIRST_COUNT + FD_FIRST_ODD], row, finding);
    if (far || drawn >= FD_DRAWN_APART) note_first(&r->odd[id * FD_FIRST_COUNT + FD_FIRST_FAR], row, finding);
    if (row->pos >= r->n_first) note_first(&r->odd[id * FD_FIRST_COUNT + FD_FIRST_LATE], row, finding);
    return false;
}

double fd_residual_median(float *left, int32_t n) {
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++)
        if (left[i] >= 0) left[m++] = left[i];
    qsort(left, (size_t)m, sizeof *left, fd_order_floats);
    return m ? (double)left[m / 2] : -1;
}
