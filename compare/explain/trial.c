#include "compare/explain/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number so near to 1 is rounding's, in roundoffs of the class. */
#define NEAR_ONE        4.0
#define NEXT_TO_NOTHING 0.006

/* What is rounded anyway cannot be told from what a bug rounds as much: factors of products, or tensors. */
static bool rounds_as_much(const fd_numerics_class *class_, const fd_hypothesis *h) {
    if (h->guess != FD_GUESS_FAULT || !class_) return false;
    const fd_fault_info *info = fd_fault_at(h->fault);
    bool factors = strcmp(info->family, "numerics") == 0;
    if (!(info->u_in > 0.0)) return false;
    return factors ? class_->q8_activations || class_->u_in >= info->u_in : class_->u_op >= info->u_in;
}

/* A factor that is 1, as far as the class can tell; or next to nothing, which zeros explain as well, or nothing does. */
static bool is_no_factor(const fd_numerics_class *c, const fd_hypothesis *h) {
    if ((h->guess != FD_GUESS_FACTOR && h->guess != FD_GUESS_INPUT_FACTOR) || !c) return false;
    if (fabs(h->value) > 0 && fabs(h->value) < NEXT_TO_NOTHING) return true;
    double u = fmax(fmax(fmax(c->u_in, c->u_attn), fmax(c->u_kv, c->u_out)), fmax(c->u_op, 0x1p-24));
    u = fd_class_leaves_nothing(c) ? 0x1p-24 : u; /* its coarser roundings are repeated */
    return fabs(h->value - 1) <= NEAR_ONE * u;
}

fd_explain_fit fd_trial_fit(const fd_trial *t, const fd_hypothesis *h, const fd_variant *variant) {
    const fd_explain_request *r = t->all.request;
    fd_explain_fit fit = fd_variant_fit(r, r->args.node, variant, r->output);
    fit.rms = fd_trial_left_of_rows(t, variant);
    fit.n_repeated = fd_trial_repeats(t, variant);
    fit.hypothesis = *h;
    snprintf(fit.name, sizeof fit.name, "%s", fd_hypothesis_name(h));
    fd_hypothesis_summary(h, r->args.graph, fit.summary, sizeof fit.summary);
    if (h->node >= 0 && h->node != r->args.node->id)
        snprintf(fit.at, sizeof fit.at, "%s", r->args.graph->nodes[h->node].name);
    return fit;
}

/* ---- few rows ---- */

/* A fault of the mask may show keys that come after the few rows; others need their whole batch. */
static fd_code looks_ahead(const fd_trial *t, const fd_hypothesis *h, bool *yes, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    *yes = fd_hypothesis_looks_ahead(h);
    for (int32_t i = 0; i < t->n_span && !*yes && h->guess == FD_GUESS_FAULT; i++) {
        fd_faulty_node edited;
        if (!graph->nodes[t->span[i]].over_kv) continue;
        FD_TRY(fd_hypothesis_edit(h, graph, &graph->nodes[t->span[i]], &edited, yes, err));
        fd_faulty_node_free(&edited);
    }
    return FD_OK;
}

/* A hypothesis is given up on a few rows when it is further from them than this many bounds of the op as it should be,
 * taken as large as its own values are: its own bounds, which cost four times as much, are then not asked for. */
enum { FAR_BEYOND = 100 };

/* Of early rows a bug of later ones leaves what the op as it should be does: so many times as much, and so much of the bounds, is another's. */
#define MUCH_MORE   8.0
#define MORE_AT_ALL 0.05

static fd_code changes_early_rows(fd_trial *t, const fd_hypothesis *h, bool *yes, fd_error *err) {
    fd_variant v;
    *yes = false;
    if (!t->early.bench || t->early.plain.state != FD_VARIANT_COMPUTED || t->since > 0) return FD_OK;
    FD_TRY(fd_evaluate(t->early.bench, h, t->early.request->args.node->id, false, &v, err));
    if (v.state == FD_VARIANT_COMPUTED) {
        fd_trial_spend(t, t->early.request, h, 1);
        *yes = !(fd_trial_left(&t->early, &v) <= fmax(MORE_AT_ALL, MUCH_MORE * t->early_left));
    }
    fd_variant_free(&v);
    return FD_OK;
}

