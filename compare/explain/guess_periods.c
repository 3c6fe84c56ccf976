/* What weights are read as, by what comes again along a row, or in all rows: elements of every so many that an engine does not write, and blocks of a quantised weight that it does
 * not read. */
#include <math.h>
#include <stdlib.h>

#include "compare/bounds/column.h"
#include "compare/explain/guesses.h"
#include "compare/explain/judged_rows.h"
#include "model/gguf/quant.h"

/* Lanes of a warp to a superblock of ggml. */
enum { SHORTEST = 2, LONGEST = 256 };

/* Elements that are zero in every row are [*first, *end) of every `period`, all of these and no others. */
static bool zeros_repeat(const fd_explain_request *r, int64_t width, int32_t period, int32_t *first, int32_t *end) {
    bool zero[LONGEST], any = false;
    for (int32_t k = 0; k < period; k++) zero[k] = true;
    for (int64_t row = r->n_unjudged; row < r->args.n_pos; row++)
        for (int64_t i = 0; i < width; i++) {
            const float x = r->output[row * width + i];
            zero[i % period] &= !(x < 0 || x > 0);
        }
    *first = *end = 0;
    for (int32_t k = 0; k < period; k++) {
        if (!zero[k]) continue;
        if (any && k != *end) return false;
        if (!any) *first = k;
        *end = k + 1;
        any = true;
    }
    return any && *end - *first < period;
}

