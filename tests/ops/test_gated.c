/* GELU_MUL, SWIGLU_CLAMP, SCALE, SOFTCAP against their formulas in long double. */
#include <criterion/criterion.h>
#include <math.h>

#include "numerics/contract.h"
#include "tests/ops/op_case.h"

/* The value that an element should have and the bound of what binary32 may make of it. */
typedef struct expected {
    long double y, bound;
} expected;

static long double sigmoid(long double x) {
    return 1 / (1 + expl(-x));
}

/* 2v is off by four roundings and two constants, 6u of itself, which moves the result by |2v|·σ(−2v) of that; exp
 * within 2u, three roundings more, the product. */
static expected of_gelu(const op_case *c, int64_t i) {
    long double g = c->in[0][i], v2 = g * (1.5957691216057308L + 0.0713548162726003L * g * g);
    long double y = g * sigmoid(v2) * c->in[1][i];
    return (expected){y, (6 + 6 * fabsl(v2) * sigmoid(-v2)) * 0x1p-24L * fabsl(y) + 4e-38L * fabsl(c->in[1][i])};
}

static expected of_swiglu(const op_case *c, int64_t i) {
    long double limit = c->nodes[2].limit, slope = c->nodes[2].slope, g = fminl(c->in[0][i], limit);
    long double u = fmaxl(fminl(c->in[1][i], limit), -limit), y = g * sigmoid(slope * g) * (u + 1);
    return (expected){y, (7 + fabsl(slope * g) * sigmoid(-slope * g)) * 0x1p-24L * fabsl(y) + 0x1p-148L};
}

static expected of_scale(const op_case *c, int64_t i) {
    long double y = (long double)c->in[0][i] * c->nodes[2].scale;
    return (expected){y, 0x1p-24L * fabsl(y) + 0x1p-150L};
}

/* tanh within 1.4 ulp (2.8 u), the division moves it by at most u of itself, the product rounds once. */
static expected of_softcap(const op_case *c, int64_t i) {
    long double cap = c->nodes[2].softcap, y = cap * tanhl(c->in[0][i] / cap);
    return (expected){y, 5 * 0x1p-24L * fabsl(y)};
}

static const struct {
    fd_op op;
    expected (*formula)(const op_case *c, int64_t i);
} formulas[] = {
    {FD_OP_GELU_MUL, of_gelu}, {FD_OP_SWIGLU_CLAMP, of_swiglu}, {FD_OP_SCALE, of_scale}, {FD_OP_SOFTCAP, of_softcap}};
enum { N_FORMULA = sizeof formulas / sizeof *formulas };

static op_case *make(int f, int32_t n) {
    bool two = formulas[f].op == FD_OP_GELU_MUL || formulas[f].op == FD_OP_SWIGLU_CLAMP;
    return two ? case_elementwise(formulas[f].op, n, 3) : case_unary(formulas[f].op, n, 3);
}

static double worst(int f, const op_case *c, const float *y) {
    double largest = 0;
    for (int64_t i = 0; i < c->n_out; i++) {
        expected e = formulas[f].formula(c, i);
        largest = worse(largest, (double)(fabsl(y[i] - e.y) / e.bound));
    }
    return largest;
}

Test(gated, is_within_its_bound_of_the_formula_in_both_numerics) {
    for (int f = 0; f < N_FORMULA; f++)
        for (int32_t n = 1; n < 6000; n = n * 7 + 10) {
            op_case *c = make(f, n);
            float *y = case_run_scalar(c);
            double *wide = case_run_f64(c), z = worst(f, c, y);
            cr_expect(z <= 1, "%s, n = %d: %g of the bound", fd_op_name(formulas[f].op), n, z);
            for (int64_t i = 0; i < c->n_out; i++) {
                expected e = formulas[f].formula(c, i);
                cr_assert(fabsl(wide[i] - e.y) <= 1e-12L * fabsl(e.y) + 1e-300L, "%s f64: %g, expected %Lg",
                          fd_op_name(formulas[f].op), wide[i], e.y);
            }
        }
}

/* What must not pass for it: the function that it is taken for. */
static float not_gelu(const op_case *c, int64_t i) { /* the erf form */
    return 0.5f * c->in[0][i] * (1 + erff(c->in[0][i] * 0.70710678f)) * c->in[1][i];
}
static float not_swiglu(const op_case *c, int64_t i) { /* without + 1 */
    float limit = c->nodes[2].limit, g = fminf(c->in[0][i], limit);
    return fd_swish32(g, c->nodes[2].slope) * fmaxf(fminf(c->in[1][i], limit), -limit);
}
static float not_scale(const op_case *c, int64_t i) {
    return c->in[0][i] * (c->nodes[2].scale * (1 + 0x1p-8f)); /* a factor in bfloat16 */
}
static float not_softcap(const op_case *c, int64_t i) {
    return fminf(fmaxf(c->in[0][i], -c->nodes[2].softcap), c->nodes[2].softcap); /* a clamp */
}

Test(gated, what_it_is_taken_for_is_beyond_the_bound) {
    static float (*const wrong[])(const op_case *, int64_t) = {not_gelu, not_swiglu, not_scale, not_softcap};
    for (int f = 0; f < N_FORMULA; f++) {
        op_case *c = make(f, 200);
        float *y = case_run_scalar(c);
        for (int64_t i = 0; i < c->n_out; i++) y[i] = wrong[f](c, i);
        cr_expect(!(worst(f, c, y) <= 1), "%s", fd_op_name(formulas[f].op));
        y[3] = NAN;
        cr_expect(!(worst(f, c, y) <= 1), "%s: NaN", fd_op_name(formulas[f].op));
    }
}

Test(gated, special_values) {
    static const struct {
        fd_op op;
        float gate, up, expected;
    } cases[] = {{FD_OP_GELU_MUL, 0, 3, 0},         {FD_OP_GELU_MUL, 200, 2, 400},
                 {FD_OP_GELU_MUL, -200, 2, -0.0f},  {FD_OP_GELU_MUL, NAN, 1, NAN},
                 {FD_OP_GELU_MUL, 1, NAN, NAN},     {FD_OP_SWIGLU_CLAMP, NAN, 1, NAN},
                 {FD_OP_SWIGLU_CLAMP, 1, NAN, NAN}, {FD_OP_SWIGLU_CLAMP, -400, 9, -0.0f},
                 {FD_OP_SWIGLU_CLAMP, 0, 1, 0},     {FD_OP_SWIGLU_CLAMP, 50, -1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_case *c = case_elementwise(cases[i].op, 1, 1);
        c->in[0][0] = cases[i].gate;
        c->in[1][0] = cases[i].up;
        float *y = case_run_scalar(c);
        cr_expect_eq(bits_differ(y, &cases[i].expected, 1), 0, "%s(%g, %g) = %g", fd_op_name(cases[i].op),
                     cases[i].gate, cases[i].up, y[0]);
    }
}
