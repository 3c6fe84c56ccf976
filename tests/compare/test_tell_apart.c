/* Two explanations that leave nearly as much are told apart by where the candidate lies on the way from one to the other. */
#include <criterion/criterion.h>
#include <math.h>

#include "compare/explain/projection.h"

/* Two explanations that leave as much: on the way from the first to the other the candidate says which it is, if enough rows do. */
Test(tell_apart, of_two_explanations_the_candidate_says_which_it_is) {
    static const struct {
        const char *what;
        float at, noise, way; /* of the candidate: 0 at the first, 1 at the other; how far they are from each other */
        int32_t n_row;
        bool apart, same;
    } of[] = {
        {"the first is true", 0, 0.5f, 1, 16, true, false},
        {"the other is", 1, 0.5f, 1, 16, false, false},
        {"neither", 0.5f, 0.5f, 1, 16, false, false},
        {"noise drowns the way", 0, 40, 1, 16, false, false},
        {"seven rows", 0, 0.5f, 1, 7, false, false},
        {"eight", 0, 0.5f, 1, 8, true, false},
        {"the same computation", 0, 0.5f, 1e-6f, 16, false, true},
        {"NaN", NAN, 0.5f, 1, 16, false, false},
    };
    enum { WIDTH = 64 };
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        float first[16 * WIDTH], other[16 * WIDTH], output[16 * WIDTH];
        double tau[16 * WIDTH];
        fd_node node = {.op = FD_OP_ADD, .n_dim = 1, .shape = {WIDTH}};
        fd_explain_request request = {.args = {.node = &node, .n_pos = of[k].n_row}, .output = output};
        const fd_trial_rows rows = {.request = &request, .plain = {.rows = first, .tau = tau}};
        const fd_variant variant = {.state = FD_VARIANT_COMPUTED, .rows = other};
        for (int32_t i = 0; i < 16 * WIDTH; i++) {
            const float d = (i % 2 ? 1.0f : -1.0f) * of[k].way;
            first[i] = 3;
            other[i] = 3 + d;
            output[i] = 3 + of[k].at * d + (i / 2 % 2 ? of[k].noise : -of[k].noise);
            tau[i] = 1;
        }
        bool apart, same;
        fd_projection_tell_apart(&rows, &variant, of[k].n_row * WIDTH, &apart, &same);
        cr_expect_eq(apart, of[k].apart, "%s", of[k].what);
        cr_expect_eq(same, of[k].same, "%s", of[k].what);
    }
}
