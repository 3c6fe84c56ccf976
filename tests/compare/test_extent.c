/* Where along the run an error shows (compare/attribute/extent.h): a table of z by position. */
#include <criterion/criterion.h>
#include <math.h>

#include "compare/attribute/extent.h"

enum { N_POS = 6, N_STEP = 3 };
/* A prompt of four tokens, then two decode steps. */
static const fd_trace_step steps[N_STEP] = {{.pos0 = 0, .n_pos = 4, .kind = FD_STEP_PREFILL},
                                            {.pos0 = 4, .n_pos = 1, .kind = FD_STEP_DECODE},
                                            {.pos0 = 5, .n_pos = 1, .kind = FD_STEP_DECODE}};

typedef struct extent_case {
    const char *what;
    float z[N_POS];
    int32_t n_judged, n_beyond, first, last, first_step, last_step;
    fd_extent_only only;
} extent_case;

static const extent_case cases[] = {
    {"everywhere", {9, 9, 9, 9, 9, 9}, 6, 6, 0, 5, 0, 2, FD_ONLY_UNKNOWN},
    {"nowhere", {0, 0, 1, 0, 0, 1}, 6, 0, -1, -1, -1, -1, FD_ONLY_UNKNOWN},
    {"decode alone", {0, 0, 0, 0, 9, 9}, 6, 2, 4, 5, 1, 2, FD_ONLY_IN_DECODE},
    {"one decode step alone", {0, 0, 0, 0, 0, 9}, 6, 1, 5, 5, 2, 2, FD_ONLY_IN_DECODE},
    {"prefill alone", {0, 9, 9, 9, 0, 0}, 6, 3, 1, 3, 0, 0, FD_ONLY_IN_PREFILL},
    {"one prefill position and decode", {0, 0, 9, 0, 9, 0}, 6, 2, 2, 4, 0, 1, FD_ONLY_UNKNOWN},
    {"a NaN is beyond", {0, 0, 0, 0, 0, NAN}, 6, 1, 5, 5, 2, 2, FD_ONLY_IN_DECODE},
    /* position 0 shows nothing of a rotation: alone it does not clear prefill */
    {"prefill right at position 0 alone", {0, -1, -1, -1, 9, 9}, 3, 2, 4, 5, 1, 2, FD_ONLY_UNKNOWN},
    {"decode not judged", {0, 9, 9, 9, -1, -1}, 4, 3, 1, 3, 0, 0, FD_ONLY_UNKNOWN},
};

Test(extent, says_where_and_in_which_kind_of_step) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const extent_case *c = &cases[i];
        fd_verdict_extent e = fd_extent_of(c->z, N_POS, steps, N_STEP);
        cr_expect(e.n_judged == c->n_judged && e.n_beyond == c->n_beyond, "%s: %d of %d", c->what, e.n_beyond,
                  e.n_judged);
        cr_expect(e.first == c->first && e.last == c->last, "%s: %d to %d", c->what, e.first, e.last);
        cr_expect(e.first_step == c->first_step && e.last_step == c->last_step, "%s: steps %d to %d", c->what,
                  e.first_step, e.last_step);
        cr_expect(e.only == c->only, "%s: only %d", c->what, e.only);
    }
}

Test(extent, positions_past_those_compared_do_not_count) {
    fd_verdict_extent e = fd_extent_of(cases[0].z, 4, steps, N_STEP);
    cr_expect(e.n_judged == 4 && e.last == 3 && e.last_step == 0 && e.only == FD_ONLY_UNKNOWN);
}
