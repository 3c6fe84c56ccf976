/* What was computed before is not computed again, and its bits are those of computing it; an op of little work wakes no thread. */
#include <criterion/criterion.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "compare/evaluate/workbench.h"
#include "compare/products/products.h"
#include "compare/products/run_op.h"
#include "tests/compare/replay_bench.h"
#include "tests/ops/op_case.h"

enum { N_IN = 256, N_OUT = 13, N_POS = 5, N_RESULT = N_OUT * N_POS };

typedef struct vectors {
    double x[N_POS * N_IN], v[N_POS * N_IN];
} vectors;

static void fill(vectors *of, double scale) {
    for (int i = 0; i < N_POS * N_IN; i++) {
        of->x[i] = fabs(sin(i * 0.37) * scale);
        of->v[i] = i < 2 * N_IN ? 0 : of->x[i] * of->x[i] * 0x1p-20; /* two positions have none */
    }
}

static void weigh(fd_product_memo *memo, const fd_weight *w, const vectors *of, double to[2][N_RESULT]) {
    const fd_product product = {.weight = w, .n_row = N_OUT, .n_pos = N_POS};
    fd_error err = {0};
    memset(to[0], 0x55, sizeof to[0]), memset(to[1], 0x55, sizeof to[1]);
    must(fd_products_weigh(NULL, memo, &product, of->x, of->v, to[0], to[1], &err), &err);
}

Test(memo, sums_that_are_known_have_the_bits_of_those_that_are_not) {
    static const float odd[] = {0, NAN, INFINITY};
    for (size_t o = 0; o < sizeof odd / sizeof *odd; o++) {
        fd_product_memo *memo = fd_product_memo_new(1 << 20);
        op_case *c = case_matmul(FD_F32, N_IN, N_OUT, N_POS, -1);
        vectors a, b;
        double plain[2][N_RESULT], known[2][N_RESULT];
        if (o > 0) ((float *)c->args.weight[0]->data)[3 * N_IN + 7] = odd[o];
        fill(&a, 1);
        fill(&b, 1);
        for (int i = 3 * N_IN; i < 4 * N_IN; i++) b.x[i] += 1; /* another vector */
        for (int i = 4 * N_IN; i < 5 * N_IN; i++) b.v[i] *= 3; /* another class's error of the same one */
        for (int round = 0; round < 4; round++) {
            const vectors *of = round % 2 ? &b : &a;
            weigh(NULL, c->args.weight[0], of, plain);
            weigh(memo, c->args.weight[0], of, known);
            for (int kind = 0; kind < 2; kind++)
                for (int i = 0; i < N_RESULT; i++)
                    cr_expect(isnan(plain[kind][i]) ? isnan(known[kind][i])
                                                    : memcmp(&plain[kind][i], &known[kind][i], sizeof **plain) == 0,
                              "weight %g, round %d, sum %d, element %d: %.17g, not %.17g", (double)odd[o], round, kind,
                              i, known[kind][i], plain[kind][i]);
        }
        fd_product_memo_free(memo);
        case_free(c);
    }
}

/* The mutant: a key that says less would find a row that is another's. */
Test(memo, a_row_is_found_by_everything_that_it_depends_on) {
    static const double x[2] = {1, 2}, other[2] = {1, 2.5}, result[3] = {7, 8, 9};
    const fd_memo_key key = {FD_MEMO_PRODUCT, "weight", "bias", 2, 4, 3, 2};
    fd_memo_key keys[8];
    fd_product_memo *memo = fd_product_memo_new(1 << 20);
    for (int i = 0; i < 8; i++) keys[i] = key;
    keys[0].kind = FD_MEMO_TILES;
    keys[1].weight = "another";
    keys[2].bias = NULL;
    keys[3].rounding = 3;
    keys[4].first_row = 5;
    keys[5].n_row = 2;
    keys[6].n = 1;
    fd_product_memo_keep(memo, &key, x, result);
    const double *found = fd_product_memo_find(memo, &key, x);
    cr_assert(found && memcmp(found, result, sizeof result) == 0);
    cr_expect_null(fd_product_memo_find(memo, &key, other));
    for (int i = 0; i < 7; i++) cr_expect_null(fd_product_memo_find(memo, &keys[i], x), "%d", i);
    cr_expect_null(fd_product_memo_find(NULL, &key, x));
    fd_product_memo_free(memo);
}