fd_code fd_guess_periodic_zeros(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = r->args.node;
    const int64_t width = fd_node_row_stride(node, r->args.n_kv);
    if (node->over_kv || node->op == FD_OP_KV_WRITE || node->op == FD_OP_TOP_K) return FD_OK;
    for (int32_t period = SHORTEST; period <= LONGEST && 2 * period <= width && !fd_trial_fits(t); period *= 2) {
        fd_hypothesis h = {.guess = FD_GUESS_FACTOR, .node = node->id, .n = period};
        if (width % period == 0 && zeros_repeat(r, width, period, &h.first, &h.end)) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Blocks of 32 of every superblock: which run of them is not read, or is read alone. */
enum { BLOCK = 32 };

static fd_code try_run(fd_trial *t, fd_hypothesis *h, int32_t first, int32_t n, fd_error *err) {
    double distance;
    h->first = first;
    h->n = n;
    FD_TRY(fd_trial_distance(t, &t->few, h, &distance, err));
    return distance < t->few_left / 8 ? fd_trial_try(t, h, err) : FD_OK;
}

/* A vector's lanes: one is lost where they are added up, or counted twice. */
static fd_code try_lanes(fd_trial *t, const fd_node *node, int64_t width, fd_error *err) {
    for (int32_t lanes = 4; lanes <= BLOCK && width % lanes == 0; lanes *= 2)
        for (int32_t lane = 0; lane < lanes; lane++)
            for (int times = 0; times <= 2 && !fd_trial_fits(t); times += 2) {
                fd_hypothesis h = {
                    .guess = FD_GUESS_INPUT_TAIL, .node = node->id, .end = lanes, .other = 1, .value = times};
                FD_TRY(try_run(t, &h, lane, 1, err));
            }
    return FD_OK;
}

fd_code fd_guess_blocks_of_sums(fd_trial *t, const fd_node *node, fd_error *err) {
    if (node->op != FD_OP_MATMUL && node->op != FD_OP_EXPERT_MATMUL) return FD_OK;
    const int64_t width = t->all.request->args.graph->weights[node->weight[0]].n_col;
    FD_TRY(try_lanes(t, node, width, err));
    for (int32_t each = 2 * BLOCK; each <= LONGEST && width % each == 0; each *= 2) {
        fd_hypothesis h = {.guess = FD_GUESS_INPUT_TAIL, .node = node->id, .end = each, .other = 1};
        for (int32_t n = BLOCK; n < each; n += BLOCK)
            for (int32_t first = 0; first + n <= each && !fd_trial_fits(t); first += BLOCK)
                FD_TRY(try_run(t, &h, first, n, err));
    }
    return FD_OK;
}

/* Rows for each direction, so that few directions are no matter of few rows; and most rows and columns depart, by a number. */
enum { MOST_RANK = 16, ROWS_A_DIRECTION = 2 };

static bool departs_everywhere(const fd_trial *t, int64_t width) {
    const fd_explain_request *r = t->all.request;
    const fd_variant *plain = &t->all.plain;
    const int64_t n = (r->args.n_pos - r->n_unjudged) * width;
    int64_t beyond = 0;
    for (int32_t row = r->n_unjudged; row < r->args.n_pos; row++) {
        int64_t own = 0;
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            if (!isfinite(r->output[i])) return false;
            own += !(fabs((double)r->output[i] - (double)plain->rows[i]) <= (plain->tau ? plain->tau[i] : 0));
        }
        if (4 * own < width) return false;
        beyond += own;
    }
    return 2 * beyond >= n;
}

/* An activation may have been zero anyway. */
static int64_t row_that_departs_most(const fd_trial *t, int64_t width) {
    const fd_explain_request *r = t->all.request;
    int64_t best = r->n_unjudged;
    double most = 0;
    for (int64_t row = r->n_unjudged; row < r->args.n_pos; row++) {
        double squares = 0;
        for (int64_t i = row * width; i < (row + 1) * width; i++)
            squares += pow((double)r->output[i] - (double)t->all.plain.rows[i], 2);
        if (squares > most) most = squares, best = row;
    }
    return best;
}

/* Of a row that departs by one column, how much of it: what another element of the input leaves in every row. A value that was rounded to the
 * other side of a step is in one of them. */
#define MOST_OF_ROW 0.5

static fd_code is_in_most_rows(const fd_trial *t, const fd_weight *w, int32_t column, bool *yes, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    float *of = fd_column_of(w, column);
    int32_t n_along = 0;
    double size = 0;
    if (!of) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", r->args.node->name);
    for (int64_t o = 0; o < w->n_row; o++) size += (double)of[o] * (double)of[o];
    for (int32_t row = r->n_unjudged; row < r->args.n_pos; row++) {
        double along = 0, all = 0;
        for (int64_t o = 0, at = row * w->n_row; o < w->n_row; o++, at++) {
            const double off = (double)r->output[at] - (double)t->all.plain.rows[at];
            along += off * (double)of[o];
            all += off * off;
        }
        n_along += along * along > MOST_OF_ROW * all * size;
    }
    free(of);
    *yes = n_along >= ROWS_A_DIRECTION && 2 * n_along >= r->args.n_pos - r->n_unjudged;
    return FD_OK;
}

/* One element of what is multiplied is zero, or its column of the weight: rank 1, and known. Or, where it was not recorded, another number in
 * each row. */
static fd_code try_column(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_weight *w = &r->args.graph->weights[r->args.node->weight[0]];
    if (r->args.n_pos - r->n_unjudged < ROWS_A_DIRECTION || !fd_can_dequantize(w->dtype)) return FD_OK;
    const int64_t at = row_that_departs_most(t, w->n_row) * w->n_row;
    double *off = malloc(sizeof *off * (size_t)w->n_row);
    int32_t column = -1;
    if (!off) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", r->args.node->name);
    for (int64_t o = 0; o < w->n_row; o++) off[o] = (double)r->output[at + o] - (double)t->all.plain.rows[at + o];
    const fd_code code = fd_column_along(w, off, &column, NULL, err);
    free(off);
    if (code != FD_OK || column < 0) return code;
    const fd_node *node = r->args.node;
    fd_hypothesis h = {.guess = FD_GUESS_INPUT_TAIL, .node = node->id, .n = 1, .first = column, .other = 1};
    h.end = (int32_t)w->n_col;
    FD_TRY(fd_trial_try(t, &h, err));
    h = (fd_hypothesis){.guess = FD_GUESS_OWN, .node = node->id, .which = FD_OWN_INPUT_ELEMENT, .first = column};
    bool unknown = t->n_span > 1 && fd_activates_products(r->args.graph, &r->args.graph->nodes[node->input[0]]);
    if (unknown) FD_TRY(is_in_most_rows(t, w, column, &unknown, err));
    return fd_trial_fits(t) || !unknown ? FD_OK : fd_trial_try(t, &h, err);
}

fd_code fd_guess_low_rank(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = r->args.node;
    const int32_t n = r->args.n_pos - r->n_unjudged, width = (int32_t)fd_node_width(node);
    /* rows that are no longer than that, a router's, have few directions whatever they depart by */
    const int32_t most = width < n ? width : n;
    fd_hypothesis h = {.guess = FD_GUESS_OWN, .node = node->id, .which = FD_OWN_LOW_RANK};
    if (node->op == FD_OP_MATMUL) FD_TRY(try_column(t, err));
    /* of an input that was not recorded a few heads' mistakes have few directions, too */
    if (node->op != FD_OP_MATMUL || t->n_span > 1 || !departs_everywhere(t, width)) return FD_OK;
    for (h.n = 1; h.n <= MOST_RANK && ROWS_A_DIRECTION * h.n < most && !fd_trial_fits(t); h.n++)
        FD_TRY(fd_trial_try(t, &h, err));
    return FD_OK;
}
