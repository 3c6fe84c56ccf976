#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "compare/diff/tensor_diff.h"
#include "model/gguf/quant.h"
#include "numerics/contract.h"

#define NANF ((float)NAN)
#define INFF ((float)INFINITY)

static fd_tensor_diff diff32(const float *ref, const float *cand, int64_t n) {
    fd_tensor_diff d;
    fd_diff_tensors((fd_tensor_view){ref, FD_F32}, (fd_tensor_view){cand, FD_F32}, n, FD_F32, &d);
    return d;
}

/* One pair of elements and everything the comparison says of it. */
static const struct {
    const char *name;
    float ref, cand;
    int64_t n_differ, nan_same, nan_new, nan_lost, inf_new, inf_lost, inf_sign;
    uint64_t ulp; /* of the first difference */
} pairs[] = {
    {"equal", 1.5f, 1.5f, 0, 0, 0, 0, 0, 0, 0, 0},
    {"one ulp up", 1.0f, 1.00000012f, 1, 0, 0, 0, 0, 0, 0, 1},
    {"one ulp down across a power of two", 1.0f, 0.99999994f, 1, 0, 0, 0, 0, 0, 0, 1},
    {"zeros of two signs", 0.0f, -0.0f, 1, 0, 0, 0, 0, 0, 0, 1},
    {"smallest subnormals of two signs", 1e-45f, -1e-45f, 1, 0, 0, 0, 0, 0, 0, 3},
    {"other sign", 1.0f, -1.0f, 1, 0, 0, 0, 0, 0, 0, 2 * 0x3f800000ull + 1},
    {"NaN on both sides", NANF, NANF, 0, 1, 0, 0, 0, 0, 0, 0},
    {"NaN is new", 1.0f, NANF, 1, 0, 1, 0, 0, 0, 0, FD_ULP_NONE},
    {"NaN is lost", NANF, 1.0f, 1, 0, 0, 1, 0, 0, 0, FD_ULP_NONE},
    {"NaN for Inf", INFF, NANF, 1, 0, 1, 0, 0, 0, 0, FD_ULP_NONE},
    {"Inf is the same", -INFF, -INFF, 0, 0, 0, 0, 0, 0, 0, 0},
    {"Inf is new", 3.0f, INFF, 1, 0, 0, 0, 1, 0, 0, FD_ULP_NONE},
    {"Inf is lost", -INFF, -3.0e38f, 1, 0, 0, 0, 0, 1, 0, FD_ULP_NONE},
    {"Inf of the other sign", INFF, -INFF, 1, 0, 0, 0, 0, 0, 1, FD_ULP_NONE},
};

Test(tensor_diff, pairs_are_classified_before_any_arithmetic) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        /* Alone, and as the last of a tensor longer than a block. */
        for (int64_t n = 1; n <= 5001; n += 5000) {
            static float ref[5001], cand[5001];
            for (int64_t k = 0; k < n; k++) ref[k] = cand[k] = (float)k * 0.25f;
            ref[n - 1] = pairs[i].ref;
            cand[n - 1] = pairs[i].cand;
            fd_tensor_diff d = diff32(ref, cand, n);
            const char *name = pairs[i].name;
            cr_expect_eq(d.n_differ, pairs[i].n_differ, "%s: %lld differ", name, (long long)d.n_differ);
            cr_expect_eq(d.n_nan_same, pairs[i].nan_same, "%s", name);
            cr_expect_eq(d.n_nan_new, pairs[i].nan_new, "%s", name);
            cr_expect_eq(d.n_nan_lost, pairs[i].nan_lost, "%s", name);
            cr_expect_eq(d.n_inf_new, pairs[i].inf_new, "%s", name);
            cr_expect_eq(d.n_inf_lost, pairs[i].inf_lost, "%s", name);
            cr_expect_eq(d.n_inf_sign, pairs[i].inf_sign, "%s", name);
            cr_expect_eq(d.first.index, pairs[i].n_differ ? n - 1 : -1, "%s", name);
            if (pairs[i].n_differ)
                cr_expect_eq(d.first.ulp, pairs[i].ulp, "%s: %llu ulp", name, (unsigned long long)d.first.ulp);
            bool finite = pairs[i].n_differ && pairs[i].ulp != FD_ULP_NONE;
            cr_expect_eq(d.largest.index, finite ? n - 1 : -1, "%s", name);
            cr_expect(!isnan(d.largest_abs), "%s", name);
        }
    }
}

Test(tensor_diff, every_nan_is_the_same_nan) {
    float a = fd_from_bits32(0x7fc00000u), b = fd_from_bits32(0xffc01234u);
    cr_expect_eq(diff32(&a, &b, 1).n_differ, 0);
    cr_expect_eq(diff32(&a, &b, 1).n_nan_same, 1);
}

Test(tensor_diff, first_and_largest_are_found_apart) {
    float ref[] = {1, 2, 3, NANF, 5, 6}, cand[] = {1, 2.5f, 3, NANF, 9, NANF};
    fd_tensor_diff d = diff32(ref, cand, 6);
    cr_expect_eq(d.n_differ, 3);
    cr_expect_eq(d.first.index, 1);
    cr_expect_eq(d.largest.index, 4);
    cr_expect_eq(d.largest_abs, 4.0);
    cr_expect_eq(d.largest.ref, 5.0);
    cr_expect_eq(d.largest.cand, 9.0);
    cr_expect_eq(d.n_nan_new, 1);
    cr_expect_eq(d.n_nan_same, 1);
}

