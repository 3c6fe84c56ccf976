/* LAYER_NORM, ADD_POSITION, ADD_VECTOR, ATTN_ALIBI, ATTN_TEMPERATURE, GELU, RELU_SQUARED, SIGMOID, CLAMP, SILU,
 * SOFTPLUS against their formulas in plain long double, with a mutant of each beyond its bound; all rows at once as one
 * at a time. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference_cpu/reference.h"

enum { N = 200, ROWS = 5, POS0 = 3, N_HEAD = 3, MOST = ROWS * N };

typedef struct more_case {
    fd_op op;
    long double (*expected)(const struct more_case *c, int64_t i);
    long double (*mutant)(const struct more_case *c, int64_t i);
    double bound; /* in units of 2^-24 of the result, plus `absolute` */
    double absolute;
    fd_node nodes[2];
    fd_graph graph;
    fd_weight weights[2];
    float x[MOST], w[MOST], b[N];
} more_case;

static float random_of(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / (1 << 23) - 1.0);
}

static int64_t width(const more_case *c) {
    return c->op == FD_OP_ATTN_ALIBI ? N_HEAD * (POS0 + ROWS) : N;
}

static long double mean_of(const more_case *c, int64_t row) {
    long double sum = 0;
    for (int k = 0; k < N; k++) sum += c->x[row * N + k];
    return sum / N;
}
static long double normed(const more_case *c, int64_t i, long double mean) {
    long double squares = 0, own = mean_of(c, i / N);
    for (int k = 0; k < N; k++) squares += (c->x[i / N * N + k] - own) * (c->x[i / N * N + k] - own);
    return (c->x[i] - mean) / sqrtl(squares / N + (long double)1e-5f) * c->w[i % N] + c->b[i % N];
}
static long double layer_norm(const more_case *c, int64_t i) {
    return normed(c, i, mean_of(c, i / N));
}
static long double mean_stays(const more_case *c, int64_t i) {
    return normed(c, i, 0);
}
static long double add_position(const more_case *c, int64_t i) {
    int64_t row = POS0 + i / N;
    return row < ROWS ? (long double)c->x[i] + c->w[row * N + i % N] : (long double)NAN;
}
static long double row_before(const more_case *c, int64_t i) {
    return (long double)c->x[i] + c->w[i / N * N + i % N];
}
static long double add_vector(const more_case *c, int64_t i) {
    return (long double)c->x[i] + c->w[i % N];
}
static long double vector_twice(const more_case *c, int64_t i) {
    return (long double)c->x[i] + 2 * c->w[i % N];
}
/* Three heads: 2^-4, 2^-8, and the first power of 2^-2. */
static long double biased(const more_case *c, int64_t i, const int *power) {
    int64_t n_kv = POS0 + ROWS, own = POS0 + i / (N_HEAD * n_kv), t = i % n_kv;
    return t > own ? 0 : c->x[i] + ldexpl(1, power[i / n_kv % N_HEAD]) * (t - own);
}
static long double alibi(const more_case *c, int64_t i) {
    return biased(c, i, (const int[]){-4, -8, -2});
}
static long double slopes_in_order(const more_case *c, int64_t i) {
    return biased(c, i, (const int[]){-2, -4, -8});
}
static long double warmed(const more_case *c, int64_t i, int64_t shift) {
    return c->x[i] * (1 + 0.25L * logl((POS0 + i / N + shift) / 4 + 1));
}
static long double temperature(const more_case *c, int64_t i) {
    return warmed(c, i, 0);
}
static long double temperature_early(const more_case *c, int64_t i) {
    return warmed(c, i, 1);
}
static long double gelu(const more_case *c, int64_t i) {
    long double x = c->x[i];
    return x / (1 + expl(-2 * 0.79788456080286535588L * (x + 0.044715L * x * x * x)));
}
static long double gelu_erf(const more_case *c, int64_t i) {
    long double x = c->x[i];
    return x / 2 * (1 + erfl(x / sqrtl(2)));
}
static long double relu_squared(const more_case *c, int64_t i) {
    return c->x[i] < 0 ? 0 : (long double)c->x[i] * c->x[i];
}
static long double squared(const more_case *c, int64_t i) {
    return (long double)c->x[i] * c->x[i];
}
static long double sigmoid(const more_case *c, int64_t i) {
    return 1 / (1 + expl(-(long double)c->x[i]));
}
static long double half_tanh(const more_case *c, int64_t i) {
    return (1 + tanhl(c->x[i])) / 2;
}
static long double clamp(const more_case *c, int64_t i) {
    return c->x[i] > 0.5f ? 0.5L : c->x[i] < -0.5f ? -0.5L : c->x[i];
}
static long double clamp_above(const more_case *c, int64_t i) {
    return c->x[i] > 0.5f ? 0.5L : c->x[i];
}

