#include "compare/diagnose/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/replay/sample_sign.h"
#include "model/gguf/quant.h"

/* Of rounding through unrecorded ops (replay/perturb.c has the reasons). Two: each hypothesis that comes near pays for
 * them. */
enum { N_SAMPLE = 2 };

typedef struct work {
    bool edit_known, edited;
    enum { TOUCHED_UNKNOWN, TOUCHED, UNTOUCHED } touched;
    fd_faulty_node node;     /* as the hypothesis has it */
    fd_variant v;            /* unrecorded nodes */
    float *sample[N_SAMPLE]; /* laid out as v.memory; owned */
} work;

/* One hypothesis. */
typedef struct evaluation {
    fd_workbench *bench;
    fd_hypothesis h;
    bool bounds;
    work *works; /* [n_node] owned */
} evaluation;

struct fd_workbench {
    const fd_explain_request *request;
    evaluation plain;
    float **wide; /* [n_weight] weights in binary32, made when first used: hundreds of hypotheses read them; owned */
    int64_t wide_left; /* elements that may still be made so */
    bool *feeds_cache; /* [n_node] an unrecorded cache is computed from it, through unrecorded nodes; owned */
};

/* Of what a machine that holds the model has beside it. */
#define MOST_WIDE (1ll << 28)

static fd_code open_evaluation(fd_workbench *bench, const fd_hypothesis *h, bool bounds, evaluation *ev,
                               fd_error *err) {
    size_t n = (size_t)bench->request->args.graph->n_node;
    *ev = (evaluation){.bench = bench, .h = *h, .bounds = bounds && bench->request->numerics};
    ev->works = calloc(n, sizeof *ev->works);
    return ev->works ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
}

static void free_work(work *w) {
    if (w->edit_known) fd_faulty_node_free(&w->node);
    fd_variant_free(&w->v);
    for (int d = 0; d < N_SAMPLE; d++) free(w->sample[d]);
}

static void close_evaluation(evaluation *ev) {
    for (int32_t i = 0; ev->works && i < ev->bench->request->args.graph->n_node; i++) free_work(&ev->works[i]);
    free(ev->works);
}

static const float *recorded(const fd_explain_request *r, int32_t node) {
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (r->args.node->input[k] == node && r->args.in[k]) return r->args.in[k];
    return r->tensor ? r->tensor(r->user, node) : NULL;
}

static void find_feeding(const fd_explain_request *r, bool *feeds) {
    const fd_graph *graph = r->args.graph;
    for (int32_t i = graph->n_node - 1; i >= 0; i--) {
        const fd_node *node = &graph->nodes[i];
        feeds[i] |= node->op == FD_OP_KV_WRITE;
        for (int k = 0; k < FD_MAX_INPUTS && feeds[i] && !recorded(r, i); k++)
            if (node->input[k] >= 0) feeds[node->input[k]] = true;
    }
}

fd_code fd_workbench_open(const fd_explain_request *request, fd_workbench **out, fd_error *err) {
    size_t n_node = (size_t)request->args.graph->n_node, n_weight = (size_t)request->args.graph->n_weight;
    fd_workbench *bench = *out = calloc(1, sizeof *bench);
    if (!bench) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    bench->request = request;
    bench->wide = calloc(n_weight, sizeof *bench->wide);
    bench->wide_left = MOST_WIDE;
    bench->feeds_cache = calloc(n_node, sizeof *bench->feeds_cache);
    fd_code code = bench->wide && bench->feeds_cache
                       ? open_evaluation(bench, &fd_no_hypothesis, true, &bench->plain, err)
                       : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    if (code == FD_OK) {
        find_feeding(request, bench->feeds_cache);
        return FD_OK;
    }
    free(bench->wide);
    free(bench->feeds_cache);
    free(bench);
    *out = NULL;
    return code;
}

void fd_workbench_close(fd_workbench *bench) {
    if (!bench) return;
    close_evaluation(&bench->plain);
    for (int32_t i = 0; i < bench->request->args.graph->n_weight; i++) free(bench->wide[i]);
    free(bench->wide);
    free(bench->feeds_cache);
    free(bench);
}

/* ---- what there is ---- */

bool fd_evaluate_recorded(const fd_workbench *bench, int32_t node) {
    return recorded(bench->request, node) != NULL;
}

/* Nothing is known of a cache's rows before the request's. */
static bool computable(const fd_explain_request *r, const fd_node *node) {
    return r->tensor && (node->op != FD_OP_KV_WRITE || r->args.pos0 == 0);
}

