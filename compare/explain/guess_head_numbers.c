/* Of ops whose heads have a number each: all of them times the same, or all the same; which of them is read for which head is one of
 * the maps of guess_mapped.c. */
#include "compare/explain/guesses.h"
#include "compare/explain/solve.h"
#include "compare/hypothesis/internal.h"

static fd_code try_numbers(fd_trial *t, fd_hypothesis h, fd_error *err) {
    static const double simple[] = {0, 1}; /* a field that nobody filled in; slopes of a bias that is none */
    bool found;
    h.which = FD_HEAD_NUMBERS_ARE;
    for (int i = 0; i < 2 && !fd_trial_fits(t); i++) {
        h.value = simple[i];
        FD_TRY(fd_trial_try(t, &h, err));
    }
    h.which = FD_HEAD_NUMBERS_TIMES;
    h.value = -1;
    if (!fd_trial_fits(t)) FD_TRY(fd_trial_try(t, &h, err));
    return fd_trial_fits(t) ? FD_OK : fd_solve(t, h, 1, &found, err);
}

fd_code fd_guess_head_numbers(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    for (int32_t i = 0; i < t->n_span && !fd_trial_fits(t); i++) {
        const fd_hypothesis h = {.guess = FD_GUESS_HEAD_NUMBERS, .node = t->span[i], .layer = FD_ANY_LAYER};
        if (fd_has_head_numbers(&nodes[t->span[i]])) FD_TRY(try_numbers(t, h, err));
    }
    return FD_OK;
}
