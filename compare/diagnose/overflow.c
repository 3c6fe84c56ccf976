#include "compare/diagnose/overflow_sizes.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/evaluate/evaluate.h"

/* bfloat16 ends 0.4 % before binary32. `tiny`: half of the smallest number above 0. */
static const struct type {
    const char *name;
    double limit, tiny;
} types[] = {{"binary32", FLT_MAX, 0x1p-150}, {"binary16", 65504, 0x1p-25}}; /* what leaves both left the wider one */

/* ---- which rows are not finite ---- */

typedef struct rows {
    bool *judged, *bad; /* [n_pos] */
    int32_t n, n_bad;
} rows;

static bool element_counts(const fd_explain_request *r, const fd_node *node, int64_t i, int32_t row) {
    return !node->over_kv || i % r->args.n_kv <= r->args.pos0 + row;
}

/* Is everything finite that the row is made of? A cache and what was attended to bring earlier rows with them. */
static bool row_is_clean(const fd_explain_request *r, const int32_t *span, int32_t n_span, const bool *in_span,
                         int32_t row) {
    const fd_node *nodes = r->args.graph->nodes;
    bool history = n_span > 1;
    for (int32_t s = 0; s < n_span; s++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t id = nodes[span[s]].input[k];
            const float *x = id < 0 || in_span[id] ? NULL : r->tensor(r->user, id);
            if (!x) continue;
            bool cache = nodes[id].op == FD_OP_KV_WRITE;
            int64_t stride = fd_node_row_stride(&nodes[id], r->args.n_kv);
            int64_t first = cache || history ? 0 : row, end = (cache ? r->args.pos0 : 0) + row + 1;
            for (int64_t p = first; p < end; p++)
                for (int64_t i = 0; i < stride; i++) {
                    float v = x[p * stride + i];
                    if (nodes[id].over_kv && (i % r->args.n_kv > r->args.pos0 + p || (isinf(v) && v < 0))) continue;
                    if (!isfinite(v)) return false;
                }
        }
    return true;
}

static fd_code look_at_rows(const fd_explain_request *r, const int32_t *span, int32_t n_span, rows *out,
                            fd_error *err) {
    const fd_node *root = r->args.node;
    int64_t stride = fd_node_row_stride(root, r->args.n_kv);
    bool *in_span = calloc((size_t)r->args.graph->n_node, sizeof *in_span);
    *out = (rows){calloc((size_t)r->args.n_pos, sizeof(bool)), calloc((size_t)r->args.n_pos, sizeof(bool)), 0, 0};
    if (!in_span || !out->judged || !out->bad) {
        free(in_span);
        return fd_fail(err, FD_ERR_MEMORY, "overflow: out of memory");
    }
    for (int32_t s = 0; s < n_span; s++) in_span[span[s]] = true;
    for (int32_t p = r->n_context; p < r->args.n_pos; p++) {
        out->judged[p] = row_is_clean(r, span, n_span, in_span, p);
        for (int64_t i = 0; i < stride; i++)
            if (element_counts(r, root, i, p) && !isfinite(r->output[p * stride + i])) out->bad[p] = true;
        out->n += out->judged[p];
        out->n_bad += out->judged[p] && out->bad[p];
    }
    free(in_span);
    return FD_OK;
}

/* Do the elements of the finding's row look like that cause? Of another node of the span they say nothing; an activation
 * whose exponential is Inf is usually right all the same. */
static bool has_marks(const fd_overflow_look *l, const fd_overflow_cause *c, double limit, int32_t row) {
    const fd_explain_request *r = l->request;
    const fd_node *root = r->args.node;
    int64_t stride = fd_node_row_stride(root, r->args.n_kv), n = 0, n_bad = 0, n_nan = 0, n_other = 0;
    if (l->node != root) return c->marks != FD_MARKS_NAN || l->node->op == FD_OP_ATTN_SOFTMAX;
    for (int64_t i = row * stride; i < (row + 1) * stride; i++) {
        if (!element_counts(r, root, i, row)) continue;
        bool bad = !isfinite(r->output[i]);
        double size = fabs((double)l->right[i]);
        n++;
        n_bad += bad;
        n_nan += isnan(r->output[i]);
        n_other += bad ? !(size * c->slack > limit) : !(size < limit * c->slack);
    }
    switch (c->marks) {
    case FD_MARKS_ANY: break;
    case FD_MARKS_WHOLE_ROW: return n_bad == n;
    case FD_MARKS_NAN: return n_nan == n_bad;
    case FD_MARKS_OWN: return n_other == 0;
    }
    return true;
}