int32_t fd_evaluate_span(const fd_workbench *bench, int32_t node, int32_t *list) {
    const fd_explain_request *r = bench->request;
    const fd_graph *graph = r->args.graph;
    int32_t n = 0;
    bool *in = calloc((size_t)graph->n_node, sizeof *in);
    if (!in) return 0;
    in[node] = true;
    for (int32_t i = node; i >= 0; i--) {
        if (!in[i] || (i != node && recorded(r, i))) {
            in[i] = false;
            continue;
        }
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (graph->nodes[i].input[k] >= 0) in[graph->nodes[i].input[k]] = true;
    }
    for (int32_t i = 0; i <= node; i++)
        if (in[i]) list[n++] = i;
    free(in);
    return n;
}

static fd_code edit(evaluation *ev, int32_t id, fd_error *err) {
    work *w = &ev->works[id];
    const fd_graph *graph = ev->bench->request->args.graph;
    if (w->edit_known) return FD_OK;
    FD_TRY(fd_hypothesis_edit(&ev->h, graph, &graph->nodes[id], &w->node, &w->edited, err));
    w->edit_known = true;
    return FD_OK;
}

/* Is the node another one under the hypothesis, by itself or through unrecorded inputs? */
static fd_code touched(evaluation *ev, int32_t id, bool *yes, fd_error *err) {
    work *w = &ev->works[id];
    const fd_explain_request *r = ev->bench->request;
    if (w->touched == TOUCHED_UNKNOWN) {
        FD_TRY(edit(ev, id, err));
        bool any = w->edited;
        for (int k = 0; k < FD_MAX_INPUTS && !any; k++) {
            int32_t in = w->node.node.input[k];
            if (in >= 0 && r->tensor && !recorded(r, in)) FD_TRY(touched(ev, in, &any, err));
        }
        w->touched = any ? TOUCHED : UNTOUCHED;
    }
    *yes = w->touched == TOUCHED;
    return FD_OK;
}

/* ---- computing one node ---- */

static fd_code compute(evaluation *ev, int32_t id, bool keep_samples, fd_variant *out, float *sample[N_SAMPLE],
                       fd_error *err);

/* An unrecorded node that another reads. *found NULL: it cannot be computed. */
static fd_code unrecorded(evaluation *ev, int32_t id, work **found, fd_error *err) {
    bool changed = true;
    *found = NULL;
    if (!computable(ev->bench->request, &ev->bench->request->args.graph->nodes[id])) return FD_OK;
    if (ev != &ev->bench->plain) FD_TRY(touched(ev, id, &changed, err));
    if (!changed) ev = &ev->bench->plain;
    work *w = &ev->works[id];
    if (w->v.state == FD_VARIANT_UNCONCERNED) FD_TRY(compute(ev, id, true, &w->v, w->sample, err));
    if (w->v.state == FD_VARIANT_COMPUTED) *found = w;
    return FD_OK;
}

typedef struct inputs {
    const float *x[FD_MAX_INPUTS];
    const float *unrounded[FD_MAX_INPUTS]; /* x before the class rounds it: what bounds are made of */
    const float *sample[N_SAMPLE][FD_MAX_INPUTS];
    float *changed[2 * (1 + N_SAMPLE) * FD_MAX_INPUTS]; /* copies that the hypothesis or the class changed; owned */
    int n_changed;
    bool any_sample;
    float *tables;   /* rope: cos, then sin; owned */
    int32_t *tokens; /* other ones; owned */
    fd_variant hidden;
} inputs;

static void free_inputs(inputs *in) {
    for (int i = 0; i < in->n_changed; i++) free(in->changed[i]);
    free(in->tables);
    free(in->tokens);
    fd_variant_free(&in->hidden);
}

static int64_t rows_of(const fd_op_args *args, const fd_node *node) {
    return node->op == FD_OP_KV_WRITE ? args->n_kv : args->n_pos;
}

