/* An op run under a hypothesis: its rows, and samples of its roundings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/column.h"
#include "compare/evaluate/workbench.h"
#include "compare/hypothesis/past.h"
#include "compare/products/run_op.h"
#include "compare/replay/samples.h"
#include "model/gguf/quant.h"

/* The first weight in binary32, which has the same values and so gives the same bits, or those that the class rounds it to;
 * false: it stays as it is. */
static bool widen_weight(fd_workbench *bench, const fd_node *node, const fd_weight *weight, fd_weight *out) {
    const fd_graph *graph = bench->request->args.graph;
    int32_t id = node->weight[0];
    if (id < 0 || weight->data != graph->weights[id].data) return false;
    const fd_numerics_class *c = bench->request->numerics;
    fd_dot_type type = c && fd_dot_repeats_factors(c, node, weight) ? fd_dot_type_of(c, node, weight, 0) : FD_DOT_AS_IS;
    if (c && c->int8_rows && !c->int8_weights) type = FD_DOT_AS_IS;
    if (type == FD_DOT_AS_IS && (node->override || node->op != FD_OP_MATMUL || weight->dtype == FD_F32)) return false;
    /* these are decoded faster than four bytes an element come from memory */
    if (type == FD_DOT_AS_IS && (weight->dtype == FD_Q8_0 || weight->dtype == FD_F16)) return false;
    int64_t n = weight->n_row * weight->n_col;
    if (!bench->wide[id] && n <= bench->wide_left && fd_can_dequantize(weight->dtype)) {
        bench->wide[id] = malloc(sizeof **bench->wide * (size_t)n);
        if (!bench->wide[id]) return false;
        bench->wide_left -= n;
        fd_dot_widen_weight(type, weight, bench->wide[id]);
    }
    *out = *weight;
    out->dtype = FD_F32;
    out->data = bench->wide[id];
    out->bytes = sizeof **bench->wide * (uint64_t)n;
    return bench->wide[id] != NULL;
}

/* A hypothesis is about the step in question: rows of earlier steps, so many, are as they should be, at every node that
 * caches are made of. */
static int32_t known_rows(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_explain_request *r = ev->bench->request;
    int32_t id = args->node->id;
    bool known = ev->bench->feeds_cache[id] && args->pos0 == r->args.pos0 && !args->node->override;
    known &= fd_bench_keeps_context(ev) && ev->bench->plain.works[id].v.state == FD_VARIANT_COMPUTED;
    return known ? r->n_context : 0;
}

/* What has to be computed: from the row before the first judged one on, where nothing else is read; else the rows after
 * those of earlier steps, which are put there. */
static fd_op_args late_rows(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_explain_request *r = ev->bench->request;
    fd_op_args late = *args;
    bool feeds = ev->bench->feeds_cache[args->node->id];
    int32_t n = feeds ? known_rows(ev, args) : r->n_unjudged - 1;
    if (n <= 0 || args->pos0 != r->args.pos0) return late;
    if (feeds)
        memcpy(args->out, ev->bench->plain.works[args->node->id].v.memory,
               sizeof(float) * (size_t)(n * fd_node_row_stride(args->node, args->n_kv)));
    late.pos0 += n;
    late.n_pos -= n;
    late.tokens += n;
    if (args->node->op != FD_OP_KV_WRITE)
        late.out = (float *)args->out + n * fd_node_row_stride(args->node, args->n_kv);
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        const fd_node *in = args->node->input[k] < 0 ? NULL : &args->graph->nodes[args->node->input[k]];
        if (in && in->op != FD_OP_KV_WRITE)
            late.in[k] = (const float *)args->in[k] + n * fd_node_row_stride(in, args->n_kv);
    }
    return late;
}

bool fd_bench_keeps_context(const fd_evaluation *ev) {
    bool lasting = ev->h.guess == FD_GUESS_FAULT && fd_fault_at(ev->h.fault)->lasting;
    return ev != &ev->bench->plain && !lasting;
}

bool fd_bench_writes_late(const fd_evaluation *ev, const fd_node *node) {
    return node->op == FD_OP_KV_WRITE && ev->bench->request->n_context > 0 && fd_bench_keeps_context(ev) &&
           ev->works[node->id].edited && !fd_hypothesis_changes_output(&ev->h, node);
}

/* Rows of earlier steps as they should be, the others written over them. */
static fd_op_args written_late(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_variant *plain = &ev->bench->plain.works[args->node->id].v;
    int32_t n = ev->bench->request->n_context;
    int64_t width = fd_node_row_stride(args->node, args->n_kv);
    fd_op_args late = *args;
    if (plain->state != FD_VARIANT_COMPUTED) return late;
    memcpy(args->out, plain->memory, sizeof(float) * (size_t)(n * width));
    late.pos0 += n;
    late.n_pos -= n;
    late.batch_offset += n;
    late.in[0] = (const float *)args->in[0] + n * width;
    return late;
}

