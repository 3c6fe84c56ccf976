/* Fingerprints differ where tensors differ, and only there. */
#include <criterion/criterion.h>

#include "numerics/fingerprint.h"

enum { N = 257 };

static bool equal(fd_fingerprint a, fd_fingerprint b) {
    return a.lo == b.lo && a.hi == b.hi;
}

static void fill(float *x) {
    for (int i = 0; i < N; i++) x[i] = (float)((i * 7919) % 1009) * 0.125f - 60.0f;
}

Test(fingerprint, the_same_tensor_has_the_same_fingerprint) {
    float a[N], b[N];
    fill(a);
    fill(b);
    cr_assert(equal(fd_fingerprint_f32(a, N), fd_fingerprint_f32(b, N)));
}

Test(fingerprint, one_bit_anywhere_changes_both_halves) {
    float a[N], b[N];
    fill(a);
    fd_fingerprint f = fd_fingerprint_f32(a, N);
    for (int i = 0; i < N; i++)
        for (int bit = 0; bit < 32; bit++) {
            fill(b);
            b[i] = fd_from_bits32(fd_bits32(b[i]) ^ (1u << bit));
            fd_fingerprint g = fd_fingerprint_f32(b, N);
            cr_assert(f.lo != g.lo && f.hi != g.hi, "element %d, bit %d", i, bit);
        }
}

Test(fingerprint, swapped_elements_and_permuted_heads_differ) {
    float a[N], b[N];
    fill(a);
    for (int distance = 1; distance < 128; distance *= 2) {
        fill(b);
        b[3] = a[3 + distance];
        b[3 + distance] = a[3];
        cr_expect(!equal(fd_fingerprint_f32(a, N), fd_fingerprint_f32(b, N)), "swap over %d", distance);
    }
    for (int i = 0; i < 64; i++) b[i] = a[(i + 32) % 64];
    cr_assert(!equal(fd_fingerprint_f32(a, 64), fd_fingerprint_f32(b, 64)));
}

Test(fingerprint, zeros_of_different_sign_differ_and_nans_do_not) {
    float plus[2] = {0.0f, 1.0f}, minus[2] = {-0.0f, 1.0f};
    cr_assert(!equal(fd_fingerprint_f32(plus, 2), fd_fingerprint_f32(minus, 2)));
    float n1[1] = {fd_from_bits32(0x7fc00000u)}, n2[1] = {fd_from_bits32(0xffc00123u)};
    cr_assert(equal(fd_fingerprint_f32(n1, 1), fd_fingerprint_f32(n2, 1)));
}

Test(fingerprint, length_is_part_of_it) {
    float a[4] = {1, 2, 0, 0};
    cr_assert(!equal(fd_fingerprint_f32(a, 2), fd_fingerprint_f32(a, 3)));
    cr_assert(!equal(fd_fingerprint_f32(a, 3), fd_fingerprint_f32(a, 4)));
    cr_assert(!equal(fd_fingerprint_f32(a, 0), fd_fingerprint_f32(a, 1)));
}

Test(fingerprint, words_may_be_added_in_any_order) {
    float a[N + 1];
    fill(a);
    a[N] = 0;
    fd_fingerprint f = {0, 0};
    for (int i = N / 2; i >= 0; i--)
        fd_fingerprint_add(&f, (uint64_t)i,
                           fd_canonical32(a[2 * i]) | (uint64_t)(2 * i + 1 < N ? fd_canonical32(a[2 * i + 1]) : 0)
                                                          << 32);
    cr_assert(equal(fd_fingerprint_end(f, N), fd_fingerprint_f32(a, N)));
}
