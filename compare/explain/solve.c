#include "compare/explain/solve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/explain/simple_numbers.h"
#include "compare/hypothesis/parameters.h"

/* From a millionth of the right number to a million times it, in steps of 10^(1/4). */
enum { COARSE = 24, PER_DECADE = 4, FINE = 44 };
#define LEAST_CENTRE 1e-8 /* an eps of 1e-12 is near nothing that others have */

#define MOST_EPS    0.1
#define MOST_FACTOR 1e4

static fd_code distance_at(fd_trial *t, fd_hypothesis *h, double value, double *distance, fd_error *err) {
    h->value = value;
    return fd_trial_distance(t, &t->few, h, distance, err);
}

/* Golden section between log10 values. */
static fd_code refine(fd_trial *t, fd_hypothesis *h, double low, double high, double *best, fd_error *err) {
    const double section = 0.6180339887498949;
    double a = high - section * (high - low), b = low + section * (high - low), at_a, at_b;
    FD_TRY(distance_at(t, h, pow(10, a), &at_a, err));
    FD_TRY(distance_at(t, h, pow(10, b), &at_b, err));
    for (int i = 0; i < FINE; i++) {
        if (at_a <= at_b) {
            high = b, b = a, at_b = at_a;
            a = high - section * (high - low);
            FD_TRY(distance_at(t, h, pow(10, a), &at_a, err));
        } else {
            low = a, a = b, at_a = at_b;
            b = low + section * (high - low);
            FD_TRY(distance_at(t, h, pow(10, b), &at_b, err));
        }
    }
    *best = pow(10, at_a <= at_b ? a : b);
    return FD_OK;
}

/* A number that no engine has by mistake is another error in disguise: an eps near the mean square is a factor of the row, eps
 * times or over n_embd a factor of what the norm reads, a huge factor something that was left out, positions divided by nearly 1 are positions that are off by one. */
static bool is_disguise(const fd_trial *t, const fd_hypothesis *h, double value, double right) {
    if (h->guess == FD_GUESS_FACTOR || h->guess == FD_GUESS_INPUT_FACTOR)
        return value > MOST_FACTOR || value < 1 / MOST_FACTOR;
    if (h->guess != FD_GUESS_PARAMETER) return false;
    const char *name = fd_parameters[h->which].name;
    double ratio = value / right, n_embd = t->all.request->args.graph->hparams.n_embd;
    if (strcmp(name, "other_rope_factor") == 0) return ratio > 0.8 && ratio < 1.25;
    if (strcmp(name, "other_eps") != 0) return false;
    if (ratio > 0.8 && ratio < 1.25) return true; /* no engine has it so by mistake */
    return value > MOST_EPS || fabs(ratio * n_embd - 1) < 0.1 || fabs(ratio / n_embd - 1) < 0.1;
}

bool fd_solve_has_number(const fd_hypothesis *h) {
    return h->guess == FD_GUESS_PARAMETER || h->guess == FD_GUESS_FACTOR || h->guess == FD_GUESS_INPUT_FACTOR ||
           h->guess == FD_GUESS_CAP;
}

/* What the best leaves of the few rows, a number that does as well may leave a little more of: roundings of 16 bits pull the best one
 * aside by a tenth where the rows depend on it little. */
#define AS_WELL       1.1
#define AS_WELL_ROUND 1.25
#define NEXT_TO_NONE  1e-3 /* bounds */
#define LEAST_PULL    0x1p-14
#define NEAR          0.05

static bool does_as_well(const fd_trial *t, double value, double best, double distance, double least, bool is_round) {
    const fd_numerics_class *c = t->all.request->numerics;
    const double u = c ? fmax(fmax(fmax(c->u_in, c->u_attn), fmax(c->u_kv, c->u_out)), c->u_op) : 0;
    /* by what the class rounds, angles of RoPE in binary32 among it */
    const bool pulled = fabs(value - best) <= fmax(u, LEAST_PULL) * fabs(best) && distance <= 1 + least;
    return pulled || distance <= (is_round ? AS_WELL_ROUND : AS_WELL) * least + NEXT_TO_NONE;
}

