#include "compare/class/by_repetition.h"

#include <math.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/diagnose/suspects.h"
#include "compare/explain/simple_numbers.h"
#include "compare/explain/solve.h"

/* Rows that are computed: behind one that lost a value to the other side of a step hardly any is right to its last bits. Where none of the
 * first is, none is. */
enum { FIRST_ROWS = 4, FEW_ROWS = 8 };

/* Where no row is repeated, of what the op as it should be leaves. What the roundings of two sums leave of each other is a hundredth of the
 * logits, and another bug seldom leaves less than half. */
#define MOST_LEFT 0.25
/* A number that was fitted leaves a little less than the simple one that it stands for. */
#define AS_WELL 1.1
/* Classes that differ in the K/V cache alone leave as much then: the first of them is taken. */
#define FAR_LESS 1.5
/* Multiplications: the bug is known, and what is the same computation is in its layer. */
#define MOST_SPENT 0x1p33

typedef struct repetition {
    const fd_nearest *of;
    int32_t n;
    int32_t n_most; /* rows that the best of them gives */
    double least;   /* or what the best of them leaves, of what the op as it should be does */
    fd_nearest best;
} repetition;

static bool is_row_of_table(const repetition *r) {
    return r->best.h.guess == FD_GUESS_FAULT;
}

/* The other has to leave so many times as much. Of two that give the same rows a bug that engines are known to have says more than a number. */
static bool is_better(const repetition *a, const repetition *b, double times) {
    if (a->n_most != b->n_most) return a->n_most > b->n_most;
    return a->n_most > 0 ? is_row_of_table(a) && !is_row_of_table(b) : a->least * times < b->least;
}

/* The trace says in which type K and V are. */
static bool has_other_cache(const fd_numerics_class *c, const fd_trace *trace) {
    const char *said = fd_trace_get_info(trace)->kv_type;
    return (strcmp(said, "f16") == 0 && c->u_kv <= 0) || (strcmp(said, "f32") == 0 && c->u_kv > 0);
}

static bool may_be_it(const fd_numerics_class *c, const fd_diagnose_options *o) {
    return c->replays_inputs && !c->cuda_kernels && c->u_out >= 0x1p-24 && fd_class_leaves_nothing(c) &&
           fd_class_is_another(c, o->graph) && !has_other_cache(c, o->trace);
}

static fd_code count_rows_of(const fd_trial_rows *rows, const fd_nearest *of, double times, repetition *out,
                             fd_error *err) {
    fd_variant v;
    FD_TRY(fd_evaluate(rows->bench, &of->h, rows->request->args.node->id, false, &v, err));
    repetition one = {.best = *of, .least = INFINITY};
    if (v.state == FD_VARIANT_COMPUTED) {
        one.n_most = fd_trial_repeated_rows(rows, &v);
        one.least = times * fd_trial_left(rows, &v) / fd_trial_left(rows, &rows->plain);
        if (of->h.guess != FD_GUESS_FAULT)
            one.least *= FAR_LESS; /* numbers that were fitted come near what a fault gives */
    }
    if (is_better(&one, out, 1)) out->n_most = one.n_most, out->least = one.least, out->best = *of;
    fd_variant_free(&v);
    return FD_OK;
}

/* What was fitted to another class's roundings is near the engine's number. */
static fd_code count_rows_near(const fd_trial_rows *rows, const fd_nearest *of, repetition *out, fd_error *err) {
    double simple[FD_MOST_SIMPLE];
    if (!fd_solve_has_number(&of->h)) return count_rows_of(rows, of, 1, out, err);
    const int n = fd_solve_simple(of->h.value, simple);
    fd_code code = FD_OK;
    for (int i = 0; i < n && code == FD_OK; i++) {
        fd_nearest own = *of;
        own.h.value = simple[i];
        if (i == 0 || simple[i] != simple[i - 1]) code = count_rows_of(rows, &own, i < n - 1 ? 1 : AS_WELL, out, err);
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
    if (steps_alone) out->n_most = 0, out->least = INFINITY;
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
        found->least = INFINITY;
        ask->n_pos = n_pos;
        if (ask->finding->pos < first + n_row[i] && first + n_row[i] < n_pos) ask->n_pos = first + n_row[i];
        FD_TRY(fd_diagnose_look(ask, count_rows, found, err));
        if (!(found->least < 1)) return FD_OK;
        found->of = &found->best;
        found->n = 1;
    }
    return fd_diagnose_look(ask, look_at_change, found, err);
}

/* Without a repeated row the class is no more than likely: it says nothing where it is not needed, or where the bug has no name in it but that
 * something is rounded. */
static fd_code has_name(const fd_diagnose_options *ask, const fd_numerics_class *class_, const fd_hypothesis *h,
                        bool *yes, fd_error *err) {
    fd_explanation e = {0};
    fd_diagnose_options how = *ask;
    how.numerics = class_;
    how.likely = h;
    how.most_spent = MOST_SPENT;
    *yes = false;
    FD_TRY(fd_diagnose(&how, &e, err));
    *yes = e.named && !fd_explains_by_rounding(&e) && !fd_explains_by_one_rounding(&e);
    return FD_OK;
}

fd_code fd_find_class_by_repetition(const fd_diagnose_options *ask, const fd_explanation *e,
                                    const fd_numerics_class **out, fd_hypothesis *which, fd_error *err) {
    fd_diagnose_options how = *ask;
    repetition best = {.least = MOST_LEFT};
    bool named = true;
    *out = NULL;
    for (int32_t i = -1; (i < 0 || fd_numerics_class_at(i)) && e->n_nearest > 0 && best.n_most < FEW_ROWS; i++) {
        repetition found = {e->nearest, e->n_nearest};
        how.numerics = i < 0 ? ask->numerics : fd_numerics_class_at(i); /* that one first: others have to give more */
        if ((i >= 0 && how.numerics == ask->numerics) || !may_be_it(how.numerics, ask)) continue;
        FD_TRY(find_in_class(&how, ask->n_pos, &found, err));
        if (found.n_most < FD_FEWEST_REPEATED)
            found.n_most = 0; /* the first are alike in classes that differ in attention alone */
        if (!is_better(&found, &best, FAR_LESS)) continue;
        best = found;
        *out = i < 0 ? NULL : how.numerics;
    }
    if (*out && best.n_most == 0) FD_TRY(has_name(ask, *out, &best.best.h, &named, err));
    if (!named) *out = NULL;
    if (*out) *which = best.best.h;
    return FD_OK;
}
