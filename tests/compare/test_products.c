/* Products of replay: a device that computes in the order that exec/products.h states has the CPU's bits, and one that does
 * not is noticed. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "compare/products/products.h"
#include "compare/products/together.h"
#include "tests/compare/plain_device.h"
#include "tests/compare/replay_bench.h"
#include "tests/ops/op_case.h"

static const uint32_t types[] = {FD_F32, FD_F16, FD_Q8_0, FD_Q4_K, FD_Q6_K};
static const struct { int32_t n_in, n_out, n_pos; } shapes[] = {{256, 1, 1}, {256, 7, 3}, {512, 37, 9}, {301, 18, 2}};

enum { MOST_IN = 512 * 9, MOST_OUT = 37 * 9 };

typedef struct products_case {
    op_case *c;
    fd_op_args args; /* in binary64 */
    double x[MOST_IN], v[MOST_IN];
} products_case;

static bool open_case(size_t type, size_t shape, products_case *out) {
    int32_t n_in = shapes[shape].n_in, n_pos = shapes[shape].n_pos;
    if (n_in % fd_dtype_get(types[type])->block_elements) return false;
    out->c = case_matmul(types[type], n_in, shapes[shape].n_out, n_pos, shape % 2 ? FD_F32 : -1);
    for (int64_t i = 0; i < n_in * n_pos; i++) {
        out->x[i] = (double)out->c->in[0][i] * (1 + 1e-9 * (double)i); /* more bits than binary32 has */
        out->v[i] = out->x[i] * out->x[i] * 0x1p-20;
    }
    out->args = out->c->args;
    out->args.in[0] = out->x;
    return true;
}

#define FOR_EACH_CASE(of)                                                                                              \
    for (size_t type_ = 0; type_ < sizeof types / sizeof *types; type_++)                                              \
        for (size_t shape_ = 0; shape_ < sizeof shapes / sizeof *shapes; shape_++)                                     \
            if (open_case(type_, shape_, &(of)))

static fd_product product_of(const fd_op_args *args) {
    return (fd_product){.weight = args->weight[0], .n_row = args->weight[0]->n_row, .n_pos = args->n_pos};
}

/* Both numerics of a case; by the device alone or, where it is NULL, the CPU. */
static fd_code multiply_both(const products_case *of, const fd_products *device, double *f64, float *exact,
                             fd_error *err) {
    fd_op_args in_f64 = of->args, in_f32 = of->c->args;
    in_f64.out = f64;
    in_f32.out = exact;
    FD_TRY(fd_products_multiply(device, fd_reference_op, FD_NUMERICS_F64, &in_f64, err));
    return fd_products_multiply(device, fd_reference_op, FD_NUMERICS_EXACT, &in_f32, err);
}

Test(products, a_device_in_the_stated_order_has_the_bits_of_the_CPU) {
    static products_case of;
    static double y[2][MOST_OUT], size[2][MOST_OUT], square[2][MOST_OUT];
    static float exact[2][MOST_OUT];
    plain_device plain;
    int n_case = 0;
    plain_device_open(&plain);
    FOR_EACH_CASE(of) {
        fd_error err = {0};
        fd_product product = product_of(&of.args);
        size_t n = (size_t)(product.n_row * product.n_pos);
        for (int by_device = 0; by_device < 2; by_device++) {
            const fd_products *device = by_device ? &plain.products : NULL;
            must(multiply_both(&of, device, y[by_device], exact[by_device], &err), &err);
            must(fd_products_weigh(device, NULL, &product, of.x, of.v, size[by_device], square[by_device], &err), &err);
        }
        cr_expect_eq(memcmp(y[0], y[1], n * sizeof **y), 0, "binary64, type %zu, shape %zu", type_, shape_);
        cr_expect_eq(memcmp(exact[0], exact[1], n * sizeof **exact), 0, "exact, type %zu, shape %zu", type_, shape_);
        cr_expect_eq(memcmp(size[0], size[1], n * sizeof **size), 0, "sizes, type %zu, shape %zu", type_, shape_);
        cr_expect_eq(memcmp(square[0], square[1], n * sizeof **size), 0, "squares, type %zu, shape %zu", type_, shape_);
        cr_expect_eq(plain.n_taken, 3 * ++n_case);
        case_free(of.c);
    }
    cr_expect_gt(n_case, 15);
}

