#include "compare/diagnose/asked_rows.h"

#include <math.h>
#include <stdlib.h>

#include "compare/replay/replay.h"

/* Rows asked about. Every explanation runs the ops once more; 2^29 multiplications are about a second of it. Through a
 * span there are some hundred of them, so fewer rows have to do. */
enum { MOST_ROWS = 64, FEWEST_ROWS = 4, FEW = 4, FEW_OF_SPAN = 2 };
#define MOST_PRODUCTS      0x1p29
#define MOST_PRODUCTS_SPAN 0x1p27

/* What the node is computed through: multiplications a row, and whether an unrecorded cache is among it, which needs the
 * rows of all positions before. */
typedef struct span_cost {
    double products;
    bool history, several;
} span_cost;

static double products_of(const fd_graph *graph, const fd_node *node) {
    if (node->weight[0] < 0) return 0;
    const fd_weight *w = &graph->weights[node->weight[0]];
    double n = (double)w->n_row * (double)w->n_col;
    if (node->op == FD_OP_EXPERT_MATMUL) return n * node->shape[0] / graph->hparams.n_expert;
    return node->op == FD_OP_MATMUL || node->op == FD_OP_HEAD_MATMUL ? n : 0;
}

bool fd_asked_is_recorded(const fd_diagnose_options *o, const fd_node *node) {
    bool ignored = o->ignored && o->ignored[node->id];
    return !ignored && fd_trace_has_data(o->trace, node->name);
}

static bool is_read(const fd_diagnose_options *o, const fd_node *root, int32_t i) {
    return i != root->id && fd_asked_is_recorded(o, &o->graph->nodes[i]);
}

/* [n_node] `root`, what is computed again for it, and the recorded tensors that this reads; the caller frees it. NULL: out of memory. */
static bool *nodes_of_span(const fd_diagnose_options *o, const fd_node *root) {
    bool *in = calloc((size_t)o->graph->n_node, sizeof *in);
    if (in) in[root->id] = true;
    for (int32_t i = root->id; in && i >= 0; i--)
        for (int k = 0; k < FD_MAX_INPUTS && in[i] && !is_read(o, root, i); k++)
            if (o->graph->nodes[i].input[k] >= 0) in[o->graph->nodes[i].input[k]] = true;
    return in;
}

static span_cost cost_of(const fd_diagnose_options *o, const fd_node *root, const bool *in) {
    span_cost cost = {0};
    for (int32_t i = root->id; i >= 0; i--) {
        const fd_node *node = &o->graph->nodes[i];
        if (!in[i] || is_read(o, root, i)) continue;
        cost.products += products_of(o->graph, node);
        cost.several |= i != root->id;
        cost.history |= i != root->id && node->op == FD_OP_KV_WRITE;
    }
    return cost;
}

/* Was all that is read recorded at that position? */
static fd_code is_there(const fd_diagnose_options *o, const fd_node *root, const bool *in, int32_t pos, bool *there,
                        fd_error *err) {
    fd_code code = FD_OK;
    *there = true;
    for (int32_t i = root->id; i >= 0 && *there && code == FD_OK; i--) {
        const fd_node *node = &o->graph->nodes[i];
        if (!in[i] || !is_read(o, root, i)) continue;
        double *row = malloc(2 * sizeof *row * (size_t)fd_node_row_stride(node, pos + 1)); /* and scratch */
        code = row ? fd_replay_read_row(o->trace, fd_trace_find(o->trace, node->name), node, pos, pos + 1,
                                        row + fd_node_row_stride(node, pos + 1), row, there, err)
                   : fd_fail(err, FD_ERR_MEMORY, "%s: explanation: out of memory", node->name);
        free(row);
    }
    return code;
}

/* Does an op on the way read a cache, and so what all positions before left there? */
static bool reads_cache(const fd_diagnose_options *o, const bool *in, int32_t last) {
    bool any = false;
    for (int32_t i = 0; i <= last; i++) any |= in[i] && o->graph->nodes[i].op == FD_OP_KV_WRITE;
    return any;
}

/* Rows whose inputs lack would be computed from the tokens, and those that follow with them: *from: the first from which on none lacks. */
static fd_code leave_out_lacking(const fd_diagnose_options *o, const fd_node *root, const bool *in, int32_t *from,
                                 fd_error *err) {
    bool there = true;
    int32_t first = o->finding->pos;
    if (reads_cache(o, in, root->id)) return FD_OK;
    while (there && first > *from) {
        FD_TRY(is_there(o, root, in, first - 1, &there, err));
        if (there) first--;
    }
    *from = first;
    return FD_OK;
}

/* Keys that are few enough for the scores of all rows. */
enum { MOST_KEYS = 512 };

/* A mask's bug shows in scores that were not recorded, past a row's own position: they are computed again, from the cache, which is
 * made of all rows before where it was not recorded. */
static bool hides_scores(const fd_diagnose_options *o, const fd_node *node, int32_t n_kv) {
    const fd_node *nodes = o->graph->nodes, *scores = node->op == FD_OP_ATTN_SOFTMAX ? &nodes[node->input[0]] : NULL;
    return scores && n_kv <= MOST_KEYS && !fd_asked_is_recorded(o, &nodes[scores->input[1]]);
}

static int32_t most_rows(const span_cost *cost) {
    double rows = (cost->several ? MOST_PRODUCTS_SPAN : MOST_PRODUCTS) / (cost->products + 1);
    return rows > MOST_ROWS ? MOST_ROWS : rows < FEWEST_ROWS ? FEWEST_ROWS : (int32_t)rows;
}

int32_t fd_prompt_length(const fd_trace *trace) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    int32_t n = 0;
    for (int32_t s = 0; s < fd_trace_n_step(trace) && steps[s].n_pos > 1; s++) n = steps[s].pos0 + steps[s].n_pos;
    return n;
}

