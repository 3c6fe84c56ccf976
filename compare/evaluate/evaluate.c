#include "compare/evaluate/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/evaluate/workbench.h"

/* An unrecorded node that another reads. *found NULL: it cannot be computed. */
fd_code fd_bench_unrecorded(fd_evaluation *ev, int32_t id, fd_work **found, fd_error *err) {
    bool changed = true;
    *found = NULL;
    if (!fd_bench_can_compute(ev->bench->request, &ev->bench->request->args.graph->nodes[id])) return FD_OK;
    if (ev != &ev->bench->plain) FD_TRY(fd_bench_touches(ev, id, &changed, err));
    if (!changed) ev = &ev->bench->plain;
    fd_work *w = &ev->works[id];
    if (w->v.state == FD_VARIANT_UNCONCERNED) FD_TRY(fd_bench_compute(ev, id, true, &w->v, w->sample, err));
    if (w->v.state == FD_VARIANT_COMPUTED) *found = w;
    return FD_OK;
}

/* A branch that is added twice is added one by one: the sum in between is rounded, too, and may be larger. */
static void allow_partial_sums(const fd_evaluation *ev, const fd_op_args *args, const float *x, double *tau) {
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    double u = 2 * ev->bench->request->numerics->u_op;
    for (int64_t i = 0; i < n; i++) tau[i] += u * fabs((double)x[i]);
}

/* Rows before the step in question, or before the hypothesis holds, are as they should be, and so are their samples. */
static fd_code keep_context(fd_evaluation *ev, const fd_op_args *args, fd_variant *v, float *sample[FD_N_SAMPLE],
                            fd_error *err) {
    int32_t id = args->node->id;
    const fd_explain_request *r = ev->bench->request;
    int32_t n_kept = fd_hypothesis_changes_output(&ev->h, args->node) ? r->n_earlier : r->n_context;
    if (ev->h.since - args->pos0 > n_kept) n_kept = ev->h.since - args->pos0;
    if (n_kept > args->n_pos) n_kept = args->n_pos;
    int64_t n = n_kept * fd_node_row_stride(args->node, args->n_kv), before = v->rows - v->memory;
    bool kept = fd_bench_keeps_context(ev) && ev->works[id].edited && !fd_bench_writes_late(ev, args->node);
    fd_work *w = NULL;
    if (n > 0 && kept) FD_TRY(fd_bench_unrecorded(&ev->bench->plain, id, &w, err));
    if (!w) return FD_OK;
    memcpy(v->rows, w->v.rows, sizeof *v->rows * (size_t)n);
    for (int d = 0; d < FD_N_SAMPLE && sample && sample[d]; d++)
        memcpy(sample[d] + before, w->sample[d] ? w->sample[d] + before : w->v.rows, sizeof *v->rows * (size_t)n);
    if (v->tau && w->v.tau) memcpy(v->tau, w->v.tau, sizeof *v->tau * (size_t)n);
    return FD_OK;
}

/* Elements of a row that stand or fall together: a head, where the hypothesis is about some heads; one, where it is about a
 * region of the row; 0: it is about all of it. */
static int64_t part_of_row(const fd_evaluation *ev, const fd_node *node, int64_t stride) {
    const bool heads = node->over_kv || node->n_dim == 2;
    if (ev->h.guess == FD_GUESS_WEIGHT && ev->h.end > 0) return 1;
    if (ev->h.to > 0) return node->id == ev->bench->request->args.node->id ? 1 : 0;
    if (ev->h.n_rank > 0) return heads ? stride / node->shape[0] : 1;
    /* of a node with as many heads, or with one for several of these: K's and V's */
    const int32_t n_head = heads ? node->shape[0] : 0, n_asked = ev->bench->request->args.node->shape[0];
    return ev->h.heads && n_head > 1 && n_asked % n_head == 0 ? stride / n_head : 0;
}

/* Part `part` of `n`. Ranks that are more than the heads share them, neighbours the same one; a K/V head is concerned where all
 * of its query heads are, of n_asked. */
