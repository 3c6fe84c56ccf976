/* The bound of attention's mix against the arithmetic of the GPU engine's fast kernel
 * (kernels/attention/fused_f16.cu): a running maximum over tiles of 64 keys, e^(s - maximum) in binary16 where it
 * meets V and in binary32 where it is summed, and scores that are not those recorded, but sums of the same products
 * in another order. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/bounds/bounds.h"
#include "model/gguf/quant.h"
#include "numerics/contract.h"
#include "tests/ops/op_case.h"

enum { N_HEAD = 4, N_KV_HEAD = 2, DIM = 64, TILE = 64 };

static uint64_t seed = 1;

/* Uniform in ±1. */
static double draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-52 - 1;
}

/* e^(x - base): the special unit's 2^y is off by 2^-22, but where y is 0. */
typedef float (*exponential)(float x, float base);
static float power_of_two(float y) {
    return y == 0 ? 1 : (float)(exp2((double)y) * (1 + draw() * 0x1p-22));
}
static float of_difference(float x, float base) {
    return power_of_two((x - base) * 1.44269504f);
}
/* One instruction less, and not 1 where x is the base: the product with it is rounded. */
static float of_product(float x, float base) {
    return power_of_two(fmaf(x, 1.44269504f, -(base * 1.44269504f)));
}

static float half(float x) {
    return fd_f16_to_f32(fd_f32_to_f16(x));
}

/* One head of one row over n keys: out [DIM]; v is [n, stride]. */
static void fast_mix(const float *score, int64_t n, const float *v, int64_t stride, exponential e, double *out) {
    float most = -INFINITY, sum = 0, mix[DIM] = {0};
    for (int64_t first = 0; first < n; first += TILE) {
        float before = most, p[TILE];
        int64_t count = n - first < TILE ? n - first : TILE;
        for (int64_t i = 0; i < count; i++) most = fmaxf(most, score[first + i]);
        float shrink = before == -INFINITY ? 0 : e(before, most);
        sum *= shrink;
        for (int d = 0; d < DIM; d++) mix[d] *= shrink;
        for (int64_t i = 0; i < count; i++) sum += p[i] = e(score[first + i], most);
        for (int64_t i = 0; i < count; i++)
            for (int d = 0; d < DIM; d++) mix[d] = fmaf(half(p[i]), v[(first + i) * stride + d], mix[d]);
    }
    for (int d = 0; d < DIM; d++) out[d] = (double)(mix[d] * (1 / sum));
}

/* Largest z of a pass from `pos0` on with scores of up to ± `size`. */
static double largest_z_of(int32_t pos0, int32_t n_pos, double size, const char *class_, exponential e) {
    op_case *c = case_attention(FD_OP_ATTN_MIX, N_HEAD, N_KV_HEAD, DIM, pos0, n_pos);
    int64_t n_kv = pos0 + n_pos, n_out = (int64_t)n_pos * N_HEAD * DIM, n_cache = n_kv * N_KV_HEAD * DIM;
    double *weights = calloc((size_t)(n_kv * n_pos * N_HEAD), sizeof *weights);
    double *v = malloc(sizeof *v * (size_t)n_cache);
    double *y = malloc(sizeof *y * (size_t)n_out), *found = malloc(sizeof *y * (size_t)n_out),
           *tau = malloc(sizeof *y * (size_t)n_out);
    float *score = malloc(sizeof *score * (size_t)n_kv), *other = malloc(sizeof *other * (size_t)n_kv);
    double most_z = 0;
    cr_assert(weights && v && y && found && tau && score && other);
    for (int64_t i = 0; i < n_cache; i++) v[i] = (double)(c->in[1][i] = half(c->in[1][i]));
    for (int32_t row = 0; row < n_pos; row++)
        for (int32_t head = 0; head < N_HEAD; head++) {
            int64_t at = (int64_t)row * N_HEAD + head, n = pos0 + row + 1, own = head / (N_HEAD / N_KV_HEAD) * DIM;
            float max = -INFINITY, sum = 0;
            for (int64_t t = 0; t < n; t++) {
                score[t] = (float)(size * draw());
                other[t] = (float)((double)score[t] * (1 + draw() * 0x1p-21));
                max = fmaxf(max, score[t]);
            }
            for (int64_t t = 0; t < n; t++) sum += fd_exp32(score[t] - max);
            for (int64_t t = 0; t < n; t++) weights[at * n_kv + t] = (double)(fd_exp32(score[t] - max) / sum);
            fast_mix(other, n, c->in[1] + own, N_KV_HEAD * DIM, e, found + at * DIM);
        }
    fd_op_args args = c->args;
    args.in[0] = weights, args.in[1] = v, args.out = y;
    c->nodes[0].op = FD_OP_ADD, c->nodes[1].op = FD_OP_KV_WRITE;
    fd_reference_op(FD_NUMERICS_F64, &args);
    fd_bound_args bound = {
        .op = &args, .candidate = found, .stored = FD_F32, .numerics = fd_numerics_class_find(class_), .n_output = 1e6};
    fd_error err = {0};
    cr_assert_eq(fd_bound(&bound, tau, &err), FD_OK, "%s", err.message);
    for (int64_t i = 0; i < n_out; i++) most_z = worse(most_z, fd_bound_z(found[i], y[i], tau[i]));
    free(weights), free(v), free(y), free(found), free(tau), free(score), free(other);
    case_free(c);
    return most_z;
}

