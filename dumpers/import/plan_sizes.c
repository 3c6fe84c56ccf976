/* How many tokens each step has, as the shapes of all arrays together say it: a name that every step has, and an axis of
 * it whose sizes add up to the tokens, is a vote. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/plan_internal.h"

typedef struct votes {
    int32_t *sizes; /* [n_vote room, n_step] */
    int32_t *n_of;  /* [n_vote room] */
    int32_t n;
} votes;

enum { MOST_VOTES = 16 }; /* different answers */

static int by_name_and_step(const void *a, const void *b) {
    const fd_source_tensor *x = *(const fd_source_tensor *const *)a, *y = *(const fd_source_tensor *const *)b;
    int order = strcmp(x->name, y->name);
    if (order == 0) order = (x->occurrence > y->occurrence) - (x->occurrence < y->occurrence);
    return order ? order : (x->step > y->step) - (x->step < y->step);
}

static bool same_name(const fd_source_tensor *a, const fd_source_tensor *b) {
    return a->occurrence == b->occurrence && strcmp(a->name, b->name) == 0;
}

static void vote(votes *v, const int32_t *sizes, int32_t n_step) {
    int32_t at = 0;
    while (at < v->n && memcmp(v->sizes + (size_t)at * (size_t)n_step, sizes, sizeof *sizes * (size_t)n_step) != 0)
        at++;
    if (at == MOST_VOTES) return;
    if (at == v->n) memcpy(v->sizes + (size_t)v->n++ * (size_t)n_step, sizes, sizeof *sizes * (size_t)n_step);
    v->n_of[at]++;
}

/* One name's arrays, one for each of the `n` steps that were recorded. The others were single tokens, if the tokens that are left
 * are as many as these steps, or there were none: an engine counts on while it does other things. */
static void vote_by_axes(const fd_source_tensor *const *arrays, int32_t n, const fd_import_plan *plan, int32_t *sizes,
                         votes *v) {
    for (int axis = 0; axis < arrays[0]->rank; axis++) {
        int64_t sum = 0;
        bool fits = true;
        for (int32_t i = 0; i < n && fits; i++) {
            int64_t size = arrays[i]->rank == arrays[0]->rank ? arrays[i]->shape[axis] : 0;
            fits = size >= 1 && size <= plan->n_token - sum && (i == 0 || arrays[i]->step > arrays[i - 1]->step);
            sum += size;
        }
        const int64_t left = plan->n_token - sum;
        if (!fits || (left != 0 && left != plan->n_step - n)) continue;
        for (int32_t s = 0; s < plan->n_step; s++) sizes[s] = left > 0;
        for (int32_t i = 0; i < n; i++) sizes[arrays[i]->step] = (int32_t)arrays[i]->shape[axis];
        vote(v, sizes, plan->n_step);
    }
}

/* Flat arrays: as many elements a token in every step. */
static void vote_by_elements(const fd_source_tensor *const *arrays, int32_t n, const fd_import_plan *plan,
                             int32_t *sizes, votes *v) {
    int64_t sum = 0;
    bool fits = n == plan->n_step && arrays[0]->rank == 1;
    for (int32_t i = 0; i < n && fits; i++) {
        fits = arrays[i]->rank == 1 && (i == 0 || arrays[i]->step > arrays[i - 1]->step);
        sum += arrays[i]->shape[0];
    }
    const int64_t width = fits ? sum / plan->n_token : 0;
    fits &= width > 1 && width * plan->n_token == sum; /* 1: an axis over the tokens, which has voted */
    for (int32_t i = 0; i < n && fits; i++) {
        fits = arrays[i]->shape[0] % width == 0 && arrays[i]->shape[0] > 0;
        sizes[i] = (int32_t)(arrays[i]->shape[0] / width);
    }
    if (fits) vote(v, sizes, plan->n_step);
}

fd_code fd_plan_sizes(const fd_planner *p, int32_t n_recorded, int32_t *sizes, fd_error *err) {
    const fd_source *source = p->plan->source;
    size_t n = fd_source_count(source), n_step = (size_t)p->plan->n_step;
    const fd_source_tensor **order = malloc(sizeof *order * (n + 1));
    votes v = {.sizes = malloc(sizeof *v.sizes * (MOST_VOTES + 1) * n_step),
               .n_of = calloc(MOST_VOTES + 1, sizeof *v.n_of)};
    bool room = order && v.sizes && v.n_of;
    for (size_t i = 0; i < n && room; i++) order[i] = fd_source_at(source, i);
    if (room) qsort(order, n, sizeof *order, by_name_and_step);
    int32_t n_name = 0;
    for (size_t i = 0, end; i < n && room; i = end) {
        for (end = i + 1; end < n && same_name(order[end], order[i]);) end++;
        if (end - i != (size_t)n_recorded) continue;
        n_name++;
        vote_by_axes(order + i, n_recorded, p->plan, sizes, &v);
        vote_by_elements(order + i, n_recorded, p->plan, sizes, &v);
    }
    int32_t best = 0;
    for (int32_t k = 1; k < v.n; k++)
        if (v.n_of[k] > v.n_of[best]) best = k;
    for (size_t s = 0; s < n_step; s++) sizes[s] = -1;
    /* heads may add up by chance: where steps are missing, most names have to say it */
    const bool agreed = v.n > 0 && (n_recorded == p->plan->n_step || 2 * v.n_of[best] > n_name);
    if (room && agreed) memcpy(sizes, v.sizes + (size_t)best * n_step, sizeof *sizes * n_step);
    free(v.n_of);
    free(v.sizes);
    free(order);
    return room ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "import: out of memory");
}
