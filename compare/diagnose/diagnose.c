#include "compare/diagnose/diagnose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/diagnose/asked_rows.h"
#include "compare/diagnose/hidden_scores.h"
#include "compare/diagnose/later_rows.h"
#include "compare/replay/kv_types.h"

typedef struct recorded {
    const fd_diagnose_options *o;
    fd_asked_rows at;
    float **rows;  /* [n_node] owned; NULL: not asked for yet, or not recorded */
    float *before; /* the finding's node at positions before these; owned */
    fd_error err;  /* the first failure while a tensor was read */
    fd_code code;
} recorded;

/* ---- what was recorded there ---- */

/* Rows of the finding's own node before its position may lack, as of a chunk that left its last logits: those up to the last that
 * lacks are not judged. Of what it reads none may. */
static bool may_lack(recorded *r, const fd_node *node, int32_t first, int32_t p) {
    const fd_node_finding *f = r->o->finding;
    if (node->id != f->node || first + p >= f->pos) return false;
    const int32_t row = first + p - r->at.pos0;
    if (row >= r->at.n_unjudged) r->at.n_unjudged = row + 1;
    return true;
}

static fd_code read_rows(recorded *r, const fd_node *node, float **out, fd_error *err) {
    int64_t stride = fd_node_row_stride(node, r->at.n_kv);
    int32_t first = node->op == FD_OP_KV_WRITE ? 0 : r->at.pos0, n = r->at.n_kv - first;
    int32_t in_trace = fd_asked_is_recorded(r->o, node) ? fd_trace_find(r->o->trace, node->name) : -1;
    float *rows = malloc(sizeof *rows * (size_t)(n * stride));
    double *row = malloc(2 * sizeof *row * (size_t)stride); /* and scratch after it */
    bool present = in_trace >= 0;
    fd_code code = rows && row ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: explanation: out of memory", node->name);
    for (int32_t p = 0; p < n && present && code == FD_OK; p++) {
        code = fd_replay_read_row(r->o->trace, in_trace, node, first + p, r->at.n_kv, row + stride, row, &present, err);
        const bool lacks = !present && code == FD_OK && may_lack(r, node, first, p);
        for (int64_t i = 0; i < stride && present && code == FD_OK; i++) rows[p * stride + i] = (float)row[i];
        if (lacks) memset(rows + p * stride, 0, sizeof *rows * (size_t)stride);
        present |= lacks;
    }
    if (present && code == FD_OK) code = fd_hide_scores(r->o, node, first, n, r->at.n_kv, rows, err);
    free(row);
    *out = present && code == FD_OK ? rows : NULL;
    if (!*out) free(rows);
    return code;
}

static const float *tensor(void *user, int32_t node) {
    recorded *r = user;
    if (!r->rows[node] && r->code == FD_OK) r->code = read_rows(r, &r->o->graph->nodes[node], &r->rows[node], &r->err);
    return r->rows[node];
}

static const float *rows_before(void *user, int32_t id) {
    recorded *r = user;
    const fd_node *node = &r->o->graph->nodes[id];
    const int64_t stride = fd_node_row_stride(node, r->at.n_kv);
    bool present = id == r->o->finding->node && !node->over_kv && node->op != FD_OP_KV_WRITE && r->at.pos0 > 0;
    if (!present || r->before || r->code != FD_OK) return present && r->code == FD_OK ? r->before : NULL;
    float *rows = malloc(sizeof *rows * (size_t)(r->at.pos0 * stride));
    double *row = malloc(2 * sizeof *row * (size_t)stride);
    if (!rows || !row) r->code = fd_fail(&r->err, FD_ERR_MEMORY, "%s: explanation: out of memory", node->name);
    const int32_t in_trace = fd_trace_find(r->o->trace, node->name);
    for (int32_t p = 0; p < r->at.pos0 && present && r->code == FD_OK; p++) {
        r->code = fd_replay_read_row(r->o->trace, in_trace, node, p, p + 1, row + stride, row, &present, &r->err);
        for (int64_t i = 0; i < stride && present; i++) rows[p * stride + i] = (float)row[i];
    }
    free(row);
    const bool whole = present && r->code == FD_OK;
    r->before = whole ? rows : NULL;
    if (!whole) free(rows);
    return r->before;
}

static uint32_t stored(void *user, int32_t node) {
    const recorded *r = user;
    int32_t at = fd_trace_find(r->o->trace, r->o->graph->nodes[node].name);
    return at < 0 ? (uint32_t)FD_F64 : fd_trace_node_at(r->o->trace, at)->dtype;
}

/* ---- asking ---- */