/* A copy of the rows that the hypothesis changes (`type` FD_DOT_AS_IS), or that the class rounds before it multiplies. */
static fd_code change_input(evaluation *ev, const fd_op_args *args, int slot, fd_dot_type type, inputs *in,
                            const float **x, fd_error *err) {
    const fd_node *from = &args->graph->nodes[args->node->input[slot]];
    int64_t n_row = rows_of(args, from), width = fd_node_row_stride(from, args->n_kv);
    float *copy = malloc(sizeof *copy * (size_t)(n_row * width));
    if (!copy) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", from->name);
    in->changed[in->n_changed++] = copy;
    memcpy(copy, *x, sizeof *copy * (size_t)(n_row * width));
    if (type == FD_DOT_AS_IS)
        fd_hypothesis_input(&ev->h, args->node, copy, from->op == FD_OP_KV_WRITE ? 0 : args->pos0, n_row, width);
    else if (fd_dot_block(type) > 1 && ev->h.guess == FD_GUESS_BLOCKS && fd_hypothesis_may_concern(&ev->h, args->node))
        fd_dot_round_by((fd_block_rule)ev->h.which, type, copy, n_row, width);
    else
        fd_dot_round(type, copy, n_row, width);
    *x = copy;
    return FD_OK;
}

/* The same for the plain rows and every sample. */
static fd_code change_inputs(evaluation *ev, const fd_op_args *args, int slot, fd_dot_type type, inputs *in,
                             fd_error *err) {
    const float *before = in->x[slot];
    FD_TRY(change_input(ev, args, slot, type, in, &in->x[slot], err));
    for (int d = 0; d < N_SAMPLE; d++) {
        if (in->sample[d][slot] == before)
            in->sample[d][slot] = in->x[slot];
        else
            FD_TRY(change_input(ev, args, slot, type, in, &in->sample[d][slot], err));
    }
    return FD_OK;
}

/* Scores past a row's own position are recorded as -inf whatever the candidate had there. A fault of the mask shows in
 * what softmax makes of them, so those are computed again; what was recorded stands. */
static fd_code unhide(evaluation *ev, const fd_op_args *args, inputs *in, bool *tried, fd_error *err) {
    int32_t id = args->node->input[0];
    const fd_node *node = id < 0 ? NULL : &args->graph->nodes[id];
    if (!node || !node->over_kv || ev->h.guess != FD_GUESS_FAULT || !recorded(ev->bench->request, id)) return FD_OK;
    FD_TRY(edit(ev, id, err));
    if (!ev->works[id].edited) return FD_OK;
    FD_TRY(compute(ev, id, false, &in->hidden, NULL, err));
    if (in->hidden.state == FD_VARIANT_UNTRIED) *tried = false;
    if (in->hidden.state != FD_VARIANT_COMPUTED) return FD_OK;
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    for (int64_t i = 0; i < args->n_pos * stride; i++)
        if (i % args->n_kv <= args->pos0 + i / stride) in->hidden.rows[i] = in->x[0][i];
    in->x[0] = in->hidden.rows;
    return FD_OK;
}

/* *tried false: something that the node reads is not known. */
static fd_code gather(evaluation *ev, const fd_op_args *args, inputs *in, bool *tried, fd_error *err) {
    const fd_explain_request *r = ev->bench->request;
    *tried = true;
    for (int k = 0; k < FD_MAX_INPUTS && *tried; k++) {
        int32_t id = args->node->input[k];
        if (id < 0) continue;
        work *w = NULL;
        in->x[k] = recorded(r, id);
        if (!in->x[k]) {
            FD_TRY(unrecorded(ev, id, &w, err));
            in->x[k] = w ? w->v.memory : NULL;
        }
        *tried = in->x[k] != NULL;
        for (int d = 0; d < N_SAMPLE; d++) {
            in->sample[d][k] = w && w->sample[d] ? w->sample[d] : in->x[k];
            in->any_sample |= w && w->sample[d];
        }
        if (!*tried) continue;
        if (fd_hypothesis_changes_input(&ev->h, args->node, k))
            FD_TRY(change_inputs(ev, args, k, FD_DOT_AS_IS, in, err));
        in->unrounded[k] = in->x[k];
        fd_dot_type type = fd_dot_type_of(r->numerics, args->node, args->weight[0], k);
        if (type != FD_DOT_AS_IS) FD_TRY(change_inputs(ev, args, k, type, in, err));
    }
    return *tried ? unhide(ev, args, in, tried, err) : FD_OK;
}

