/* Explanations in a class that rounds what products read to steps: a value near the middle between two may go to the other side by any small
 * change, and what it moves says nothing of the explanation. */
#include <math.h>
#include <stdlib.h>

#include "base/order.h"
#include "compare/explain/trial.h"

/* An error that is so many times as large as the change that explains it. Int8 blocks make more than sixteen times as much of
 * RoPE's tables in binary16; of another order of sums, hundreds of times. */
#define LITTLE_CHANGE 128.0
/* Or one that is no more than last bits, of a row: a number one ulp from the right one left 2^-21, and took two flipped values back. */
#define NO_CHANGE 0x1p-20

/* Fewer rows have no middle one. */
enum { FEWEST_OF_MIDDLE = 3 };

/* What explains rows to their last bits is no chance then: a change of a millionth moves some of the thousands of values on the way to other
 * steps, and these move the row by a thousandth or more. */
bool fd_trial_in_steps(const fd_trial *t) {
    const fd_explain_request *r = t->all.request;
    return r->numerics && fd_class_rounds_to_steps(r->numerics) && fd_trial_many_layers(t);
}

static bool has_middle(const fd_trial *t) {
    const fd_explain_request *r = t->all.request;
    int32_t n_row = r->args.n_pos - r->n_unjudged;
    return r->numerics && fd_class_rounds_to_steps(r->numerics) && t->n_span > 1 && n_row >= FEWEST_OF_MIDDLE &&
           r->args.n_pos <= FD_TRIAL_MIDDLE;
}

/* Root mean square of all residuals. Where the class rounds to steps, a value near the middle between two may have gone to the other
 * side in a row: then what the middle row leaves says whether the rest is explained. */
double fd_trial_left_of_rows(const fd_trial *t, const fd_variant *v) {
    const fd_explain_request *r = t->all.request;
    double rows[FD_TRIAL_MIDDLE];
    int32_t n = 0;
    if (!has_middle(t)) return fd_trial_left(&t->all, v);
    for (int32_t p = r->n_unjudged; p < r->args.n_pos; p++) rows[n++] = fd_trial_left_of_row(&t->all, v, p);
    qsort(rows, (size_t)n, sizeof *rows, fd_order_doubles);
    return rows[n / 2];
}

/* Within a layer rows have little to hide behind: most are repeated, and in the others hardly anything is left. */
#define HARDLY_LEFT 0x1p-6

int32_t fd_trial_repeats(const fd_trial *t, const fd_variant *v) {
    const fd_explain_request *r = t->all.request;
    const int32_t n = fd_trial_repeated_rows(&t->all, v);
    int32_t n_more = 0;
    if (fd_trial_in_steps(t)) return n;
    if (!has_middle(t)) return 0;
    for (int32_t p = r->n_unjudged; p < r->args.n_pos; p++) {
        const double left = fd_trial_left_of_row(&t->all, v, p), was = fd_trial_left_of_row(&t->all, &t->all.plain, p);
        if (!(left <= fmax(HARDLY_LEFT * was, 1))) return 0;
        n_more += left > 1;
    }
    return n > n_more ? n : 0;
}

static double size_of_row(const fd_trial_rows *rows, int32_t row) {
    const int64_t stride = fd_node_row_stride(rows->request->args.node, rows->request->args.n_kv);
    return sqrt((double)stride) * fd_root_mean_square(rows->plain.rows + row * stride, stride);
}

static fd_code open_smooth(fd_trial *t, fd_error *err) {
    if (t->smooth.bench) return FD_OK;
    t->without_steps = *t->all.request;
    t->without_steps.numerics = fd_numerics_class_find("f32");
    return fd_trial_rows_open(&t->without_steps, &t->smooth, err);
}

fd_code fd_trial_same_without_steps(fd_trial *t, const fd_hypothesis *a, const fd_hypothesis *b, bool *yes,
                                    fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    fd_variant v = {0}, w = {0};
    *yes = false;
    if (!fd_trial_in_steps(t)) return FD_OK;
    FD_TRY(open_smooth(t, err));
    fd_code code = fd_evaluate(t->smooth.bench, a, r->args.node->id, false, &v, err);
    if (code == FD_OK) code = fd_evaluate(t->smooth.bench, b, r->args.node->id, false, &w, err);
    *yes = code == FD_OK && v.state == FD_VARIANT_COMPUTED && w.state == FD_VARIANT_COMPUTED;
    for (int32_t p = r->n_unjudged; p < r->args.n_pos && *yes; p++) {
        double off = 0;
        for (int64_t i = p * stride; i < (p + 1) * stride; i++) {
            const double d = (double)v.rows[i] - (double)w.rows[i];
            off += d * d;
        }
        *yes = sqrt(off) <= NO_CHANGE * size_of_row(&t->smooth, p);
    }
    fd_variant_free(&v);
    fd_variant_free(&w);
    return code;
}

fd_code fd_trial_turns_steps_alone(fd_trial *t, const fd_hypothesis *h, bool *yes, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    fd_variant v;
    int32_t n = 0, n_little = 0;
    *yes = false;
    if (!has_middle(t)) return FD_OK;
    FD_TRY(open_smooth(t, err));
    FD_TRY(fd_evaluate(t->smooth.bench, h, r->args.node->id, false, &v, err));
    double most = 0; /* rows that are right have nothing to explain */
    for (int32_t p = r->n_unjudged; p < r->args.n_pos; p++)
        most = fmax(most, fd_trial_change_of_row(&t->all, r->output, p));
    for (int32_t p = r->n_unjudged; p < r->args.n_pos && v.state == FD_VARIANT_COMPUTED; p++) {
        const double explained = fd_trial_change_of_row(&t->all, r->output, p);
        if (!(LITTLE_CHANGE * explained > most)) continue;
        const double change = fd_trial_change_of_row(&t->smooth, v.rows, p);
        n++, n_little += explained > LITTLE_CHANGE * change || change <= NO_CHANGE * size_of_row(&t->smooth, p);
    }
    *yes = 2 * n_little > n;
    fd_variant_free(&v);
    return FD_OK;
}