static fd_code far_beyond(fd_trial *t, const fd_hypothesis *h, bool *yes, fd_error *err) {
    fd_variant v;
    bool ahead;
    *yes = false; /* the bounds of a cache's rows are 0, and those of rounded ones are not */
    const bool in_steps = t->n_span == 1 && (h->guess == FD_GUESS_FAULT || h->guess == FD_GUESS_ROUNDED);
    if (!t->few.bench || in_steps) return FD_OK;
    FD_TRY(looks_ahead(t, h, &ahead, err));
    /* keys that are seen have other bounds */
    if (ahead && (t->n_span == 1 || t->all.request->args.node->over_kv)) return FD_OK;
    if (!ahead) FD_TRY(changes_early_rows(t, h, yes, err));
    if (*yes) return FD_OK;
    const fd_trial_rows *rows = ahead ? &t->all : &t->few;
    FD_TRY(fd_evaluate(rows->bench, h, rows->request->args.node->id, false, &v, err));
    if (v.state == FD_VARIANT_COMPUTED) {
        fd_trial_spend(t, rows->request, h, 1);
        const fd_op_args *args = &rows->request->args;
        int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
        double own = fd_root_mean_square(v.rows, n), plain = fd_root_mean_square(rows->plain.rows, n), largest, mean;
        fd_trial_residuals(rows, &v, &largest, &mean);
        *yes = !(largest <= FAR_BEYOND * fmax(1, plain > 0 ? own / plain : 1));
        /* through a span every small change is near a small error; one that explains it takes most of it away */
        if (t->n_span > 1 && !(ahead ? mean < t->all_left : mean <= t->few_left / 2)) *yes = true;
        fd_trial_note_near(t, h, mean / (ahead ? t->all_left : t->few_left));
        if (fd_trial_in_steps(t) && fd_trial_repeated_rows(rows, &v) > 0) *yes = false;
    }
    fd_variant_free(&v);
    return FD_OK;
}

static fd_hypothesis in_part(const fd_trial *t, const fd_hypothesis *h) {
    fd_hypothesis part = *h;
    part.heads = t->heads;
    part.from = t->from, part.to = t->to;
    part.since = t->since;
    part.rank = t->rank, part.n_rank = t->n_rank;
    return part;
}

fd_code fd_trial_distance(fd_trial *t, const fd_trial_rows *rows, const fd_hypothesis *hypothesis, double *distance,
                          fd_error *err) {
    const fd_hypothesis h = in_part(t, hypothesis);
    fd_variant v;
    *distance = INFINITY;
    FD_TRY(fd_evaluate(rows->bench, &h, rows->request->args.node->id, false, &v, err));
    if (v.state == FD_VARIANT_COMPUTED) {
        fd_trial_spend(t, rows->request, &h, 1);
        *distance = fd_trial_left(rows, &v);
    }
    fd_variant_free(&v);
    return FD_OK;
}

/* ---- all rows ---- */

/* Through a span a hypothesis may spread its roundings so far that anything fits: more than half of the tensor. (The bound of a
 * choice is the number of experts where it is the candidate's, and 0 elsewhere: fd_bound_top_k.) */
static bool says_nothing(const fd_explain_request *r, const fd_variant *v, const float *plain) {
    if (r->args.node->op == FD_OP_TOP_K) return false;
    int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv), n = 0;
    double tau = 0, c = 0, right = 0;
    for (int64_t i = r->n_unjudged * stride; i < r->args.n_pos * stride && v->tau; i++) {
        if (!isfinite(r->output[i])) continue;
        tau += v->tau[i] * v->tau[i];
        c += (double)r->output[i] * (double)r->output[i];
        right += (double)plain[i] * (double)plain[i];
        n++;
    }
    return n > 0 && !(tau <= (c > 0 ? c : right) / 4); /* zeros have no size */
}

