/* How many tokens each step has, as the shapes of all arrays together say it: a name that every step has, and an axis of
 * it whose sizes add up to the tokens, is a vote. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/plan_internal.h"

enum { MOST_VOTES = 16 }; /* different answers */

typedef struct vote_count {
    int32_t n;     /* arrays */
    int32_t n_fit; /* of those, the ones whose rows then have as many elements as a row of the model */
    int64_t width; /* of the first of these, elements a row */
    bool widths;   /* another's row has another number */
    bool guess;    /* steps in front that were not recorded have what is left */
} vote_count;

typedef struct votes {
    int32_t *sizes; /* [MOST_VOTES + 1, n_step]; owned */
    vote_count of[MOST_VOTES + 1];
    int32_t n;
} votes;

static int by_name_and_step(const void *a, const void *b) {
    const fd_source_tensor *x = *(const fd_source_tensor *const *)a, *y = *(const fd_source_tensor *const *)b;
    int order = strcmp(x->name, y->name);
    if (order == 0) order = (x->occurrence > y->occurrence) - (x->occurrence < y->occurrence);
    return order ? order : (x->step > y->step) - (x->step < y->step);
}

static bool same_name(const fd_source_tensor *a, const fd_source_tensor *b) {
    return a->occurrence == b->occurrence && strcmp(a->name, b->name) == 0;
}

/* `width`: of a row, where that is one of the model; else 0. */
static void vote(votes *v, const int32_t *sizes, int32_t n_step, int64_t width, bool guess) {
    int32_t at = 0;
    while (at < v->n && memcmp(v->sizes + (size_t)at * (size_t)n_step, sizes, sizeof *sizes * (size_t)n_step) != 0)
        at++;
    if (at == MOST_VOTES) return;
    if (at == v->n) memcpy(v->sizes + (size_t)v->n++ * (size_t)n_step, sizes, sizeof *sizes * (size_t)n_step);
    vote_count *of = &v->of[at];
    of->n++;
    of->guess = guess;
    if (width == 0) return;
    if (of->n_fit++ == 0) of->width = width;
    of->widths |= of->width != width;
}

/* Of the `left` tokens those of the steps that were not recorded: one each, the first of them the rest. */
static void share_left(const fd_import_plan *plan, const fd_source_tensor *const *arrays, int32_t n, int64_t left,
                       int32_t *sizes) {
    int32_t n_missing = plan->n_step - n;
    for (int32_t s = 0; s < plan->n_step; s++) sizes[s] = left > 0;
    for (int32_t s = 0, i = 0; s < plan->n_step && left > n_missing; s++) {
        if (i < n && arrays[i]->step == s) {
            i++;
            continue;
        }
        sizes[s] = (int32_t)left - (n_missing - 1);
        break;
    }
}

/* One name's arrays, one for each of the `n` steps that were recorded. The others were single tokens, if the tokens that are left
 * are as many as these steps, or there were none: an engine counts on while it does other things. Where all that were not recorded
 * come first, as of decode alone, a prompt of the tokens that are left is a guess. */
static void vote_by_axes(const fd_source_tensor *const *arrays, int32_t n, const fd_import_plan *plan, int32_t *sizes,
                         votes *v) {
    const int32_t n_missing = plan->n_step - n;
    const bool behind = n_missing > 0 && arrays[0]->step == n_missing;
    const int64_t n_element = fd_source_elements(arrays[0]);
    for (int axis = 0; axis < arrays[0]->rank; axis++) {
        int64_t sum = 0;
        bool fits = true;
        for (int32_t i = 0; i < n && fits; i++) {
            int64_t size = arrays[i]->rank == arrays[0]->rank ? arrays[i]->shape[axis] : 0;
            fits = size >= 1 && size <= plan->n_token - sum && (i == 0 || arrays[i]->step > arrays[i - 1]->step);
            sum += size;
        }
        const int64_t left = plan->n_token - sum;
        const int64_t width = fits ? n_element / arrays[0]->shape[axis] : 0;
        const bool row = fits && fd_import_is_row(plan->graph, width);
        if (!fits || (!row && fd_import_is_row(plan->graph, n_element))) continue; /* an axis inside the only row */
        const bool guess = left > n_missing && behind && row && plan->graph;
        if (left != 0 && left != n_missing && !guess) continue;
        share_left(plan, arrays, n, left, sizes);
        for (int32_t i = 0; i < n; i++) sizes[arrays[i]->step] = (int32_t)arrays[i]->shape[axis];
        vote(v, sizes, plan->n_step, row ? width : 0, guess);
    }
}

