/* SLICE, CONCAT, HEAD_MATMUL, and TOP_K in groups: element by element against what they are, with a mutant of each. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "model/weight_rows.h"
#include "tests/ops/op_case.h"

enum { N_POS = 3 };
static const int parts[] = {1, 3, 7, 0};

/* first: where the slice begins. */
static int64_t slice_differs(const op_case *c, const float *found, int32_t first) {
    int64_t differ = 0;
    for (int p = 0; p < N_POS; p++)
        for (int h = 0; h < 4; h++)
            for (int i = 0; i < 20; i++)
                differ += found[(p * 4 + h) * 20 + i] != c->in[0][(p * 4 + h) * 48 + first + i];
    return differ;
}

Test(heads, a_slice_is_a_part_of_each_head) {
    op_case *c = case_slice(N_POS);
    const float *found = case_run_scalar(c);
    cr_expect_eq(slice_differs(c, found, 8), 0);
    cr_expect_gt(slice_differs(c, found, 0), 200);
    case_expect_twins(c, FD_NUMERICS_EXACT, parts, "slice");
}

/* of_b: the head of b that head h gets. */
static int64_t concat_differs(const op_case *c, const float *found, int n_b, int (*of_b)(int h)) {
    int64_t differ = 0;
    for (int p = 0; p < N_POS; p++)
        for (int h = 0; h < 4; h++)
            for (int i = 0; i < 64; i++) {
                float expected = i < 48 ? c->in[0][(p * 4 + h) * 48 + i] : c->in[1][(p * n_b + of_b(h)) * 16 + i - 48];
                differ += found[(p * 4 + h) * 64 + i] != expected;
            }
    return differ;
}
static int own(int h) {
    return h;
}
static int first(int h) {
    return (void)h, 0;
}

Test(heads, concat_puts_a_head_behind_each_or_one_behind_all) {
    op_case *each = case_concat(false, N_POS), *shared = case_concat(true, N_POS);
    cr_expect_eq(concat_differs(each, case_run_scalar(each), 4, own), 0);
    cr_expect_gt(concat_differs(each, case_run_scalar(each), 4, first), 100);
    cr_expect_eq(concat_differs(shared, case_run_scalar(shared), 1, first), 0);
    case_expect_twins(each, FD_NUMERICS_EXACT, parts, "concat");
}

/* Elements that are farther from the matrices' products than their rounding; shift: which head's matrix. */
static int64_t products_differ(const op_case *c, const float *found, int n_in, int n_out, int shift) {
    int64_t differ = 0;
    for (int p = 0; p < N_POS; p++)
        for (int h = 0; h < 3; h++)
            for (int o = 0; o < n_out; o++) {
                double sum = 0, size = 0;
                for (int k = 0; k < n_in; k++) {
                    double w = (double)fd_weight_row_element(&c->weights[0], (int64_t)((h + shift) % 3) * n_out + o, k);
                    sum += w * (double)c->in[0][(p * 3 + h) * n_in + k];
                    size += fabs(w * (double)c->in[0][(p * 3 + h) * n_in + k]);
                }
                differ += !(fabs((double)found[(p * 3 + h) * n_out + o] - sum) <= size * 0x1p-22);
            }
    return differ;
}

Test(heads, each_head_has_a_matrix_of_its_own) {
    static const uint32_t types[] = {FD_F32, FD_Q8_0, FD_Q4_K};
    for (int i = 0; i < 3; i++) {
        op_case *c = case_head_matmul(types[i], 512, 5, N_POS);
        const float *found = case_run_scalar(c);
        cr_expect_eq(products_differ(c, found, 512, 5, 0), 0, "%s", fd_dtype_get(types[i])->name);
        cr_expect_gt(products_differ(c, found, 512, 5, 1), 40, "%s", fd_dtype_get(types[i])->name);
        case_expect_twins(c, FD_NUMERICS_EXACT, parts, "head_matmul");
    }
}

/* Eight elements in four groups of two: 3 of the best 2 groups. */
Test(heads, experts_are_chosen_from_the_best_groups_alone) {
    static const float rows[N_POS][8] = {{5, 0, 3, 3, 4, 0, 1, 1},    /* sums 5, 6, 4, 2 */
                                         {1, 1, 1, 1, 1, 1, 1, 1},    /* of equal ones the first */
                                         {-9, 9, 0, 1, 2, -1, 8, 0}}; /* 0, 1, 1, 8: groups 3 and 1 */
    static const float expected[N_POS][3] = {{0, 2, 3}, {0, 1, 2}, {6, 3, 2}}, without[3] = {0, 4, 2};
    op_case *c = case_top_k(N_POS);
    memcpy(c->in[0], rows, sizeof rows);
    cr_expect_eq(memcmp(case_run_scalar(c), without, sizeof without), 0);
    c->nodes[2].n_group = 4;
    c->nodes[2].n_group_used = 2;
    cr_expect_eq(memcmp(case_run_scalar(c), expected, sizeof expected), 0);
    case_expect_twins(c, FD_NUMERICS_EXACT, parts, "top_k in groups");
}
