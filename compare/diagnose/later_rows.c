#include "compare/diagnose/later_rows.h"

#include "compare/explain/trial_rows.h"

typedef struct question {
    fd_hypothesis h;
    bool refuted;
} question;

/* The rows [from, from + 1) of the variant alone. */
static fd_explain_fit fit_of_row(const fd_explain_request *r, const fd_variant *v, int32_t row) {
    fd_explain_request one = *r;
    one.n_unjudged = row;
    one.args.n_pos = row + 1;
    return fd_variant_fit(&one, r->args.node, v, r->output);
}

/* fd_diagnose_look_fn */
static fd_code look_at_rows(void *user, const fd_diagnose_options *options, const fd_explain_request *r,
                            fd_error *err) {
    question *q = user;
    fd_trial_rows rows;
    fd_variant v = {0};
    (void)options;
    fd_code code = fd_trial_rows_open(r, &rows, err);
    if (code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED)
        code = fd_evaluate(rows.bench, &q->h, r->args.node->id, true, &v, err);
    if (code == FD_OK && v.state == FD_VARIANT_COMPUTED && v.overridden)
        fd_variant_widen(r, r->args.node, &v, &rows.plain);
    for (int32_t p = r->n_unjudged; code == FD_OK && v.state == FD_VARIANT_COMPUTED && p < r->args.n_pos; p++) {
        const fd_explain_fit plain = fit_of_row(r, &rows.plain, p), own = fit_of_row(r, &v, p);
        q->refuted |= fd_fit_clearly_beyond(&plain) && fd_fit_clearly_beyond(&own);
    }
    fd_variant_free(&v);
    fd_trial_rows_close(&rows);
    return code;
}

fd_code fd_refuted_by_rows(const fd_diagnose_options *options, const fd_hypothesis *h, bool *yes, fd_error *err) {
    question q = {.h = *h};
    fd_diagnose_options o = *options;
    if (!o.numerics->exact && o.numerics->u_out < 0x1p-24) o.numerics = fd_numerics_class_find("f32");
    FD_TRY(fd_diagnose_look(&o, look_at_rows, &q, err));
    *yes = q.refuted;
    return FD_OK;
}
