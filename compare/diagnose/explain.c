#include "compare/diagnose/explain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/diagnose/cross_check.h"

static bool better(const fd_explain_fit *a, const fd_explain_fit *b) {
    if (a->z != b->z) return a->z < b->z;
    if (a->n_beyond != b->n_beyond) return a->n_beyond < b->n_beyond;
    return a->ulp < b->ulp;
}

static void note_runner_up(fd_trial *t, const fd_explain_fit *fit) {
    fd_explain_fit *kept = &t->out->runner_up;
    if (!kept->fault || better(fit, kept)) *kept = *fit;
}

static fd_code keep(fd_trial *t, fd_contender *c, fd_error *err) {
    fd_contender *grown = realloc(t->contenders, sizeof *grown * (size_t)(t->n + 1));
    if (!grown) {
        fd_variant_free(&c->variant);
        return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    }
    t->contenders = grown;
    int32_t at = t->n++;
    for (; at > 0 && better(&c->fit, &grown[at - 1].fit); at--) grown[at] = grown[at - 1];
    grown[at] = *c;
    return FD_OK;
}

/* Factors that are rounded anyway cannot be told from factors that a bug rounds as much. */
static bool rounds_as_much(const fd_numerics_class *class_, const fd_fault_info *fault) {
    return fault->u_in > 0.0 && class_ && (class_->q8_activations || class_->u_in >= fault->u_in);
}

static fd_code try_fault(fd_trial *t, int32_t fault, fd_error *err) {
    const fd_explain_request *r = t->request;
    const fd_node *node = r->args.node;
    fd_contender c = {.fault = fault};
    if (rounds_as_much(r->numerics, fd_fault_at(fault))) return FD_OK;
    FD_TRY(fd_variant_compute(r, fault, node->id, &c.variant, err));
    t->out->n_untried += c.variant.state == FD_VARIANT_UNTRIED;
    if (c.variant.state != FD_VARIANT_COMPUTED) return FD_OK;
    t->out->n_tried++;
    if (fd_variant_equal(r, node, &c.variant, &t->unmodified)) {
        t->out->n_without_effect++;
        fd_variant_free(&c.variant);
        return FD_OK;
    }
    if (c.variant.overridden) fd_variant_widen(r, node, &c.variant, &t->unmodified);
    c.fit = fd_variant_fit(r, node, &c.variant, r->output);
    c.fit.fault = fd_fault_at(fault);
    if (!fd_fit_clearly_beyond(&c.fit)) {
        c.evidence = fd_variant_evidence(r, node, r->output, &c.variant, &t->unmodified);
        return keep(t, &c, err);
    }
    note_runner_up(t, &c.fit);
    fd_variant_free(&c.variant);
    return FD_OK;
}

/* ---- the decision ---- */

static bool one_position(const fd_trial *t) {
    return t->request->args.pos0 == 0 && t->request->args.n_pos == 1;
}

static void list_remaining(fd_trial *t, bool group_alone) {
    fd_explanation *out = t->out;
    for (int32_t i = 0; i < t->n; i++) {
        if (t->contenders[i].refuted || (group_alone && !t->contenders[i].in_group)) continue;
        if (out->n_remaining < FD_MAX_REMAINING) out->remaining[out->n_remaining] = t->contenders[i].fit;
        out->n_remaining++;
    }
}

static fd_code find_what_tells_apart(fd_trial *t, fd_error *err) {
    fd_explanation *out = t->out;
    const fd_graph *graph = t->request->args.graph;
    if (one_position(t) && !out->named) {
        out->tells_apart = FD_TELLS_SECOND_POSITION;
    } else if (out->n_remaining > 1) {
        int32_t node;
        FD_TRY(fd_where_they_differ(t, fd_fault_find(out->remaining[0].fault->name),
                                    fd_fault_find(out->remaining[1].fault->name), &node, err));
        out->tells_apart = node >= 0 ? FD_TELLS_NODE : FD_TELLS_MORE_POSITIONS;
        if (node >= 0) snprintf(out->other, sizeof out->other, "%s", graph->nodes[node].name);
    } else if (out->n_untried && !out->named) {
        out->tells_apart = FD_TELLS_LAYER;
    }
    return FD_OK;
}

