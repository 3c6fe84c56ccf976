/* A step in memory: rows of each tensor until they are written. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/client/tracer.h"

enum { MAX_SETS = 1 << 16 };

fd_code fd_tracer_begin(fd_tracer *tracer, const int32_t *tokens, int32_t count, fd_error *err) {
    if (!tokens || count < 1) return fd_fail(err, FD_ERR_INPUT, "a step of %d tokens, expected 1 or more", count);
    if (tracer->pos0 > INT32_MAX - count)
        return fd_fail(err, FD_ERR_INPUT, "a step of %d tokens after %" PRId64 ", expected fewer than 2^31 in all",
                       count, tracer->pos0);
    int32_t *copy = realloc(tracer->step_tokens, (size_t)count * sizeof *copy);
    if (!copy) return fd_fail(err, FD_ERR_MEMORY, "a step of %d tokens: out of memory", count);
    memcpy(copy, tokens, (size_t)count * sizeof *copy);
    tracer->step_tokens = copy;
    tracer->n_tok = count;
    tracer->in_step = true;
    tracer->next_set = 0;
    return FD_OK;
}

/* Engines compute in the same order in every step: the tensor expected next is nearly always the one that comes. */
static fd_tracer_set *find(fd_tracer *tracer, const char *name) {
    for (int32_t i = 0; i < tracer->n_set; i++) {
        int32_t at = (tracer->next_set + i) % tracer->n_set;
        if (strcmp(tracer->sets[at].name, name) != 0) continue;
        tracer->next_set = at + 1;
        return &tracer->sets[at];
    }
    return NULL;
}

static fd_code add(fd_tracer *tracer, const fd_tracer_view *view, fd_tracer_set **out, fd_error *err) {
    static const uint32_t stored[] = {[FD_TRACER_F32] = FD_F32,   [FD_TRACER_F64] = FD_F64, [FD_TRACER_F16] = FD_F16,
                                      [FD_TRACER_BF16] = FD_BF16, [FD_TRACER_I8] = FD_F32,  [FD_TRACER_I32] = FD_F64};
    if (tracer->n_set == MAX_SETS)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: more than %d names; a name is the same in every step", view->name,
                       MAX_SETS);
    if (tracer->n_set == tracer->room) {
        int32_t room = tracer->room ? 2 * tracer->room : 256;
        fd_tracer_set *sets = realloc(tracer->sets, (size_t)room * sizeof *sets);
        if (!sets) return fd_fail(err, FD_ERR_MEMORY, "tensor %s: out of memory", view->name);
        tracer->sets = sets;
        tracer->room = room;
    }
    fd_tracer_set *set = &tracer->sets[tracer->n_set++];
    *set = (fd_tracer_set){.dtype = stored[view->source], .source = view->source, .id = -1, .n_element = 1};
    strcpy(set->name, view->name);
    set->element = set->dtype == FD_F64 ? 8 : set->dtype == FD_F32 ? 4 : 2;
    set->over_kv = view->over_kv;
    set->scores = view->over_kv && strstr(view->name, "scores");
    set->n_dim = view->n_dim;
    for (int d = 0; d < view->n_dim; d++) {
        bool along_kv = view->over_kv && d == view->n_dim - 1;
        set->shape[d] = along_kv ? 0 : view->shape[d];
        if (!along_kv) set->n_element *= view->shape[d];
    }
    tracer->next_set = tracer->n_set;
    *out = set;
    return FD_OK;
}

/* Flat and not flat are the same tensor; any other change of shape is a mistake. */
static fd_code check_same(const fd_tracer_set *set, const fd_tracer_view *view, fd_error *err) {
    int64_t n = 1;
    int free_dims = view->n_dim - view->over_kv;
    bool same = set->over_kv == view->over_kv && set->n_dim == view->n_dim;
    for (int d = 0; d < free_dims; d++) {
        n *= view->shape[d];
        same = same && view->shape[d] == set->shape[d];
    }
    same = same || (!set->over_kv && !view->over_kv && n == set->n_element && (set->n_dim == 1 || view->n_dim == 1));
    if (!same)
        return fd_fail(err, FD_ERR_INPUT,
                       "tensor %s: %" PRId64 " elements in %d dimensions a position, expected %" PRId64
                       " in %d as in its first put",
                       set->name, n, view->n_dim, set->n_element, set->n_dim);
    if (set->source != view->source)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: element type %d, expected %d as in its first put", set->name,
                       (int)view->source, (int)set->source);
    return FD_OK;
}

