/* Which explanations fit, which of two fits is better, and those that are kept. */
#include <stdlib.h>
#include <string.h>

#include "compare/explain/solve.h"
#include "compare/explain/trial.h"

/* Of a thousand errors with zero mean a given direction takes a hundredth away; here it is all but a 64th of the
 * squares. */
#define DECIDES        8.0
#define DECIDES_BEYOND 16.0
#define DECIDES_ALONE  1024.0 /* of one op: a function of a library's own rounds more than its formula does */
#define LITTLE_LEFT    100.0
#define MOST_Z_OF_SPAN 4.0

static bool repeats(const fd_explain_fit *fit) {
    return fit->n_repeated >= FD_FEWEST_REPEATED;
}

bool fd_fit_decides(const fd_explain_fit *a, const fd_explain_fit *b) {
    return repeats(a) != repeats(b) ? repeats(a) : a->rms * DECIDES < b->rms;
}

bool fd_trial_is_fit(const fd_trial *t, const fd_explain_fit *fit) {
    if (fit->z <= 1.0) return true;
    if (t->n_span == 1)
        return t->all.request->numerics && fit->z <= MOST_Z_OF_SPAN &&
               fit->rms * DECIDES_ALONE < t->out->unmodified.rms;
    /* Behind values that fell to the other side of steps a row is as far from its replay as any other that such steps give: the four samples
     * of its bound say of some rows that no value falls. */
    const bool in_steps = fd_trial_in_steps(t);
    if (repeats(fit) && !in_steps) return true; /* in the other rows hardly anything is left */
    const double decides = in_steps ? DECIDES : DECIDES_BEYOND;
    return fit->z <= MOST_Z_OF_SPAN && (repeats(fit) || fit->rms * decides < t->out->unmodified.rms);
}

/* Bytes of a weight that are read otherwise: F16 read as BF16 is as good as zero, and a branch of zeros as one that is not added. */
static bool is_of_bytes(const fd_explain_fit *fit) {
    return fit->hypothesis.guess == FD_GUESS_FAULT &&
           strcmp(fd_fault_at(fit->hypothesis.fault)->family, "dequantise") == 0;
}

/* Of what gives the same bits a factor of the scores says more than one of Q or K. */
static bool scales_scores(const fd_explain_fit *fit) {
    return strcmp(fit->name, "other_attn_scale") == 0;
}

static bool better(const fd_explain_fit *a, const fd_explain_fit *b) {
    bool a_fits = a->z <= 1.0, b_fits = b->z <= 1.0;
    bool a_row = a->hypothesis.guess == FD_GUESS_FAULT, b_row = b->hypothesis.guess == FD_GUESS_FAULT;
    if (fd_fit_decides(a, b) || fd_fit_decides(b, a)) return fd_fit_decides(a, b);
    if (a_fits && b_fits && a_row != b_row) return a_row; /* a bug that engines are known to have says more */
    if (a->z != b->z) return a->z < b->z;
    if (a->n_beyond != b->n_beyond) return a->n_beyond < b->n_beyond;
    if (a->ulp != b->ulp) return a->ulp < b->ulp;
    if (scales_scores(a) != scales_scores(b)) return scales_scores(a);
    return is_of_bytes(b) && !is_of_bytes(a);
}

void fd_trial_note_runner_up(fd_trial *t, const fd_explain_fit *fit) {
    fd_explain_fit *kept = &t->out->runner_up;
    if (!kept->name[0] || better(fit, kept)) *kept = *fit;
}

/* The same number with another value: the better one stands for both, for near it all values are nearly right. */
static bool same_unknown(const fd_hypothesis *a, const fd_hypothesis *b) {
    fd_hypothesis x = *a;
    x.value = b->value;
    return fd_solve_has_number(a) && fd_hypothesis_same(&x, b);
}

/* Of a number that was fitted the best value stands for all. */
void fd_trial_note_near(fd_trial *t, const fd_hypothesis *h, double left) {
    fd_explanation *out = t->out;
    int32_t at = 0;
    if (!(left < 1) || t->n_span == 1) return;
    while (at < out->n_nearest && !fd_hypothesis_same(&out->nearest[at].h, h) && !same_unknown(&out->nearest[at].h, h))
        at++;
    const bool known = at < out->n_nearest, full = out->n_nearest == FD_MAX_NEAREST;
    if (!known && full) at = FD_MAX_NEAREST - 1;
    if ((known || full) && !(left < out->nearest[at].left)) return;
    if (!known && !full) out->n_nearest++;
    for (; at > 0 && left < out->nearest[at - 1].left; at--) out->nearest[at] = out->nearest[at - 1];
    out->nearest[at] = (fd_nearest){*h, left};
}

void fd_trial_drop(fd_trial *t, int32_t at) {
    fd_variant_free(&t->contenders[at].variant);
    memmove(t->contenders + at, t->contenders + at + 1, sizeof *t->contenders * (size_t)(--t->n - at));
}

/* A fault of the table with all that it may be narrowed to: heads, ranks, one node. */
bool fd_trial_is_refuted(const fd_trial *t, const fd_hypothesis *h) {
    const fd_explain_request *r = t->all.request;
    for (int32_t i = 0; i < r->n_without; i++)
        if (fd_hypothesis_same(&r->without[i], h) ||
            (h->guess == FD_GUESS_FAULT && r->without[i].guess == FD_GUESS_FAULT && r->without[i].fault == h->fault))
            return true;
    return false;
}

fd_code fd_trial_keep(fd_trial *t, fd_contender *c, fd_error *err) {
    for (int32_t i = 0; i < t->n; i++) {
        const bool again = fd_hypothesis_same(&t->contenders[i].h, &c->h);
        if (!again && !same_unknown(&t->contenders[i].h, &c->h)) continue;
        if (again || better(&t->contenders[i].fit, &c->fit)) {
            fd_variant_free(&c->variant);
            return FD_OK;
        }
        fd_trial_drop(t, i);
        break;
    }
    fd_contender *grown = realloc(t->contenders, sizeof *grown * (size_t)(t->n + 1));
    if (!grown) {
        fd_variant_free(&c->variant);
        return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    }
    t->contenders = grown;
    int32_t at = t->n++;
    for (; at > 0 && better(&c->fit, &grown[at - 1].fit); at--) grown[at] = grown[at - 1];
    grown[at] = *c;
    return FD_OK;
}

bool fd_trial_fits(const fd_trial *t) {
    if (t->n == 0) return false;
    const fd_explain_fit *best = &t->contenders[0].fit;
    /* a loose fit may have a better one after it */
    if (!(best->z <= 1.0) &&
        !(fd_trial_is_fit(t, best) && (repeats(best) || best->rms * LITTLE_LEFT < t->out->unmodified.rms)))
        return false;
    return !t->all.request->numerics || fd_fit_decides(&t->contenders[0].fit, &t->out->unmodified);
}
