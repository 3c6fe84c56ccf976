#include "compare/explain/explain.h"

#include <math.h>
#include <stdio.h>

#include "compare/explain/decide.h"
#include "compare/explain/guesses.h"
#include "compare/explain/readers.h"

/* Some rows of a batch alone: weights and caches are those of all its rows. */
static bool is_of_whole_batch(const fd_trial *t, const fd_fault_info *fault) {
    static const char *const families[] = {"loader", "dequantise", "kv_cache"};
    const fd_explain_request *r = t->all.request;
    bool of = false;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) of |= strcmp(fault->family, families[i]) == 0;
    return of && (t->since > 0 || (r->departing_alone && !r->args.row_by_row));
}

static fd_code try_table(fd_trial *t, int32_t node, int32_t layer, fd_error *err) {
    for (int32_t i = 0; i < fd_fault_count(); i++) {
        if (is_of_whole_batch(t, fd_fault_at(i))) continue;
        fd_hypothesis h = {.guess = FD_GUESS_FAULT, .fault = i, .node = node, .layer = layer};
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Products that read one tensor are often one matrix: Q, K and V, gate and up. */
static fd_code try_table_of_readers(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t done = -1;
    for (int32_t i = 0; i + 1 < t->n_span && !fd_trial_fits(t); i++) {
        const fd_node *one = &nodes[t->span[i]], *next = &nodes[t->span[i + 1]];
        const bool together = one->op == FD_OP_MATMUL && next->op == one->op && next->input[0] == one->input[0];
        if (!together || one->input[0] == done) continue;
        done = one->input[0];
        fd_hypothesis h = {.guess = FD_GUESS_FAULT, .node = -1, .layer = FD_ANY_LAYER, .ops = FD_OP_MATMUL + 1};
        h.readers = done + 1;
        for (h.fault = 0; h.fault < fd_fault_count(); h.fault++)
            if (!is_of_whole_batch(t, fd_fault_at(h.fault))) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Through several layers: in each alone; within one: at each node alone, and where several read one tensor. */
static fd_code try_table_in_parts(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t done = FD_ANY_LAYER;
    for (int32_t i = 0; i < t->n_span && !fd_trial_fits(t); i++) {
        int32_t layer = nodes[t->span[i]].layer;
        if (!fd_trial_many_layers(t))
            FD_TRY(try_table(t, t->span[i], FD_ANY_LAYER, err));
        else if (layer != done)
            FD_TRY(try_table(t, -1, done = layer, err));
    }
    return fd_trial_many_layers(t) ? FD_OK : try_table_of_readers(t, err);
}

/* Through several layers: at each node alone; at the first layer's, at all of its kind, too (fd_trial_try). */
static fd_code try_table_at_nodes(fd_trial *t, fd_error *err) {
    for (int32_t i = 0; i < t->n_span && !fd_trial_fits(t) && !fd_trial_exhausted(t); i++)
        FD_TRY(try_table(t, t->span[i], FD_ANY_LAYER, err));
    return FD_OK;
}

static fd_code try_in_heads(fd_trial *t, fd_error *err) {
    t->heads = fd_trial_departing_heads(&t->all);
    if (t->heads) FD_TRY(try_table(t, -1, FD_ANY_LAYER, err));
    if (t->heads && t->n_span > 1 && !fd_trial_fits(t)) FD_TRY(try_table_in_parts(t, err));
    if (t->heads) FD_TRY(fd_refute_half_pairs(t, err));
    if (t->heads && !fd_trial_fits(t)) FD_TRY(fd_guess_steps(t, err));
    if (t->heads && !fd_trial_fits(t)) FD_TRY(fd_guess_numbers(t, true, err));
    t->heads = 0;
    return FD_OK;
}

/* What one rank of a tensor-parallel engine does to its heads, where what the heads became was not recorded. */
static fd_code try_on_ranks(fd_trial *t, fd_error *err) {
    if (t->n_span == 1 || fd_trial_many_layers(t)) return FD_OK;
    for (t->n_rank = 2; t->n_rank <= 4; t->n_rank *= 2)
        for (t->rank = t->n_rank - 1; t->rank >= 0 && !fd_trial_fits(t); t->rank--) {
            FD_TRY(try_table(t, -1, FD_ANY_LAYER, err));
            if (!fd_trial_fits(t)) FD_TRY(fd_guess_steps(t, err));
            if (!fd_trial_fits(t)) FD_TRY(fd_guess_numbers(t, true, err));
        }
    t->rank = t->n_rank = 0;
    return FD_OK;
}

/* Rows of a step depart from one in its midst on, and attention reads those before it, which K and V are made of, too: a table of
 * RoPE's that ends, a scaling that starts with the length. */
static fd_code try_from_position(fd_trial *t, bool guess, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const int32_t first = r->args.pos0 + r->n_unjudged;
    if (!r->departing_alone || t->n_span == 1 || r->n_unjudged <= 1 || first <= r->args.pos0 - r->args.batch_offset)
        return FD_OK;
    t->since = first;
    FD_TRY(try_table(t, -1, FD_ANY_LAYER, err));
    if (!fd_trial_fits(t)) FD_TRY(try_table_in_parts(t, err));
    if (guess && !fd_trial_fits(t)) FD_TRY(fd_guess_numbers(t, !fd_trial_many_layers(t), err));
    t->since = 0;
    return FD_OK;
}

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

/* The table in the whole span, then in parts of it; then what else may be wrong there. */
static fd_code try_all(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const bool guess = t->few.bench && !r->table_alone;
    FD_TRY(try_zero_rows(t, err));
    if (fd_trial_fits(t) || is_part_of_cache_step(r)) return FD_OK;
    FD_TRY(try_from_position(t, guess, err));
    if (fd_trial_fits(t)) return FD_OK;
    FD_TRY(try_table(t, -1, FD_ANY_LAYER, err));
    FD_TRY(fd_refute_half_pairs(t, err));
    FD_TRY(fd_refute_by_readers(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_elements(t, err));
    if (t->n_span > 1 && !fd_trial_many_layers(t)) FD_TRY(try_table_in_parts(t, err));
    FD_TRY(try_op_left_out(t, err));
    FD_TRY(fd_refute_half_pairs(t, err));
    FD_TRY(fd_refute_by_readers(t, err));
    bool many = fd_trial_many_layers(t);
    FD_TRY(fd_guess_unwritten_chunk(t, err));
    if (!fd_trial_fits(t) && guess && many)
        FD_TRY(fd_guess_own_weights(t, err)); /* the last op alone: next to nothing */
    if (!fd_trial_fits(t) && guess && many) FD_TRY(fd_guess_own_outputs(t, err));
    if (!fd_trial_fits(t) && guess && many) FD_TRY(fd_guess_places(t, err));
    if (!fd_trial_fits(t) && guess && many) FD_TRY(fd_guess_layers(t, true, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_orders_of_q_and_k(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_steps(t, err));
    if (!fd_trial_fits(t) && guess && many) FD_TRY(fd_guess_clamps(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_numbers(t, !many, err));
    if (many) FD_TRY(try_table_in_parts(t, err));
    if (!fd_trial_fits(t) && guess && many) FD_TRY(fd_guess_layers(t, false, err));
    if (many && !fd_trial_fits(t) && guess) FD_TRY(fd_guess_numbers(t, true, err));
    if (!fd_trial_fits(t) && guess && !many) FD_TRY(fd_guess_clamps(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_everywhere(t, err));
    if (!fd_trial_fits(t) && guess && !many) FD_TRY(fd_guess_places(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_periodic_zeros(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_places_inside(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_attention(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_mapped(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_inputs(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_cache_blocks(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_exchanged_rows(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_cache(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_outputs(t, err));
    if (!fd_trial_fits(t) && guess && many) FD_TRY(try_table_at_nodes(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(try_in_heads(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(try_on_ranks(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_regions(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_in_elements(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_own_numbers(t, err));
    if (!fd_trial_fits(t) && guess) FD_TRY(fd_guess_unknown_cache(t, err));
    if (guess) FD_TRY(fd_guess_zero_keys(t, err));
    return fd_refute_by_readers(t, err);
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
