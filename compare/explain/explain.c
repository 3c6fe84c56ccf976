#include "compare/explain/explain.h"

#include <math.h>
#include <stdio.h>

#include "compare/explain/decide.h"
#include "compare/explain/guesses.h"
#include "compare/explain/readers.h"
#include "compare/explain/try_faults.h"

/* Zeros in some rows of a step are rows that were not computed, whatever else would make zeros of all. */
static fd_code try_zero_rows(fd_trial *t, fd_error *err) {
    const fd_node *node = t->all.request->args.node;
    const fd_hypothesis h = {.guess = FD_GUESS_FACTOR, .node = node->id, .end = (int32_t)fd_node_width(node)};
    return t->all.request->departing_alone && !node->over_kv ? fd_trial_try(t, &h, err) : FD_OK;
}

/* An op that gives nothing but zeros of inputs that were not recorded: these are zero, or the op was left out. Both are said. */
static fd_code try_op_left_out(fd_trial *t, fd_error *err) {
    const fd_node *node = t->all.request->args.node;
    const fd_hypothesis h = {.guess = FD_GUESS_FACTOR, .node = node->id, .end = (int32_t)fd_node_width(node)};
    const fd_hypothesis all = fd_hypothesis_everywhere(&h, t->all.request->args.graph);
    if (t->n_span == 1 || fd_trial_many_layers(t) || node->over_kv || !fd_trial_fits(t)) return FD_OK;
    return fd_trial_try(t, &all, err);
}

/* Some of a step's rows of a cache: others came there in many ways. A step of one row is all of it. */
static bool is_part_of_cache_step(const fd_explain_request *r) {
    return r->departing_alone && r->args.node->op == FD_OP_KV_WRITE && !r->args.row_by_row;
}

/* Guesses that take a word. */
static fd_code guess_first_layer(fd_trial *t, fd_error *err) {
    return fd_guess_layers(t, true, err);
}
static fd_code guess_later_layers(fd_trial *t, fd_error *err) {
    return fd_guess_layers(t, false, err);
}
static fd_code guess_numbers(fd_trial *t, fd_error *err) {
    return fd_guess_numbers(t, !fd_trial_many_layers(t), err);
}
static fd_code guess_numbers_in_parts(fd_trial *t, fd_error *err) {
    return fd_guess_numbers(t, true, err);
}

/* When a way of explaining is tried. */
enum {
    ALWAYS = 0,
    UNNAMED = 1, /* nothing fits yet */
    GUESS = 2,   /* more than the table is asked for */
    ONE = 4,     /* the span is within a layer */
    MANY = 8,    /* or goes through several */
    WIDE = 16,   /* it has more nodes than one */
    LATE = 32,   /* the step's first rows came out right: hardly a weight, rather a mask, a position or a cache */
    SOON = 64    /* or they did not, as far as anybody looked */
};

/* In this order: what is likelier, or simpler, or costs less comes first, because most ways are left out once something fits. Through several layers the
 * guesses about the last op alone, which cost next to nothing, come before all others. */
static const struct way {
    fd_code (*try_it)(fd_trial *trial, fd_error *err);
    unsigned when;
} ways[] = {
    {fd_try_faults, ALWAYS},
    {fd_refute_half_pairs, ALWAYS},
    {fd_refute_by_readers, ALWAYS},
    {fd_guess_elements, UNNAMED | GUESS},
    {fd_guess_log_probabilities, UNNAMED | GUESS},
    {fd_guess_own_weights, UNNAMED | GUESS | MANY},
    {fd_guess_own_outputs, UNNAMED | GUESS | MANY},
    {fd_guess_places, UNNAMED | GUESS | MANY},
    {fd_try_faults_at_norms, UNNAMED | GUESS | WIDE},
    {fd_try_faults_at_kinds, UNNAMED | GUESS | MANY},
    {fd_try_faults_in_parts, WIDE},
    {try_op_left_out, ALWAYS},
    {fd_refute_half_pairs, ALWAYS},
    {fd_refute_by_readers, ALWAYS},
    {fd_guess_unwritten_chunk, ALWAYS},
    {guess_numbers_in_parts, UNNAMED | GUESS | MANY | LATE},
    {fd_guess_branches, UNNAMED | GUESS | MANY},
    {fd_guess_statistics_everywhere, UNNAMED | GUESS | WIDE},
    {fd_guess_factors, UNNAMED | GUESS | MANY},
    {guess_first_layer, UNNAMED | GUESS | MANY},
    {fd_guess_orders_of_q_and_k, UNNAMED | GUESS},
    {fd_guess_steps, UNNAMED | GUESS},
    {fd_guess_clamps, UNNAMED | GUESS | MANY},
    {guess_numbers, UNNAMED | GUESS},
    {guess_numbers_in_parts, UNNAMED | GUESS | MANY | SOON},
    {fd_try_faults_at_nodes, UNNAMED | GUESS | MANY},
    {guess_later_layers, UNNAMED | GUESS | MANY},
    {fd_guess_clamps, UNNAMED | GUESS | ONE},
    {fd_guess_everywhere, UNNAMED | GUESS},
    {fd_guess_places, UNNAMED | GUESS | ONE},
    {fd_guess_periodic_zeros, UNNAMED | GUESS},
    {fd_guess_places_inside, UNNAMED | GUESS},
    {fd_guess_attention, UNNAMED | GUESS},
    {fd_guess_mapped, UNNAMED | GUESS},
    {fd_guess_inputs, UNNAMED | GUESS},
    {fd_guess_cache_blocks, UNNAMED | GUESS},
    {fd_guess_past, UNNAMED | GUESS},
    {fd_guess_exchanged_rows, UNNAMED | GUESS},
    {fd_guess_cache, UNNAMED | GUESS},
    {fd_guess_outputs, UNNAMED | GUESS},
    {fd_guess_places_beside_bias, UNNAMED | GUESS},
    {fd_try_faults_in_heads, UNNAMED | GUESS},
    {fd_try_faults_on_ranks, UNNAMED | GUESS},
    {fd_guess_input_orders, UNNAMED | GUESS | ONE},
    {fd_guess_regions, UNNAMED | GUESS},
    {fd_guess_in_elements, UNNAMED | GUESS},
    {fd_guess_own_numbers, UNNAMED | GUESS},
    {fd_guess_unknown_cache, UNNAMED | GUESS},
    {fd_guess_zero_keys, GUESS},
    {fd_guess_scale_of_scores, GUESS | WIDE},
    {fd_refute_by_readers, ALWAYS},
};

