#include "compare/diagnose/diagnose.h"

#include <stdio.h>
#include <stdlib.h>

#include "compare/diagnose/later_rows.h"
#include "compare/diagnose/recorded_rows.h"

/* Explains the finding in `most` rows, or, with `fits`, asks about one hypothesis alone. A failure to read a tensor on the
 * way comes first. */
static fd_code ask_about(const fd_diagnose_options *options, int32_t most, fd_explanation *out, const fd_hypothesis *h,
                         bool *fits, fd_error *err) {
    const fd_node *node = &options->graph->nodes[options->finding->node];
    fd_diagnose_options o = *options;
    if (!o.numerics->exact && o.numerics->u_out < 0x1p-24) o.numerics = fd_numerics_class_find("f32");
    fd_recorded_rows of[FD_N_ASKED] = {{NULL}}, *all = &of[FD_ASKED_ALL];
    fd_explain_request asks[FD_N_ASKED] = {{.output = NULL}}, *ask = &asks[FD_ASKED_ALL];
    const int n = h ? 1 : FD_N_ASKED; /* the others are for what is tried often */
    fd_code code = FD_OK;
    for (int i = 0; i < n && code == FD_OK; i++)
        code = fd_recorded_rows_open(&o, node, (fd_asked_for)i, most, &of[i], err);
    for (int i = 0; i < n && code == FD_OK; i++)
        if (of[i].at.n_pos > 0) asks[i] = fd_recorded_question(&of[i], node);
    if (code == FD_OK) {
        if (asks[FD_ASKED_FEW].output) ask->few = &asks[FD_ASKED_FEW];
        if (asks[FD_ASKED_EARLY].output) ask->early = &asks[FD_ASKED_EARLY];
        ask->table_alone = o.table_alone;
        ask->likely = o.likely;
        ask->without = o.without;
        ask->n_without = o.n_without;
        ask->departing_alone = most > 0;
        ask->right_too = o.right_too;
        ask->most_spent = o.most_spent;
        if (all->code == FD_OK && ask->output) {
            code = h ? fd_explain_fits(ask, h, fits, err) : fd_explain(ask, out, err);
        } else if (all->code == FD_OK && !h) {
            *out = (fd_explanation){.why = FD_UNNAMED_ROWS_UNRECORDED, .layer = node->layer};
            snprintf(out->node, sizeof out->node, "%s", node->name);
            out->first_pos = all->at.pos0;
            out->last_pos = all->at.n_kv - 1;
        }
    }
    for (int i = FD_N_ASKED - 1; i >= 0; i--) {
        if (of[i].code != FD_OK) code = of[i].code, *err = of[i].err;
        fd_recorded_rows_close(&of[i]);
    }
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
    fd_recorded_rows all;
    fd_code code = fd_recorded_rows_open(options, node, FD_ASKED_ALL, 0, &all, err);
    if (code == FD_OK) {
        fd_explain_request ask = fd_recorded_question(&all, node);
        if (all.code == FD_OK && ask.output) code = look(user, options, &ask, err);
        if (all.code != FD_OK) {
            code = all.code;
            *err = all.err;
        }
    }
    fd_recorded_rows_close(&all);
    return code;
}
