/* What an RMSNorm divides by: the root mean square of other elements than its row's, or no root mean square. */
#include "compare/explain/guesses.h"

static fd_code try_one(fd_trial *t, fd_hypothesis h, fd_statistic which, int32_t n, fd_error *err) {
    h.which = (int32_t)which;
    h.n = n;
    return fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

/* Those that need no number. */
static fd_code try_plain(fd_trial *t, fd_hypothesis h, fd_error *err) {
    static const fd_statistic plain[] = {FD_STATISTIC_VARIANCE, FD_STATISTIC_ABSOLUTE, FD_STATISTIC_LARGEST,
                                         FD_STATISTIC_FIRST_ROW, FD_STATISTIC_WHOLE_ROW};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) FD_TRY(try_one(t, h, plain[i], 0, err));
    return FD_OK;
}

/* A group norm's: of every part its own. */
static fd_code try_parts(fd_trial *t, fd_hypothesis h, int32_t n, int32_t n_head, fd_error *err) {
    for (int32_t parts = 2; parts <= 8; parts *= 2)
        if (n % parts == 0) FD_TRY(try_one(t, h, FD_STATISTIC_PARTS, parts, err));
    return n_head > 2 && n % n_head == 0 ? try_one(t, h, FD_STATISTIC_PARTS, n_head, err) : FD_OK;
}

fd_code fd_guess_statistics(fd_trial *t, const fd_node *node, fd_error *err) {
    const int32_t n = node->shape[node->n_dim - 1], n_head = t->all.request->args.graph->hparams.n_head;
    const int32_t lengths[] = {n / 2,  n / 4 * 3, n / 8 * 7, n / 4, n - 128, n - 64,
                               n - 32, n - 16,    n - 8,     n - 4, n - 2,   n - 1};
    const fd_hypothesis h = {.guess = FD_GUESS_STATISTIC, .node = node->id};
    if (node->op != FD_OP_RMS_NORM) return FD_OK;
    for (int which = 0; which <= FD_STATISTIC_FIRST; which++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            if (lengths[i] > 0) FD_TRY(try_one(t, h, (fd_statistic)which, lengths[i], err));
    FD_TRY(try_plain(t, h, err));
    return try_parts(t, h, n, n_head, err);
}

/* One function norms every row of the span, or every row of a kind. */
fd_code fd_guess_statistics_everywhere(fd_trial *t, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    fd_hypothesis all = {.guess = FD_GUESS_STATISTIC, .node = -1, .layer = FD_ANY_LAYER, .ops = FD_OP_RMS_NORM + 1};
    const int32_t first = fd_trial_first_layer(t);
    for (; all.n_dim <= 2; all.n_dim++) {
        if (all.n_dim && !fd_trial_norm_of_both(t, all.n_dim)) continue;
        FD_TRY(try_plain(t, all, err));
        FD_TRY(try_parts(t, all, graph->hparams.n_embd, graph->hparams.n_head, err));
    }
    for (int32_t i = 0; fd_trial_many_layers(t) && i < t->n_span && !fd_trial_fits(t); i++) {
        const fd_node *node = &graph->nodes[t->span[i]];
        const fd_hypothesis one = {.guess = FD_GUESS_STATISTIC, .node = node->id};
        const fd_hypothesis kind = fd_hypothesis_everywhere(&one, graph);
        if (node->op == FD_OP_RMS_NORM && node->layer == first) FD_TRY(try_plain(t, kind, err));
    }
    return FD_OK;
}