static long double silu(const more_case *c, int64_t i) {
    return c->x[i] / (1 + expl(-(long double)c->x[i]));
}
static long double silu_of_twice(const more_case *c, int64_t i) {
    return c->x[i] / (1 + expl(-2 * (long double)c->x[i]));
}
static long double softplus(const more_case *c, int64_t i) {
    return log1pl(expl(c->x[i]));
}
static long double relu(const more_case *c, int64_t i) {
    return c->x[i] > 0 ? c->x[i] : 0;
}

static long double times_vector(const more_case *c, int64_t i) {
    return (long double)c->x[i] * c->w[i % N];
}
static long double times_next(const more_case *c, int64_t i) {
    return (long double)c->x[i] * c->w[(i + 1) % N];
}
static long double exponential(const more_case *c, int64_t i) {
    return expl(c->x[i]);
}
static long double power_of_two(const more_case *c, int64_t i) {
    return exp2l(c->x[i]);
}
static long double over_length(const more_case *c, int64_t i, long double n) {
    long double sum = 0;
    for (int64_t k = 0; k < N; k++) sum += (long double)c->x[i / N * N + k] * c->x[i / N * N + k];
    return c->x[i] / sqrtl(sum / n + 1e-5L);
}
static long double l2_norm(const more_case *c, int64_t i) {
    return over_length(c, i, 1);
}
static long double rms_norm(const more_case *c, int64_t i) {
    return over_length(c, i, N);
}

static const more_case table[] = {
    {.op = FD_OP_LAYER_NORM, .expected = layer_norm, .mutant = mean_stays, .bound = 8, .absolute = 1e-5},
    {.op = FD_OP_ADD_POSITION, .expected = add_position, .mutant = row_before, .bound = 1},
    {.op = FD_OP_ADD_VECTOR, .expected = add_vector, .mutant = vector_twice, .bound = 1},
    {.op = FD_OP_ATTN_ALIBI, .expected = alibi, .mutant = slopes_in_order, .bound = 1},
    {.op = FD_OP_ATTN_TEMPERATURE, .expected = temperature, .mutant = temperature_early, .bound = 2},
    {.op = FD_OP_GELU, .expected = gelu, .mutant = gelu_erf, .bound = 12},
    {.op = FD_OP_RELU_SQUARED, .expected = relu_squared, .mutant = squared, .bound = 1},
    {.op = FD_OP_SIGMOID, .expected = sigmoid, .mutant = half_tanh, .bound = 5},
    {.op = FD_OP_CLAMP, .expected = clamp, .mutant = clamp_above, .bound = 0},
    {.op = FD_OP_SILU, .expected = silu, .mutant = silu_of_twice, .bound = 8},
    {.op = FD_OP_SOFTPLUS, .expected = softplus, .mutant = relu, .bound = 8},
    {.op = FD_OP_MUL_VECTOR, .expected = times_vector, .mutant = times_next, .bound = 1},
    {.op = FD_OP_EXP, .expected = exponential, .mutant = power_of_two, .bound = 4},
    {.op = FD_OP_L2_NORM, .expected = l2_norm, .mutant = rms_norm, .bound = 8},
};
enum { N_CASE = sizeof table / sizeof *table };

static void fill(more_case *c, size_t i) {
    uint64_t state = 17 + i;
    *c = table[i];
    for (int k = 0; k < MOST; k++) c->x[k] = 3 * random_of(&state), c->w[k] = random_of(&state);
    for (int k = 0; k < N; k++) c->b[k] = random_of(&state);
    bool scores = c->op == FD_OP_ATTN_ALIBI;
    for (int k = 0; k < 2; k++)
        c->nodes[k] =
            (fd_node){.id = k, .input = {-1, -1}, .weight = {-1, -1}, .n_dim = scores ? 2 : 1, .over_kv = scores};
    for (int k = 0; k < 2; k++) c->nodes[k].shape[0] = scores ? N_HEAD : N;
    fd_node *node = &c->nodes[1];
    node->op = c->op;
    node->input[0] = 0;
    node->eps = 1e-5f;
    node->max_bias = 8;
    node->scale = 0.25f;
    node->length = 4;
    node->limit = 0.5f;
    c->weights[0] = (fd_weight){.dtype = FD_F32, .n_row = 1, .n_col = N, .data = c->w};
    c->weights[1] = (fd_weight){.dtype = FD_F32, .n_row = 1, .n_col = N, .data = c->b};
    if (c->op == FD_OP_ADD_POSITION) c->weights[0].n_row = ROWS; /* the last rows have no position in it */
    c->graph = (fd_graph){.nodes = c->nodes, .n_node = 2, .weights = c->weights, .n_weight = 2};
}

