/* What trying costs, in multiplications. */
#include "compare/explain/trial.h"

/* Some seconds of a core; through several layers each has faults and numbers of its own, and it is four times that. */
#define MOST_SPENT      0x1.8p34
#define MOST_SPENT_MANY 0x1.cp36

bool fd_trial_exhausted(const fd_trial *t) {
    double most = t->all.request->most_spent;
    return t->spent > (most > 0 ? most : fd_trial_many_layers(t) ? MOST_SPENT_MANY : MOST_SPENT);
}

/* What comes before the first node that the hypothesis is about was computed once for all. */
static double share_computed(const fd_trial *t, const fd_hypothesis *h) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_span; i++)
        n += h->node >= 0    ? t->span[i] < h->node
             : h->layer >= 0 ? nodes[t->span[i]].layer >= 0 && nodes[t->span[i]].layer < h->layer
                             : 0;
    return 1 - (double)n / t->n_span;
}

/* Through several layers the rows before those that are judged are computed as well, because what they leave in the caches is read. What rows
 * leave there that are as the op should have them, of the context or before a bug begins, is computed once, but attention reads it: measured,
 * a quarter. */
#define COST_OF_RIGHT_ROWS 0.25

static double products_of(const fd_trial *t, const fd_explain_request *on) {
    const int32_t n_right = t->since > 0 ? on->n_unjudged : on->n_context;
    const double n_row =
        fd_trial_many_layers(t) ? on->args.n_pos - (1 - COST_OF_RIGHT_ROWS) * n_right : on->args.n_pos - on->n_unjudged;
    return on->products * n_row;
}

void fd_trial_spend(fd_trial *t, const fd_explain_request *on, const fd_hypothesis *h, double times) {
    t->spent += times * share_computed(t, h) * products_of(t, on);
}

void fd_trial_spend_on_few(fd_trial *t, double times) {
    t->spent += times * products_of(t, t->few.request);
}