Test(products, rows_from_the_middle_of_a_weight_are_weighed_as_in_the_whole) {
    static products_case of;
    static double whole[2][MOST_OUT], part[2][MOST_OUT];
    fd_error err = {0};
    cr_assert(open_case(3, 2, &of));
    fd_product all = product_of(&of.args), some = all;
    some.first_row = 11;
    some.n_row = 9;
    must(fd_products_weigh(NULL, NULL, &all, of.x, of.v, whole[0], whole[1], &err), &err);
    must(fd_products_weigh(NULL, NULL, &some, of.x, of.v, part[0], part[1], &err), &err);
    for (int kind = 0; kind < 2; kind++)
        for (int64_t pos = 0; pos < all.n_pos; pos++)
            cr_expect_eq(memcmp(whole[kind] + pos * all.n_row + 11, part[kind] + pos * 9, 9 * sizeof **part), 0);
}

Test(products, a_faulty_device_is_noticed_and_named) {
    static products_case of;
    static double y[MOST_OUT], size[MOST_OUT], square[MOST_OUT];
    static float exact[MOST_OUT];
    FOR_EACH_CASE(of) {
        fd_product product = product_of(&of.args);
        for (int what = 0; what < 3; what++) {
            plain_device faulty;
            fd_error err = {0};
            plain_device_open(&faulty);
            *(what == 0 ? &faulty.off_y : what == 1 ? &faulty.off_size : &faulty.off_square) = 1e-3;
            fd_code code = what == 0 ? multiply_both(&of, &faulty.products, y, exact, &err)
                                     : fd_products_weigh(&faulty.products, NULL, &product, of.x, of.v, size, square, &err);
            cr_expect_eq(code, FD_ERR_DEVICE, "type %zu, shape %zu, result %d", type_, shape_, what);
            cr_expect(strstr(err.message, "the device is faulty"), "%s", err.message);
        }
        case_free(of.c);
    }
}

Test(products, what_has_a_NaN_or_is_not_taken_is_the_CPUs) {
    static products_case of;
    static double y[2][MOST_OUT], size[2][MOST_OUT], square[2][MOST_OUT];
    static float exact[2][MOST_OUT];
    plain_device faulty;
    fd_error err = {0};
    cr_assert(open_case(2, 2, &of));
    fd_product product = product_of(&of.args);
    size_t n = (size_t)(product.n_row * product.n_pos);
    plain_device_open(&faulty);
    faulty.off_y = faulty.off_size = NAN;
    for (int not_taken = 0; not_taken < 2; not_taken++) {
        faulty.least = not_taken ? INT64_MAX : 0;
        faulty.n_taken = 0;
        for (int by_device = 0; by_device < 2; by_device++) {
            const fd_products *device = by_device ? &faulty.products : NULL;
            must(multiply_both(&of, device, y[by_device], exact[by_device], &err), &err);
            must(fd_products_weigh(device, NULL, &product, of.x, of.v, size[by_device], square[by_device], &err), &err);
        }
        cr_expect_eq(faulty.n_taken, not_taken ? 0 : 3);
        cr_expect_eq(memcmp(y[0], y[1], n * sizeof **y), 0);
        cr_expect_eq(memcmp(exact[0], exact[1], n * sizeof **exact), 0);
        cr_expect_eq(memcmp(size[0], size[1], n * sizeof **size), 0);
        cr_expect_eq(memcmp(square[0], square[1], n * sizeof **size), 0);
    }
}

/* What attribution finds in a candidate of a class, with and without a device. */
static void expect_same_attribution(const bench *b, fd_trace *cand, const char *class_name) {
    plain_device plain;
    fd_attribution found[2];
    fd_error err = {0};
    plain_device_open(&plain);
    for (int by_device = 0; by_device < 2; by_device++) {
        fd_attribution_options how = {.graph = b->graph,
                                      .ref = b->ref,
                                      .cand = cand,
                                      .n_pos = N_PREFILL,
                                      .op = fd_reference_op,
                                      .device = by_device ? &plain.products : NULL,
                                      .numerics = fd_numerics_class_find(class_name)};
        must(fd_attribute_errors(&how, &found[by_device], &err), &err);
    }
    cr_expect_gt(plain.n_taken, 20, "%s", class_name);
    size_t n_node = (size_t)b->graph->n_node;
    cr_expect_eq(memcmp(found[0].z, found[1].z, n_node * sizeof *found[0].z), 0, "%s", class_name);
    cr_expect_eq(memcmp(found[0].finding, found[1].finding, n_node), 0, "%s", class_name);
    cr_expect_eq(found[0].first.worst, found[1].first.worst, "%s", class_name);
    for (int i = 0; i < 2; i++) fd_attribution_free(&found[i]);
}

