/* What can be read off the rows themselves: where wrong elements and rows come from. */
#include <stdlib.h>

#include "compare/explain/guesses.h"
#include "compare/explain/judged_rows.h"

/* Column `column` of the candidate is column `of` of `rows` (`width` wide; NULL: of its own, as they should be), and not all zeros, which
 * any small values are near to. */
static bool is_column(const fd_judged_rows *j, int64_t column, const float *rows, int64_t width, int64_t of) {
    bool any = false;
    for (int32_t r = j->first; r < j->n; r++) {
        const int64_t i = r * j->width + column;
        if (rows ? !fd_judged_is(j, i, rows[r * width + of]) : !fd_judged_is_that_of(j, i, r * width + of))
            return false;
        any |= j->r->output[r * j->width + column] > 0 || j->r->output[r * j->width + column] < 0;
    }
    return any;
}

/* From which column of `rows` on those from `first` on are; *n: how many. -1: from none. */
static int64_t source_of(const fd_judged_rows *j, int64_t first, int64_t end, const float *rows, int64_t width,
                         int64_t *n) {
    for (int64_t of = 0; of < width; of++) {
        *n = 0;
        while (first + *n < end && of + *n < width && is_column(j, first + *n, rows, width, of + *n)) ++*n;
        if (*n >= FD_MIN_EVIDENCE || (*n > 0 && first + *n == end)) return of;
    }
    return -1;
}

/* The right elements, in another place of the row. */
static fd_code try_pieces(fd_trial *t, const float *bias, fd_error *err) {
    fd_judged_rows j = fd_judged_departing(t);
    fd_hypothesis h = {.guess = FD_GUESS_ORDER, .node = j.node->id, .before_bias = bias, .which = FD_ORDER_PIECES};
    int64_t n, of;
    j.bias = bias;
    if (!fd_judged_columns(&j, &h.first, &h.end)) return FD_OK;
    if ((of = source_of(&j, h.first, h.end, NULL, j.width, &n)) < 0) return FD_OK;
    h.n = (int32_t)of;
    if (h.first + n < h.end) {
        h.other = h.first + (int32_t)n;
        if ((of = source_of(&j, h.other, h.end, NULL, j.width, &n)) < 0 || h.other + n < h.end) return FD_OK;
        h.keys = (uint64_t)of;
    }
    return fd_trial_try(t, &h, err);
}

fd_code fd_guess_places_beside_bias(fd_trial *t, fd_error *err) {
    float *bias;
    FD_TRY(fd_judged_bias(t, &bias, err));
    fd_code code = bias ? try_pieces(t, bias, err) : FD_OK;
    free(bias);
    return code;
}