/* A hypothesis' own weight, rounded as the class rounds the file's; without data: it stays. Owned by the caller. */
static fd_weight round_own_weight(const fd_evaluation *ev, const fd_node *node, const fd_weight *weight) {
    const fd_explain_request *r = ev->bench->request;
    fd_weight rounded = {0};
    fd_error unused;
    const bool own = weight && weight->data != r->args.graph->weights[node->weight[0]].data;
    if (own && !node->override && r->numerics && fd_can_dequantize(weight->dtype) &&
        fd_dot_round_weight(r->numerics, node, weight, &rounded, &unused) != FD_OK)
        rounded.data = NULL; /* out of memory: as it is */
    return rounded;
}

void fd_bench_run(const fd_evaluation *ev, fd_op_args *args, const float *const *x, float *to) {
    const fd_weight *own = args->weight[0];
    fd_weight wide;
    const fd_weight rounded = round_own_weight(ev, args->node, own);
    if (rounded.data)
        args->weight[0] = &rounded;
    else if (widen_weight(ev->bench, args->node, own, &wide))
        args->weight[0] = &wide;
    for (int k = 0; k < FD_MAX_INPUTS; k++) args->in[k] = args->node->input[k] >= 0 ? x[k] : NULL;
    args->out = to;
    fd_op_args late = *args;
    if (fd_bench_writes_late(ev, args->node))
        late = written_late(ev, args);
    else if (!args->node->override)
        late = late_rows(ev, args);
    if (fd_bench_runs_otherwise(ev, args->node))
        fd_bench_run_otherwise(ev, &late);
    else if (args->node->override)
        args->node->override(&late);
    else if (args->node->op == FD_OP_MATMUL && !rounded.data)
        fd_bench_multiply(ev->bench->request, &late, own);
    else
        fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, &late);
    args->weight[0] = own;
    free((void *)rounded.data);
}

/* A binary16 cache of a class whose roundings are repeated. */
void fd_bench_round_cache(const fd_explain_request *r, const fd_op_args *args, float *rows) {
    const fd_numerics_class *c = r->numerics;
    if (c && fd_class_repeats_cache(c) && fd_node_is_kv_cache(args->node))
        fd_dot_round(FD_DOT_F16, rows, args->n_pos, fd_node_row_stride(args->node, args->n_kv));
}

/* The bias of a product, a convolution or a norm in binary32, malloc'ed; NULL: it has none as wide as its rows, or nothing asks for it. */
static float *bias_of(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_op op = args->node->op;
    const bool adds_bias = op == FD_OP_MATMUL || op == FD_OP_CONV || op == FD_OP_LAYER_NORM;
    const fd_weight *bias = adds_bias ? args->weight[1] : NULL;
    if (bias && bias->n_row * bias->n_col != fd_node_width(args->node)) bias = NULL;
    float *rows = bias && ev->h.before_bias ? malloc(sizeof *rows * (size_t)(bias->n_row * bias->n_col)) : NULL;
    if (rows) fd_dot_widen_weight(FD_DOT_AS_IS, bias, rows);
    return rows;
}

/* The column of a product's weight that FD_OWN_INPUT_ELEMENT is about, malloc'ed; NULL: nothing asks for it. */
static float *column_of(const fd_evaluation *ev, const fd_op_args *args) {
    const bool asked =
        ev->h.guess == FD_GUESS_OWN && ev->h.which == FD_OWN_INPUT_ELEMENT && ev->h.node == args->node->id;
    return asked && args->weight[0] ? fd_column_of(args->weight[0], ev->h.first) : NULL;
}

