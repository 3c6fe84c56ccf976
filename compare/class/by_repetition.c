#include "compare/class/by_repetition.h"

#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/explain/solve.h"

/* Rows that are computed: behind one that lost a value to the other side of a step hardly any is right to its last bits. Where none of the
 * first is, none is. */
enum { FIRST_ROWS = 4, FEW_ROWS = 8 };

typedef struct repetition {
    const fd_nearest *of;
    int32_t n;
    int32_t n_most; /* rows that the best of them gives */
    fd_nearest best;
} repetition;

/* The trace says in which type K and V are. */
static bool has_other_cache(const fd_numerics_class *c, const fd_trace *trace) {
    const char *said = fd_trace_get_info(trace)->kv_type;
    return (strcmp(said, "f16") == 0 && c->u_kv <= 0) || (strcmp(said, "f32") == 0 && c->u_kv > 0);
}

static bool may_be_it(const fd_numerics_class *c, const fd_diagnose_options *o) {
    return c->replays_inputs && !c->cuda_kernels && c->u_out >= 0x1p-24 && fd_class_leaves_nothing(c) &&
           fd_class_is_another(c, o->graph) && !has_other_cache(c, o->trace);
}

static fd_code count_rows_of(const fd_trial_rows *rows, const fd_nearest *of, repetition *out, fd_error *err) {
    fd_variant v;
    FD_TRY(fd_evaluate(rows->bench, &of->h, rows->request->args.node->id, false, &v, err));
    const int32_t n = v.state == FD_VARIANT_COMPUTED ? fd_trial_repeated_rows(rows, &v) : 0;
    if (n > out->n_most) out->n_most = n, out->best = *of;
    fd_variant_free(&v);
    return FD_OK;
}

/* What was fitted to another class's roundings is near the engine's number. */
static fd_code count_rows_near(const fd_trial_rows *rows, const fd_nearest *of, repetition *out, fd_error *err) {
    double simple[FD_MOST_DIGITS + 1];
    if (!fd_solve_has_number(&of->h)) return count_rows_of(rows, of, out, err);
    const int n = fd_solve_simple(of->h.value, simple);
    fd_code code = FD_OK;
    for (int i = 0; i < n && code == FD_OK; i++) {
        fd_nearest own = *of;
        own.h.value = simple[i];
        if (i == 0 || simple[i] != simple[i - 1]) code = count_rows_of(rows, &own, out, err);
    }
    return code;
}

/* fd_diagnose_look_fn: values alone, without bounds. */
static fd_code count_rows(void *user, const fd_diagnose_options *options, const fd_explain_request *r, fd_error *err) {
    repetition *out = user;
    const int32_t node = r->args.node->id;
    fd_trial_rows rows = {.request = r};
    (void)options;
    fd_code code = fd_workbench_open(r, &rows.bench, err);
    if (code == FD_OK) code = fd_evaluate(rows.bench, &fd_no_hypothesis, node, false, &rows.plain, err);
    for (int32_t i = 0; i < out->n && code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED; i++)
        code = count_rows_near(&rows, &out->of[i], out, err);
    fd_trial_rows_close(&rows);
    return code;
}

/* fd_diagnose_look_fn: is the change large by itself, without steps? */
static fd_code look_at_change(void *user, const fd_diagnose_options *options, const fd_explain_request *r,
                              fd_error *err) {
    repetition *out = user;
    fd_explanation unused = {0};
    fd_trial t;
    bool steps_alone = false;
    (void)options;
    fd_code code = fd_trial_open(r, &unused, &t, err);
    if (code == FD_OK && t.all.plain.state == FD_VARIANT_COMPUTED)
        code = fd_trial_turns_steps_alone(&t, &out->best.h, &steps_alone, err);
    if (steps_alone) out->n_most = 0;
    fd_trial_close(&t);
    return code;
}

/* The nearest in one class: in the first rows, then in more. */
static fd_code find_in_class(fd_diagnose_options *ask, int32_t n_pos, repetition *found, fd_error *err) {
    const bool in_steps = fd_trace_n_step(ask->trace) > 0;
    const int32_t first = in_steps ? fd_trace_steps(ask->trace)[ask->finding->step].pos0 : 0;
    const int32_t n_row[] = {FIRST_ROWS, FEW_ROWS};
    for (int i = 0; i < 2; i++) {
        found->n_most = 0;
        ask->n_pos = n_pos;
        if (ask->finding->pos < first + n_row[i] && first + n_row[i] < n_pos) ask->n_pos = first + n_row[i];
        FD_TRY(fd_diagnose_look(ask, count_rows, found, err));
        if (found->n_most == 0) return FD_OK;
        found->of = &found->best;
        found->n = 1;
    }
    return fd_diagnose_look(ask, look_at_change, found, err);
}

fd_code fd_find_class_by_repetition(const fd_diagnose_options *ask, const fd_explanation *e,
                                    const fd_numerics_class **out, fd_hypothesis *which, fd_error *err) {
    fd_diagnose_options how = *ask;
    int32_t n_most = FD_FEWEST_REPEATED - 1; /* the first rows are alike in classes that differ in attention alone */
    *out = NULL;
    for (int32_t i = -1; (i < 0 || fd_numerics_class_at(i)) && e->n_nearest > 0 && n_most < FEW_ROWS; i++) {
        repetition found = {e->nearest, e->n_nearest};
        how.numerics = i < 0 ? ask->numerics : fd_numerics_class_at(i); /* that one first: others have to give more */
        if ((i >= 0 && how.numerics == ask->numerics) || !may_be_it(how.numerics, ask)) continue;
        FD_TRY(find_in_class(&how, ask->n_pos, &found, err));
        if (found.n_most <= n_most) continue;
        n_most = found.n_most;
        *out = i < 0 ? NULL : how.numerics;
        if (*out) *which = found.best.h;
    }
    return FD_OK;
}