static fd_code try_one(fd_trial *t, const fd_hypothesis *hypothesis, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_hypothesis part = in_part(t, hypothesis), *h = &part;
    const fd_node *node = r->args.node;
    fd_contender c = {.h = *h};
    bool beyond;
    if (rounds_as_much(r->numerics, h) || is_no_factor(r->numerics, h) || fd_trial_exhausted(t)) return FD_OK;
    if (fd_trial_is_refuted(t, h)) return FD_OK;
    FD_TRY(far_beyond(t, h, &beyond, err));
    if (beyond) {
        t->out->n_tried++;
        return FD_OK;
    }
    FD_TRY(fd_evaluate(t->all.bench, h, node->id, true, &c.variant, err));
    t->out->n_untried += c.variant.state == FD_VARIANT_UNTRIED;
    if (c.variant.state != FD_VARIANT_COMPUTED) {
        fd_variant_free(&c.variant);
        return FD_OK;
    }
    t->out->n_tried++;
    if (t->n_span > 1) fd_trial_spend(t, r, h, 4); /* its bounds, and samples of its roundings */
    if (fd_variant_equal(r, node, &c.variant, &t->all.plain)) {
        t->out->n_without_effect++;
        fd_variant_free(&c.variant);
        return FD_OK;
    }
    if (c.variant.overridden) fd_variant_widen(r, node, &c.variant, &t->all.plain);
    c.fit = fd_trial_fit(t, h, &c.variant);
    if (t->n_span > 1 && c.fit.n_repeated == 0 && says_nothing(r, &c.variant, t->all.plain.rows)) {
        fd_variant_free(&c.variant);
        return FD_OK;
    }
    bool steps_alone = false;
    const bool clearly_beyond = fd_fit_clearly_beyond(&c.fit) && !fd_trial_is_fit(t, &c.fit);
    fd_code code = clearly_beyond ? FD_OK : fd_trial_turns_steps_alone(t, h, &steps_alone, err);
    if (code != FD_OK) {
        fd_variant_free(&c.variant);
        return code;
    }
    if (!clearly_beyond && !steps_alone) {
        c.evidence = fd_variant_evidence(r, node, r->output, &c.variant, &t->all.plain);
        return fd_trial_keep(t, &c, err);
    }
    fd_trial_note_runner_up(t, &c.fit);
    fd_variant_free(&c.variant);
    return FD_OK;
}

int32_t fd_trial_first_layer(const fd_trial *t) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    for (int32_t i = 0; i < t->n_span; i++)
        if (nodes[t->span[i]].layer >= 0) return nodes[t->span[i]].layer;
    return -1;
}

/* What names no other node or weight may be in every layer alike. */
static bool may_be_everywhere(const fd_trial *t, const fd_hypothesis *h) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    const bool of_other = h->guess == FD_GUESS_WEIGHT || h->guess == FD_GUESS_INPUT || h->guess == FD_GUESS_COPY ||
                          h->guess == FD_GUESS_OWN || (h->guess == FD_GUESS_CACHE && h->which == FD_CACHE_OF);
    return h->node >= 0 && !of_other && fd_trial_many_layers(t) && nodes[h->node].layer >= 0 &&
           nodes[h->node].layer == fd_trial_first_layer(t);
}

fd_code fd_trial_try(fd_trial *t, const fd_hypothesis *h, fd_error *err) {
    FD_TRY(try_one(t, h, err));
    if (!may_be_everywhere(t, h) || fd_trial_fits(t)) return FD_OK;
    const fd_hypothesis every = fd_hypothesis_everywhere(h, t->all.request->args.graph);
    return try_one(t, &every, err);
}

fd_code fd_trial_open(const fd_explain_request *request, fd_explanation *out, fd_trial *t, fd_error *err) {
    *t = (fd_trial){.out = out};
    t->span = malloc(sizeof *t->span * (size_t)request->args.graph->n_node);
    if (!t->span) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    FD_TRY(fd_trial_rows_open(request, &t->all, err));
    if (t->all.plain.state != FD_VARIANT_COMPUTED) return FD_OK;
    t->n_span = fd_evaluate_span(t->all.bench, request->args.node->id, t->span);
    out->unmodified = fd_trial_fit(t, &fd_no_hypothesis, &t->all.plain);
    if (!request->few) return FD_OK;
    FD_TRY(fd_trial_rows_open(request->few, &t->few, err));
    if (t->few.plain.state == FD_VARIANT_COMPUTED) t->few_left = fd_trial_left(&t->few, &t->few.plain);
    t->all_left = fd_trial_left(&t->all, &t->all.plain);
    if (!request->early || request->early->n_unjudged >= request->early->args.n_pos) return FD_OK; /* they lack */
    FD_TRY(fd_trial_rows_open(request->early, &t->early, err));
    t->early_left = t->early.plain.state == FD_VARIANT_COMPUTED ? fd_trial_left(&t->early, &t->early.plain) : INFINITY;
    return FD_OK;
}

void fd_trial_close(fd_trial *t) {
    for (int32_t i = 0; i < t->n; i++) fd_variant_free(&t->contenders[i].variant);
    free(t->contenders);
    free(t->span);
    fd_trial_rows_close(&t->all);
    fd_trial_rows_close(&t->few);
    fd_trial_rows_close(&t->early);
    fd_trial_rows_close(&t->smooth);
}