Test(tensor_diff, a_nan_never_hides_a_larger_difference) {
    float ref[] = {0, 0, 0}, cand[] = {NANF, 1, 2};
    fd_tensor_diff d = diff32(ref, cand, 3);
    cr_expect_eq(d.largest.index, 2);
    cr_expect_eq(d.largest_abs, 2.0);
}

Test(tensor_diff, nan_on_both_sides_are_counted_in_equal_blocks) {
    static float a[9000], b[9000];
    for (int i = 0; i < 9000; i++) a[i] = i % 3 ? (float)i : NANF;
    memcpy(b, a, sizeof a);
    fd_tensor_diff d = diff32(a, b, 9000);
    cr_expect_eq(d.n_differ, 0);
    cr_expect_eq(d.n_nan_same, 3000);
}

/* Views of the four types hold the same numbers; each pair of types must agree on them, and see one step of the
 * coarser. */
static const uint32_t types[] = {FD_F64, FD_F32, FD_F16, FD_BF16};
static const float numbers[] = {0, -0.0f, 1, -2.5f, 0.15625f, 96, INFF, -INFF, NANF, 0.0078125f};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

static fd_tensor_view view_of(uint32_t dtype, double *room, const float *values) {
    for (int i = 0; i < N_NUMBERS; i++) {
        if (dtype == FD_F64) room[i] = (double)values[i];
        if (dtype == FD_F32) ((float *)room)[i] = values[i];
        if (dtype == FD_F16) ((uint16_t *)room)[i] = fd_f32_to_f16(values[i]);
        if (dtype == FD_BF16) ((uint16_t *)room)[i] = fd_f32_to_bf16(values[i]);
    }
    return (fd_tensor_view){room, dtype};
}

Test(tensor_diff, types_agree_on_numbers_that_all_hold) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            double a[N_NUMBERS], b[N_NUMBERS];
            fd_tensor_diff d;
            uint32_t grid = fd_coarser(types[i], types[j]);
            fd_diff_tensors(view_of(types[i], a, numbers), view_of(types[j], b, numbers), N_NUMBERS, grid, &d);
            cr_expect_eq(d.n_differ, 0, "types %u and %u", types[i], types[j]);
            cr_expect_eq(d.n_nan_same, 1, "types %u and %u", types[i], types[j]);
        }
}

Test(tensor_diff, types_notice_one_step_of_the_coarser) {
    /* 1 + one step of binary64, binary32, binary16, bfloat16 */
    static const double steps[] = {0x1p-52, 0x1p-23, 0x1p-10, 0x1p-7};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int coarse = i > j ? i : j;
            double a[N_NUMBERS] = {0}, b[N_NUMBERS] = {0}, stepped = 1 + steps[coarse];
            float changed[N_NUMBERS];
            memcpy(changed, numbers, sizeof changed);
            changed[2] = (float)stepped;
            fd_tensor_view ref = view_of(types[i], a, numbers), cand = view_of(types[j], b, changed);
            if (types[j] == FD_F64) b[2] = stepped;
            fd_tensor_diff d;
            fd_diff_tensors(ref, cand, N_NUMBERS, fd_coarser(types[i], types[j]), &d);
            cr_expect_eq(d.n_differ, 1, "types %u and %u: %lld", types[i], types[j], (long long)d.n_differ);
            cr_expect_eq(d.first.index, 2);
            cr_expect_eq(d.first.ulp, 1, "types %u and %u: %llu ulp", types[i], types[j],
                         (unsigned long long)d.first.ulp);
        }
}

Test(tensor_diff, binary64_rounds_once_to_a_coarser_grid) {
    /* Just above the middle between two binary16 numbers, so little that binary32 rounds it to the middle: rounding
     * twice would go to even, down; once goes up. */
    double x = 1 + 0x1p-11 + 0x1p-40;
    float up = 1 + 0x1p-10f, down = 1;
    fd_tensor_diff d;
    fd_diff_tensors((fd_tensor_view){&up, FD_F32}, (fd_tensor_view){&x, FD_F64}, 1, FD_F16, &d);
    cr_expect_eq(d.n_differ, 0);
    fd_diff_tensors((fd_tensor_view){&down, FD_F32}, (fd_tensor_view){&x, FD_F64}, 1, FD_F16, &d);
    cr_expect_eq(d.n_differ, 1);
}

Test(tensor_diff, a_difference_below_the_grid_is_none) {
    float exact = 0.3333333433f, half = fd_f16_to_f32(fd_f32_to_f16(exact));
    fd_tensor_diff d;
    fd_diff_tensors((fd_tensor_view){&exact, FD_F32}, (fd_tensor_view){&half, FD_F32}, 1, FD_F16, &d);
    cr_expect_eq(d.n_differ, 0);
    cr_expect_eq(diff32(&exact, &half, 1).n_differ, 1, "the same pair differs as binary32");
}

Test(tensor_diff, nothing_compared_is_nothing_found) {
    fd_tensor_diff d = diff32(NULL, NULL, 0);
    cr_expect_eq(d.n, 0);
    cr_expect_eq(d.n_differ, 0);
    cr_expect_eq(d.first.index, -1);
}
