/* What can be read off the rows themselves: where wrong elements and rows come from, and numbers that every row, or every
 * column, has of its own. */
#include <math.h>

#include "compare/diagnose/guesses.h"

typedef struct judged_rows {
    const fd_explain_request *r;
    const fd_variant *plain;
    const fd_node *node;
    int64_t width;
    int32_t first, n; /* rows [first, n) */
} judged_rows;

static judged_rows rows_of(const fd_trial *t) {
    const fd_explain_request *r = t->all.request;
    return (judged_rows){
        r, &t->all.plain, r->args.node, fd_node_row_stride(r->args.node, r->args.n_kv), r->n_unjudged, r->args.n_pos};
}

/* Element i of the candidate's rows is x, as far as rounding goes. */
static bool is(const judged_rows *j, int64_t i, float x) {
    const double tau = j->plain->tau ? j->plain->tau[i] : 0;
    return fabs((double)j->r->output[i] - (double)x) <= tau;
}

static bool is_right(const judged_rows *j, int64_t i) {
    return is(j, i, j->plain->rows[i]);
}

/* Columns [*first, *end) that depart in any row; false: none. */
static bool columns_that_depart(const judged_rows *j, int32_t *first, int32_t *end) {
    *first = *end = 0;
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++) {
        const int32_t column = (int32_t)(i % j->width);
        if (is_right(j, i)) continue;
        if (*end == 0 || column < *first) *first = column;
        if (column >= *end) *end = column + 1;
    }
    return *end > 0;
}

/* Column `column` of the candidate is column `of` of `rows` (`width` wide), and not all zeros, which any small values are near to. */
static bool is_column(const judged_rows *j, int64_t column, const float *rows, int64_t width, int64_t of) {
    bool any = false;
    for (int32_t r = j->first; r < j->n; r++) {
        const float x = rows[r * width + of];
        if (!is(j, r * j->width + column, x)) return false;
        any |= j->r->output[r * j->width + column] > 0 || j->r->output[r * j->width + column] < 0;
    }
    return any;
}

/* From which column of `rows` on those from `first` on are; *n: how many. -1: from none. */
static int64_t source_of(const judged_rows *j, int64_t first, int64_t end, const float *rows, int64_t width,
                         int64_t *n) {
    for (int64_t of = 0; of < width; of++) {
        *n = 0;
        while (first + *n < end && of + *n < width && is_column(j, first + *n, rows, width, of + *n)) ++*n;
        if (*n >= FD_MIN_EVIDENCE || (*n > 0 && first + *n == end)) return of;
    }
    return -1;
}

/* The right elements, in another place of the row. */
static fd_code try_pieces(fd_trial *t, fd_error *err) {
    const judged_rows j = rows_of(t);
    fd_hypothesis h = {.guess = FD_GUESS_ORDER, .node = j.node->id, .which = FD_ORDER_PIECES};
    int64_t n, of;
    if (!columns_that_depart(&j, &h.first, &h.end)) return FD_OK;
    if ((of = source_of(&j, h.first, h.end, j.plain->rows, j.width, &n)) < 0) return FD_OK;
    h.n = (int32_t)of;
    if (h.first + n < h.end) {
        h.other = h.first + (int32_t)n;
        if ((of = source_of(&j, h.other, h.end, j.plain->rows, j.width, &n)) < 0 || h.other + n < h.end) return FD_OK;
        h.keys = (uint64_t)of;
    }
    return fd_trial_try(t, &h, err);
}