/* Is each of the name's arrays as large as one row of the model? */
static bool is_one_row_each(const fd_source_tensor *const *arrays, int32_t n, const fd_import_plan *plan) {
    bool same = plan->graph && fd_import_is_row(plan->graph, fd_source_elements(arrays[0]));
    for (int32_t i = 1; i < n; i++) same &= fd_source_elements(arrays[i]) == fd_source_elements(arrays[0]);
    return same;
}

/* Flat arrays: as many elements a token in every step, a row of the model. */
static void vote_by_elements(const fd_source_tensor *const *arrays, int32_t n, const fd_import_plan *plan,
                             int32_t *sizes, votes *v) {
    const int32_t n_missing = plan->n_step - n;
    const bool one_row = n < plan->n_token && is_one_row_each(arrays, n, plan);
    const int64_t left = plan->n_token - n;
    int64_t sum = 0;
    bool fits = arrays[0]->rank == 1;
    for (int32_t i = 0; i < n && fits; i++) {
        fits = arrays[i]->rank == 1 && (i == 0 || arrays[i]->step > arrays[i - 1]->step);
        sum += arrays[i]->shape[0];
    }
    if (fits && one_row && n_missing > 0 && (left == n_missing || arrays[0]->step == n_missing)) {
        share_left(plan, arrays, n, left, sizes);
        for (int32_t i = 0; i < n; i++) sizes[arrays[i]->step] = 1;
        vote(v, sizes, plan->n_step, fd_source_elements(arrays[0]), left > n_missing);
    }
    const int64_t rows = plan->n_token - n_missing; /* steps that were not recorded were single tokens, as above */
    const int64_t width = fits && rows > 0 && !one_row ? sum / rows : 0;
    fits = width > 1 && width * rows == sum; /* 1: an axis over the tokens, which has voted */
    if (fits) share_left(plan, arrays, n, n_missing, sizes);
    for (int32_t i = 0; i < n && fits; i++) {
        fits = arrays[i]->shape[0] % width == 0 && arrays[i]->shape[0] > 0;
        sizes[arrays[i]->step] = (int32_t)(arrays[i]->shape[0] / width);
    }
    if (fits && fd_import_is_row(plan->graph, width)) vote(v, sizes, plan->n_step, width, false);
}

/* Heads, and what windowed layers keep, may add up to the tokens by chance: but these are rows of one width. */
static bool is_better(const vote_count *a, const vote_count *b) {
    if (a->widths != b->widths) return a->widths;
    return a->n_fit > b->n_fit || (a->n_fit == b->n_fit && a->n > b->n);
}

fd_code fd_plan_sizes(const fd_planner *p, int32_t n_recorded, int32_t *sizes, fd_error *err) {
    const fd_source *source = p->plan->source;
    size_t n = fd_source_count(source), n_step = (size_t)p->plan->n_step;
    const fd_source_tensor **order = malloc(sizeof *order * (n + 1));
    votes v = {.sizes = malloc(sizeof *v.sizes * (MOST_VOTES + 1) * n_step)};
    bool room = order && v.sizes;
    for (size_t i = 0; i < n && room; i++) order[i] = fd_source_at(source, i);
    if (room) qsort(order, n, sizeof *order, by_name_and_step);
    int32_t n_name = 0, n_one_row = 0;
    for (size_t i = 0, end; i < n && room; i = end) {
        for (end = i + 1; end < n && same_name(order[end], order[i]);) end++;
        if (end - i != (size_t)n_recorded) continue;
        n_name++;
        n_one_row += is_one_row_each(order + i, n_recorded, p->plan);
        vote_by_axes(order + i, n_recorded, p->plan, sizes, &v);
        vote_by_elements(order + i, n_recorded, p->plan, sizes, &v);
    }
    int32_t best = 0;
    for (int32_t k = 1; k < v.n; k++)
        if (is_better(&v.of[k], &v.of[best])) best = k;
    for (size_t s = 0; s < n_step; s++) sizes[s] = -1;
    /* heads may add up by chance: where steps are missing, most names have to say it */
    bool agreed = v.n > 0 && (n_recorded == p->plan->n_step || 2 * v.of[best].n > n_name);
    /* the last token's rows alone say nothing, and heads of attention may be as many as the tokens of a step. (What windowed layers keep is as
     * large in every step, too.) */
    agreed &= n_recorded < p->plan->n_step || v.of[best].n_fit >= n_one_row || v.of[best].widths ||
              n_recorded == p->plan->n_token;
    if (room && agreed) memcpy(sizes, v.sizes + (size_t)best * n_step, sizeof *sizes * n_step);
    p->plan->guessed_steps |= room && agreed && v.of[best].guess;
    free(v.sizes);
    free(order);
    return room ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "import: out of memory");
}
