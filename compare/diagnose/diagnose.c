#include "compare/diagnose/diagnose.h"

#include <stdio.h>
#include <stdlib.h>

/* Rows asked about. Every explanation runs the op once more; 2^29 multiplications are about a second of it. */
enum { MOST_ROWS = 64, FEWEST_ROWS = 4 };
#define MOST_PRODUCTS 0x1p29

typedef struct recorded {
    const fd_diagnose_options *o;
    int32_t pos0, n_pos, n_kv;
    float **rows; /* [n_node] owned; NULL: not asked for yet, or not recorded */
    fd_error err; /* the first failure while a tensor was read */
    fd_code code;
} recorded;

/* ---- which positions ---- */

static int32_t most_rows(const fd_graph *graph, const fd_node *node) {
    if (node->op != FD_OP_MATMUL || node->weight[0] < 0) return MOST_ROWS;
    const fd_weight *w = &graph->weights[node->weight[0]];
    double rows = MOST_PRODUCTS / ((double)w->n_row * (double)w->n_col);
    return rows > MOST_ROWS ? MOST_ROWS : rows < FEWEST_ROWS ? FEWEST_ROWS : (int32_t)rows;
}

/* The step of the trace that holds `pos`, together with the following steps where all have one position. */
static void step_around(const fd_trace *trace, int32_t pos, int32_t n_pos, int32_t *first, int32_t *end) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    int32_t n = fd_trace_n_step(trace), s = 0;
    *first = 0;
    for (; s < n && pos >= steps[s].pos0 + steps[s].n_pos; s++) *first = steps[s].pos0 + steps[s].n_pos;
    *end = n_pos;
    if (s == n) return;
    *first = steps[s].pos0;
    *end = steps[s].pos0 + steps[s].n_pos;
    for (bool single = steps[s].n_pos == 1; single && s < n && steps[s].n_pos == 1; s++) *end = steps[s].pos0 + 1;
    if (*end > n_pos) *end = n_pos;
}

static void choose_rows(recorded *r, const fd_node *node) {
    const fd_diagnose_options *o = r->o;
    int32_t pos = o->finding->pos, most = most_rows(o->graph, node), first, end;
    step_around(o->trace, pos, o->n_pos, &first, &end);
    if (pos >= first + most) first = pos;
    if (end > first + most) end = first + most;
    if (node->op == FD_OP_KV_WRITE) first = 0; /* as fd_explain wants it */
    r->pos0 = first;
    r->n_pos = end - first;
    r->n_kv = end;
}

/* ---- what was recorded there ---- */

static fd_code read_rows(recorded *r, const fd_node *node, float **out, fd_error *err) {
    int64_t stride = fd_node_row_stride(node, r->n_kv);
    int32_t first = node->op == FD_OP_KV_WRITE ? 0 : r->pos0, n = r->n_kv - first;
    int32_t in_trace = fd_trace_find(r->o->trace, node->name);
    float *rows = malloc(sizeof *rows * (size_t)(n * stride));
    double *row = malloc(2 * sizeof *row * (size_t)stride); /* and scratch after it */
    bool present = in_trace >= 0;
    fd_code code = FD_OK;
    if (!rows || !row) code = fd_fail(err, FD_ERR_MEMORY, "%s: explanation: out of memory", node->name);
    for (int32_t p = 0; p < n && present && code == FD_OK; p++) {
        code = fd_replay_read_row(r->o->trace, in_trace, node, first + p, r->n_kv, row + stride, row, &present, err);
        for (int64_t i = 0; i < stride && present && code == FD_OK; i++) rows[p * stride + i] = (float)row[i];
    }
    free(row);
    if (!present || code != FD_OK) {
        free(rows);
        rows = NULL;
    }
    *out = rows;
    return code;
}

static const float *tensor(void *user, int32_t node) {
    recorded *r = user;
    if (!r->rows[node] && r->code == FD_OK) r->code = read_rows(r, &r->o->graph->nodes[node], &r->rows[node], &r->err);
    return r->rows[node];
}

static uint32_t stored(void *user, int32_t node) {
    const recorded *r = user;
    int32_t at = fd_trace_find(r->o->trace, r->o->graph->nodes[node].name);
    return at < 0 ? (uint32_t)FD_F64 : fd_trace_node_at(r->o->trace, at)->dtype;
}

/* ---- asking ---- */

static fd_explain_request question(recorded *r, const fd_node *node) {
    const fd_diagnose_options *o = r->o;
    fd_explain_request ask = {.output = tensor(r, node->id),
                              .numerics = o->numerics->exact ? NULL : o->numerics,
                              .n_output = o->n_output,
                              .op = o->op,
                              .tensor = tensor,
                              .stored = stored,
                              .user = r};
    ask.args = (fd_op_args){.graph = o->graph,
                            .node = node,
                            .pos0 = r->pos0,
                            .n_pos = r->n_pos,
                            .n_kv = r->n_kv,
                            .tokens = fd_trace_tokens(o->trace) + r->pos0};
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) ask.args.in[k] = tensor(r, node->input[k]);
    if (ask.output && node->op == FD_OP_KV_WRITE) ask.output += r->pos0 * fd_node_row_stride(node, r->n_kv);
    return ask;
}

static fd_explanation unnamed(fd_unnamed why, const fd_node *node) {
    fd_explanation e = {.why = why, .layer = node->layer};
    snprintf(e.node, sizeof e.node, "%s", node->name);
    return e;
}

/* Explains the finding, or, with `fits`, asks about one fault alone. A failure to read a tensor on the way comes
 * first. */
static fd_code ask_about(const fd_diagnose_options *options, fd_explanation *out, int32_t fault, bool *fits,
                         fd_error *err) {
    const fd_graph *graph = options->graph;
    const fd_node *node = &graph->nodes[options->finding->node];
    fd_diagnose_options o = *options;
    if (!o.numerics->exact && o.numerics->u_out < 0x1p-24) o.numerics = fd_numerics_class_find("f32");
    recorded r = {.o = &o, .rows = calloc((size_t)graph->n_node, sizeof *r.rows)};
    if (!r.rows) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    choose_rows(&r, node);
    fd_explain_request ask = question(&r, node);
    fd_code code = FD_OK;
    if (r.code == FD_OK && ask.output) {
        code = fits ? fd_explain_fits(&ask, fault, fits, err) : fd_explain(&ask, out, err);
    } else if (r.code == FD_OK && !fits) {
        *out = unnamed(FD_UNNAMED_ROWS_UNRECORDED, node);
        out->first_pos = r.pos0;
        out->last_pos = r.n_kv - 1;
    }
    if (r.code != FD_OK) {
        code = r.code;
        *err = r.err;
    }
    for (int32_t i = 0; i < graph->n_node; i++) free(r.rows[i]);
    free(r.rows);
    return code;
}

fd_code fd_diagnose(const fd_diagnose_options *options, fd_explanation *out, fd_error *err) {
    const fd_node *nodes = options->graph->nodes;
    int32_t node = options->finding->node, first = options->finding->span_first;
    if (first == node) return ask_about(options, out, -1, NULL, err);
    *out = unnamed(FD_UNNAMED_SPAN, &nodes[node]);
    out->tells_apart = FD_TELLS_SPAN;
    snprintf(out->other, sizeof out->other, "%s", nodes[first].name);
    return FD_OK;
}

fd_code fd_diagnose_fits(const fd_diagnose_options *options, int32_t fault, bool *fits, fd_error *err) {
    *fits = false;
    if (options->finding->span_first != options->finding->node) return FD_OK;
    return ask_about(options, NULL, fault, fits, err);
}