/* Another recorded tensor's elements: an op that was left out, a part of a fused product that went to the wrong place. */
static fd_code try_copies(fd_trial *t, fd_error *err) {
    const judged_rows j = rows_of(t);
    const fd_graph *graph = j.r->args.graph;
    fd_hypothesis h = {.guess = FD_GUESS_COPY, .node = j.node->id};
    if (!j.r->tensor || !columns_that_depart(&j, &h.first, &h.end)) return FD_OK;
    for (h.other = j.node->id - 1; h.other >= 0 && !fd_trial_fits(t); h.other--) {
        const fd_node *other = &graph->nodes[h.other];
        const bool near = other->layer < 0 || other->layer >= j.node->layer - 1;
        const float *rows = near && !other->over_kv && other->op != FD_OP_KV_WRITE && other->op != FD_OP_TOP_K
                                ? j.r->tensor(j.r->user, h.other)
                                : NULL;
        int64_t n, of = rows ? source_of(&j, h.first, h.end, rows, fd_node_width(other), &n) : -1;
        if (of < 0 || h.first + n < h.end) continue;
        h.n = (int32_t)of;
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Rows as they should be, and before them context and those of earlier steps as they were; NULL: not known. */
static const float *row_at(const judged_rows *j, const float *before, int32_t row) {
    if (row >= 0 && row < j->first) return j->r->output + row * j->width;
    if (row >= 0) return j->plain->rows + row * j->width;
    return before ? before + (j->r->args.pos0 + row) * j->width : NULL;
}

/* The row whose elements [first, end) stand in `row` of the candidate, the nearest before it or after it; `row`: none. */
static int32_t row_that_stands(const judged_rows *j, const float *before, int32_t row, int32_t first, int32_t end) {
    const int32_t pos0 = j->r->args.pos0;
    for (int32_t k = 1; k < pos0 + j->n; k++) {
        const int32_t q = k <= pos0 + row ? row - k : k - pos0;
        const float *other = row_at(j, before, q);
        bool same = other != NULL;
        for (int64_t i = first; i < end && same; i++) same = is(j, row * j->width + i, other[i]);
        if (same) return q;
    }
    return row;
}

/* What departs in the first row that does is another position's: so may those after it be, as far away or the same one. */
static fd_code try_sources_of_rows(fd_trial *t, fd_error *err) {
    judged_rows j = rows_of(t);
    int32_t row = j.first, first = 0, end = 0;
    for (; row < j.n && end == 0; row++) {
        judged_rows one = j;
        one.first = row;
        one.n = row + 1;
        columns_that_depart(&one, &first, &end);
    }
    if (end - first < FD_MIN_EVIDENCE && end - first < j.width) return FD_OK;
    row--;
    const float *before = j.r->before ? j.r->before(j.r->user, j.node->id) : NULL;
    const int32_t from = row_that_stands(&j, before, row, first, end);
    if (from == row) return FD_OK;
    fd_hypothesis h = {.guess = FD_GUESS_ROWS, .node = j.node->id, .which = FD_ROWS_EARLIER, .n = row - from};
    if (end - first < j.width) h.first = first, h.end = end;
    if (from > row) h.which = FD_ROWS_EXCHANGED, h.n = j.r->args.pos0 + row, h.other = j.r->args.pos0 + from;
    if (from > row) return fd_trial_try(t, &h, err);
    if (from >= 0 || h.n == 1) FD_TRY(fd_trial_try(t, &h, err));
    const bool last = from >= 0 && row == j.n - 1 && j.n > 1; /* which of the two it is, later steps tell */
    if (last && !h.end && !j.r->departing_alone) return FD_OK;
    h.which = FD_ROWS_ALL_ARE;
    h.n = j.r->args.pos0 + from;
    h.other = j.r->args.pos0 + row;
    return fd_trial_fits(t) && !last ? FD_OK : fd_trial_try(t, &h, err);
}

fd_code fd_guess_places(fd_trial *t, fd_error *err) {
    const fd_node *node = t->all.request->args.node;
    if (node->over_kv || node->op == FD_OP_KV_WRITE || node->op == FD_OP_TOP_K) return FD_OK;
    FD_TRY(try_copies(t, err));
    if (!fd_trial_fits(t)) FD_TRY(try_pieces(t, err));
    return fd_trial_fits(t) ? FD_OK : try_sources_of_rows(t, err);
}

/* ---- numbers of rows and columns ---- */

/* No larger than what is largest there. */
static fd_code try_clamp(fd_trial *t, fd_error *err) {
    const judged_rows j = rows_of(t);
    fd_hypothesis h = {.guess = FD_GUESS_CLAMP, .node = j.node->id};
    double most = 0, least = 0;
    for (int64_t i = j.first * j.width; i < j.n * j.width; i++) {
        most = fmax(most, (double)j.r->output[i]);
        least = fmin(least, (double)j.r->output[i]);
    }
    h.value = fmax(most, -least);
    FD_TRY(fd_trial_try(t, &h, err));
    h.which = 1;
    h.value = most;
    return fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

/* Does every row, or every head of it, have a factor of its own? One factor for all is another mistake. */
static bool factors_differ(const judged_rows *j) {
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
    return 8 * (high - low) > fmax(fabs(high - 1), fabs(low - 1));
}

/* A row, or a head's part of it, is divided, or scaled, by a number of its own. */
static bool divides(fd_op op) {
    return op == FD_OP_RMS_NORM || op == FD_OP_LAYER_NORM || op == FD_OP_L2_NORM || op == FD_OP_ATTN_SOFTMAX ||
           op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX || op == FD_OP_SOFTMAX || op == FD_OP_EXPERT_WEIGHTS ||
           op == FD_OP_ROPE;
}

/* Weights that are the right ones but for a factor are what the values are mixed with. Where the result is otherwise, keys were
 * weighed that a row does not see, and a trace does not hold. */
static fd_code reader_departs(fd_trial *t, const fd_node *weights, bool *yes, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    *yes = false;
    for (int32_t i = weights->id + 1; i < r->args.graph->n_node; i++) {
        const fd_node *mix = &r->args.graph->nodes[i];
        const float *rows =
            mix->op == FD_OP_ATTN_MIX && mix->input[0] == weights->id && r->tensor ? r->tensor(r->user, i) : NULL;
        fd_variant right;
        if (!rows) continue;
        FD_TRY(fd_evaluate(t->all.bench, &fd_no_hypothesis, i, true, &right, err));
        if (right.state == FD_VARIANT_COMPUTED) {
            const fd_explain_fit fit = fd_variant_fit(r, mix, &right, rows);
            *yes |= fd_fit_clearly_beyond(&fit);
        }
        fd_variant_free(&right);
    }
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
static bool may_be_of_weight(const judged_rows *j, int32_t first, int32_t end) {
    const size_t size = sizeof *j->r->output * (size_t)(end - first);
    bool same = true;
    for (int32_t row = j->first; row < j->n; row++) {
        const float *tile = j->r->output + row * j->width + first;
        int32_t n = 0;
        for (int64_t i = row * j->width + first; i < row * j->width + end; i++) n += !is_right(j, i);
        if (n == 0) return false;
        same &= memcmp(tile, j->r->output + j->first * j->width + first, size) == 0;
    }
    return !same;
}

/* Some columns, all the way down, and no more of them than half: rows of the weight. */
static fd_code try_columns(fd_trial *t, const judged_rows *j, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_OWN, .node = j->node->id, .which = FD_OWN_ELEMENTS};
    int64_t n = 0;
    if (!fd_fit_clearly_beyond(&t->out->unmodified)) return FD_OK;
    if (!columns_that_depart(j, &h.first, &h.end) || 2 * (h.end - h.first) > j->width) return FD_OK;
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++) n += !is_right(j, i);
    if (!(4 * n >= 3 * (int64_t)(h.end - h.first) * (j->n - j->first)) || !may_be_of_weight(j, h.first, h.end))
        return FD_OK;
    FD_TRY(try_rows_of_weights(t, j->node, h.first, h.end, err));
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

fd_code fd_guess_own_numbers(fd_trial *t, fd_error *err) {
    const judged_rows j = rows_of(t);
    const bool weights = j.node->op == FD_OP_ATTN_SOFTMAX, product = j.node->op == FD_OP_MATMUL;
    const bool scores = j.node->op == FD_OP_ATTN_SCORES;
    if (j.node->op == FD_OP_KV_WRITE) return try_clamp(t, err);
    if ((j.node->over_kv && !weights && !scores) || j.node->op == FD_OP_TOP_K) return FD_OK;
    fd_hypothesis h = {.guess = FD_GUESS_OWN, .node = j.node->id, .which = FD_OWN_LOG_SOFTMAX};
    FD_TRY(try_experts(t, j.node, err));
    if (product && j.node->layer < 0) FD_TRY(fd_trial_try(t, &h, err));
    if (!j.node->over_kv && !fd_trial_fits(t)) FD_TRY(try_clamp(t, err));
    h.which = FD_OWN_ROW_FACTOR;
    bool not_alone = false;
    if (weights) FD_TRY(reader_departs(t, j.node, &not_alone, err));
    if (divides(j.node->op) && factors_differ(&j) && !not_alone && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    h.which = FD_OWN_FUNCTION;
    if (fd_hypothesis_has_function(j.node->op) && !fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    h.which = FD_OWN_COLUMN_TERM;
    if (!product || j.n - j.first < LEAST_ROWS || fd_trial_fits(t)) return FD_OK;
    FD_TRY(fd_trial_try(t, &h, err));
    if (!fd_trial_fits(t)) FD_TRY(try_columns(t, &j, err));
    return fd_trial_fits(t) ? FD_OK : fd_guess_low_rank(t, err);
}
