/* What can be read off the rows themselves: numbers that every row, or every column, has of its own. */
#include <math.h>
#include <string.h>

#include "compare/explain/guesses.h"
#include "compare/explain/judged_rows.h"

/* Does every row, or every head of it, have a factor of its own? One factor for all is another mistake. *less: none is more than 1. */
static bool factors_differ(const fd_judged_rows *j, bool *less) {
    const int64_t part = j->node->over_kv || j->node->n_dim == 2 ? j->width / j->node->shape[0] : j->width;
    double low = INFINITY, high = -INFINITY;
    for (int64_t at = j->first * j->width; at < j->n * j->width; at += part) {
        double cy = 0, yy = 0;
        for (int64_t i = at; i < at + part; i++) {
            if (j->node->over_kv && i % j->r->args.n_kv > j->r->args.pos0 + i / j->width) continue;
            if (!isfinite(j->plain->rows[i])) continue;
            cy += (double)j->r->output[i] * (double)j->plain->rows[i];
            yy += (double)j->plain->rows[i] * (double)j->plain->rows[i];
        }
        if (!(yy > 0)) continue;
        if (!(fabs(cy) > 0)) return false; /* a row of zeros was not divided by anything */
        low = fmin(low, cy / yy);
        high = fmax(high, cy / yy);
    }
    *less = high < 1 + fabs(1 - low) / 8;
    return 8 * (high - low) > fmax(fabs(high - 1), fabs(low - 1));
}

/* A row, or a head's part of it, is divided, or scaled, by a number of its own. */
static bool divides(fd_op op) {
    return op == FD_OP_RMS_NORM || op == FD_OP_LAYER_NORM || op == FD_OP_L2_NORM || op == FD_OP_ATTN_SOFTMAX ||
           op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX || op == FD_OP_SOFTMAX || op == FD_OP_EXPERT_WEIGHTS ||
           op == FD_OP_ROPE;
}

/* Weights that are the right ones but for a factor are what the values are mixed with. Where the result is otherwise, keys were
 * weighed that the trace does not hold. *h: which of the two it is; *possible: it is one of them. */
static fd_code tell_keys_outside(fd_trial *t, const fd_node *weights, bool less, fd_hypothesis *h, bool *possible,
                                 fd_error *err) {
    const fd_explain_request *r = t->all.request;
    h->other = less ? FD_OUTSIDE_OR_SUM : FD_OUTSIDE_NONE;
    for (int32_t i = weights->id + 1; i < r->args.graph->n_node; i++) {
        const fd_node *mix = &r->args.graph->nodes[i];
        const float *rows =
            mix->op == FD_OP_ATTN_MIX && mix->input[0] == weights->id && r->tensor ? r->tensor(r->user, i) : NULL;
        fd_variant right;
        if (!rows) continue;
        FD_TRY(fd_evaluate(t->all.bench, &fd_no_hypothesis, i, true, &right, err));
        if (right.state == FD_VARIANT_COMPUTED) {
            const fd_explain_fit fit = fd_variant_fit(r, mix, &right, rows);
            h->other = fd_fit_clearly_beyond(&fit) ? FD_OUTSIDE : FD_OUTSIDE_NONE;
        }
        fd_variant_free(&right);
    }
    *possible = h->other != FD_OUTSIDE || less;
    return FD_OK;
}

/* A column's number must explain several rows; of more experts there are too many sets. */
enum { LEAST_ROWS = 4, MOST_EXPERTS = 8 };