/* Another recorded tensor's elements: an op that was left out, a part of a fused product that went to the wrong place. */
static fd_code try_copies(fd_trial *t, fd_error *err) {
    const fd_judged_rows j = fd_judged_departing(t);
    const fd_graph *graph = j.r->args.graph;
    fd_hypothesis h = {.guess = FD_GUESS_COPY, .node = j.node->id};
    if (!j.r->tensor || !fd_judged_columns(&j, &h.first, &h.end)) return FD_OK;
    for (h.other = j.node->id - 1; h.other >= 0 && !fd_trial_fits(t); h.other--) {
        const fd_node *other = &graph->nodes[h.other];
        const bool near = other->layer < 0 || other->layer >= j.node->layer - 1;
        if (j.node->op == FD_OP_KV_WRITE && h.other == j.node->input[0])
            continue; /* what a cache is, but for its type */
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
static const float *row_at(const fd_judged_rows *j, const float *before, int32_t row) {
    if (row >= 0 && row < j->first) return j->r->output + row * j->width;
    if (row >= 0) return j->plain->rows + row * j->width;
    return before ? before + (j->r->args.pos0 + row) * j->width : NULL;
}

/* The row whose elements [first, end) stand in `row` of the candidate, the nearest before it or after it; `row`: none. */
static int32_t row_that_stands(const fd_judged_rows *j, const float *before, int32_t row, int32_t first, int32_t end) {
    const int32_t pos0 = j->r->args.pos0;
    for (int32_t k = 1; k < pos0 + j->n; k++) {
        const int32_t q = k <= pos0 + row ? row - k : k - pos0;
        const float *other = row_at(j, before, q);
        bool same = other != NULL;
        for (int64_t i = first; i < end && same; i++) same = fd_judged_is(j, row * j->width + i, other[i]);
        if (same) return q;
    }
    return row;
}

/* Zeros stand in any row that was not recorded, or not written: they are no other row's. */
static bool is_zeros(const fd_judged_rows *j, int32_t row, int32_t first, int32_t end) {
    bool zeros = true;
    for (int64_t i = first; i < end && zeros; i++) zeros = fd_judged_is(j, row * j->width + i, 0);
    return zeros;
}

/* What a kernel does to the last row of every step: in later steps it is another position. */
static fd_code try_last_of_step(fd_trial *t, int32_t pos, int32_t from, fd_error *err) {
    const fd_op_args *args = &t->all.request->args;
    const int32_t first = args->pos0 - args->batch_offset, end = args->batch_end ? args->batch_end : args->n_kv;
    const fd_hypothesis h = {
        .guess = FD_GUESS_ROWS, .node = args->node->id, .which = FD_ROWS_STEP_LAST, .n = from == first ? 0 : 1};
    const bool is_last = !args->row_by_row && pos == end - 1 && (from == pos - 1 || from == first);
    return is_last && end - first > 1 ? fd_trial_try(t, &h, err) : FD_OK;
}

/* A cache's rows: from the first that departs on, which nobody wrote, each stands further on. */
static fd_code try_late_rows(fd_trial *t, fd_error *err) {
    enum { FURTHEST = 4 };
    const fd_judged_rows j = fd_judged_rows_of(t);
    const int32_t row = fd_judged_departing(t).first;
    for (int32_t n = 1; n <= FURTHEST && row + n < j.n && !fd_trial_fits(t); n++) {
        bool late = true;
        for (int64_t i = (row + n) * j.width; i < j.n * j.width && late; i++)
            late = fd_judged_is_that_of(&j, i, i - n * j.width);
        const fd_hypothesis h = {
            .guess = FD_GUESS_ROWS, .node = j.node->id, .which = FD_ROWS_LATE, .n = n, .other = j.r->args.pos0 + row};
        if (late) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* What departs in the first row that does is another position's: so may those after it be, as far away or the same one. */
static fd_code try_sources_of_rows(fd_trial *t, fd_error *err) {
    const fd_judged_rows j = fd_judged_rows_of(t);
    const int32_t row = fd_judged_departing(t).first;
    fd_judged_rows one = j;
    int32_t first, end;
    one.first = row;
    one.n = row < j.n ? row + 1 : row;
    fd_judged_columns(&one, &first, &end);
    if (end - first < FD_MIN_EVIDENCE && end - first < j.width) return FD_OK;
    if (row < j.n && is_zeros(&j, row, first, end)) return FD_OK;
    const float *before = j.r->before ? j.r->before(j.r->user, j.node->id) : NULL;
    const int32_t from = row_that_stands(&j, before, row, first, end);
    if (from == row) return FD_OK;
    fd_hypothesis h = {.guess = FD_GUESS_ROWS, .node = j.node->id, .which = FD_ROWS_EARLIER, .n = row - from};
    if (end - first < j.width) h.first = first, h.end = end;
    if (from > row) h.which = FD_ROWS_EXCHANGED, h.n = j.r->args.pos0 + row, h.other = j.r->args.pos0 + from;
    if (from > row) return fd_trial_try(t, &h, err);
    FD_TRY(try_last_of_step(t, j.r->args.pos0 + row, j.r->args.pos0 + from, err));
    if (fd_trial_fits(t)) return FD_OK;
    if (from >= 0 || h.n == 1) FD_TRY(fd_trial_try(t, &h, err));
    const bool last = from >= 0 && row == j.n - 1 && j.n > 1; /* which of the two it is, later steps tell */
    if (last && !h.end && !j.r->departing_alone) return FD_OK;
    h.which = FD_ROWS_ALL_ARE;
    h.n = j.r->args.pos0 + from;
    h.other = j.r->args.pos0 + row;
    return fd_trial_fits(t) && !last ? FD_OK : fd_trial_try(t, &h, err);
}

/* A third term of a sum: a stream that was added before, a branch of another place. */
static fd_code try_terms(fd_trial *t, fd_error *err) {
    const fd_judged_rows j = fd_judged_rows_of(t);
    const fd_graph *graph = j.r->args.graph;
    fd_hypothesis h = {.guess = FD_GUESS_COPY, .node = j.node->id, .which = 1, .end = (int32_t)j.width};
    for (h.other = j.node->id - 1; h.other >= 0 && j.node->op == FD_OP_ADD && !fd_trial_fits(t); h.other--) {
        const fd_node *other = &graph->nodes[h.other];
        const bool near = other->layer < 0 || other->layer >= j.node->layer - 1;
        const bool own = h.other == j.node->input[0] || h.other == j.node->input[1]; /* that branch twice */
        if (!near || own || other->over_kv || fd_node_width(other) != j.width || !j.r->tensor) continue;
        if (j.r->tensor(j.r->user, h.other)) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

fd_code fd_guess_places(fd_trial *t, fd_error *err) {
    const fd_node *node = t->all.request->args.node;
    if (node->over_kv || node->op == FD_OP_TOP_K) return FD_OK;
    FD_TRY(try_copies(t, err));
    if (!fd_trial_fits(t)) FD_TRY(try_terms(t, err));
    const bool of_cache = node->op == FD_OP_KV_WRITE; /* whose heads are asked about as such */
    if (!fd_trial_fits(t) && !of_cache) FD_TRY(try_pieces(t, NULL, err));
    if (!fd_trial_fits(t) && of_cache) FD_TRY(try_late_rows(t, err));
    return fd_trial_fits(t) ? FD_OK : try_sources_of_rows(t, err);
}