static fd_code make_tables(const evaluation *ev, fd_op_args *args, inputs *in, fd_error *err) {
    const fd_node *node = args->node;
    int64_t half = node->rope.n_rot / 2, n = half * args->n_kv;
    bool moved = ev->h.guess == FD_GUESS_POSITION && fd_hypothesis_may_concern(&ev->h, node);
    in->tables = malloc(sizeof *in->tables * (size_t)(2 * n));
    if (!in->tables) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for rope tables");
    const fd_weight *factors = node->weight[0] >= 0 ? args->weight[0] : NULL;
    fd_rope_table(&node->rope, factors, 0, args->n_kv, in->tables, in->tables + n);
    for (int32_t p = 0; p < args->n_kv && moved; p++)
        fd_rope_table(&node->rope, factors, fd_hypothesis_position(&ev->h, p), 1, in->tables + p * half,
                      in->tables + n + p * half);
    args->rope_cos = in->tables;
    args->rope_sin = in->tables + n;
    return FD_OK;
}

static fd_code change_tokens(const evaluation *ev, fd_op_args *args, inputs *in, fd_error *err) {
    int32_t n_vocab = (int32_t)args->weight[0]->n_row;
    if (ev->h.guess != FD_GUESS_TOKEN || !fd_hypothesis_may_concern(&ev->h, args->node)) return FD_OK;
    in->tokens = malloc(sizeof *in->tokens * (size_t)args->n_pos);
    if (!in->tokens) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    for (int32_t i = 0; i < args->n_pos; i++) in->tokens[i] = (args->tokens[i] + ev->h.n + n_vocab) % n_vocab;
    args->tokens = in->tokens;
    return FD_OK;
}

/* The weight of a slot in binary32, which has the same values and so gives the same bits; false: it stays as it is. */
static bool widen_weight(fd_workbench *bench, const fd_node *node, const fd_weight *weight, int slot, fd_weight *out) {
    const fd_graph *graph = bench->request->args.graph;
    int32_t id = node->weight[slot];
    if (node->op != FD_OP_MATMUL || id < 0 || weight->data != graph->weights[id].data || weight->dtype == FD_F32)
        return false;
    int64_t n = weight->n_row * weight->n_col, row_bytes = fd_dtype_row_bytes(weight->dtype, weight->n_col);
    if (!bench->wide[id] && n <= bench->wide_left && fd_can_dequantize(weight->dtype)) {
        bench->wide[id] = malloc(sizeof **bench->wide * (size_t)n);
        if (!bench->wide[id]) return false;
        bench->wide_left -= n;
        for (int64_t r = 0; r < weight->n_row; r++)
            fd_dequantize_row(weight->dtype, (const char *)weight->data + r * row_bytes,
                              bench->wide[id] + r * weight->n_col, weight->n_col);
    }
    *out = *weight;
    out->dtype = FD_F32;
    out->data = bench->wide[id];
    out->bytes = sizeof **bench->wide * (uint64_t)n;
    return bench->wide[id] != NULL;
}

/* From the row before the first judged one on, where nothing else is read. */
static fd_op_args late_rows(const evaluation *ev, const fd_op_args *args) {
    const fd_explain_request *r = ev->bench->request;
    fd_op_args late = *args;
    int32_t n = r->n_unjudged - 1;
    if (n <= 0 || args->pos0 != r->args.pos0 || ev->bench->feeds_cache[args->node->id]) return late;
    late.pos0 += n;
    late.n_pos -= n;
    late.tokens += n;
    late.out = (float *)args->out + n * fd_node_row_stride(args->node, args->n_kv);
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        const fd_node *in = args->node->input[k] < 0 ? NULL : &args->graph->nodes[args->node->input[k]];
        if (in && in->op != FD_OP_KV_WRITE)
            late.in[k] = (const float *)args->in[k] + n * fd_node_row_stride(in, args->n_kv);
    }
    return late;
}

static void run_op(const evaluation *ev, fd_op_args *args, const float *const *x, float *to) {
    const fd_weight *own = args->weight[0];
    fd_weight wide;
    if (!args->node->override && widen_weight(ev->bench, args->node, own, 0, &wide)) args->weight[0] = &wide;
    for (int k = 0; k < FD_MAX_INPUTS; k++) args->in[k] = args->node->input[k] >= 0 ? x[k] : NULL;
    args->out = to;
    if (args->node->override) {
        args->node->override(args);
    } else {
        fd_op_args late = late_rows(ev, args);
        ev->bench->request->op(FD_NUMERICS_EXACT, &late);
    }
    args->weight[0] = own;
}

/* A binary16 cache of a class whose roundings are repeated. */
static void round_cache(const fd_explain_request *r, const fd_op_args *args, float *rows) {
    const fd_numerics_class *c = r->numerics;
    if (c && fd_class_repeats_cache(c))
        fd_dot_round(FD_DOT_F16, rows, args->n_pos, fd_node_row_stride(args->node, args->n_kv));
}