Test(memo, thousands_of_rows_are_found_and_what_does_not_fit_is_not_kept) {
    enum { N = 5000, FIT = 100 };
    fd_product_memo *memo = fd_product_memo_new(sizeof(double) * 2 * N),
                    *small = fd_product_memo_new(sizeof(double) * 2 * FIT);
    const fd_memo_key key = {.weight = "w", .n_row = 1, .n = 1};
    int n_small = 0;
    for (int i = 0; i < N; i++) {
        const double x = i, y = -i;
        fd_product_memo_keep(memo, &key, &x, &y);
        fd_product_memo_keep(small, &key, &x, &y);
    }
    for (int i = 0; i < N; i++) {
        const double x = i, *y = fd_product_memo_find(memo, &key, &x);
        cr_assert(y && *y <= -i && *y >= -i, "%d", i);
        n_small += fd_product_memo_find(small, &key, &x) != NULL;
    }
    cr_expect_eq(n_small, FIT);
    fd_product_memo_free(memo);
    fd_product_memo_free(small);
}

/* ---- an explanation ---- */

static _Thread_local int64_t n_multiplied;

/* fd_op_fn: the reference's, rows of products counted. */
static void counting_op(fd_numerics numerics, const fd_op_args *args) {
    if (args->node->op == FD_OP_MATMUL) n_multiplied += args->n_pos;
    fd_reference_op(numerics, args);
}

static void multiply(const op_case *c, const fd_weight *weight, fd_product_memo *memo, float to[N_RESULT]) {
    const fd_explain_request request = {.op = counting_op, .memo = memo};
    fd_op_args args = c->args;
    args.weight[0] = weight;
    args.out = to;
    n_multiplied = 0;
    fd_bench_multiply(&request, &args, weight);
}

/* A weight that a hypothesis has in the graph's place is gone with it: another one at the same address gives other rows. */
Test(memo, an_explanation_remembers_products_of_the_graphs_weights_alone) {
    static const uint32_t dtypes[] = {FD_F32, FD_Q8_0};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        op_case *c = case_matmul(dtypes[d], N_IN, N_OUT, N_POS, FD_F32);
        fd_product_memo *memo = fd_product_memo_new(1 << 20);
        float plain[N_RESULT], known[N_RESULT];
        const fd_weight *weight = c->args.weight[0];
        float *own_rows = calloc(N_OUT * N_IN, sizeof *own_rows);
        fd_weight own = *weight;
        own.data = own_rows;
        own.dtype = FD_F32;
        multiply(c, weight, NULL, plain);
        for (int again = 0; again < 2; again++) {
            multiply(c, weight, memo, known);
            cr_expect_eq(n_multiplied, again ? 0 : N_POS, "%zu: %ld rows", d, n_multiplied);
            cr_expect_eq(memcmp(known, plain, sizeof plain), 0, "%zu, %d", d, again);
        }
        c->in[0][2 * N_IN] += 1; /* one row is another */
        multiply(c, weight, NULL, plain);
        multiply(c, weight, memo, known);
        cr_expect_eq(n_multiplied, 1, "%zu: %ld rows", d, n_multiplied);
        cr_expect_eq(memcmp(known, plain, sizeof plain), 0, "%zu", d);
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < N_OUT * N_IN; i++) own_rows[i] = (float)(i % 7 + round);
            multiply(c, &own, NULL, plain);
            multiply(c, &own, memo, known);
            cr_expect_eq(n_multiplied, N_POS, "%zu: %ld rows", d, n_multiplied);
            cr_expect_eq(memcmp(known, plain, sizeof plain), 0, "%zu: the last one's rows, %d", d, round);
        }
        free(own_rows);
        fd_product_memo_free(memo);
        case_free(c);
    }
}

/* ---- a replay ---- */

typedef struct rows_seen {
    uint64_t sum; /* of the bits of all replayed values and bounds */
    int64_t n;
} rows_seen;

