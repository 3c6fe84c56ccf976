#include "compare/replay.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "model/quant.h"

/* Rounding through unrecorded ops is sampled: worst cases, handed on from bound to bound, would soon exceed the values
 * themselves. Each draw adds ±τ of its own op to every unrecorded element and runs the ops behind it on that; τ is λ
 * standard deviations, so a draw spreads λ times as far as roundings do. Four draws: one alone may cancel by chance. */
enum { DRAWS = 4 };

/* What a node hands to its readers. KV_WRITE: all positions so far; others: the range's. */
typedef struct fed {
    double *x, *e;    /* e: how far x may be from what the candidate used; owned */
    double *p[DRAWS]; /* x with roundings drawn in what was not recorded; NULL: nothing drawn yet; owned */
    bool *unknown;    /* per row: not recorded, and behind a choice of experts that may have been another; owned */
    bool missing;     /* some row was not recorded */
    int32_t span_first;
} fed;

struct fd_replay {
    fd_replay_options o;
    int32_t *in_trace;    /* [n_node] index in the trace, -1: unknown to it; owned */
    int32_t *last_reader; /* [n_node]; owned */
    fed *fed;             /* [n_node]; owned */
    uint32_t kv_type; /* FD_Q8_0, FD_Q4_0: the trace says that cache rows are such blocks; else FD_F32 */
    int32_t pos0, n_pos, n_kv;
    bool *recorded;                        /* [n_pos] */
    double *y, *tau, *candidate, *scratch; /* of the node at hand; owned */
    double *drawn[DRAWS];                  /* laid out as y; NULL: its inputs are as recorded; owned */
};

/* ---- opening ---- */

static fd_code check_shape(const fd_replay *replay, const fd_node *node, fd_error *err) {
    int32_t at = replay->in_trace[node->id];
    if (at < 0) return FD_OK;
    const fd_trace_node *recorded = fd_trace_node_at(replay->o.trace, at);
    int64_t found = fd_trace_elements(recorded, 4), expected = fd_node_elements(node, 5);
    if (found == expected) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: %s has %lld elements at position 4, the model's graph %lld",
                   fd_trace_path(replay->o.trace), node->name, (long long)found, (long long)expected);
}

static fd_code fill(fd_replay *replay, fd_error *err) {
    const fd_graph *graph = replay->o.graph;
    size_t n = (size_t)graph->n_node;
    replay->in_trace = malloc(sizeof *replay->in_trace * n);
    replay->last_reader = malloc(sizeof *replay->last_reader * n);
    replay->fed = calloc(n, sizeof *replay->fed);
    if (!replay->in_trace || !replay->last_reader || !replay->fed)
        return fd_fail(err, FD_ERR_MEMORY, "replay of %zu nodes: out of memory", n);
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        replay->in_trace[i] = fd_trace_find(replay->o.trace, node->name);
        replay->last_reader[i] = i;
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (node->input[k] >= 0) replay->last_reader[node->input[k]] = i;
        FD_TRY(check_shape(replay, node, err));
    }
    return FD_OK;
}

static uint32_t quantised_kv(const fd_trace *trace) {
    static const uint32_t types[] = {FD_Q8_0, FD_Q4_0};
    for (int i = 0; i < 2; i++)
        if (strcasecmp(fd_dtype_get(types[i])->name, fd_trace_get_info(trace)->kv_type) == 0) return types[i];
    return FD_F32;
}

fd_code fd_replay_open(const fd_replay_options *options, fd_replay **out, fd_error *err) {
    *out = NULL;
    fd_replay *replay = calloc(1, sizeof *replay);
    if (!replay) return fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
    replay->o = *options;
    replay->kv_type = quantised_kv(options->trace);
    fd_code code = fill(replay, err);
    if (code != FD_OK) {
        fd_replay_close(replay);
        return code;
    }
    *out = replay;
    return FD_OK;
}

static void drop(fed *f) {
    free(f->x);
    free(f->e);
    for (int d = 0; d < DRAWS; d++) free(f->p[d]);
    free(f->unknown);
    *f = (fed){.missing = f->missing, .span_first = f->span_first};
}

static void drop_node_rows(fd_replay *replay) {
    free(replay->y);
    free(replay->tau);
    free(replay->candidate);
    free(replay->scratch);
    for (int d = 0; d < DRAWS; d++) {
        free(replay->drawn[d]);
        replay->drawn[d] = NULL;
    }
    replay->y = replay->tau = replay->candidate = replay->scratch = NULL;
}