static fd_op_args args_of(const more_case *c, const void *x, void *out) {
    fd_op_args args = {.graph = &c->graph, .node = &c->nodes[1], .pos0 = POS0, .n_pos = ROWS, .n_kv = POS0 + ROWS};
    args.in[0] = x;
    args.out = out;
    bool adds = c->op == FD_OP_ADD_POSITION || c->op == FD_OP_ADD_VECTOR || c->op == FD_OP_MUL_VECTOR;
    if (adds || c->op == FD_OP_LAYER_NORM) args.weight[0] = &c->weights[0];
    if (c->op == FD_OP_LAYER_NORM) args.weight[1] = &c->weights[1];
    return args;
}

static double worst(const more_case *c, const float *y, long double (*expected)(const more_case *, int64_t)) {
    double most = 0;
    for (int64_t i = 0; i < ROWS * width(c); i++) {
        long double e = expected(c, i);
        if (isnan(e) && isnan(y[i])) continue;
        double z = (double)(fabsl(y[i] - e) / (c->bound * 0x1p-24L * fabsl(e) + c->absolute * 0x1p-4L + 1e-38L));
        if (!(z <= most)) most = z;
    }
    return most;
}

Test(more_ops, follow_their_formulas_and_mutants_do_not) {
    for (size_t i = 0; i < N_CASE; i++) {
        static more_case c;
        static float y[MOST];
        static double wide[MOST], x[MOST];
        fill(&c, i);
        fd_op_args args = args_of(&c, c.x, y);
        fd_reference_op(FD_NUMERICS_EXACT, &args);
        double right = worst(&c, y, c.expected), wrong = worst(&c, y, c.mutant);
        cr_expect(right <= 1, "%s: %g of its bound", fd_op_name(c.op), right);
        cr_expect(!(wrong <= 1), "%s: a mutant is within its bound", fd_op_name(c.op));
        for (int k = 0; k < MOST; k++) x[k] = c.x[k];
        args = args_of(&c, x, wide);
        fd_reference_op(FD_NUMERICS_F64, &args);
        for (int64_t k = 0; k < ROWS * width(&c); k++) {
            long double e = c.expected(&c, k);
            cr_assert((isnan(e) && isnan(wide[k])) || fabsl(wide[k] - e) <= 1e-14L * (1 + fabsl(e)),
                      "%s in f64, element %lld", fd_op_name(c.op), (long long)k);
        }
    }
}

Test(more_ops, a_row_does_not_depend_on_its_batch) {
    for (size_t i = 0; i < N_CASE; i++) {
        static more_case c;
        static float whole[MOST], alone[MOST];
        fill(&c, i);
        fd_op_args args = args_of(&c, c.x, whole);
        fd_reference_op(FD_NUMERICS_EXACT, &args);
        for (int32_t row = 0; row < ROWS; row++) {
            args = args_of(&c, c.x + row * width(&c), alone + row * width(&c));
            args.pos0 = POS0 + row;
            args.n_pos = 1; /* the row keeps its room for all positions */
            fd_reference_op(FD_NUMERICS_EXACT, &args);
        }
        cr_expect_eq(memcmp(whole, alone, sizeof *whole * (size_t)(ROWS * width(&c))), 0, "%s", fd_op_name(c.op));
    }
}

Test(more_ops, nan_stays_nan_and_heads_may_have_weights_of_their_own) {
    static more_case c;
    float y[2 * N];
    for (size_t i = 0; i < N_CASE; i++) {
        static float out[MOST];
        fill(&c, i);
        c.x[0] = NAN;
        fd_op_args args = args_of(&c, c.x, out);
        fd_reference_op(FD_NUMERICS_EXACT, &args);
        cr_expect(isnan(out[0]), "%s", fd_op_name(c.op));
    }
    fill(&c, 0);
    c.weights[0].n_row = 2;
    c.nodes[0].n_dim = c.nodes[1].n_dim = 2;
    for (int k = 0; k < 2; k++) c.nodes[k].shape[0] = 2, c.nodes[k].shape[1] = N;
    for (int k = 0; k < N; k++) c.w[N + k] = 2 * c.w[k], c.x[N + k] = c.x[k];
    fd_op_args args = args_of(&c, c.x, y);
    args.n_pos = 1;
    args.weight[1] = NULL;
    fd_reference_op(FD_NUMERICS_EXACT, &args);
    for (int k = 0; k < N; k++) cr_expect(y[N + k] == 2 * y[k], "element %d", k);
}
