#include "compare/diagnose/variant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "numerics/contract.h"

/* ---- computing ---- */

typedef struct work {
    const fd_explain_request *request;
    int32_t fault;         /* -1: none */
    fd_faulty_node edited; /* the node as the fault has it */
    float *tables;         /* rope: cos, then sin */
    fd_variant hidden;     /* an input that had to be computed again */
} work;

static void free_work(work *w) {
    fd_faulty_node_free(&w->edited);
    free(w->tables);
    fd_variant_free(&w->hidden);
}

/* As it was recorded; NULL: it was not. */
static const float *recorded(const fd_explain_request *r, int32_t node) {
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (r->args.node->input[k] == node && r->args.in[k]) return r->args.in[k];
    return r->tensor ? r->tensor(r->user, node) : NULL;
}

static fd_code make_tables(work *w, fd_op_args *args, fd_error *err) {
    const fd_node *node = args->node;
    int64_t half = node->rope.n_rot / 2, n = half * args->n_kv;
    w->tables = malloc(sizeof *w->tables * (size_t)(2 * n));
    if (!w->tables) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for rope tables");
    fd_rope_table(&node->rope, node->weight[0] >= 0 ? args->weight[0] : NULL, 0, args->n_kv, w->tables, w->tables + n);
    args->rope_cos = w->tables;
    args->rope_sin = w->tables + n;
    return FD_OK;
}

/* What was recorded stands; only what lies past a row's own position is the variant's. */
static void keep_recorded(fd_op_args *args, float *hidden) {
    const float *seen = args->in[0];
    const fd_node *node = &args->graph->nodes[args->node->input[0]];
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    for (int64_t i = 0; i < args->n_pos * stride; i++)
        if (i % args->n_kv <= args->pos0 + i / stride) hidden[i] = seen[i];
    args->in[0] = hidden;
}

/* Scores past a row's own position are recorded as -inf whatever the candidate had there. A fault of the mask shows in
 * what softmax makes of them, so they are computed again. */
static fd_code hidden_input(work *w, fd_op_args *args, fd_variant_state *state, fd_error *err) {
    int32_t id = args->node->input[0];
    if (id < 0 || !args->graph->nodes[id].over_kv) return FD_OK;
    FD_TRY(fd_variant_compute(w->request, w->fault, id, &w->hidden, err));
    if (w->hidden.state == FD_VARIANT_COMPUTED) keep_recorded(args, w->hidden.rows);
    if (w->hidden.state == FD_VARIANT_UNTRIED) *state = FD_VARIANT_UNTRIED;
    return FD_OK;
}

static fd_code gather(work *w, fd_op_args *args, fd_variant_state *state, fd_error *err) {
    const fd_node *node = args->node;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        args->in[k] = node->input[k] < 0 ? NULL : recorded(w->request, node->input[k]);
        if (node->input[k] >= 0 && !args->in[k]) *state = FD_VARIANT_UNTRIED;
    }
    if (*state == FD_VARIANT_UNTRIED) return FD_OK;
    for (int k = 0; k < FD_MAX_WEIGHTS; k++) args->weight[k] = node->weight[k] < 0 ? NULL : &w->edited.weight[k];
    if (node->op == FD_OP_ROPE) FD_TRY(make_tables(w, args, err));
    return w->fault < 0 ? FD_OK : hidden_input(w, args, state, err);
}

static fd_code edit(work *w, const fd_node *node, fd_error *err) {
    if (w->fault >= 0) return fd_fault_edit_node(w->fault, w->request->args.graph, node, &w->edited, err);
    w->edited.node = *node;
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (node->weight[k] >= 0) w->edited.weight[k] = w->request->args.graph->weights[node->weight[k]];
    return FD_OK;
}

static fd_code compute(work *w, int32_t id, fd_variant *out, fd_error *err) {
    const fd_graph *graph = w->request->args.graph;
    FD_TRY(edit(w, &graph->nodes[id], err));
    if (w->fault >= 0 && !w->edited.owner) return FD_OK;

    fd_op_args args = w->request->args;
    args.node = &w->edited.node;
    args.rope_cos = args.rope_sin = NULL;
    out->state = FD_VARIANT_COMPUTED;
    FD_TRY(gather(w, &args, &out->state, err));
    if (out->state != FD_VARIANT_COMPUTED) return FD_OK;

    bool cache = args.node->op == FD_OP_KV_WRITE;
    int64_t stride = fd_node_row_stride(args.node, args.n_kv);
    args.n_ctx = args.n_ctx > args.n_kv ? args.n_ctx : args.n_kv;
    out->memory = calloc((size_t)(stride * (cache ? args.n_ctx : args.n_pos)), sizeof *out->memory);
    if (!out->memory) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", args.node->name);
    out->rows = out->memory + (cache ? args.pos0 * stride : 0);
    args.out = out->memory;
    out->overridden = args.node->override != NULL;
    if (out->overridden)
        args.node->override(&args);
    else
        w->request->op(FD_NUMERICS_EXACT, &args);
    if (!w->request->numerics) return FD_OK;
    const float *output = id == w->request->args.node->id ? w->request->output : recorded(w->request, id);
    if (output && cache && id != w->request->args.node->id) output += args.pos0 * stride;
    return fd_variant_bound(w->request, &args, output, &out->tau, err);
}