static const fd_contender *best_left(const fd_trial *t) {
    for (int32_t i = 0; i < t->n; i++)
        if (!t->contenders[i].refuted) return &t->contenders[i];
    return NULL;
}

/* How many of those left differ from the best. */
static int32_t group(fd_trial *t, const fd_contender *best) {
    int32_t n_apart = 0;
    for (int32_t i = 0; i < t->n; i++) {
        fd_contender *c = &t->contenders[i];
        c->in_group = !c->refuted && best &&
                      (c == best || (c->fit.z <= 1.0 &&
                                     fd_variant_equal(t->request, t->request->args.node, &c->variant, &best->variant)));
        n_apart += !c->refuted && !c->in_group;
    }
    return n_apart;
}

static fd_code decide(fd_trial *t, fd_error *err) {
    fd_explanation *out = t->out;
    t->op_refuted = fd_fit_clearly_beyond(&out->unmodified);
    if (t->n > 0 && t->contenders[0].fit.z <= 1.0) FD_TRY(fd_cross_check(t, err));
    const fd_contender *best = best_left(t);
    int32_t n_apart = group(t, best);
    out->n_apart = n_apart + 1;
    out->why = !t->op_refuted                     ? FD_UNNAMED_OP_FITS
               : !best || !(best->fit.z <= 1.0)   ? FD_UNNAMED_NONE_FITS
               : n_apart > 0                      ? FD_UNNAMED_SEVERAL_FIT
               : best->evidence < FD_MIN_EVIDENCE ? FD_UNNAMED_LITTLE_EVIDENCE
                                                  : FD_NAMED;
    out->named = out->why == FD_NAMED;
    for (int32_t i = 0; i < t->n; i++)
        if (t->contenders[i].refuted || (out->named && !t->contenders[i].in_group))
            note_runner_up(t, &t->contenders[i].fit);
    list_remaining(t, out->named);
    return find_what_tells_apart(t, err);
}

static fd_code run(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->request;
    FD_TRY(fd_variant_compute(r, -1, r->args.node->id, &t->unmodified, err));
    if (t->unmodified.state != FD_VARIANT_COMPUTED) {
        t->out->why = FD_UNNAMED_INPUT_UNRECORDED;
        t->out->unmodified.z = NAN;
        return FD_OK;
    }
    t->out->unmodified = fd_variant_fit(r, r->args.node, &t->unmodified, r->output);
    for (int32_t i = 0; i < fd_fault_count(); i++) FD_TRY(try_fault(t, i, err));
    return decide(t, err);
}

fd_code fd_explain(const fd_explain_request *request, fd_explanation *out, fd_error *err) {
    fd_trial t = {.request = request, .out = out};
    *out = (fd_explanation){.layer = request->args.node->layer};
    snprintf(out->node, sizeof out->node, "%s", request->args.node->name);
    fd_code code = run(&t, err);
    for (int32_t i = 0; i < t.n; i++) fd_variant_free(&t.contenders[i].variant);
    free(t.contenders);
    fd_variant_free(&t.unmodified);
    return code;
}

fd_code fd_explain_fits(const fd_explain_request *request, int32_t fault, bool *fits, fd_error *err) {
    const fd_node *node = request->args.node;
    fd_variant unmodified = {0}, variant = {0};
    *fits = false;
    fd_code code = fd_variant_compute(request, fault, node->id, &variant, err);
    if (code == FD_OK && variant.state == FD_VARIANT_COMPUTED)
        code = fd_variant_compute(request, -1, node->id, &unmodified, err);
    if (code == FD_OK && unmodified.state == FD_VARIANT_COMPUTED) {
        if (variant.overridden) fd_variant_widen(request, node, &variant, &unmodified);
        *fits = fd_variant_fit(request, node, &variant, request->output).z <= 1.0 &&
                !(fd_variant_fit(request, node, &unmodified, request->output).z <= 1.0);
    }
    fd_variant_free(&variant);
    fd_variant_free(&unmodified);
    return code;
}