/* A branch that is added twice is added one by one: the sum in between is rounded, too, and may be larger. */
static void allow_partial_sums(const evaluation *ev, const fd_op_args *args, const float *x, double *tau) {
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    double u = 2 * ev->bench->request->numerics->u_op;
    for (int64_t i = 0; i < n; i++) tau[i] += u * fabs((double)x[i]);
}

/* Bounds and rows as the hypothesis leaves them. */
static fd_code change_output(const evaluation *ev, const fd_op_args *args, float *rows, double *tau, fd_error *err) {
    int64_t width = fd_node_row_stride(args->node, args->n_kv), n = width * args->n_pos;
    if (!fd_hypothesis_changes_output(&ev->h, args->node)) return FD_OK;
    double *scratch = malloc(sizeof *scratch * (size_t)n);
    if (!scratch) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", args->node->name);
    if (tau) fd_hypothesis_output_bounds(&ev->h, args->node, rows, tau, args->n_pos, width, scratch);
    fd_hypothesis_output_rows(&ev->h, args->node, rows, args->pos0, args->n_pos, width, (float *)scratch);
    free(scratch);
    return FD_OK;
}

/* The element's own spread and the root mean square of its slice's, as replay adds it. */
static void add_spread(const fd_op_args *args, const fd_variant *v, float *const sample[N_SAMPLE], int64_t before) {
    const fd_node *node = args->node;
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    int64_t slice = node->n_dim == 2 && !node->over_kv ? node->shape[1] : stride;
    for (int64_t at = 0; at < args->n_pos * stride; at += slice) {
        double sum = 0;
        int64_t n = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = at; i < at + slice; i++) {
                double own = 0;
                for (int d = 0; d < N_SAMPLE; d++) {
                    double delta = (double)sample[d][before + i] - (double)v->rows[i];
                    own += isfinite(delta) ? delta * delta : 0;
                }
                if (pass == 0) {
                    sum += own;
                    n += own > 0;
                } else {
                    v->tau[i] += sqrt((own + sum / (double)(n ? n : 1)) / N_SAMPLE);
                }
            }
    }
}

/* Samples of the node; kept ones are rounded by the node itself, too. */
static fd_code sample_node(const evaluation *ev, fd_op_args *args, const inputs *in, bool keep, int64_t size,
                           fd_variant *v, float *sample[N_SAMPLE], fd_error *err) {
    int64_t before = v->rows - v->memory, n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    float *made[N_SAMPLE] = {NULL};
    fd_code code = FD_OK;
    for (int d = 0; d < N_SAMPLE && code == FD_OK; d++) {
        made[d] = calloc((size_t)size, sizeof **made);
        if (!made[d]) {
            code = fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", args->node->name);
        } else if (in->any_sample) {
            run_op(ev, args, in->sample[d], made[d]);
            if (args->node->op == FD_OP_KV_WRITE) round_cache(ev->bench->request, args, made[d] + before);
            code = change_output(ev, args, made[d] + before, NULL, err);
        } else {
            memcpy(made[d], v->memory, sizeof **made * (size_t)size);
        }
        for (int64_t i = 0; i < n && keep && code == FD_OK; i++)
            if (isfinite(made[d][before + i]) && v->tau[i] < FD_BOUND_UNKNOWN && args->node->op != FD_OP_TOP_K)
                made[d][before + i] += (float)(fd_sample_sign(args->node->id, i, d) * v->tau[i]);
    }
    if (code == FD_OK && in->any_sample) add_spread(args, v, made, before);
    for (int d = 0; d < N_SAMPLE; d++) {
        if (keep && code == FD_OK)
            sample[d] = made[d];
        else
            free(made[d]);
    }
    return code;
}

/* Rows before the step in question are as they should be. */
static fd_code keep_context(evaluation *ev, const fd_op_args *args, fd_variant *v, fd_error *err) {
    int32_t id = args->node->id;
    const fd_explain_request *r = ev->bench->request;
    int32_t n_kept = fd_hypothesis_changes_output(&ev->h, args->node) ? r->n_earlier : r->n_context;
    int64_t n = n_kept * fd_node_row_stride(args->node, args->n_kv);
    fd_variant plain = {0};
    if (n == 0 || !ev->works[id].edited) return FD_OK;
    FD_TRY(compute(&ev->bench->plain, id, false, &plain, NULL, err));
    if (plain.state == FD_VARIANT_COMPUTED) {
        memcpy(v->rows, plain.rows, sizeof *v->rows * (size_t)n);
        if (v->tau && plain.tau) memcpy(v->tau, plain.tau, sizeof *v->tau * (size_t)n);
    }
    fd_variant_free(&plain);
    return FD_OK;
}