void fd_replay_close(fd_replay *replay) {
    if (!replay) return;
    for (int32_t i = 0; replay->fed && i < replay->o.graph->n_node; i++) drop(&replay->fed[i]);
    drop_node_rows(replay);
    free(replay->recorded);
    free(replay->fed);
    free(replay->in_trace);
    free(replay->last_reader);
    free(replay);
}

fd_code fd_replay_range(fd_replay *replay, int32_t pos0, int32_t n_pos, fd_error *err) {
    assert(pos0 == replay->n_kv && n_pos > 0);
    for (int32_t i = 0; i < replay->o.graph->n_node; i++)
        if (replay->o.graph->nodes[i].op != FD_OP_KV_WRITE) drop(&replay->fed[i]);
    replay->pos0 = pos0;
    replay->n_pos = n_pos;
    replay->n_kv = pos0 + n_pos;
    free(replay->recorded);
    replay->recorded = calloc((size_t)n_pos, sizeof *replay->recorded);
    return replay->recorded ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
}

/* ---- what was recorded ---- */

fd_code fd_replay_read_row(const fd_trace *trace, int32_t in_trace, const fd_node *node, int32_t pos, int32_t n_kv,
                           double *scratch, double *row, bool *present, fd_error *err) {
    fd_error why = {0};
    *present = false;
    if (in_trace < 0 || !fd_trace_node_at(trace, in_trace)->has_data) return FD_OK;
    fd_code code = fd_trace_read(trace, in_trace, pos, NULL, node->over_kv ? scratch : row, &why);
    if (code == FD_ERR_INCOMPLETE) return FD_OK;
    if (code != FD_OK) {
        *err = why;
        return code;
    }
    *present = true;
    if (!node->over_kv) return FD_OK;
    double padding = node->op == FD_OP_ATTN_SCORES ? -INFINITY : 0;
    for (int64_t h = 0; h < node->shape[0]; h++)
        for (int32_t t = 0; t < n_kv; t++) row[h * n_kv + t] = t <= pos ? scratch[h * (pos + 1) + t] : padding;
    return FD_OK;
}

static fd_code read_rows(fd_replay *replay, const fd_node *node, int64_t stride, bool *all, fd_error *err) {
    *all = true;
    for (int32_t r = 0; r < replay->n_pos; r++) {
        FD_TRY(fd_replay_read_row(replay->o.trace, replay->in_trace[node->id], node, replay->pos0 + r, replay->n_kv,
                                  replay->scratch, replay->candidate + r * stride, &replay->recorded[r], err));
        *all &= replay->recorded[r];
    }
    return FD_OK;
}

/* ---- running an op ---- */

static fd_code narrow(const double *x, int64_t n, float **out, fd_error *err) {
    *out = malloc(sizeof **out * (size_t)(n ? n : 1));
    if (!*out) return fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
    for (int64_t i = 0; i < n; i++) (*out)[i] = (float)x[i];
    return FD_OK;
}

/* Tables from position 0, in binary64 or, for the contract, binary32; *table owns both halves. */
static fd_code rope_tables(const fd_replay *replay, const fd_node *node, bool exact, void **table, fd_op_args *args,
                           fd_error *err) {
    int64_t half = node->rope.n_rot / 2, n = half * replay->n_kv;
    size_t real = exact ? sizeof(float) : sizeof(double);
    float *factors = NULL;
    *table = malloc(2 * real * (size_t)n);
    if (node->weight[0] >= 0) factors = malloc(sizeof *factors * (size_t)half);
    if (!*table || (node->weight[0] >= 0 && !factors)) {
        free(factors);
        return fd_fail(err, FD_ERR_MEMORY, "%s: tables: out of memory", node->name);
    }
    if (factors) {
        const fd_weight *w = &replay->o.graph->weights[node->weight[0]];
        fd_dequantize_row(w->dtype, w->data, factors, half);
    }
    void *sine = (char *)*table + real * (size_t)n;
    if (exact)
        fd_rope_table(&node->rope, factors, 0, replay->n_kv, *table, sine);
    else
        fd_rope_table_f64(&node->rope, factors, 0, replay->n_kv, *table, sine);
    free(factors);
    args->rope_cos = *table;
    args->rope_sin = sine;
    return FD_OK;
}

