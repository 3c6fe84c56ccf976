/* Of the node asked about, where what it reads was recorded: a fault of the table in some elements of every row alone; the right elements,
 * or the right rows of a step, in another order that comes again block by block; rows added to others. */
#include <stdlib.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/explain/guesses.h"
#include "compare/explain/judged_rows.h"

fd_code fd_guess_in_elements(fd_trial *t, fd_error *err) {
    const fd_node *node = t->all.request->args.node;
    if (!fd_trial_alone(t) || node->over_kv || node->op == FD_OP_KV_WRITE || node->op == FD_OP_TOP_K) return FD_OK;
    const fd_judged_rows j = fd_judged_rows_of(t);
    if (!fd_judged_columns(&j, &t->from, &t->to) || t->to - t->from == j.width) t->to = 0;
    fd_code code = FD_OK;
    for (int32_t i = 0; t->to > 0 && i < fd_fault_count() && code == FD_OK; i++) {
        const fd_hypothesis h = {.guess = FD_GUESS_FAULT, .fault = i, .node = node->id, .layer = FD_ANY_LAYER};
        code = fd_trial_try(t, &h, err);
    }
    for (int32_t n = -1; t->to > 0 && n <= 1 && node->op == FD_OP_EMBED && code == FD_OK; n += 2) {
        const fd_hypothesis h = {.guess = FD_GUESS_TOKEN, .node = node->id, .n = n};
        if (!fd_trial_fits(t)) code = fd_trial_try(t, &h, err);
    }
    t->from = t->to = 0;
    return code;
}

/* ---- blocks ---- */

enum { MOST_OF_BLOCK = 16, MOST_OF_GROUP = 128, LEAST_ROWS = 3 };

/* Elements [first, first + n) are the right ones from `from` on, in every row. */
static bool are_columns(const fd_judged_rows *j, int64_t first, int64_t from, int64_t n) {
    for (int32_t row = j->first; row < j->n; row++)
        for (int64_t i = 0; i < n; i++)
            if (!fd_judged_is_that_of(j, row * j->width + first + i, row * j->width + from + i)) return false;
    return true;
}

/* Rows `row` are the right ones of `from`. */
static bool is_row(const fd_judged_rows *j, int64_t row, int64_t from) {
    for (int64_t i = 0; i < j->width; i++)
        if (!fd_judged_is_that_of(j, row * j->width + i, from * j->width + i)) return false;
    return true;
}

/* Which part of a block stands at each of its `n` places, of elements (`group` of them each) or, `group` 0, of rows; false: something
 * else does at one of them. */
static bool map_of(const fd_judged_rows *j, int64_t start, int32_t n, int64_t group, uint64_t *keys) {
    *keys = 0;
    for (int64_t place = 0; place < n; place++) {
        int64_t part = place; /* its own, if it may be */
        for (int64_t k = 0; k < n; k++) {
            part = (place + k) % n;
            const bool found = group ? are_columns(j, start + place * group, start + part * group, group)
                                     : is_row(j, start + place, start + part);
            if (found) break;
            if (k == n - 1) return false;
        }
        *keys |= (uint64_t)part << 4 * place;
    }
    return true;
}