static fd_code compute_with(evaluation *ev, fd_op_args *args, inputs *in, bool keep_samples, fd_variant *out,
                            float *sample[N_SAMPLE], fd_error *err) {
    const fd_explain_request *r = ev->bench->request;
    const fd_node *node = args->node;
    bool cache = node->op == FD_OP_KV_WRITE, tried;
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    out->state = FD_VARIANT_UNTRIED;
    FD_TRY(gather(ev, args, in, &tried, err));
    if (!tried) return FD_OK;
    if (node->op == FD_OP_ROPE) FD_TRY(make_tables(ev, args, in, err));
    if (node->op == FD_OP_EMBED) FD_TRY(change_tokens(ev, args, in, err));
    args->n_ctx = args->n_ctx > args->n_kv ? args->n_ctx : args->n_kv;
    int64_t size = stride * (cache ? args->n_ctx : args->n_pos);
    out->memory = calloc((size_t)size, sizeof *out->memory);
    if (!out->memory) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", node->name);
    out->rows = out->memory + (cache ? args->pos0 * stride : 0);
    out->overridden = node->override != NULL;
    out->state = FD_VARIANT_COMPUTED;
    run_op(ev, args, in->x, out->memory);
    if (cache) round_cache(r, args, out->rows);
    if (ev->bounds) {
        bool root = node->id == r->args.node->id;
        const float *output = root ? r->output : recorded(r, node->id);
        if (output && cache && !root) output += args->pos0 * stride;
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (in->unrounded[k] && in->x[k] != in->hidden.rows) args->in[k] = in->unrounded[k];
        FD_TRY(fd_variant_bound(r, args, output, &out->tau, err));
        if (ev->h.guess == FD_GUESS_INPUT_FACTOR && node->op == FD_OP_ADD && fd_hypothesis_may_concern(&ev->h, node))
            allow_partial_sums(ev, args, in->x[ev->h.which], out->tau);
    }
    FD_TRY(change_output(ev, args, out->rows, out->tau, err));
    if (ev->bounds && (keep_samples || in->any_sample))
        FD_TRY(sample_node(ev, args, in, keep_samples, size, out, sample, err));
    return keep_context(ev, args, out, err);
}

static fd_code compute(evaluation *ev, int32_t id, bool keep_samples, fd_variant *out, float *sample[N_SAMPLE],
                       fd_error *err) {
    inputs in = {0};
    FD_TRY(edit(ev, id, err));
    fd_faulty_node *node = &ev->works[id].node;
    fd_op_args args = ev->bench->request->args;
    args.node = &node->node;
    args.rope_cos = args.rope_sin = NULL;
    for (int k = 0; k < FD_MAX_WEIGHTS; k++) args.weight[k] = node->node.weight[k] < 0 ? NULL : &node->weight[k];
    fd_code code = compute_with(ev, &args, &in, keep_samples, out, sample, err);
    free_inputs(&in);
    return code;
}

/* ---- from outside ---- */

fd_code fd_evaluate(fd_workbench *bench, const fd_hypothesis *h, int32_t node, bool bounds, fd_variant *out,
                    fd_error *err) {
    evaluation ev;
    bool concerned = true;
    *out = (fd_variant){0};
    FD_TRY(open_evaluation(bench, h, bounds, &ev, err));
    fd_code code = FD_OK;
    if (h->guess != FD_GUESS_NONE) code = touched(&ev, node, &concerned, err);
    if (code == FD_OK && concerned)
        code = compute(h->guess == FD_GUESS_NONE ? &bench->plain : &ev, node, false, out, NULL, err);
    close_evaluation(&ev);
    if (code != FD_OK) fd_variant_free(out);
    return code;
}

fd_code fd_evaluate_concerns(fd_workbench *bench, const fd_hypothesis *h, int32_t node, bool *yes, fd_error *err) {
    evaluation ev;
    *yes = false;
    FD_TRY(open_evaluation(bench, h, false, &ev, err));
    fd_code code = touched(&ev, node, yes, err);
    close_evaluation(&ev);
    return code;
}