/* Does the size foretell every row? `row`: of the finding. */
static bool foretells(const fd_overflow_look *l, const fd_overflow_cause *c, double limit, const rows *all,
                      int32_t row) {
    if (!(c->size(l, row, c->slot) * c->slack > limit)) return false;
    for (int32_t p = 0; p < l->request->args.n_pos; p++) {
        if (!all->judged[p]) continue;
        double size = c->size(l, p, c->slot);
        if (all->bad[p] ? !(size * c->slack > limit) : !(size < limit * c->slack)) return false;
    }
    return has_marks(l, c, limit, row);
}

/* ---- one node ---- */

static fd_code open_look(fd_workbench *bench, const fd_explain_request *r, int32_t id, fd_overflow_look *l, bool *known,
                         fd_error *err) {
    *l = (fd_overflow_look){.request = r, .node = &r->args.graph->nodes[id]};
    FD_TRY(fd_evaluate(bench, &fd_no_hypothesis, id, false, &l->made[FD_MAX_INPUTS], err));
    l->right = l->made[FD_MAX_INPUTS].rows;
    *known = l->made[FD_MAX_INPUTS].state == FD_VARIANT_COMPUTED;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (l->node->input[k] < 0) continue;
        l->in[k] = r->tensor(r->user, l->node->input[k]);
        if (l->in[k]) continue;
        FD_TRY(fd_evaluate(bench, &fd_no_hypothesis, l->node->input[k], false, &l->made[k], err));
        l->in[k] = l->made[k].state == FD_VARIANT_COMPUTED ? l->made[k].memory : NULL;
        *known &= l->in[k] != NULL;
    }
    return FD_OK;
}

static void close_look(fd_overflow_look *l) {
    for (int k = 0; k <= FD_MAX_INPUTS; k++) fd_variant_free(&l->made[k]);
}

static void say(const fd_overflow_look *l, const fd_overflow_cause *c, const struct type *type, int32_t row,
                fd_overflow *out) {
    out->kind = c->kind;
    out->type = type->name;
    out->limit = type->limit;
    out->reaches = c->size(l, row, c->slot);
    snprintf(out->node, sizeof out->node, "%s", l->node->name);
    if (c->slot != FD_NO_SLOT)
        snprintf(out->input, sizeof out->input, "%s", l->request->args.graph->nodes[l->node->input[c->slot]].name);
}

static void try_causes(const fd_overflow_look *l, const rows *all, int32_t row, fd_overflow *out) {
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (int32_t i = 0; i < fd_n_overflow_cause && out->kind == FD_OVERFLOW_UNKNOWN; i++) {
            const fd_overflow_cause *c = &fd_overflow_causes[i];
            bool has_input = c->slot == FD_NO_SLOT || l->in[c->slot] != NULL;
            if (has_input && c->applies(l) && foretells(l, c, types[t].limit, all, row)) say(l, c, &types[t], row, out);
        }
        const fd_overflow_cause *zero = &fd_overflow_norm_of_zero;
        if (out->kind == FD_OVERFLOW_UNKNOWN && zero->applies(l) && foretells(l, zero, 1 / types[t].tiny, all, row)) {
            say(l, zero, &types[t], row, out);
            out->reaches = 1 / out->reaches;
            out->limit = 2 * types[t].tiny;
        }
    }
}