/* These columns are what another weight's rows give: a shard of another layer, a piece of a fused weight. */
static fd_code try_rows_of_weights(fd_trial *t, const fd_node *node, int32_t first, int32_t end, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    const fd_weight *right = &graph->weights[node->weight[0]];
    for (int32_t w = 0; w < graph->n_weight && !fd_trial_fits(t); w++) {
        const fd_weight *other = &graph->weights[w];
        if (w == node->weight[0] || other->n_row != right->n_row || other->n_col != right->n_col) continue;
        const fd_hypothesis h = {.guess = FD_GUESS_WEIGHT, .node = node->id, .other = w, .first = first, .end = end};
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Another row of a weight spares no row of the result, and its results go with what it multiplies. A tile that is left from other
 * rows spares those, and one that nobody writes stays as it is. */
static bool may_be_of_weight(const fd_judged_rows *j, int32_t first, int32_t end) {
    const size_t size = sizeof *j->r->output * (size_t)(end - first);
    bool same = true;
    for (int32_t row = j->first; row < j->n; row++) {
        const float *tile = j->r->output + row * j->width + first;
        int32_t n = 0;
        for (int64_t i = row * j->width + first; i < row * j->width + end; i++) n += !fd_judged_is_right(j, i);
        if (n == 0) return false;
        same &= memcmp(tile, j->r->output + j->first * j->width + first, size) == 0;
    }
    return !same;
}

/* Some columns, all the way down, and no more of them than half: rows of the weight. */
static fd_code try_columns(fd_trial *t, const fd_judged_rows *j, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_OWN, .node = j->node->id, .which = FD_OWN_ELEMENTS};
    int64_t n = 0;
    if (!fd_fit_clearly_beyond(&t->out->unmodified)) return FD_OK;
    if (!fd_judged_columns(j, &h.first, &h.end) || 2 * (h.end - h.first) > j->width) return FD_OK;
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++) n += !fd_judged_is_right(j, i);
    if (!(4 * n >= 3 * (int64_t)(h.end - h.first) * (j->n - j->first)) || !may_be_of_weight(j, h.first, h.end))
        return FD_OK;
    if (j->node->weight[0] >= 0) FD_TRY(try_rows_of_weights(t, j->node, h.first, h.end, err));
    return fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

/* Of several in each row. */
static fd_code try_experts(fd_trial *t, const fd_node *node, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_OWN, .node = node->id, .which = FD_OWN_EXPERT_BIAS};
    if (node->op == FD_OP_EXPERT_MATMUL && node->weight[1] >= 0 && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    h.which = FD_OWN_EXPERTS;
    if (node->op == FD_OP_EXPERT_MATMUL && !fd_trial_fits(t)) return fd_trial_try(t, &h, err);
    if (node->op != FD_OP_EXPERT_SUM || fd_trial_fits(t)) return FD_OK;
    const int32_t k = t->all.request->args.graph->nodes[node->input[1]].shape[0];
    return k > 1 && k <= MOST_EXPERTS ? fd_trial_try(t, &h, err) : FD_OK;
}

/* Is most of what departs that of one factor for all? That is another mistake, and in 16 bits every column's own number would
 * still lie a little beside it. */
static bool has_one_factor(const fd_judged_rows *j) {
    double cy = 0, yy = 0, before = 0, after = 0;
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++) {
        cy += (double)j->r->output[i] * (double)j->plain->rows[i];
        yy += (double)j->plain->rows[i] * (double)j->plain->rows[i];
    }
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++) {
        const double c = (double)j->r->output[i], y = (double)j->plain->rows[i], left = c - cy / yy * y;
        before += (c - y) * (c - y);
        after += left * left;
    }
    return !(after > before / 4);
}

fd_code fd_guess_log_probabilities(fd_trial *t, fd_error *err) {
    const fd_judged_rows j = fd_judged_rows_of(t);
    const fd_hypothesis h = {.guess = FD_GUESS_OWN, .node = j.node->id, .which = FD_OWN_LOG_SOFTMAX};
    return j.node->id == t->all.request->args.graph->n_node - 1 ? fd_trial_try(t, &h, err) : FD_OK;
}

fd_code fd_guess_own_numbers(fd_trial *t, fd_error *err) {
    const fd_judged_rows j = fd_judged_rows_of(t);
    const bool weights = j.node->op == FD_OP_ATTN_SOFTMAX, product = j.node->op == FD_OP_MATMUL;
    const bool scores = j.node->op == FD_OP_ATTN_SCORES;
    if ((j.node->over_kv && !weights && !scores) || j.node->op == FD_OP_TOP_K || j.node->op == FD_OP_KV_WRITE)
        return FD_OK;
    fd_hypothesis h = {.guess = FD_GUESS_OWN, .node = j.node->id, .which = FD_OWN_ROW_FACTOR};
    FD_TRY(try_experts(t, j.node, err));
    bool less = false, possible = divides(j.node->op) && factors_differ(&j, &less);
    if (weights && possible) FD_TRY(tell_keys_outside(t, j.node, less, &h, &possible, err));
    if (possible && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    h.which = FD_OWN_FUNCTION;
    h.other = 0;
    if (fd_hypothesis_has_function(j.node->op) && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    const bool norm = fd_node_is_norm(j.node),
               activation = t->n_span > 1 && fd_activates_products(j.r->args.graph, j.node);
    if (activation && j.n - j.first >= LEAST_ROWS && !fd_trial_fits(t)) return try_columns(t, &j, err);
    if (!(product || norm) || j.n - j.first < LEAST_ROWS || fd_trial_fits(t)) return FD_OK;
    h.which = FD_OWN_COLUMN_TERM;
    FD_TRY(fd_trial_try(t, &h, err));
    if (product && !fd_trial_fits(t)) FD_TRY(try_columns(t, &j, err));
    h.which = FD_OWN_COLUMN_FACTOR;
    h.before_bias = j.node->weight[1] >= 0;
    if (!fd_trial_fits(t) && !has_one_factor(&j)) FD_TRY(fd_trial_try(t, &h, err));
    if (!product) return FD_OK;
    return fd_trial_fits(t) ? FD_OK : fd_guess_low_rank(t, err);
}