static fd_code try_blocks_of_elements(fd_trial *t, int32_t from, const float *bias, fd_error *err) {
    fd_judged_rows j = fd_judged_rows_of(t);
    j.bias = bias;
    for (int32_t n = 2; n <= MOST_OF_BLOCK && !fd_trial_fits(t); n *= 2)
        for (int32_t group = 1; group <= MOST_OF_GROUP && (int64_t)n * group <= j.width && !fd_trial_fits(t);
             group *= 2) {
            fd_hypothesis h = {.guess = FD_GUESS_ORDER,
                               .node = j.node->id,
                               .before_bias = bias != NULL,
                               .which = FD_ORDER_BLOCKS,
                               .n = n,
                               .other = group};
            const int64_t start = from / ((int64_t)n * group) * n * group;
            if (start + (int64_t)n * group > j.width || !map_of(&j, start, n, group, &h.keys)) continue;
            FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}

/* As the product alone, or with its bias, which was added to what had moved. */
static fd_code try_blocks(fd_trial *t, int32_t from, fd_error *err) {
    FD_TRY(try_blocks_of_elements(t, from, NULL, err));
    float *bias;
    if (fd_trial_fits(t)) return FD_OK;
    FD_TRY(fd_judged_bias(t, &bias, err));
    fd_code code = bias ? try_blocks_of_elements(t, from, bias, err) : FD_OK;
    free(bias);
    return code;
}

static fd_code try_blocks_of_rows(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_judged_rows j = fd_judged_rows_of(t);
    const int32_t step = r->args.pos0 - r->args.batch_offset;
    const int64_t start = step - r->args.pos0 > 0 ? step - r->args.pos0 : 0;
    int64_t row = j.first > start ? j.first : start;
    for (; row < j.n && is_row(&j, row, row); row++) {}
    for (int32_t n = 2; n <= MOST_OF_BLOCK && !fd_trial_fits(t); n *= 2) {
        fd_hypothesis h = {.guess = FD_GUESS_ROWS, .node = j.node->id, .which = FD_ROWS_BLOCKS, .n = n, .other = step};
        const int64_t block = start + (row - start) / n * n;
        if (block < j.first || block + n > j.n || !map_of(&j, block, n, 0, &h.keys)) continue;
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* ---- rows ---- */

static fd_code try_sums_of_rows(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const int32_t step = r->args.pos0 - r->args.batch_offset;
    for (int32_t n = 1; n <= 64 && n < r->args.n_pos && !fd_trial_fits(t); n *= 2) {
        const fd_hypothesis h = {
            .guess = FD_GUESS_ROWS, .node = r->args.node->id, .which = FD_ROWS_ADDED, .n = n, .other = step};
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* What it reads stands otherwise in memory than it is read: the step's first row for all of them, a stride of zero, or heads and
 * positions not transposed. */
static fd_code try_strides(fd_trial *t, fd_error *err) {
    const fd_op_args *args = &t->all.request->args;
    const fd_node *node = args->node;
    for (int slot = 0; slot < FD_MAX_INPUTS && !fd_trial_fits(t); slot++) {
        const fd_node *read = node->input[slot] < 0 ? NULL : &args->graph->nodes[node->input[slot]];
        if (!read || read->over_kv || read->op == FD_OP_KV_WRITE) continue;
        fd_hypothesis h = {.guess = FD_GUESS_STRIDES,
                           .node = node->id,
                           .which = slot,
                           .other = FD_STRIDES_FIRST_ROW,
                           .n = 1,
                           .first = args->pos0 - args->batch_offset};
        FD_TRY(fd_trial_try(t, &h, err));
        h.n = read->n_dim == 2 ? read->shape[0] : 1;
        for (h.other = 0; h.other < FD_STRIDES_FIRST_ROW && h.n > 1 && !fd_trial_fits(t); h.other++)
            if (!fd_reads_kv_cache(node)) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

fd_code fd_guess_regions(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = r->args.node;
    const bool step = !r->args.row_by_row && r->args.n_pos - r->n_unjudged >= LEAST_ROWS;
    int32_t from, to;
    if (node->op == FD_OP_KV_WRITE && step) {
        const fd_hypothesis h = {
            .guess = FD_GUESS_ROWS, .node = node->id, .which = FD_ROWS_REVERSED, .n = r->n_earlier};
        return fd_trial_try(t, &h, err);
    }
    if (!fd_trial_alone(t) || node->over_kv || node->op == FD_OP_TOP_K) return FD_OK;
    const fd_judged_rows j = fd_judged_rows_of(t);
    if (fd_judged_columns(&j, &from, &to) && r->args.n_pos - r->n_unjudged >= LEAST_ROWS)
        FD_TRY(try_blocks(t, from, err));
    if (!step || fd_trial_fits(t)) return FD_OK;
    const fd_hypothesis reversed = {
        .guess = FD_GUESS_ROWS, .node = node->id, .which = FD_ROWS_REVERSED, .n = r->args.pos0 - r->args.batch_offset};
    FD_TRY(fd_trial_try(t, &reversed, err));
    if (!fd_trial_fits(t)) FD_TRY(try_blocks_of_rows(t, err));
    if (!fd_trial_fits(t)) FD_TRY(try_sums_of_rows(t, err));
    return fd_trial_fits(t) ? FD_OK : try_strides(t, err);
}
