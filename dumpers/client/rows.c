/* A step in memory: rows of each tensor until they are written. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/client/tracer.h"

enum { MAX_SETS = 1 << 16 };

fd_code fd_tracer_begin(fd_tracer *tracer, const int32_t *tokens, int32_t count, fd_error *err) {
    fd_tracer_gathered *step = &tracer->step;
    if (!tokens || count < 1) return fd_fail(err, FD_ERR_INPUT, "a step of %d tokens, expected 1 or more", count);
    if (step->pos0 > INT32_MAX - count)
        return fd_fail(err, FD_ERR_INPUT, "a step of %d tokens after %" PRId64 ", expected fewer than 2^31 in all",
                       count, step->pos0);
    int32_t *copy = realloc(step->tokens, (size_t)count * sizeof *copy);
    if (!copy) return fd_fail(err, FD_ERR_MEMORY, "a step of %d tokens: out of memory", count);
    memcpy(copy, tokens, (size_t)count * sizeof *copy);
    step->tokens = copy;
    step->n_tok = count;
    step->in_step = true;
    step->next_set = 0;
    return FD_OK;
}

/* Engines compute in the same order in every step: the tensor expected next is nearly always the one that comes. */
static fd_tracer_set *find_set(fd_tracer_gathered *step, const char *name) {
    for (int32_t i = 0; i < step->n_set; i++) {
        int32_t at = (step->next_set + i) % step->n_set;
        if (strcmp(step->sets[at].name, name) != 0) continue;
        step->next_set = at + 1;
        return &step->sets[at];
    }
    return NULL;
}

static fd_code add_set(fd_tracer_gathered *step, const fd_tracer_view *view, fd_tracer_set **out, fd_error *err) {
    static const uint32_t stored[] = {[FD_TRACER_F32] = FD_F32,   [FD_TRACER_F64] = FD_F64, [FD_TRACER_F16] = FD_F16,
                                      [FD_TRACER_BF16] = FD_BF16, [FD_TRACER_I8] = FD_F32,  [FD_TRACER_I32] = FD_F64};
    if (step->n_set == MAX_SETS)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: more than %d names; a name is the same in every step", view->name,
                       MAX_SETS);
    if (step->n_set == step->room) {
        int32_t room = step->room ? 2 * step->room : 256;
        fd_tracer_set *sets = realloc(step->sets, (size_t)room * sizeof *sets);
        if (!sets) return fd_fail(err, FD_ERR_MEMORY, "tensor %s: out of memory", view->name);
        step->sets = sets;
        step->room = room;
    }
    fd_tracer_set *set = &step->sets[step->n_set++];
    *set = (fd_tracer_set){.source = view->source,
                           .form = {.dtype = stored[view->source], .over_kv = view->over_kv, .n_dim = view->n_dim}};
    strcpy(set->name, view->name);
    set->form.scores = view->over_kv && strstr(view->name, "scores");
    for (int d = 0; d < view->n_dim - view->over_kv; d++) set->form.shape[d] = (int32_t)view->shape[d];
    set->n_element = fd_form_lines(&set->form);
    step->next_set = step->n_set;
    *out = set;
    return FD_OK;
}

/* Flat and not flat are the same tensor; any other change of shape is a mistake. */
static fd_code check_same(const fd_tracer_set *set, const fd_tracer_view *view, fd_error *err) {
    const fd_tensor_form *form = &set->form;
    int64_t n = 1;
    int free_dims = view->n_dim - view->over_kv;
    bool same = form->over_kv == view->over_kv && form->n_dim == view->n_dim;
    for (int d = 0; d < free_dims; d++) {
        n *= view->shape[d];
        same = same && view->shape[d] == form->shape[d];
    }
    same = same || (!form->over_kv && !view->over_kv && n == set->n_element && (form->n_dim == 1 || view->n_dim == 1));
    if (!same)
        return fd_fail(err, FD_ERR_INPUT,
                       "tensor %s: %" PRId64 " elements in %d dimensions a position, expected %" PRId64
                       " in %d as in its first put",
                       set->name, n, view->n_dim, set->n_element, form->n_dim);
    if (set->source != view->source)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: element type %d, expected %d as in its first put", set->name,
                       (int)view->source, (int)set->source);
    return FD_OK;
}

static fd_code hold_rows(fd_tracer_gathered *step, fd_tracer_set *set, size_t row_bytes, fd_error *err) {
    size_t n_tok = (size_t)step->n_tok, bytes;
    if (set->rows) return FD_OK;
    if (!__builtin_mul_overflow(n_tok, row_bytes, &bytes)) set->rows = malloc(bytes);
    set->held = calloc(n_tok, 1);
    if (!set->rows || !set->held) {
        fd_tracer_drop_rows(set);
        return fd_fail(err, FD_ERR_MEMORY, "tensor %s: out of memory for %zu positions", set->name, n_tok);
    }
    step->bytes += bytes;
    return FD_OK;
}

fd_code fd_tracer_take(fd_tracer *tracer, const fd_tracer_view *view, fd_error *err) {
    fd_tracer_gathered *step = &tracer->step;
    fd_tracer_set *set = find_set(step, view->name);
    FD_TRY(set ? check_same(set, view, err) : add_set(step, view, &set, err));
    int64_t n_key = step->pos0 + step->n_tok;
    size_t row_bytes = fd_tracer_row_bytes(set, n_key);
    FD_TRY(hold_rows(step, set, row_bytes, err));
    for (int64_t r = 0; r < view->n_row; r++) {
        int64_t at = view->first + r - step->pos0;
        fd_tracer_gather(view, r, set, view->first + r + 1, n_key, set->rows + (size_t)at * row_bytes);
        set->held[at] = 1;
    }
    return step->bytes <= fd_tracer_most_held(tracer) ? FD_OK : fd_tracer_hand_over(tracer, false, err);
}

fd_code fd_tracer_end(fd_tracer *tracer, fd_error *err) {
    fd_tracer_gathered *step = &tracer->step;
    if (!step->in_step) return FD_OK;
    FD_TRY(fd_tracer_hand_over(tracer, true, err));
    step->in_step = false;
    step->pos0 += step->n_tok;
    return FD_OK;
}