static fd_explain_request question(recorded *r, const fd_node *node) {
    const fd_diagnose_options *o = r->o;
    fd_explain_request ask = {.output = tensor(r, node->id), /* says which rows are judged */
                              .numerics = o->numerics->exact ? NULL : o->numerics,
                              .n_output = o->n_output,
                              .op = o->op,
                              .memo = o->memo,
                              .tensor = tensor,
                              .before = rows_before,
                              .stored = stored,
                              .user = r,
                              .n_context = r->at.n_context,
                              .n_unjudged = r->at.n_unjudged,
                              .n_earlier = r->at.n_earlier,
                              .n_tokens_before = r->at.pos0,
                              .n_tokens_after = fd_trace_n_pos(o->trace) - r->at.n_kv,
                              .n_prompt = fd_prompt_length(o->trace),
                              .products = r->at.products};
    fd_kept_types(o->numerics, o->trace, o->kv_type, &ask.k_type, &ask.v_type);
    ask.args = (fd_op_args){.graph = o->graph,
                            .node = node,
                            .pos0 = r->at.pos0,
                            .n_pos = r->at.n_pos,
                            .n_kv = r->at.n_kv,
                            .row_by_row = r->at.row_by_row,
                            .batch_offset = r->at.batch_offset,
                            .first_batch = fd_trace_n_step(o->trace) > 0 ? fd_trace_steps(o->trace)[0].n_pos : 0,
                            .batch_end = r->at.batch_end,
                            .tokens = fd_trace_tokens(o->trace) + r->at.pos0};
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) ask.args.in[k] = tensor(r, node->input[k]);
    if (ask.output && node->op == FD_OP_KV_WRITE) ask.output += r->at.pos0 * fd_node_row_stride(node, r->at.n_kv);
    return ask;
}

static fd_code open_recorded(const fd_diagnose_options *o, const fd_node *node, bool few, int32_t most, recorded *r,
                             fd_error *err) {
    *r = (recorded){.o = o, .rows = calloc((size_t)o->graph->n_node, sizeof *r->rows)};
    if (!r->rows) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    FD_TRY(fd_choose_rows(o, node, few, most, true, &r->at, err));
    if (!r->at.for_hidden_scores || tensor(r, node->id)) return FD_OK;
    return fd_choose_rows(o, node, few, most, false, &r->at, err); /* rows of earlier steps lack */
}

static void close_recorded(recorded *r) {
    for (int32_t i = 0; r->rows && i < r->o->graph->n_node; i++) free(r->rows[i]);
    free(r->rows);
    free(r->before);
}

/* Explains the finding in `most` rows, or, with `fits`, asks about one hypothesis alone. A failure to read a tensor on the
 * way comes first. */
static fd_code ask_about(const fd_diagnose_options *options, int32_t most, fd_explanation *out, const fd_hypothesis *h,
                         bool *fits, fd_error *err) {
    const fd_node *node = &options->graph->nodes[options->finding->node];
    fd_diagnose_options o = *options;
    if (!o.numerics->exact && o.numerics->u_out < 0x1p-24) o.numerics = fd_numerics_class_find("f32");
    recorded all = {0}, few = {0};
    fd_code code = open_recorded(&o, node, false, most, &all, err);
    if (code == FD_OK && !h) code = open_recorded(&o, node, true, most, &few, err);
    if (code == FD_OK) {
        fd_explain_request ask = question(&all, node), ask_few = {0}; /* few rows are for what is tried often */
        if (!h) ask_few = question(&few, node);
        if (ask_few.output) ask.few = &ask_few;
        ask.table_alone = o.table_alone;
        ask.likely = o.likely;
        ask.without = o.without;
        ask.n_without = o.n_without;
        ask.departing_alone = most > 0;
        ask.right_too = o.right_too;
        ask.most_spent = o.most_spent;
        if (all.code == FD_OK && ask.output) {
            code = h ? fd_explain_fits(&ask, h, fits, err) : fd_explain(&ask, out, err);
        } else if (all.code == FD_OK && !h) {
            *out = (fd_explanation){.why = FD_UNNAMED_ROWS_UNRECORDED, .layer = node->layer};
            snprintf(out->node, sizeof out->node, "%s", node->name);
            out->first_pos = all.at.pos0;
            out->last_pos = all.at.n_kv - 1;
        }
    }
    const recorded *failed = all.code != FD_OK ? &all : &few;
    if (failed->code != FD_OK) code = failed->code, *err = failed->err;
    close_recorded(&all);
    close_recorded(&few);
    return code;
}

fd_diagnose_options fd_diagnose_question(const fd_attribution_options *how, const fd_attribution *of) {
    return (fd_diagnose_options){.graph = how->graph,
                                 .trace = how->cand,
                                 .finding = &of->first,
                                 .n_pos = of->n_pos,
                                 .op = how->op,
                                 .memo = how->memo,
                                 .numerics = of->numerics,
                                 .n_output = of->n_output,
                                 .kv_type = how->kv_type,
                                 .ignored = how->ignored};
}