/* The simplest number near `best` that does as well on the few rows, tried on all. */
static fd_code try_simple(fd_trial *t, fd_hypothesis h, double best, double least, double right, bool *found,
                          fd_error *err) {
    double simple[FD_MOST_SIMPLE_NUMBERS + 2];
    int n_round, n = 2 + fd_simple_numbers(best, right, simple + 2, &n_round);
    /* where the rows hardly depend on it, as on an eps that is far too small, a power of ten will do */
    simple[0] = best > 0 ? pow(10, floor(log10(best))) : best;
    simple[1] = 10 * simple[0];
    for (int i = 0; i < n && !*found; i++) {
        const bool power = i < 2, is_round = i < 2 + n_round;
        double distance;
        if (!power && !(fabs(simple[i] - best) <= (is_round ? FD_NEAR_ROUND : NEAR) * fabs(best))) continue;
        if (is_disguise(t, &h, simple[i], right)) continue;
        FD_TRY(distance_at(t, &h, simple[i], &distance, err));
        fd_trial_note_near(t, &h, distance / t->few_left); /* in another class it may be the one */
        if (!does_as_well(t, simple[i], best, distance, least, is_round)) continue;
        FD_TRY(fd_trial_try(t, &h, err));
        *found = fd_trial_fits(t);
    }
    return FD_OK;
}

/* Decades on either side of the right number. Through several layers each number costs as much as a run. */
enum { DECADES = 3, DECADES_OF_MANY_LAYERS = 1 };

/* Where values fall to the other side of steps, a number that is nearly the engine's leaves as much as the right one does, and its own
 * nothing: no search comes near it, so those of one digit are asked one by one. */
static fd_code try_digits(fd_trial *t, fd_hypothesis h, double right, bool *found, fd_error *err) {
    const fd_numerics_class *c = t->all.request->numerics;
    const bool many = fd_trial_many_layers(t), in_one_layer = h.node >= 0 || h.layer != FD_ANY_LAYER;
    if (!c || !fd_class_rounds_to_steps(c) || !(right > 0) || (many && in_one_layer)) return FD_OK;
    const int middle = (int)floor(log10(fmax(right, LEAST_CENTRE))), far = many ? DECADES_OF_MANY_LAYERS : DECADES;
    for (int decade = middle - far; decade <= middle + far; decade++)
        for (int digit = 1; digit <= 9 && !*found && !fd_trial_exhausted(t); digit++) {
            const double value = fd_with_digits(digit * pow(10, decade), 1);
            double distance;
            if (is_disguise(t, &h, value, right)) continue;
            FD_TRY(distance_at(t, &h, value, &distance, err));
            if (!(distance < t->few_left / 4)) continue;
            FD_TRY(fd_trial_try(t, &h, err));
            *found = fd_trial_fits(t);
        }
    return FD_OK;
}

/* Through several layers, where each number costs as much as a run: whole decades and what is next to the right number show whether any is
 * nearer. */
#define HARDLY_NEARER 0.97

static fd_code may_be_nearer(fd_trial *t, fd_hypothesis h, double centre, bool *yes, fd_error *err) {
    *yes = !fd_trial_many_layers(t);
    for (int k = -COARSE; k <= COARSE && !*yes && !fd_trial_exhausted(t); k++) {
        double distance;
        if (k == 0 || (k % PER_DECADE && abs(k) > PER_DECADE)) continue;
        FD_TRY(distance_at(t, &h, pow(10, centre + (double)k / PER_DECADE), &distance, err));
        *yes = distance < HARDLY_NEARER * t->few_left;
    }
    return FD_OK;
}

fd_code fd_solve(fd_trial *t, fd_hypothesis h, double right, bool *found, fd_error *err) {
    double centre = right > 0 ? log10(fmax(right, LEAST_CENTRE)) : 0, least = INFINITY, plain = t->few_left, best;
    int at = 0;
    *found = false;
    FD_TRY(try_digits(t, h, right, found, err));
    if (*found) return FD_OK;
    bool worth;
    FD_TRY(may_be_nearer(t, h, centre, &worth, err));
    if (!worth || fd_trial_exhausted(t)) return FD_OK;
    for (int k = -COARSE; k <= COARSE; k++) {
        double distance;
        FD_TRY(distance_at(t, &h, pow(10, centre + (double)k / PER_DECADE), &distance, err));
        if (k == 0 && !(distance < plain)) distance = plain; /* the right number itself, and the other may be near it */
        if (distance < least) least = distance, at = k;
    }
    /* the least or the largest that is asked about is no solution: these rows would have still less, or still more, of it */
    if (at == -COARSE || at == COARSE) return FD_OK;
    if (!(least <= plain) || fd_trial_exhausted(t)) return FD_OK;
    FD_TRY(refine(t, &h, centre + (double)(at - 1) / PER_DECADE, centre + (double)(at + 1) / PER_DECADE, &best, err));
    FD_TRY(distance_at(t, &h, best, &least, err));
    if (!(least < plain / 4)) return FD_OK;
    return try_simple(t, h, best, least, right, found, err);
}