fd_code fd_variant_compute(const fd_explain_request *request, int32_t fault, int32_t node, fd_variant *out,
                           fd_error *err) {
    work w = {.request = request, .fault = fault};
    *out = (fd_variant){0};
    fd_code code = compute(&w, node, out, err);
    free_work(&w);
    if (code != FD_OK) fd_variant_free(out);
    return code;
}

void fd_variant_free(fd_variant *variant) {
    free(variant->memory);
    free(variant->tau);
    *variant = (fd_variant){0};
}

/* ---- judging ---- */

static double z_of(float c, float v, double tau, bool exact) {
    if (c == v || (c != c && v != v)) return 0.0;
    if (!exact && !isfinite(c) && !isfinite(v)) return 0.0;
    if (!isfinite(c) || !isfinite(v) || !(tau > 0.0)) return INFINITY;
    return fabs((double)c - (double)v) / tau;
}

/* Floats in order as integers: neighbours are 1 apart, -0 and +0 are 0 apart. */
static int64_t place_of(float x) {
    uint32_t bits = fd_bits32(x);
    return bits >> 31 ? -(int64_t)(bits & 0x7fffffffu) : (int64_t)bits;
}

static double ulp_of(float c, float v) {
    if (c == v || (c != c && v != v)) return 0.0;
    if (!isfinite(c) || !isfinite(v)) return INFINITY;
    return fabs((double)(place_of(c) - place_of(v)));
}

/* The elements that count, one after another: over_kv rows only up to their own position. */
typedef struct walk {
    int64_t stride, n;
    int32_t pos0, n_kv;
    bool over_kv;
} walk;

static walk walk_of(const fd_op_args *args, const fd_node *node) {
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    return (walk){stride, stride * args->n_pos, args->pos0, args->n_kv, node->over_kv};
}

static bool counts(const walk *w, int64_t i) {
    return !w->over_kv || i % w->n_kv <= w->pos0 + i / w->stride;
}

static double tau_of(const fd_explain_request *request, const fd_variant *variant, int64_t i) {
    return variant->tau ? variant->tau[i] : request->tau ? request->tau[i] : 0.0;
}

/* A name is a strong claim: within τ itself, and nothing else nearer than ten, or than one on the average of several
 * rows. */
enum { CLEARLY_BEYOND = 10, MIN_ROWS_BEYOND = 4 };

bool fd_fit_clearly_beyond(const fd_explain_fit *fit) {
    return !(fit->z <= CLEARLY_BEYOND) || fit->n_row_beyond >= MIN_ROWS_BEYOND;
}

fd_explain_fit fd_variant_fit(const fd_explain_request *request, const fd_node *node, const fd_variant *variant,
                              const float *output) {
    walk w = walk_of(&request->args, node);
    fd_explain_fit fit = {0};
    for (int64_t row = 0; row < w.n; row += w.stride) {
        double squares = 0.0;
        int64_t n = 0;
        for (int64_t i = row; i < row + w.stride; i++) {
            if (!counts(&w, i)) continue;
            double z = z_of(output[i], variant->rows[i], tau_of(request, variant, i), !request->numerics);
            double ulp = ulp_of(output[i], variant->rows[i]);
            if (!(z <= fit.z)) fit.z = z;
            if (!(ulp <= fit.ulp)) fit.ulp = ulp;
            fit.n_beyond += !(z <= 1.0);
            squares += z * z;
            n++;
        }
        fit.n_row_beyond += !(squares <= (double)n);
    }
    return fit;
}

bool fd_variant_equal(const fd_explain_request *request, const fd_node *node, const fd_variant *a,
                      const fd_variant *b) {
    walk w = walk_of(&request->args, node);
    for (int64_t i = 0; i < w.n; i++) {
        if (!counts(&w, i) || fd_canonical32(a->rows[i]) == fd_canonical32(b->rows[i])) continue;
        if (!a->tau || !b->tau) return false;
        if (!(fabs((double)a->rows[i] - (double)b->rows[i]) <= 1e-3 * fmin(a->tau[i], b->tau[i]))) return false;
    }
    return true;
}

void fd_variant_widen(const fd_explain_request *request, const fd_node *node, fd_variant *variant,
                      const fd_variant *unmodified) {
    int64_t n = request->args.n_pos * fd_node_row_stride(node, request->args.n_kv);
    for (int64_t i = 0; variant->tau && i < n; i++)
        if (!(variant->tau[i] >= unmodified->tau[i])) variant->tau[i] = unmodified->tau[i];
}

int64_t fd_variant_evidence(const fd_explain_request *request, const fd_node *node, const float *output,
                            const fd_variant *variant, const fd_variant *unmodified) {
    walk w = walk_of(&request->args, node);
    bool cache = node->op == FD_OP_KV_WRITE, exact = !request->numerics;
    int64_t n = 0;
    for (int64_t i = 0; i < w.n; i++) {
        float c = output[i];
        bool hidden = node->op == FD_OP_ATTN_SCORES && c == -INFINITY; /* a window's edge says as much as a number */
        if (!counts(&w, i) || (!isfinite(c) && !hidden) || (cache && c == 0.0f)) continue;
        n += z_of(c, variant->rows[i], tau_of(request, variant, i), exact) <= 1.0 &&
             !(z_of(c, unmodified->rows[i], tau_of(request, unmodified, i), exact) <= 1.0);
    }
    return n;
}