static fd_code diagnose(const fd_diagnose_options *options, fd_explanation *out, fd_error *err) {
    fd_explanation whole = {0};
    FD_TRY(ask_about(options, 0, out, NULL, NULL, err));
    const fd_node_finding *f = options->finding;
    /* through a span each question costs seconds, so there the answer must be able to be another */
    bool alone = f->span_first == f->node || out->n_departing < out->n_judged;
    bool some = out->why == FD_UNNAMED_NONE_FITS && out->n_departing > 0 && alone;
    if (!some || options->table_alone) return FD_OK;
    whole = *out;
    const fd_trace_step *step = &fd_trace_steps(options->trace)[fd_trace_step_of(options->trace, f->pos)];
    const int32_t most[] = {whole.n_departing, f->pos > step->pos0 ? fd_rest_of_step(options) : 0};
    for (int i = 0; i < 2; i++) {
        bool refuted = false;
        if (i > 0 && most[i] <= most[0]) break;
        *out = (fd_explanation){0};
        FD_TRY(ask_about(options, most[i], out, NULL, NULL, err));
        if (out->named) FD_TRY(fd_refuted_by_rows(options, &out->remaining[0].hypothesis, &refuted, err));
        out->rows_alone = most[i];
        if (out->named && !refuted) return FD_OK;
    }
    *out = whole;
    return FD_OK;
}

/* The scores and weights of a fused kernel are its own: what it mixed is asked about as if no others had been recorded. False:
 * none were. */
static bool leave_out_recorded(const fd_diagnose_options *options, bool *ignored, fd_node_finding *finding) {
    const fd_node *nodes = options->graph->nodes, *mix = &nodes[finding->node];
    bool any = false;
    for (int32_t i = 0; i < options->graph->n_node; i++) {
        ignored[i] = options->ignored && options->ignored[i];
        const bool inside = i < mix->id && nodes[i].layer == mix->layer && nodes[i].over_kv;
        if (!inside || !fd_asked_is_recorded(options, &nodes[i])) continue;
        ignored[i] = any = true;
        if (i < finding->span_first) finding->span_first = i;
    }
    return any;
}

/* `how` and `finding` as a fused kernel has it, `ignored` owned by the caller; *differs false: the question is the same. */
static fd_code ask_fused(const fd_diagnose_options *options, fd_diagnose_options *how, fd_node_finding *finding,
                         bool **ignored, bool *differs, fd_error *err) {
    *how = *options;
    *finding = *options->finding;
    *ignored = NULL;
    *differs = options->graph->nodes[finding->node].op == FD_OP_ATTN_MIX;
    if (!*differs) return FD_OK;
    *ignored = calloc((size_t)options->graph->n_node, sizeof **ignored);
    if (!*ignored) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    *differs = leave_out_recorded(options, *ignored, finding);
    how->ignored = *ignored;
    how->finding = finding;
    return FD_OK;
}

fd_code fd_diagnose(const fd_diagnose_options *options, fd_explanation *out, fd_error *err) {
    fd_diagnose_options fused;
    fd_node_finding finding;
    fd_explanation other = {0};
    bool *ignored, differs;
    FD_TRY(diagnose(options, out, err));
    if (out->named || options->table_alone) return FD_OK;
    FD_TRY(ask_fused(options, &fused, &finding, &ignored, &differs, err));
    fd_code code = differs ? diagnose(&fused, &other, err) : FD_OK;
    if (other.named) *out = other;
    free(ignored);
    return code;
}

static fd_code fits_as_recorded(const fd_diagnose_options *options, const fd_hypothesis *h, bool *fits, fd_error *err) {
    const fd_node *node = &options->graph->nodes[options->finding->node];
    fd_hypothesis here = *h;
    fd_diagnose_options how = *options;
    how.row_before =
        h->guess == FD_GUESS_ROWS && (h->which == FD_ROWS_EARLIER || h->which == FD_ROWS_STEP_LAST) && h->n == 1;
    *fits = false;
    if (!options->as_it_is && !fd_hypothesis_at(h, options->graph, node, &here)) return FD_OK;
    FD_TRY(ask_about(&how, options->rows_alone, NULL, &here, fits, err));
    if (*fits || here.node < 0 || here.node == node->id) return FD_OK;
    fd_hypothesis as;
    if (!fd_hypothesis_as(&here, options->graph, node, &as)) return FD_OK;
    return ask_about(options, options->rows_alone, NULL, &as, fits, err);
}

fd_code fd_diagnose_fits(const fd_diagnose_options *options, const fd_hypothesis *h, bool *fits, fd_error *err) {
    fd_diagnose_options fused;
    fd_node_finding finding;
    bool *ignored, differs;
    FD_TRY(fits_as_recorded(options, h, fits, err));
    if (*fits || (h->node >= 0 && !options->graph->nodes[h->node].over_kv)) return FD_OK;
    FD_TRY(ask_fused(options, &fused, &finding, &ignored, &differs, err));
    fd_code code = differs ? fits_as_recorded(&fused, h, fits, err) : FD_OK;
    free(ignored);
    return code;
}

fd_code fd_diagnose_look(const fd_diagnose_options *options, fd_diagnose_look_fn look, void *user, fd_error *err) {
    const fd_node *node = &options->graph->nodes[options->finding->node];
    recorded all;
    fd_code code = open_recorded(options, node, false, 0, &all, err);
    if (code == FD_OK) {
        fd_explain_request ask = question(&all, node);
        if (all.code == FD_OK && ask.output) code = look(user, options, &ask, err);
        if (all.code != FD_OK) {
            code = all.code;
            *err = all.err;
        }
    }
    close_recorded(&all);
    return code;
}
