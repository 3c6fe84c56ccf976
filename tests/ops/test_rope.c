#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common.h"
#include "tests/ops/op_case.h"

/* The rotation by complex numbers, in long double, from the angle itself: position · base^(-2i/n_rot). Shares no
 * indexing with the op. Returns the largest error in units of 4·u·|pair|: the table rounds c and s once, then a product
 * and an fma. */
static double worst(const op_case *c, fd_rope_pairing pairing, const float *y) {
    const fd_node *node = &c->nodes[2];
    int head_dim = node->shape[1], n_rot = node->rope.n_rot;
    double largest = 0;
    for (int64_t at = 0; at < c->n_out; at++) {
        int64_t head = at / head_dim, e = at % head_dim, position = c->args.pos0 + head / node->shape[0];
        const float *x = c->in[0] + head * head_dim;
        long double expected = x[e], size = 0;
        if (e < n_rot) {
            bool second = pairing == FD_ROPE_HALF ? e >= n_rot / 2 : e % 2;
            int64_t i = pairing == FD_ROPE_HALF ? e % (n_rot / 2) : e / 2;
            int64_t partner = pairing == FD_ROPE_HALF ? (second ? e - n_rot / 2 : e + n_rot / 2) : (e ^ 1);
            long double angle = position * powl(node->rope.base, -2.0L * i / n_rot);
            expected =
                second ? x[partner] * sinl(angle) + x[e] * cosl(angle) : x[e] * cosl(angle) - x[partner] * sinl(angle);
            size = fabsl((long double)x[e]) + fabsl((long double)x[partner]);
        }
        double error = (double)fabsl(y[at] - expected),
               z = size > 0 ? error / (4 * 0x1p-24 * (double)size) : (error == 0 ? 0 : INFINITY);
        largest = worse(largest, z);
    }
    return largest;
}

static const struct {
    fd_rope_pairing pairing;
    int32_t n_rot, n_head, head_dim, pos0, n_pos;
} cases[] = {{FD_ROPE_INTERLEAVED, 64, 2, 64, 0, 5}, {FD_ROPE_HALF, 64, 2, 64, 0, 5},
             {FD_ROPE_INTERLEAVED, 2, 3, 2, 7, 2},   {FD_ROPE_HALF, 2, 3, 2, 7, 2},
             {FD_ROPE_INTERLEAVED, 32, 1, 80, 1, 3}, {FD_ROPE_HALF, 32, 1, 80, 1, 3},
             {FD_ROPE_HALF, 128, 4, 128, 4000, 2},   {FD_ROPE_INTERLEAVED, 48, 6, 48, 255, 1}};
#define N_CASE (sizeof cases / sizeof *cases)

static op_case *make(size_t i) {
    return case_rope(cases[i].pairing, cases[i].n_rot, cases[i].n_head, cases[i].head_dim, cases[i].pos0,
                     cases[i].n_pos);
}

Test(rope, is_within_its_bound_of_the_formula) {
    for (size_t i = 0; i < N_CASE; i++) {
        op_case *c = make(i);
        float *y = case_run_scalar(c);
        double z = worst(c, cases[i].pairing, y);
        cr_expect(z <= 1, "case %zu: %g of the bound", i, z);
    }
}

Test(rope, f64_rounds_to_the_same_within_its_bound) {
    for (size_t i = 0; i < N_CASE; i++) {
        op_case *c = make(i);
        double *y = case_run_f64(c);
        float *rounded = kept(malloc(sizeof *rounded * (size_t)c->n_out));
        for (int64_t k = 0; k < c->n_out; k++) rounded[k] = (float)y[k];
        double z = worst(c, cases[i].pairing, rounded);
        cr_expect(z <= 0.3, "case %zu: %g of the bound", i, z); /* one rounding in place of four */
    }
}

Test(rope, position_0_is_the_identity_for_both_pairings) {
    for (int pairing = 0; pairing < 2; pairing++) {
        op_case *c = case_rope((fd_rope_pairing)pairing, 32, 2, 48, 0, 1);
        float *y = case_run_scalar(c);
        for (int64_t k = 0; k < c->n_out; k++) cr_expect_eq(y[k], c->in[0][k]);
    }
}

Test(rope, elements_past_n_rot_are_copied_bit_by_bit) {
    op_case *c = case_rope(FD_ROPE_HALF, 32, 3, 48, 9, 2);
    c->in[0][40] = -0.0f;
    c->in[0][41] = 0x1p-149f;
    float *y = case_run_scalar(c);
    for (int64_t k = 0; k < c->n_out; k++)
        if (k % 48 >= 32) cr_expect_eq(bits_differ(y + k, c->in[0] + k, 1), 0, "element %lld", (long long)k);
}

Test(rope, is_one_product_and_one_fma) {
    op_case *c = case_rope(FD_ROPE_INTERLEAVED, 64, 1, 64, 3, 1);
    float *y = case_run_scalar(c);
    for (int i = 0; i < 32; i++) {
        float a = c->in[0][2 * i], b = c->in[0][2 * i + 1];
        float cosine = ((const float *)c->args.rope_cos)[3 * 32 + i],
              sine = ((const float *)c->args.rope_sin)[3 * 32 + i];
        float first = fmaf(a, cosine, -(b * sine)), second = fmaf(a, sine, b * cosine);
        cr_expect_eq(bits_differ(y + 2 * i, &first, 1) + bits_differ(y + 2 * i + 1, &second, 1), 0, "pair %d", i);
    }
}

Test(rope, wrong_rotations_are_beyond_the_bound) {
    op_case *c = case_rope(FD_ROPE_HALF, 64, 2, 64, 1, 2), *other = case_rope(FD_ROPE_HALF, 64, 2, 64, 2, 2);
    float *y = case_run_scalar(c);
    cr_expect(!(worst(c, FD_ROPE_INTERLEAVED, y) <= 1), "the other pairing");
    memcpy(other->in[0], c->in[0], sizeof(float) * (size_t)c->n_in[0]);
    float *late = case_run_scalar(other);
    cr_expect(!(worst(c, FD_ROPE_HALF, late) <= 1), "position off by one");
    cr_expect(!(worst(c, FD_ROPE_HALF, c->in[0]) <= 1), "not rotated");
    y[5] = NAN;
    cr_expect(!(worst(c, FD_ROPE_HALF, y) <= 1), "NaN");
}