static int64_t rows_given(const fd_replay *replay, const fd_node *node) {
    int64_t rows = node->op == FD_OP_KV_WRITE ? replay->n_kv : replay->n_pos;
    return rows * fd_node_row_stride(node, replay->n_kv);
}

/* In contract order: inputs are binary32 already, because an exact run recorded them. */
static fd_code run_exact(const fd_replay *replay, fd_op_args args, double *out, fd_error *err) {
    const fd_node *node = args.node;
    float *in[FD_MAX_INPUTS] = {NULL, NULL}, *result = NULL;
    fd_code code = narrow(out, rows_given(replay, node), &result, err);
    for (int k = 0; k < FD_MAX_INPUTS && code == FD_OK; k++)
        if (node->input[k] >= 0)
            code = narrow(args.in[k], rows_given(replay, &replay->o.graph->nodes[node->input[k]]), &in[k], err);
    if (code == FD_OK) {
        for (int k = 0; k < FD_MAX_INPUTS; k++) args.in[k] = in[k];
        args.out = result;
        replay->o.op(FD_NUMERICS_EXACT, &args);
        for (int64_t i = 0; i < rows_given(replay, node); i++) out[i] = (double)result[i];
    }
    for (int k = 0; k < FD_MAX_INPUTS; k++) free(in[k]);
    free(result);
    return code;
}

/* n_row rows of n elements, rounded to blocks as ggml's reference algorithm does it. */
static fd_code quantise_rows(const fd_replay *replay, uint32_t type, double *rows, int64_t n_row, int64_t n, fd_error *err) {
    int64_t bytes = fd_dtype_row_bytes(type, n);
    if (bytes < 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: K/V type \"%s\", but rows of %lld elements are no whole blocks",
                       fd_trace_path(replay->o.trace), fd_dtype_get(replay->kv_type)->name, (long long)n);
    float *x = malloc(sizeof *x * (size_t)n);
    void *blocks = malloc((size_t)bytes);
    bool ran = x && blocks;
    for (int64_t r = 0; ran && r < n_row; r++) {
        double *row = rows + r * n;
        bool finite = true;
        for (int64_t i = 0; i < n; i++) {
            x[i] = (float)row[i];
            finite &= isfinite(x[i]) != 0;
        }
        if (!finite) continue; /* a block has no NaN: the candidate's own is the finding */
        fd_quantize_row(type, x, blocks, n);
        fd_dequantize_row(type, blocks, x, n);
        for (int64_t i = 0; i < n; i++) row[i] = (double)x[i];
    }
    free(x);
    free(blocks);
    return ran ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
}

/* The op in binary64, with the roundings to blocks that come with a quantised cache: rows written to it, and in llama.cpp's
 * CPU kernels q beside rows of K. */
static fd_code run_f64(const fd_replay *replay, fd_op_args args, fd_error *err) {
    const fd_node *node = args.node;
    bool quantised = replay->kv_type != FD_F32;
    double *q = NULL;
    if (quantised && node->op == FD_OP_ATTN_SCORES && replay->o.numerics->q8_activations) {
        const fd_node *q_node = &replay->o.graph->nodes[node->input[0]];
        int64_t n = fd_node_row_stride(q_node, replay->n_kv);
        q = malloc(sizeof *q * (size_t)(n * replay->n_pos));
        if (!q) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
        memcpy(q, args.in[0], sizeof *q * (size_t)(n * replay->n_pos));
        fd_code code = quantise_rows(replay, FD_Q8_0, q, replay->n_pos, n, err);
        if (code != FD_OK) {
            free(q);
            return code;
        }
        args.in[0] = q;
    }
    replay->o.op(FD_NUMERICS_F64, &args);
    free(q);
    if (!quantised || node->op != FD_OP_KV_WRITE) return FD_OK;
    int64_t n = fd_node_row_stride(node, replay->n_kv);
    return quantise_rows(replay, replay->kv_type, (double *)args.out + replay->pos0 * n, replay->n_pos, n, err);
}