static void add_row(void *user, const fd_attribution_row *row) {
    rows_seen *seen = user;
    for (int64_t i = 0; i < row->stride; i++) {
        uint64_t bits[2];
        memcpy(&bits[0], &row->replayed[i], sizeof *bits);
        memcpy(&bits[1], &row->tau[i], sizeof *bits);
        seen->sum = (seen->sum ^ bits[0]) * 0x9e3779b97f4a7c15u;
        seen->sum = (seen->sum ^ bits[1]) * 0x9e3779b97f4a7c15u;
    }
    seen->n += row->stride;
}

static rows_seen replay(const bench *b, fd_trace *cand, const char *class_name, fd_product_memo *memo) {
    rows_seen seen = {0};
    fd_attribution found;
    fd_error err = {0};
    const fd_attribution_options how = {.graph = b->graph,
                                        .cand = cand,
                                        .n_pos = N_PREFILL,
                                        .op = counting_op,
                                        .memo = memo,
                                        .numerics = fd_numerics_class_find(class_name),
                                        .rows_alone = true,
                                        .on_row = add_row,
                                        .user = &seen};
    n_multiplied = 0;
    must(fd_attribute_errors(&how, &found, &err), &err);
    fd_attribution_free(&found);
    return seen;
}

Test(memo, a_replay_that_remembers_others_has_their_bits_and_multiplies_nothing_twice) {
    static const char *const classes[] = {"f32",       "f16",        "ggml-cpu", "ggml-cuda",
                                          "f16-f32kv", "bf16-f32kv", "w8a8",     "hf-bf16"};
    static const char *const tensors[] = {NULL, "*l_out,*attn_out,logits"};
    for (int model = 0; model < 2; model++) {
        bench b = open_bench(models[model], (recording){0});
        for (int t = 0; t < 2; t++) {
            fd_trace *cand = record(b.graph, (recording){.emulated = "f16", .tensors = tensors[t]});
            fd_product_memo *memo = fd_product_memo_new(FD_MEMO_MOST);
            for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
                const rows_seen plain = replay(&b, cand, classes[c], NULL);
                const int64_t n_plain = n_multiplied;
                for (int again = 0; again < 2; again++) {
                    const rows_seen known = replay(&b, cand, classes[c], memo);
                    cr_expect_eq(known.n, plain.n);
                    cr_expect_eq(known.sum, plain.sum, "%s, %s, %s, %d: other bits", models[model], classes[c],
                                 tensors[t] ? tensors[t] : "all", again);
                    if (again && !tensors[t]) cr_expect_eq(n_multiplied, 0, "%s: %ld rows", classes[c], n_multiplied);
                    if (again) cr_expect_lt(n_multiplied, n_plain, "%s: %ld rows", classes[c], n_multiplied);
                }
            }
            fd_product_memo_free(memo);
            fd_trace_close(cand);
        }
        close_model(&b);
    }
}

/* ---- threads ---- */

static int n_thread_seen;

static void note_threads(fd_numerics numerics, const fd_op_args *args) {
    (void)numerics, (void)args;
    n_thread_seen = omp_get_max_threads();
}

Test(memo, a_small_op_is_one_threads_and_a_large_one_all_threads) {
    static const struct {
        int32_t n_in, n_out, n_pos;
        int n_thread;
    } cases[] = {{64, 8, 1, 1}, {256, 256, 8, 1}, {256, 1024, 8, 3}, {64, 8, 1 << 14, 3}};
    omp_set_num_threads(3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const fd_weight w = {.n_row = cases[i].n_out, .n_col = cases[i].n_in};
        const fd_node node = {.op = FD_OP_MATMUL, .n_dim = 1, .shape = {cases[i].n_out}};
        const fd_op_args args = {.node = &node, .n_pos = cases[i].n_pos, .weight = {&w}};
        fd_call_op(note_threads, FD_NUMERICS_F64, &args);
        cr_expect_eq(n_thread_seen, cases[i].n_thread, "case %zu", i);
        cr_expect_eq(omp_get_max_threads(), 3, "case %zu: as before", i);
    }
}