static bool is_concerned(const fd_hypothesis *h, int64_t part, int64_t n, int64_t n_asked) {
    if (h->guess == FD_GUESS_WEIGHT && h->end > 0) return part >= h->first && part < h->end;
    if (h->to > 0) return part >= h->from && part < h->to;
    if (h->n_rank > 0) return n < h->n_rank ? part == h->rank * n / h->n_rank : part * h->n_rank / n == h->rank;
    const int64_t group = n_asked / n;
    const uint64_t all = group < 64 ? (UINT64_C(1) << group) - 1 : ~UINT64_C(0);
    return (h->heads >> part * group & all) == all;
}

/* Every rank has all of it: which experts are chosen, and their weights. */
static bool is_of_all_ranks(const fd_evaluation *ev, const fd_node *node) {
    return ev->h.n_rank > 0 && (node->op == FD_OP_TOP_K || node->op == FD_OP_EXPERT_WEIGHTS);
}

/* Parts of rows that the hypothesis does not concern are as they should be. */
static fd_code keep_parts(fd_evaluation *ev, const fd_op_args *args, fd_variant *v, float *sample[FD_N_SAMPLE],
                          fd_error *err) {
    const fd_node *node = args->node;
    const int64_t stride = fd_node_row_stride(node, args->n_kv), n = args->n_pos * stride;
    const int64_t part = part_of_row(ev, node, stride), before = v->rows - v->memory;
    const int64_t n_asked = ev->bench->request->args.node->shape[0];
    fd_work *w = NULL;
    if (part == 0 || !ev->works[node->id].edited) return FD_OK;
    FD_TRY(fd_bench_unrecorded(&ev->bench->plain, node->id, &w, err));
    for (int64_t at = 0; w && at < n; at += part) {
        if (!is_of_all_ranks(ev, node) && is_concerned(&ev->h, at % stride / part, stride / part, n_asked)) continue;
        const size_t size = sizeof *v->rows * (size_t)part;
        memcpy(v->rows + at, w->v.rows + at, size);
        for (int d = 0; d < FD_N_SAMPLE && sample && sample[d]; d++)
            memcpy(sample[d] + before + at, w->sample[d] ? w->sample[d] + before + at : w->v.rows + at, size);
        if (v->tau && w->v.tau) memcpy(v->tau + at, w->v.tau + at, sizeof *v->tau * (size_t)part);
    }
    return FD_OK;
}

/* Where a fault computes what the op does not, as rows of a cache, which is a copy, its roundings are the class's. Engines round RoPE's angles, which grow
 * with the position, to binary32. */
static void allow_roundings(const fd_evaluation *ev, const fd_op_args *args, const fd_variant *v) {
    const int64_t width = fd_node_width(args->node);
    const double n = fd_fault_at(ev->h.fault)->roundings;
    const fd_numerics_class *c = ev->bench->request->numerics;
    for (int64_t row = 0; row < args->n_pos; row++) {
        double largest = 0;
        for (int64_t i = 0; i < width; i++) largest = fmax(largest, fabs((double)v->rows[row * width + i]));
        const double tau = (n * fmax(c->u_op, c->u_out) + (double)(args->pos0 + row) * 0x1p-24) * largest;
        for (int64_t i = 0; i < width; i++) v->tau[row * width + i] += tau;
    }
}

static bool computes_otherwise(const fd_evaluation *ev, const fd_node *node) {
    const fd_numerics_class *c = ev->bench->request->numerics;
    return ev->h.guess == FD_GUESS_FAULT && node->override && c && !c->exact && fd_fault_at(ev->h.fault)->roundings > 0;
}