static size_t row_bytes(const fd_tracer *tracer, const fd_tracer_set *set) {
    size_t keys = set->over_kv ? (size_t)(tracer->pos0 + tracer->n_tok) : 1;
    return (size_t)set->n_element * set->element * keys;
}

static fd_code hold(fd_tracer *tracer, fd_tracer_set *set, fd_error *err) {
    size_t n_tok = (size_t)tracer->n_tok, bytes;
    if (set->rows) return FD_OK;
    if (!__builtin_mul_overflow(n_tok, row_bytes(tracer, set), &bytes)) set->rows = malloc(bytes);
    set->held = calloc(n_tok, 1);
    if (!set->prints && !tracer->beside) set->prints = calloc(n_tok, sizeof *set->prints);
    if (!set->rows || !set->held || (!set->prints && !tracer->beside)) {
        fd_tracer_drop_rows(set);
        return fd_fail(err, FD_ERR_MEMORY, "tensor %s: out of memory for %zu positions", set->name, n_tok);
    }
    tracer->held_bytes += bytes;
    return FD_OK;
}

fd_code fd_tracer_write_held(fd_tracer *tracer, fd_error *err) {
    FD_TRY(fd_tracer_make_room(tracer, err));
    for (int32_t i = 0; i < tracer->n_set; i++) {
        fd_tracer_set *set = &tracer->sets[i];
        if (!set->rows) continue;
        FD_TRY(fd_tracer_write_rows(tracer, set, err));
        fd_tracer_drop_rows(set);
    }
    tracer->held_bytes = 0;
    return FD_OK;
}

fd_code fd_tracer_take(fd_tracer *tracer, const fd_tracer_view *view, fd_error *err) {
    fd_tracer_set *set = find(tracer, view->name);
    FD_TRY(set ? check_same(set, view, err) : add(tracer, view, &set, err));
    FD_TRY(hold(tracer, set, err));
    size_t bytes = row_bytes(tracer, set);
    for (int64_t r = 0; r < view->n_row; r++) {
        int64_t at = view->first + r - tracer->pos0;
        fd_tracer_gather(view, r, set, view->first + r + 1, tracer->pos0 + tracer->n_tok,
                         set->rows + (size_t)at * bytes);
        set->held[at] = 1;
    }
    if (tracer->held_bytes <= fd_tracer_most_held(tracer)) return FD_OK;
    if (tracer->beside) return fd_tracer_hand_over(tracer, false, err);
    fd_tracer_host host;
    fd_tracer_enter(&host, true);
    fd_code code = fd_tracer_write_held(tracer, err);
    fd_tracer_leave(&host);
    return code;
}

void fd_tracer_drop_rows(fd_tracer_set *set) {
    free(set->rows);
    free(set->held);
    set->rows = NULL;
    set->held = NULL;
}

fd_code fd_tracer_end(fd_tracer *tracer, fd_error *err) {
    if (!tracer->in_step) return FD_OK;
    FD_TRY(fd_tracer_collect(tracer, err));
    if (tracer->beside) {
        FD_TRY(fd_tracer_hand_over(tracer, true, err));
    } else {
        FD_TRY(fd_tracer_write_held(tracer, err));
        FD_TRY(fd_tracer_commit(tracer, err));
    }
    for (int32_t i = 0; i < tracer->n_set; i++) {
        free(tracer->sets[i].prints);
        tracer->sets[i].prints = NULL;
    }
    tracer->in_step = false;
    tracer->pos0 += tracer->n_tok;
    tracer->n_step++;
    return FD_OK;
}