/* Where the least of the coarse ones is hardly less than without a limit, finer ones are none either. */
enum { COARSE_LIMIT = 8 };
#define HARDLY_LESS 0.9

fd_code fd_solve_limit(fd_trial *t, fd_hypothesis h, fd_error *err) {
    double least = t->few_left * HARDLY_LESS, best;
    int at = COARSE_LIMIT;
    bool found = false;
    for (int k = COARSE_LIMIT - 1; k > -COARSE_LIMIT && !fd_trial_exhausted(t); k--) {
        double distance;
        FD_TRY(distance_at(t, &h, pow(10, (double)k / PER_DECADE), &distance, err));
        if (distance < least) least = distance, at = k;
    }
    if (at == COARSE_LIMIT || fd_trial_exhausted(t)) return FD_OK;
    FD_TRY(refine(t, &h, (double)(at - 1) / PER_DECADE, (double)(at + 1) / PER_DECADE, &best, err));
    FD_TRY(distance_at(t, &h, best, &least, err));
    return least < t->few_left / 4 ? try_simple(t, h, best, least, 0, &found, err) : FD_OK;
}

/* Newton's method on the squares: every row that departs is near f(1) + (f(1 + step) - f(1)) / step · (x - 1). */
enum { N_NEWTON = 6 };
#define STEP        0x1p-6
#define NEAR_ZERO   0.05 /* then it may be 0 */
#define WORTH_WHILE 0.5  /* the share of the squares that the direction must explain */

typedef struct direction {
    double along, share; /* how far to go, and what of the squares that takes away if all is linear */
} direction;

static fd_code direction_at(fd_trial *t, fd_hypothesis h, double value, direction *out, fd_error *err) {
    const fd_explain_request *r = t->few.request;
    const fd_node *node = r->args.node;
    int64_t stride = fd_node_row_stride(node, r->args.n_kv);
    fd_variant at = {0}, further = {0};
    double rd = 0, dd = 0, rr = 0;
    *out = (direction){0};
    h.value = value;
    fd_code code = fd_evaluate(t->few.bench, &h, node->id, false, &at, err);
    h.value = value + STEP;
    if (code == FD_OK) code = fd_evaluate(t->few.bench, &h, node->id, false, &further, err);
    fd_trial_spend_on_few(t, 2);
    bool known = at.state == FD_VARIANT_COMPUTED && further.state == FD_VARIANT_COMPUTED;
    for (int64_t i = r->n_unjudged * stride; i < r->args.n_pos * stride && known; i++) {
        double left = (double)r->output[i] - (double)at.rows[i], d = (double)further.rows[i] - (double)at.rows[i];
        if (!isfinite(left) || !isfinite(d)) continue;
        rd += left * d;
        dd += d * d;
        rr += left * left;
    }
    fd_variant_free(&at);
    fd_variant_free(&further);
    if (dd > 0 && rr > 0) *out = (direction){STEP * rd / dd, rd * rd / (dd * rr)};
    return code;
}

fd_code fd_solve_near(fd_trial *t, fd_hypothesis h, fd_error *err) {
    double value = 1, least;
    bool found = false;
    if (fd_trial_exhausted(t)) return FD_OK;
    for (int i = 0; i < N_NEWTON; i++) {
        direction d;
        FD_TRY(direction_at(t, h, value, &d, err));
        if (i == 0 && !(d.share >= WORTH_WHILE)) return FD_OK;
        value += d.along;
        if (!(fabs(d.along) > 1e-7 * fabs(value))) break;
    }
    FD_TRY(distance_at(t, &h, value, &least, err));
    fd_trial_note_near(t, &h, least / t->few_left);
    if (!(least < t->few_left / 4)) return FD_OK;
    if (fabs(value) < NEAR_ZERO) {
        double at_zero;
        FD_TRY(distance_at(t, &h, 0, &at_zero, err));
        if (at_zero <= 1.5 * least + 1) return fd_trial_try(t, &h, err);
    }
    return try_simple(t, h, value, least, 1, &found, err);
}

fd_code fd_try_or_solve(fd_trial *t, fd_hypothesis h, const double *values, int n, fd_error *err) {
    bool found;
    for (int i = 0; i < n && !fd_trial_fits(t); i++) {
        h.value = values[i];
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return fd_trial_fits(t) ? FD_OK : fd_solve(t, h, 1, &found, err);
}