/* Bounds and rows as the hypothesis leaves them. */
fd_code fd_bench_change_output(const fd_evaluation *ev, const fd_op_args *args, float *rows, double *tau,
                               fd_error *err) {
    int64_t width = fd_node_row_stride(args->node, args->n_kv), n = width * args->n_pos;
    if (!fd_hypothesis_changes_output(&ev->h, args->node)) return FD_OK;
    const fd_explain_request *r = ev->bench->request;
    const fd_node *other = ev->h.guess == FD_GUESS_COPY ? &args->graph->nodes[ev->h.other] : args->node;
    const int32_t past = fd_hypothesis_past_of(&ev->h, args->graph, args->node);
    const float *theirs = NULL;
    if (past >= 0) {
        fd_work *w = NULL;
        other = &args->graph->nodes[past];
        theirs = fd_bench_recorded(r, past);
        if (!theirs) FD_TRY(fd_bench_unrecorded(&ev->bench->plain, past, &w, err));
        if (w) theirs = w->v.memory;
    }
    float *bias = bias_of(ev, args), *column = column_of(ev, args);
    fd_output_rows out = {.rows = rows,
                          .pos0 = args->pos0,
                          .n_earlier = r->n_earlier,
                          .n_unjudged = r->n_unjudged,
                          .step_first = r->args.pos0 - r->args.batch_offset,
                          .step_end = r->args.row_by_row  ? r->args.pos0 - r->args.batch_offset
                                      : r->args.batch_end ? r->args.batch_end
                                                          : r->args.n_kv,
                          .n_row = args->n_pos,
                          .width = width,
                          .bias = bias,
                          .column = column,
                          .candidate = args->node->id == r->args.node->id ? r->output
                                       : ev->h.guess == FD_GUESS_CACHE    ? fd_bench_recorded(r, args->node->id)
                                                                          : NULL,
                          .other = theirs                ? theirs
                                   : other != args->node ? fd_bench_recorded(r, other->id)
                                                         : NULL,
                          .in = {args->in[0], args->in[1]},
                          .other_width = fd_node_row_stride(other, args->n_kv)};
    const bool own = args->node->id == r->args.node->id && args->pos0 == r->args.pos0;
    if (own && ev->h.guess == FD_GUESS_ROWS && r->before) out.before = r->before(r->user, args->node->id);
    if (fd_reads_kv_cache(args->node)) out.n_kv_head = args->graph->nodes[args->node->input[1]].shape[0];
    if (args->node->op == FD_OP_ATTN_MIX) {
        out.weights = args->in[0];
        out.values = args->in[1];
        const fd_node *softmax = &args->graph->nodes[args->node->input[0]];
        out.weights_known = fd_bench_recorded(r, softmax->id) || fd_bench_recorded(r, softmax->input[0]);
    }
    out.scratch = malloc(2 * sizeof *out.scratch * (size_t)n);
    if (out.scratch && tau) fd_hypothesis_output_bounds(&ev->h, args->node, &out, tau);
    if (out.scratch) fd_hypothesis_output_rows(&ev->h, args->node, &out);
    const bool done = out.scratch != NULL;
    free(out.scratch);
    free(bias);
    free(column);
    return done ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", args->node->name);
}

/* Adds how far the samples went, as replay does. */
static fd_code add_spread(const fd_op_args *args, const fd_variant *v, float *const sample[FD_N_SAMPLE], int64_t before,
                          fd_error *err) {
    int64_t stride = fd_node_row_stride(args->node, args->n_kv), n = args->n_pos * stride;
    double *squares = calloc((size_t)n, sizeof *squares);
    if (!squares) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", args->node->name);
    for (int d = 0; d < FD_N_SAMPLE; d++) fd_samples_add_squares_f32(sample[d] + before, v->rows, n, squares);
    fd_samples_add_spread(squares, n, fd_samples_slice(args->node, stride), FD_N_SAMPLE, v->tau);
    free(squares);
    return FD_OK;
}

/* Samples of the node; kept ones are rounded by the node itself, too. */
fd_code fd_bench_sample(const fd_evaluation *ev, fd_op_args *args, const fd_op_inputs *in, bool keep, int64_t size,
                        fd_variant *v, float *sample[FD_N_SAMPLE], fd_error *err) {
    int64_t before = v->rows - v->memory, n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    float *made[FD_N_SAMPLE] = {NULL};
    fd_code code = FD_OK;
    for (int d = 0; d < FD_N_SAMPLE && code == FD_OK; d++) {
        made[d] = calloc((size_t)size, sizeof **made);
        if (!made[d]) {
            code = fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", args->node->name);
        } else if (in->any_sample) {
            fd_bench_run(ev, args, in->sample[d], made[d]);
            if (args->node->op == FD_OP_KV_WRITE) fd_bench_round_cache(ev->bench->request, args, made[d] + before);
            code = fd_bench_change_output(ev, args, made[d] + before, NULL, err);
        } else {
            memcpy(made[d], v->memory, sizeof **made * (size_t)size);
        }
        const float *known = ev->bench->plain.works[args->node->id].sample[d];
        int64_t first = in->any_sample && known ? known_rows(ev, args) * fd_node_row_stride(args->node, args->n_kv) : 0;
        if (code == FD_OK && first > 0) memcpy(made[d], known, sizeof **made * (size_t)first);
        if (keep && code == FD_OK && args->node->op != FD_OP_TOP_K)
            fd_samples_move(made[d] + before + first, v->tau + first, n - first, args->node->id, first, d);
    }
    if (code == FD_OK && in->any_sample) code = add_spread(args, v, made, before, err);
    for (int d = 0; d < FD_N_SAMPLE; d++) {
        if (keep && code == FD_OK)
            sample[d] = made[d];
        else
            free(made[d]);
    }
    return code;
}
