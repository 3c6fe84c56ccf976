/* What is said of a class by its own case. */
#include "compare/infer/evidence.h"

/* A bug in every layer departs at one or two of a layer's ten tensors or more; a class that is too strict, at every
 * product, which are half of them. */
enum { FEW_OF = 4 };
/* Where few were recorded besides, a class that leaves so little of all that is reached through unrecorded ones, a hundredth of what
 * the finest leaves, repeats the engine's roundings, and what departs is a bug. */
#define FAR_LESS  5.0
#define TWENTIETH 3.0

/* Nothing is left of a row only if all values of it were rounded alike, in all ops on the way. One row may be spared by a bug: at position 0
 * a token attends to itself alone. */
enum { FEWEST_REPEATED = 2 };

bool fd_storage_refutes(const fd_storage *storage) {
    return 2 * storage->n_wide > storage->n_seen;
}

bool fd_case_rounds_less(const fd_class_case *c) {
    const fd_numerics_class *n = c->numerics;
    const bool factors = n->q8_activations || (n->u_in > 0x1p-24 && !n->either);
    return factors && !n->fast_math && !n->replays_inputs && !(n->u_acc > 0x1p-24) && 2 * c->n_small > c->n_sized;
}

static bool has_another_table(const fd_class_case *c) {
    return 2 * c->n_not_of_table > c->n_table;
}

bool fd_case_refuted(const fd_class_case *c) {
    return 2 * c->n_needed < c->n_rounded || 2 * c->n_spans_needed < c->n_spans || has_another_table(c);
}

bool fd_case_rows_refute(const fd_class_case *c) {
    const bool single_rows_fit = c->n_alone > 0 && 2 * c->n_alone_left <= c->n_alone;
    return c->numerics->several_rows &&
           !(single_rows_fit && c->n_needed > 0); /* of single rows the finest says the same */
}

static bool is_shown_by_rows(const fd_class_case *c) {
    return c->n_through > 0 && c->n_rows_repeated >= FEWEST_REPEATED * c->n_through;
}

bool fd_case_shown_by_few_rows(const fd_class_case *c) {
    return fd_class_leaves_nothing(c->numerics) && 2 * c->n_left > c->n_through && is_shown_by_rows(c);
}

bool fd_case_leaves_nothing(const fd_class_case *c) {
    bool all_repeated = c->n_left == 0 && c->remains < c->finest_remains - FAR_LESS;
    bool few_fail = FEW_OF * c->n_failed <= c->n_direct || (all_repeated && c->n_failed < c->n_through);
    /* A class that loses values to steps leaves more than binary32; but less than half of what the finest class leaves, whose
     * replay has not these roundings. */
    bool repeats = !c->loses_to_steps || c->remains < c->finest_remains - FD_TWICE_LEFT || is_shown_by_rows(c);
    const bool few_left = 2 * c->n_left <= c->n_through || is_shown_by_rows(c);
    /* of attention such a class has room for what binary32 leaves: products show it; where none was recorded with its inputs, that a
     * twentieth is left, of no tensor more than its sums make, and of a row in each at most (sound engines: none to four of 64) */
    const bool of_sums = c->n_left == 0 && c->n_rows_left <= c->n_through && c->remains < c->finest_remains - TWENTIETH;
    if (fd_class_has_room_in_mix(c->numerics)) repeats = c->n_plain > 0 ? 2 * c->n_plain_needed > c->n_plain : of_sums;
    if (fd_case_rows_refute(c)) return false;
    return fd_class_leaves_nothing(c->numerics) && c->n_through > 0 && few_left && few_fail && repeats &&
           !has_another_table(c);
}

bool fd_case_shown(const fd_class_case *c) {
    if (c->n_plain > 0 && c->n_plain_needed == 0) return false; /* what is seen best says no */
    /* values show a class of 16 bits, where they do not refute it; and repeated factors show themselves */
    const bool most_plain = 2 * c->n_plain_needed > c->n_plain;
    if (c->numerics->either) return c->products && most_plain; /* through others, any rounding looks like it */
    bool of_16_bits = c->numerics->u_out > 0x1p-24 || (c->numerics->u_shown > 0 && most_plain);
    return c->products && (of_16_bits || (c->attention && c->n_seen > 0 && 2 * c->n_seen >= c->n_needed));
}