Test(bounds_fast, the_mix_of_the_fast_kernel_is_within_its_classes) {
    static const char *const classes[] = {"f16", "fast-int8"};
    static const double sizes[] = {0.1, 1, 10, 60, 300};
    for (size_t k = 0; k < sizeof classes / sizeof *classes; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int32_t pos0 = 0; pos0 <= 200; pos0 += 100) {
                double z = largest_z_of(pos0, 24, sizes[s], classes[k], of_difference);
                if (getenv("FD_TEST_VERBOSE"))
                    fprintf(stderr, "%-9s scores of %g from %d: z %.3g\n", classes[k], sizes[s], pos0, z);
                cr_expect(z <= 1, "%s, scores of %g from position %d: z %.3g", classes[k], sizes[s], pos0, z);
            }
}

/* What the kernel had before: where one key is seen, or one outweighs all others, nothing else is rounded. */
Test(bounds_fast, an_exponential_that_is_not_one_at_the_maximum_is_beyond) {
    double z = largest_z_of(0, 24, 60, "f16", of_product);
    cr_expect(!(z <= 1), "z %.3g", z);
}

/* ---- what nvcc makes of them with -use_fast_math ---- */

static double fast_gelu(double g) {
    const double cube = 0.044715 * g * g * g;
    return 0.5 * g * (1 + tanh(0.7978845608028654 * (g + cube)) + 0x1p-17 * draw());
}
static double fast_softplus(double x) {
    return x > 20 ? x : log1p(exp(x)) + 0x1p-21 * draw();
}

static double largest_z_of_function(fd_op op, double (*fast)(double), const char *class_) {
    enum { N = 256, N_POS = 4 };
    op_case *c = case_unary(op, N, N_POS);
    double x[N * N_POS], y[N * N_POS], found[N * N_POS], tau[N * N_POS], most_z = 0;
    for (int i = 0; i < N * N_POS; i++) {
        x[i] = (double)(c->in[0][i] / 8);
        found[i] = (double)(float)fast(x[i]);
    }
    fd_op_args args = c->args;
    args.in[0] = x, args.out = y;
    fd_reference_op(FD_NUMERICS_F64, &args);
    fd_bound_args bound = {
        .op = &args, .candidate = found, .stored = FD_F32, .numerics = fd_numerics_class_find(class_), .n_output = 1e6};
    fd_error err = {0};
    cr_assert_eq(fd_bound(&bound, tau, &err), FD_OK, "%s", err.message);
    for (int i = 0; i < N * N_POS; i++) most_z = worse(most_z, fd_bound_z(found[i], y[i], tau[i]));
    case_free(c);
    return most_z;
}

Test(bounds_fast, fast_math_is_within_its_classes_alone) {
    static const struct {
        fd_op op;
        double (*fast)(double);
    } functions[] = {{FD_OP_GELU, fast_gelu}, {FD_OP_SOFTPLUS, fast_softplus}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const double fast = largest_z_of_function(functions[i].op, functions[i].fast, "tf32-cut"),
                     plain = largest_z_of_function(functions[i].op, functions[i].fast, "f32");
        cr_expect(fast <= 1, "function %zu: z %.3g", i, fast);
        cr_expect(!(plain <= 1), "function %zu: z %.3g in f32", i, plain);
    }
}