/* The op once more for each draw, where an input has one. */
static fd_code run_draws(fd_replay *replay, const fd_node *node, fd_op_args args, fd_error *err) {
    const fed *of[FD_MAX_INPUTS] = {NULL, NULL};
    bool any = false;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] < 0) continue;
        of[k] = &replay->fed[node->input[k]];
        any |= of[k]->p[0] != NULL;
    }
    int64_t n = rows_given(replay, node), before = node->op == FD_OP_KV_WRITE ? n / replay->n_kv * replay->pos0 : 0;
    const fed *own = &replay->fed[node->id]; /* a cache's earlier rows */
    if (!any && !(before && own->p[0])) return FD_OK;
    for (int d = 0; d < DRAWS; d++) {
        replay->drawn[d] = calloc((size_t)(n ? n : 1), sizeof *replay->drawn[d]);
        if (!replay->drawn[d]) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
        if (before) memcpy(replay->drawn[d], own->p[d] ? own->p[d] : own->x, sizeof(double) * (size_t)before);
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (of[k]) args.in[k] = of[k]->p[d] ? of[k]->p[d] : of[k]->x;
        args.out = replay->drawn[d];
        FD_TRY(run_f64(replay, args, err));
    }
    return FD_OK;
}

static double square(double x) {
    return x * x;
}

/* How far the logits of a choice may be from those that the candidate chose by: what was recorded of them, and the draws'
 * spread, the row's root mean square in quadrature, for one element's may be small by chance. Owned by the caller. */
static fd_code choice_error(const fd_replay *replay, const fd_node *node, double **out, fd_error *err) {
    const fed *in = &replay->fed[node->input[0]];
    int64_t n = fd_node_row_stride(&replay->o.graph->nodes[node->input[0]], replay->n_kv);
    double *e = malloc(sizeof *e * (size_t)(replay->n_pos * n));
    if (!e) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    memcpy(e, in->e, sizeof *e * (size_t)(replay->n_pos * n));
    for (int32_t r = 0; r < replay->n_pos && in->p[0]; r++) {
        double sum = 0, *row = e + r * n;
        for (int64_t i = 0; i < n; i++)
            for (int d = 0; d < DRAWS; d++) sum += square(in->p[d][r * n + i] - in->x[r * n + i]);
        for (int64_t i = 0; i < n; i++) {
            double own = 0;
            for (int d = 0; d < DRAWS; d++) own += square(in->p[d][r * n + i] - in->x[r * n + i]);
            row[i] += sqrt((own + sum / (double)n) / DRAWS);
        }
    }
    *out = e;
    return FD_OK;
}

static fd_code run(fd_replay *replay, const fd_node *node, double *out, fd_error *err) {
    const fd_graph *graph = replay->o.graph;
    bool exact = replay->o.numerics->exact;
    void *table = NULL;
    double *chosen_by = NULL;
    fd_op_args args = {.graph = graph,
                       .node = node,
                       .pos0 = replay->pos0,
                       .n_pos = replay->n_pos,
                       .n_kv = replay->n_kv,
                       .n_ctx = replay->n_kv,
                       .tokens = replay->o.tokens + replay->pos0,
                       .out = out};
    fd_bound_args bound = {.op = &args,
                           .candidate = replay->candidate,
                           .numerics = replay->o.numerics,
                           .kv_type = replay->kv_type,
                           .n_output = replay->o.n_output,
                           .stored = FD_F64};
    if (replay->in_trace[node->id] >= 0)
        bound.stored = fd_trace_node_at(replay->o.trace, replay->in_trace[node->id])->dtype;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] >= 0) {
            args.in[k] = replay->fed[node->input[k]].x;
            bound.in_error[k] = replay->fed[node->input[k]].e;
        }
    }
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (node->weight[k] >= 0) args.weight[k] = &graph->weights[node->weight[k]];
    fd_code code = node->op == FD_OP_ROPE ? rope_tables(replay, node, exact, &table, &args, err) : FD_OK;
    if (node->op == FD_OP_TOP_K && !exact) {
        code = choice_error(replay, node, &chosen_by, err);
        bound.in_error[0] = chosen_by;
    }
    if (code == FD_OK) code = exact ? run_exact(replay, args, out, err) : run_f64(replay, args, err);
    if (code == FD_OK) code = fd_bound(&bound, replay->tau, err);
    if (code == FD_OK && !exact) code = run_draws(replay, node, args, err);
    free(table);
    free(chosen_by);
    return code;
}

/* ---- a node ---- */

static fd_code reserve(fd_replay *replay, const fd_node *node, int64_t stride, fd_error *err) {
    size_t rows = sizeof(double) * (size_t)(replay->n_pos * stride);
    size_t y = node->op == FD_OP_KV_WRITE ? sizeof(double) * (size_t)(replay->n_kv * stride) : rows;
    drop_node_rows(replay);
    replay->y = calloc(1, y);
    replay->tau = malloc(rows);
    replay->candidate = calloc(1, rows);
    replay->scratch = malloc(sizeof(double) * (size_t)stride);
    if (replay->y && replay->tau && replay->candidate && replay->scratch) return FD_OK;
    return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
}

