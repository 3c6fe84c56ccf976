/* Errors in no direction, in every row and part alike, are how an engine may round; a factor, a part or a row is a bug. */
#include <criterion/criterion.h>
#include <math.h>

#include "compare/class/undirected.h"

enum { N_ROW = 12, N_ELEMENT = 128, OUTSTANDING = 5 };

/* Errors of a twentieth with signs that go with nothing, and besides: a factor of all elements or of the outstanding one, which is 40 times as
 * large as the others; of one eighth of the elements or of one row so many times the errors; a NaN. */
typedef struct errors_case {
    const char *what;
    double factor, factor_of_largest, eighth, row;
    bool nan, undirected, in_rows;
} errors_case;

static const errors_case cases[] = {
    {"roundings", 0, 0, 1, 1, false, true, true},
    {"a factor", 0.1, 0, 1, 1, false, false, false},
    {"a factor of half their size", 0.03, 0, 1, 1, false, false, false},
    {"a direction of the largest elements alone", 0, 0.5, 1, 1, false, true, true},
    {"an eighth of the elements is right", 0, 0, 0.01, 1, false, false, false},
    {"a row is right", 0, 0, 1, 0.01, false, true, false},
    {"NaN", 0, 0, 1, 1, true, false, false},
};

static float output[N_ROW * N_ELEMENT], plain[N_ROW * N_ELEMENT];

static double sign(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 31 ? 1 : -1;
}

static void make(const errors_case *c) {
    uint32_t state = 7;
    for (int i = 0; i < N_ROW * N_ELEMENT; i++) {
        const int row = i / N_ELEMENT, element = i % N_ELEMENT;
        const bool large = element == OUTSTANDING;
        const double y = sign(&state) * (large ? 40 : 1);
        double off = 0.05 * sign(&state);
        if (element >= N_ELEMENT - N_ELEMENT / 8) off *= c->eighth;
        if (row == 3) off *= c->row;
        off += (c->factor + (large ? 0.02 * c->factor_of_largest : 0)) * y;
        plain[i] = (float)y;
        output[i] = (float)(y + off);
    }
    if (c->nan) output[77] = NAN;
}

Test(undirected, errors_have_no_direction_row_or_part) {
    const fd_node node = {.n_dim = 1, .shape = {N_ELEMENT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const errors_case *c = &cases[i];
        make(c);
        const fd_explain_request request = {.args = {.node = &node, .n_pos = N_ROW}, .output = output};
        const fd_trial_rows rows = {.request = &request, .plain = {.rows = plain}};
        const fd_undirected errors = fd_weigh_undirected(&rows);
        cr_expect(fd_is_undirected(&errors) == c->undirected, "%s: along %g", c->what, errors.along);
        cr_expect(fd_is_undirected_in_rows(&errors) == c->in_rows, "%s: least row %g", c->what, errors.least_row);
    }
}