Test(products, a_device_changes_no_finding) {
    static const struct {
        const char *emulated, *class_name, *tensors;
    } runs[] = {{NULL, "exact", NULL}, {"f16", "f16", NULL}, {"llama-cpu", "ggml-cpu", "*l_out,logits"}};
    bench b = open_bench(models[1], (recording){0});
    fd_graph *faulty = faulted(&b, "rope_pairing@1");
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++)
        for (int with_fault = 0; with_fault < 2; with_fault++) {
            fd_trace *cand = record(with_fault ? faulty : b.graph,
                                    (recording){.emulated = runs[r].emulated, .tensors = runs[r].tensors});
            expect_same_attribution(&b, cand, runs[r].class_name);
            fd_trace_close(cand);
        }
    close_model(&b);
}

/* One process after the other, in place of several at once: each leaves its rows where it found the others'. */
static fd_code bring_nothing(fd_peers *peers, const fd_shared_rows *rows, fd_error *err) {
    (void)peers, (void)rows, (void)err;
    return FD_OK;
}

Test(products, processes_that_share_the_rows_have_the_bits_of_one) {
    static products_case of;
    static double y[2][MOST_OUT], size[2][MOST_OUT], square[2][MOST_OUT];
    static float exact[2][MOST_OUT];
    for (int32_t n = 2; n <= 5; n++) FOR_EACH_CASE(of) {
            fd_error err = {0};
            fd_op_args args = of.args, in_f32 = of.c->args;
            fd_product product = product_of(&args);
            size_t n_out = (size_t)(product.n_row * product.n_pos);
            args.weight[1] = in_f32.weight[1] = NULL;
            args.out = y[0], in_f32.out = exact[0];
            must(fd_products_multiply(NULL, fd_reference_op, FD_NUMERICS_F64, &args, &err), &err);
            must(fd_products_multiply(NULL, fd_reference_op, FD_NUMERICS_EXACT, &in_f32, &err), &err);
            must(fd_products_weigh(NULL, NULL, &product, of.x, of.v, size[0], square[0], &err), &err);
            memset(y[1], 0x55, sizeof y[1]), memset(exact[1], 0x55, sizeof exact[1]);
            memset(size[1], 0x55, sizeof size[1]), memset(square[1], 0x55, sizeof square[1]);
            for (int32_t rank = 0; rank < n; rank++) {
                fd_peers peers = {.rank = rank, .n = n, .gather = bring_nothing};
                fd_products_peers t;
                fd_products_together(&peers, fd_reference_op, &t);
                const fd_products *p = &t.products;
                must(p->multiply(p->user, FD_NUMERICS_F64, &product, of.x, y[1], &err), &err);
                must(p->multiply(p->user, FD_NUMERICS_EXACT, &product, of.c->in[0], exact[1], &err), &err);
                must(p->weigh(p->user, &product, of.x, of.v, size[1], square[1], &err), &err);
                bool all = memcmp(y[0], y[1], n_out * sizeof **y) == 0;
                cr_expect(rank == n - 1 || product.n_row < n || !all, "rank %d of %d does the others' rows", rank, n);
            }
            cr_expect_eq(memcmp(y[0], y[1], n_out * sizeof **y), 0, "binary64, %d processes, shape %zu", n, shape_);
            cr_expect_eq(memcmp(exact[0], exact[1], n_out * sizeof **exact), 0, "exact, %d, shape %zu", n, shape_);
            cr_expect_eq(memcmp(size[0], size[1], n_out * sizeof **size), 0, "sizes, %d, shape %zu", n, shape_);
            cr_expect_eq(memcmp(square[0], square[1], n_out * sizeof **size), 0, "squares, %d, shape %zu", n, shape_);
            case_free(of.c);
        }
}

/* Of a product that is worth it: multiplied as it is where nobody shares, or with the other processes and no check. */
Test(products, processes_share_products_that_are_worth_it) {
    static products_case of;
    fd_peers peers = {.rank = 0, .n = 2, .gather = bring_nothing};
    fd_products_peers t;
    fd_products_together(&peers, fd_reference_op, &t);
    cr_assert(open_case(0, 2, &of));
    fd_product small = product_of(&of.args), large = small, few = small;
    large.n_pos = few.n_pos = 1 << 20;
    few.n_row = 1;
    cr_expect(!t.products.takes(t.products.user, &small));
    cr_expect(t.products.takes(t.products.user, &large));
    cr_expect(!t.products.takes(t.products.user, &few), "one row has no shares");
    cr_expect_eq(fd_products_callers(&t.products), 1);
    cr_expect_eq(fd_products_callers(NULL), 0);
    case_free(of.c);
}