/* Where y starts: a cache's own range lies behind the earlier positions. */
static double *own_rows(const fd_replay *replay, const fd_node *node, int64_t stride) {
    return replay->y + (node->op == FD_OP_KV_WRITE ? replay->pos0 * stride : 0);
}

/* +1 or −1, the same in every run of the program. */
static double sign_of(int32_t node, int64_t i, int draw) {
    uint64_t h = ((uint64_t)(uint32_t)node << 40 ^ (uint64_t)i << 2 ^ (uint64_t)draw) + 1;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return (h ^ h >> 33) & 1 ? 1 : -1;
}

/* The draws beside x: recorded rows as they are, others as replayed from the inputs' draws, each with its own rounding. */
static fd_code feed_draws(fd_replay *replay, const fd_node *node, int64_t stride, int64_t before, fd_error *err) {
    fed *f = &replay->fed[node->id];
    int64_t n = replay->n_pos * stride;
    for (int d = 0; d < DRAWS; d++) {
        bool fresh = f->p[d] == NULL;
        double *p = realloc(f->p[d], sizeof *p * (size_t)(before + n));
        if (!p) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
        f->p[d] = p;
        if (fresh) memcpy(p, f->x, sizeof *p * (size_t)before);
        memcpy(p + before, f->x + before, sizeof *p * (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            if (replay->recorded[i / stride]) continue;
            double base = replay->drawn[d] ? replay->drawn[d][before + i] : f->x[before + i], tau = replay->tau[i];
            bool rounded = isfinite(base) && tau < FD_BOUND_UNKNOWN && node->op != FD_OP_TOP_K;
            p[before + i] = rounded ? base + sign_of(node->id, before + i, d) * tau : base;
        }
    }
    return FD_OK;
}

/* Adds to τ how far the draws went: the element's own and, in quadrature, the root mean square of its head's (of the row's,
 * where there are no heads or they run over positions), for an element's own may be small by chance. */
static void add_spread(fd_replay *replay, const fd_node *node, int64_t stride) {
    int64_t before = node->op == FD_OP_KV_WRITE ? replay->pos0 * stride : 0;
    int64_t slice = node->n_dim == 2 && !node->over_kv ? node->shape[1] : stride;
    if (!replay->drawn[0]) return;
    for (int64_t at = 0; at < replay->n_pos * stride; at += slice) {
        double sum = 0;
        int64_t n = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = at; i < at + slice; i++) {
                double own = 0;
                for (int d = 0; d < DRAWS; d++) {
                    double delta = replay->drawn[d][before + i] - replay->y[before + i];
                    own += isfinite(delta) ? delta * delta : 0;
                }
                if (pass == 0) {
                    sum += own;
                    n += own > 0;
                } else {
                    replay->tau[i] += sqrt((own + sum / (double)(n ? n : 1)) / DRAWS);
                }
            }
    }
}

/* Hands the rows to the readers: recorded ones with the rounding of what the trace stores, others as replayed. */
static fd_code feed(fd_replay *replay, const fd_node *node, int64_t stride, int32_t span_first, fd_error *err) {
    fed *f = &replay->fed[node->id];
    bool cache = node->op == FD_OP_KV_WRITE;
    int64_t before = cache ? replay->pos0 * stride : 0, n = replay->n_pos * stride;
    double *x = realloc(f->x, sizeof *x * (size_t)(before + n));
    if (x) f->x = x;
    double *e = realloc(f->e, sizeof *e * (size_t)(before + n));
    if (e) f->e = e;
    if (!x || !e) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);

    int32_t at = replay->in_trace[node->id];
    uint32_t stored = at < 0 ? FD_F64 : fd_trace_node_at(replay->o.trace, at)->dtype;
    double u = stored == FD_F16 || stored == FD_BF16 ? fd_dtype_roundoff(stored) : 0;
    double tiny = stored == FD_F16 || stored == FD_BF16 ? fd_dtype_tiny(stored) : 0;
    bool any_missing = false;
    for (int32_t r = 0; r < replay->n_pos; r++) {
        any_missing |= !replay->recorded[r];
        for (int64_t i = r * stride; i < (r + 1) * stride; i++) {
            double c = replay->candidate[i];
            x[before + i] = c;
            double own = replay->recorded[r] && isfinite(c) ? u * fabs(c) + tiny / 2 : 0;
            e[before + i] = node->op == FD_OP_TOP_K && !replay->recorded[r] ? replay->tau[i] : own;
        }
    }
    bool earlier = cache && replay->pos0 > 0 && f->missing;
    if (any_missing && !(earlier && f->span_first < span_first)) f->span_first = span_first;
    f->missing = any_missing || earlier;
    if (replay->o.numerics->exact || !(any_missing || f->p[0])) return FD_OK;
    return feed_draws(replay, node, stride, before, err);
}

