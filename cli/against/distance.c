#include "cli/against/forms.h"

#include <math.h>
#include <stdlib.h>

#include "model/gguf/quant.h"

/* Root mean square errors that rounding alone may leave, of a tensor whose values are 1: two to three times what each
 * format costs normally distributed weights. A wrong order of rows costs 1.4, zeros cost 1. */
static const struct {
    uint32_t dtype;
    double limit;
} limits[] = {
    {FD_Q8_0, 0.02},   {FD_Q6_K, 0.05},   {FD_Q5_K, 0.08},   {FD_Q5_1, 0.1},  {FD_Q5_0, 0.12},  {FD_Q4_K, 0.16},
    {FD_Q4_1, 0.18},   {FD_IQ4_NL, 0.18}, {FD_IQ4_XS, 0.18}, {FD_Q4_0, 0.2},  {FD_NVFP4, 0.25}, {FD_MXFP4, 0.3},
    {FD_Q3_K, 0.35},   {FD_IQ3_S, 0.35},  {FD_IQ3_XXS, 0.4}, {FD_Q2_K, 0.5},  {FD_IQ2_S, 0.55}, {FD_IQ2_XS, 0.6},
    {FD_IQ2_XXS, 0.6}, {FD_IQ1_M, 0.8},   {FD_IQ1_S, 0.8},   {FD_TQ1_0, 0.8}, {FD_TQ2_0, 0.8},
};

/* 0: nothing but a float's rounding. */
static double limit_of(const fd_form_pair *p) {
    const uint32_t dtype = p->tensor->dtype;
    if (dtype == FD_MXFP4 && fd_form_is_mxfp4(p)) return 0; /* the checkpoint's own blocks */
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].dtype == dtype) return limits[i].limit;
    return 0;
}

/* A float type's unit roundoff and the spacing of its subnormals. The addition of 1 may have been made in the
 * checkpoint's type. */
static void rounding_of(const fd_form_pair *p, fd_form form, double *u, double *tiny) {
    *u = p->tensor->dtype == FD_F16 ? 0x1p-11 : p->tensor->dtype == FD_BF16 ? 0x1p-8 : 0;
    *tiny = p->tensor->dtype == FD_F16 ? 0x1p-25 : 0;
    if (fd_form_is_minus_exp(form)) *u += 0x1p-21; /* binary32's exponential */
    if (form != FD_FORM_PLUS_ONE && form != FD_FORM_MINUS_ONE) return;
    const fd_array_type type = p->parts[0]->array.type;
    *u += type == FD_ARRAY_F16 ? 0x1p-11 : type == FD_ARRAY_BF16 ? 0x1p-8 : 0x1p-23;
}

typedef struct row_sums {
    double error, power, product; /* Σ(g − f·h)², Σ(f·h)², Σ g·h */
    bool exact, agrees;
} row_sums;

static row_sums compare_row(const fd_form_pair *p, fd_form form, double factor, int64_t r, float *g, double *h) {
    const fd_gguf_tensor *t = p->tensor;
    row_sums s = {.exact = true, .agrees = true};
    double u, tiny, limit = limit_of(p);
    rounding_of(p, form, &u, &tiny);
    fd_dequantize_row(t->dtype, (const char *)t->data + r * fd_dtype_row_bytes(t->dtype, p->n_col), g, p->n_col);
    fd_form_fetch_row(p, form, r, h);
    for (int64_t i = 0; i < p->n_col; i++) {
        const double x = (double)g[i], y = h[i] * factor, d = x - y;
        s.error += d * d;
        s.power += y * y;
        s.product += x * h[i];
        s.exact = s.exact && d == 0;
        /* a factor is known to about 2^-20 */
        if (limit == 0) s.agrees = s.agrees && fabs(d) <= (u + (factor == 1 ? 0 : 0x1p-18)) * fabs(y) + tiny;
    }
    if (limit > 0) s.agrees = s.error <= 9 * limit * limit * s.power; /* a row may be three times as bad as a tensor */
    return s;
}

fd_code fd_form_compare(const fd_form_pair *p, fd_form form, double factor, int64_t most, fd_form_distance *out,
                        fd_error *err) {
    *out = (fd_form_distance){.fits = fd_form_fits(p, form), .exact = true, .agrees = true, .first_wrong = -1};
    if (!out->fits) return FD_OK;
    const int64_t there = fd_form_rows_there(p, form);
    out->n_row_there = there;
    const int64_t common = p->n_row == 1 ? 1 : p->n_row < there ? p->n_row : there;
    const int64_t step = most > 0 && common > most ? common / most : 1;
    double error = 0, power = 0, product = 0;
    bool failed = false;
    int64_t first = INT64_MAX, n_wrong = 0, n_inexact = 0, n_row = 0;
#pragma omp parallel reduction(+ : error, power, product, n_wrong, n_inexact, n_row) reduction(min : first) reduction(|| : failed)
    {
        float *g = malloc(sizeof *g * (size_t)p->n_col);
        double *h = malloc(sizeof *h * (size_t)p->n_col);
        failed = !g || !h;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < common; r += step) {
            if (failed) continue;
            const row_sums s = compare_row(p, form, factor, r, g, h);
            error += s.error;
            power += s.power;
            product += s.product;
            n_row++;
            n_inexact += !s.exact;
            n_wrong += !s.agrees;
            if (!s.agrees && r < first) first = r;
        }
        free(g);
        free(h);
    }
    if (failed) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", p->tensor->name);
    const double limit = limit_of(p);
    out->error = power > 0 ? sqrt(error / power) : error > 0 ? INFINITY : 0;
    out->factor = power > 0 ? product / power * factor * factor : 1;
    out->exact = n_inexact == 0;
    out->agrees = n_wrong == 0 && (limit == 0 || out->error <= limit);
    out->n_row = n_row;
    out->n_wrong = n_wrong;
    out->first_wrong = n_wrong ? first : -1;
    return FD_OK;
}