static bool is_left_out(const fd_trial *t, unsigned when) {
    const bool many = fd_trial_many_layers(t), late = fd_trial_begins_late(t);
    return ((when & UNNAMED) && fd_trial_fits(t)) || ((when & GUESS) && !fd_trial_may_guess(t)) ||
           ((when & LATE) && !late) || ((when & SOON) && late) || ((when & ONE) && many) || ((when & MANY) && !many) ||
           ((when & WIDE) && t->n_span == 1);
}

/* All else was tried in another class. With it the other faults of its layer, or of all, which may be the same computation: RoPE by
 * 90° less the angle turns the scores as the other way round does. */
static fd_code try_likely(fd_trial *t, bool *fits, fd_error *err) {
    const fd_hypothesis *h = t->all.request->likely;
    *fits = false;
    if (!h) return FD_OK;
    FD_TRY(fd_trial_try(t, h, err));
    *fits = t->n > 0 && fd_trial_is_fit(t, &t->contenders[0].fit);
    const int32_t layer = h->node >= 0 ? t->all.request->args.graph->nodes[h->node].layer : h->layer;
    if (!*fits || !fd_trial_many_layers(t)) return FD_OK;
    return layer >= 0 ? fd_try_faults_in_layer(t, layer, err) : fd_try_faults(t, err);
}

static fd_code try_all(fd_trial *t, fd_error *err) {
    FD_TRY(try_zero_rows(t, err));
    if (fd_trial_fits(t) || is_part_of_cache_step(t->all.request)) return FD_OK;
    FD_TRY(fd_try_faults_from_position(t, err));
    if (fd_trial_fits(t)) return FD_OK;
    bool likely;
    FD_TRY(try_likely(t, &likely, err));
    if (likely) return fd_guess_scale_of_scores(t, err);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!is_left_out(t, ways[i].when)) FD_TRY(ways[i].try_it(t, err));
    return FD_OK;
}

static fd_code run(fd_trial *t, fd_error *err) {
    if (t->all.plain.state != FD_VARIANT_COMPUTED) {
        t->out->why = FD_UNNAMED_INPUT_UNRECORDED;
        t->out->unmodified.z = NAN;
        return FD_OK;
    }
    t->out->n_judged = t->all.request->args.n_pos - t->all.request->n_unjudged;
    t->out->n_departing = fd_trial_departing_rows(&t->all);
    FD_TRY(try_all(t, err));
    return fd_decide(t, err);
}

fd_code fd_explain(const fd_explain_request *request, fd_explanation *out, fd_error *err) {
    fd_trial t;
    *out = (fd_explanation){.layer = request->args.node->layer};
    snprintf(out->node, sizeof out->node, "%s", request->args.node->name);
    fd_code code = fd_trial_open(request, out, &t, err);
    if (code == FD_OK) code = run(&t, err);
    fd_trial_close(&t);
    return code;
}

fd_code fd_explain_fits(const fd_explain_request *request, const fd_hypothesis *h, bool *fits, fd_error *err) {
    const fd_node *node = request->args.node;
    fd_explanation unused = {0};
    fd_variant variant = {0};
    fd_trial t;
    *fits = false;
    fd_code code = fd_trial_open(request, &unused, &t, err);
    if (code == FD_OK && t.all.plain.state == FD_VARIANT_COMPUTED) {
        code = fd_evaluate(t.all.bench, h, node->id, true, &variant, err);
        *fits = request->right_too && variant.state == FD_VARIANT_UNCONCERNED;
        if (code == FD_OK && variant.state == FD_VARIANT_COMPUTED) {
            if (variant.overridden) fd_variant_widen(request, node, &variant, &t.all.plain);
            fd_explain_fit fit = fd_trial_fit(&t, h, &variant);
            bool op_refuted = !(unused.unmodified.z <= 1.0) || fd_fit_decides(&fit, &unused.unmodified);
            /* where the bug is known elsewhere, what it takes away of the residual is enough */
            *fits = (op_refuted || request->right_too) &&
                    (fd_trial_is_fit(&t, &fit) || (t.n_span > 1 && fd_fit_decides(&fit, &unused.unmodified)));
        }
    }
    fd_variant_free(&variant);
    fd_trial_close(&t);
    return code;
}