static fd_code compute_with(fd_evaluation *ev, fd_op_args *args, fd_op_inputs *in, bool keep_samples, fd_variant *out,
                            float *sample[FD_N_SAMPLE], fd_error *err) {
    const fd_explain_request *r = ev->bench->request;
    const fd_node *node = args->node;
    bool cache = node->op == FD_OP_KV_WRITE, tried;
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    out->state = FD_VARIANT_UNTRIED;
    FD_TRY(fd_inputs_gather(ev, args, in, &tried, err));
    if (!tried) return FD_OK;
    if (node->op == FD_OP_ROPE) FD_TRY(fd_inputs_make_tables(ev, args, in, err));
    if (node->op == FD_OP_EMBED) FD_TRY(fd_inputs_change_tokens(ev, args, in, err));
    if (node->op == FD_OP_ADD_POSITION) FD_TRY(fd_inputs_move_positions(ev, args, in, err));
    args->n_ctx = args->n_ctx > args->n_kv ? args->n_ctx : args->n_kv;
    int64_t size = stride * (cache ? args->n_ctx : args->n_pos);
    out->memory = calloc((size_t)size, sizeof *out->memory);
    if (!out->memory) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", node->name);
    out->rows = out->memory + (cache ? args->pos0 * stride : 0);
    out->overridden = node->override != NULL;
    out->state = FD_VARIANT_COMPUTED;
    if (r->n_context > 0 && fd_bench_keeps_context(ev)) {
        fd_work *plain;
        FD_TRY(fd_bench_unrecorded(&ev->bench->plain, node->id, &plain, err));
    }
    fd_bench_run(ev, args, in->x, out->memory);
    if (cache) fd_bench_round_cache(r, args, out->rows);
    if (ev->bounds) {
        bool root = node->id == r->args.node->id;
        const float *output = root ? r->output : fd_bench_recorded(r, node->id);
        if (output && cache && !root) output += args->pos0 * stride;
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (in->unrounded[k] && in->x[k] != in->hidden.rows) args->in[k] = in->unrounded[k];
        FD_TRY(fd_variant_bound(r, args, output, &out->tau, err));
        if (computes_otherwise(ev, node)) allow_roundings(ev, args, out);
        if (fd_bench_runs_otherwise(ev, node)) FD_TRY(fd_bench_bound_otherwise(ev, args, out->tau, err));
        if (ev->h.guess == FD_GUESS_INPUT_FACTOR && node->op == FD_OP_ADD && fd_hypothesis_may_concern(&ev->h, node))
            allow_partial_sums(ev, args, in->x[ev->h.which], out->tau);
    }
    FD_TRY(fd_bench_change_output(ev, args, out->rows, out->tau, err));
    if (ev->bounds && (keep_samples || in->any_sample))
        FD_TRY(fd_bench_sample(ev, args, in, keep_samples, size, out, sample, err));
    FD_TRY(keep_context(ev, args, out, sample, err));
    return keep_parts(ev, args, out, sample, err);
}

fd_code fd_bench_compute(fd_evaluation *ev, int32_t id, bool keep_samples, fd_variant *out, float *sample[FD_N_SAMPLE],
                         fd_error *err) {
    fd_op_inputs in = {0};
    FD_TRY(fd_bench_edit(ev, id, err));
    fd_faulty_node *node = &ev->works[id].node;
    fd_op_args args = ev->bench->request->args;
    args.node = &node->node;
    args.rope_cos = args.rope_sin = NULL;
    for (int k = 0; k < FD_MAX_WEIGHTS; k++) args.weight[k] = node->node.weight[k] < 0 ? NULL : &node->weight[k];
    fd_code code = compute_with(ev, &args, &in, keep_samples, out, sample, err);
    fd_inputs_free(&in);
    return code;
}

fd_code fd_evaluate(fd_workbench *bench, const fd_hypothesis *h, int32_t node, bool bounds, fd_variant *out,
                    fd_error *err) {
    fd_evaluation ev;
    bool concerned = true;
    *out = (fd_variant){0};
    FD_TRY(fd_evaluation_open(bench, h, bounds, &ev, err));
    fd_code code = FD_OK;
    if (h->guess != FD_GUESS_NONE) code = fd_bench_touches(&ev, node, &concerned, err);
    if (code == FD_OK && concerned)
        code = fd_bench_compute(h->guess == FD_GUESS_NONE ? &bench->plain : &ev, node, false, out, NULL, err);
    fd_evaluation_close(&ev);
    if (code != FD_OK) fd_variant_free(out);
    return code;
}

fd_code fd_evaluate_concerns(fd_workbench *bench, const fd_hypothesis *h, int32_t node, bool *yes, fd_error *err) {
    fd_evaluation ev;
    *yes = false;
    FD_TRY(fd_evaluation_open(bench, h, false, &ev, err));
    fd_code code = fd_bench_touches(&ev, node, yes, err);
    fd_evaluation_close(&ev);
    return code;
}