int32_t fd_rest_of_step(const fd_diagnose_options *o) {
    const fd_trace_step *step = &fd_trace_steps(o->trace)[fd_trace_step_of(o->trace, o->finding->pos)];
    const int32_t end = step->pos0 + step->n_pos < o->n_pos ? step->pos0 + step->n_pos : o->n_pos;
    return end - o->finding->pos;
}

/* Every row before is computed as well, so it may not be far on, but where they hardly show it: then the first rows do for most of what is
 * tried. */
enum { MOST_ROWS_BEFORE = 6, MOST_RIGHT_BEFORE = 16 };
#define HARDLY_SHOWN 0.03f

/* So many rows before the few ones are worth a look at the first. */
enum { FEWEST_BEFORE = 3 };

int32_t fd_shows_at(const float *z, int32_t n_pos, const fd_node_finding *f) {
    const int32_t n = n_pos < 2 * MOST_RIGHT_BEFORE ? n_pos : 2 * MOST_RIGHT_BEFORE;
    float largest = 0, before = 0;
    int32_t at = 1;
    if (f->finding == FD_FOUND_NOTHING || !z || f->span_first == f->node || f->pos > 0) return 0;
    z += (size_t)f->node * (size_t)n_pos;
    for (int32_t p = 0; p < n; p++) largest = fmaxf(largest, z[p]);
    if (!isfinite(largest)) return 0;
    for (int32_t p = 0; p < n && p < MOST_ROWS_BEFORE; p++) before = fmaxf(before, z[p]);
    const int32_t most = before < HARDLY_SHOWN * largest ? MOST_RIGHT_BEFORE : MOST_ROWS_BEFORE;
    while (at < n && at < most && z[at] < largest / 2) at++;
    return z[0] < largest / 2 && at > 1 ? at : 0;
}

/* The step of the trace that holds `pos`, together with the following steps where all have one position: *single. */
static void step_around(const fd_trace *trace, int32_t pos, int32_t n_pos, int32_t *first, int32_t *end, bool *single) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    int32_t n = fd_trace_n_step(trace), s = 0;
    *first = 0;
    *single = false;
    for (; s < n && pos >= steps[s].pos0 + steps[s].n_pos; s++) *first = steps[s].pos0 + steps[s].n_pos;
    *end = n_pos;
    if (s == n) return;
    *first = steps[s].pos0;
    *end = steps[s].pos0 + steps[s].n_pos;
    *single = steps[s].n_pos == 1;
    for (; *single && s < n && steps[s].n_pos == 1; s++) *end = steps[s].pos0 + 1;
    if (*end > n_pos) *end = n_pos;
}

static fd_code choose_rows(const fd_diagnose_options *o, const fd_node *node, const bool *in, fd_asked_for which,
                           int32_t most, bool hidden_scores, fd_asked_rows *r, fd_error *err) {
    const bool few = which != FD_ASKED_ALL;
    int32_t pos = few && most == 0 && o->shows_at > 0 ? o->shows_at : o->finding->pos, first, end, step_end;
    const span_cost cost = cost_of(o, node, in);
    int32_t n_row = !few ? most_rows(&cost) : cost.several ? FEW_OF_SPAN : FEW;
    step_around(o->trace, pos, o->n_pos, &first, &end, &r->row_by_row);
    step_end = end;
    if (which == FD_ASKED_EARLY) {
        if (most > 0 || !cost.several || !cost.history || pos - first < FEWEST_BEFORE) return FD_OK;
        pos = first;
    }
    r->for_hidden_scores = hidden_scores && first > 0 && hides_scores(o, node, end);
    bool history = (cost.history && node->op != FD_OP_KV_WRITE) || r->for_hidden_scores;
    /* what attention reads of a step's earlier rows has the bug, too, whether it shows there or not */
    int32_t from = history || (most == 0 && pos < first + n_row) ? first : pos;
    FD_TRY(leave_out_lacking(o, node, in, &from, err));
    if (end > from + n_row) end = from + n_row > pos ? from + n_row : pos + 1;
    if (most > 0 && end > pos + most) end = pos + most;
    /* it may be the row before, of this step or of the one before, which is all that a step of one position can have of it */
    bool context = !history && node->op != FD_OP_KV_WRITE &&
                   ((most > 0 && from > first) || ((o->row_before || r->row_by_row) && from > 0));
    if (context) FD_TRY(is_there(o, node, in, from - 1, &context, err));
    from -= context;
    r->pos0 = history || node->op == FD_OP_KV_WRITE ? 0 : from; /* KV_WRITE: as fd_explain wants it */
    r->n_context = history ? first : 0;
    bool earlier = (few && history) || (most > 0 && (history || node->op == FD_OP_KV_WRITE));
    r->n_unjudged = earlier ? pos : context ? 1 : r->n_context;
    if (o->whole_run) r->n_context = history ? o->whole_from : 0;
    r->n_earlier = r->pos0 != 0 ? 0 : o->whole_run ? o->whole_from : first;
    r->batch_offset = r->pos0 - first;
    r->batch_end = step_end;
    r->n_pos = end - r->pos0;
    r->n_kv = end;
    r->products = cost.products;
    return FD_OK;
}

fd_code fd_choose_rows(const fd_diagnose_options *o, const fd_node *node, fd_asked_for which, int32_t most,
                       bool hidden_scores, fd_asked_rows *r, fd_error *err) {
    bool *in = nodes_of_span(o, node);
    *r = (fd_asked_rows){0};
    fd_code code = in ? choose_rows(o, node, in, which, most, hidden_scores, r, err)
                      : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    free(in);
    return code;
}