/* Rounding may have turned a choice of experts that nobody recorded, and no draw need show it: a row behind it, up to the
 * next recorded tensor, gets a τ that tells nothing. */
static fd_code spread_unknown(fd_replay *replay, const fd_node *node, int64_t stride, bool ran, fd_error *err) {
    fed *f = &replay->fed[node->id];
    int64_t before = node->op == FD_OP_KV_WRITE ? replay->pos0 : 0;
    bool *unknown = realloc(f->unknown, sizeof *unknown * (size_t)(before + replay->n_pos));
    if (!unknown) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    f->unknown = unknown;
    memset(unknown + before, 0, sizeof *unknown * (size_t)replay->n_pos);
    for (int32_t r = 0; r < replay->n_pos && ran; r++) {
        bool behind = false;
        for (int64_t i = r * stride; i < (r + 1) * stride && !behind; i++) behind = replay->tau[i] >= FD_BOUND_UNKNOWN;
        for (int k = 0; k < FD_MAX_INPUTS && !behind; k++) {
            if (node->input[k] < 0) continue;
            bool cache = replay->o.graph->nodes[node->input[k]].op == FD_OP_KV_WRITE;
            int32_t last = r + (cache ? replay->pos0 : 0);
            for (int32_t p = cache ? 0 : r; p <= last && !behind; p++) behind = replay->fed[node->input[k]].unknown[p];
        }
        for (int64_t i = r * stride; i < (r + 1) * stride && behind; i++) replay->tau[i] = FD_BOUND_UNKNOWN;
        unknown[before + r] = behind && !replay->recorded[r];
    }
    return FD_OK;
}

/* The first unrecorded node that this one's value would be computed through. */
static int32_t span_of(const fd_replay *replay, const fd_node *node) {
    int32_t first = node->id;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        int32_t in = node->input[k];
        if (in < 0) continue;
        if (replay->fed[in].missing && replay->fed[in].span_first < first) first = replay->fed[in].span_first;
    }
    return first;
}

fd_code fd_replay_node(fd_replay *replay, int32_t id, bool wanted, fd_replayed *out, fd_error *err) {
    const fd_node *node = &replay->o.graph->nodes[id];
    int64_t stride = fd_node_row_stride(node, replay->n_kv);
    bool all;
    FD_TRY(reserve(replay, node, stride, err));
    FD_TRY(read_rows(replay, node, stride, &all, err));
    if (node->op == FD_OP_KV_WRITE && replay->pos0 > 0)
        memcpy(replay->y, replay->fed[id].x, sizeof(double) * (size_t)(replay->pos0 * stride));
    int32_t span_first = span_of(replay, node);
    bool ran = wanted || !all;
    if (ran) {
        FD_TRY(run(replay, node, replay->y, err));
        const double *y = own_rows(replay, node, stride);
        for (int32_t r = 0; r < replay->n_pos; r++)
            if (!replay->recorded[r])
                memcpy(replay->candidate + r * stride, y + r * stride, sizeof *y * (size_t)stride);
    }
    FD_TRY(feed(replay, node, stride, span_first, err));
    if (ran) add_spread(replay, node, stride);
    FD_TRY(spread_unknown(replay, node, stride, ran, err));
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        int32_t in = node->input[k];
        if (in >= 0 && replay->last_reader[in] == id && replay->o.graph->nodes[in].op != FD_OP_KV_WRITE)
            drop(&replay->fed[in]);
    }
    *out = (fd_replayed){.stride = stride,
                         .recorded = replay->recorded,
                         .candidate = replay->candidate,
                         .y = ran ? own_rows(replay, node, stride) : NULL,
                         .tau = ran ? replay->tau : NULL,
                         .span_first = span_first};
    return FD_OK;
}