/* What no size foretells: -Inf that hides keys, and a row of softmax without any. */
static void try_masks(const fd_explain_request *r, int32_t row, fd_overflow *out) {
    const fd_node *root = r->args.node;
    int64_t stride = fd_node_row_stride(root, r->args.n_kv);
    const float *c = r->output + row * stride;
    int64_t n_seen = 0, n_bad = 0, n_hidden = 0;
    if (!root->over_kv) return;
    for (int64_t i = 0; i < stride; i++) {
        if (!element_counts(r, root, i, row)) continue;
        n_seen++;
        n_bad += !isfinite(c[i]);
        n_hidden += isinf(c[i]) && c[i] < 0;
    }
    if (root->op != FD_OP_ATTN_SOFTMAX && n_hidden == n_bad) {
        out->kind = FD_OVERFLOW_MASKED;
        out->reaches = (double)n_hidden;
        out->gives = (double)n_seen;
    }
    if (root->op == FD_OP_ATTN_SOFTMAX && n_bad > 0 && n_bad % (r->args.pos0 + row + 1) == 0)
        out->kind = FD_OVERFLOW_NO_KEY;
}

/* ---- the whole ---- */

static fd_code look_through(fd_workbench *bench, const fd_explain_request *r, const int32_t *span, int32_t n_span,
                            const rows *all, int32_t row, fd_overflow *out, fd_error *err) {
    out->kind = FD_OVERFLOW_UNKNOWN;
    for (int32_t s = 0; s < n_span && out->kind == FD_OVERFLOW_UNKNOWN; s++) {
        fd_overflow_look l;
        bool known = false;
        fd_code code = open_look(bench, r, span[s], &l, &known, err);
        if (code == FD_OK && known) {
            try_causes(&l, all, row, out);
            out->gives = fd_overflow_of_result(&l, row, 0); /* of the last, if no cause is found */
            for (int k = 0; k < FD_MAX_INPUTS && out->kind == FD_OVERFLOW_UNKNOWN; k++)
                if (l.in[k]) out->reaches = fmax(out->reaches, fd_overflow_of_input(&l, row, k));
        }
        close_look(&l);
        FD_TRY(code);
    }
    if (out->kind != FD_OVERFLOW_UNKNOWN) return FD_OK;
    snprintf(out->node, sizeof out->node, "%s", r->args.node->name);
    try_masks(r, row, out);
    return FD_OK;
}

fd_code fd_overflow_of(const fd_explain_request *request, int32_t pos, fd_overflow *out, fd_error *err) {
    fd_explain_request as_it_should_be = *request, *r = &as_it_should_be;
    r->numerics = NULL; /* a class that rounds to binary16 would overflow with it */
    int32_t row = pos - r->args.pos0, n_span;
    int32_t *span = malloc(sizeof *span * (size_t)r->args.graph->n_node);
    fd_workbench *bench = NULL;
    rows all = {0};
    *out = (fd_overflow){.pos = pos};
    fd_code code = span ? fd_workbench_open(r, &bench, err) : fd_fail(err, FD_ERR_MEMORY, "overflow: out of memory");
    if (code == FD_OK) {
        n_span = fd_evaluate_span(bench, r->args.node->id, span);
        code = look_at_rows(r, span, n_span, &all, err);
        bool asked = code == FD_OK && row >= 0 && row < r->args.n_pos && all.judged[row] && all.bad[row];
        if (asked) code = look_through(bench, r, span, n_span, &all, row, out, err);
    }
    out->n_row = all.n;
    out->n_row_not_finite = all.n_bad;
    fd_workbench_close(bench);
    free(all.judged);
    free(all.bad);
    free(span);
    return code;
}

static fd_code look_at_finding(void *user, const fd_diagnose_options *how, const fd_explain_request *request,
                               fd_error *err) {
    return fd_overflow_of(request, how->finding->pos, user, err);
}

fd_code fd_find_overflow(const fd_diagnose_options *how, fd_overflow *out, fd_error *err) {
    *out = (fd_overflow){0};
    if (how->finding->finding == FD_FOUND_NOTHING) return FD_OK;
    return fd_diagnose_look(how, look_at_finding, out, err);
}
