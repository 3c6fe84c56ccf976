/* What an op gives, reads or multiplies, rounded to fewer bits; and mistakes that are made at every node of an op. */
#include "base/dtype.h"
#include "compare/explain/guesses.h"
#include "compare/explain/solve.h"
#include "compare/hypothesis/round_scaled.h"
#include "compare/hypothesis/round_type.h"

/* Any tensor's, then a cache's, or what was recorded, alone. */
static const struct {
    int32_t type;
    fd_scale_of scale;
} types[] = {
    {FD_F16, FD_SCALE_NONE},
    {FD_BF16, FD_SCALE_NONE},
    {FD_Q8_0, FD_SCALE_NONE},
    {FD_ROUND_Q8_0_KEPT, FD_SCALE_NONE},
    {FD_Q5_1, FD_SCALE_NONE},
    {FD_Q5_0, FD_SCALE_NONE},
    {FD_Q4_1, FD_SCALE_NONE},
    {FD_Q4_0, FD_SCALE_NONE},
    {FD_ROUND_E4M3, FD_SCALE_NONE},
    {FD_ROUND_E5M2, FD_SCALE_NONE},
    {FD_ROUND_INT8, FD_SCALE_HEAD},
    {FD_ROUND_INT8, FD_SCALE_ROW},
    {FD_ROUND_INT8, FD_SCALE_STEP},
    {FD_ROUND_INT8_128, FD_SCALE_HEAD},
    {FD_ROUND_INT8_128, FD_SCALE_ROW},
    {FD_ROUND_E4M3, FD_SCALE_HEAD},
    {FD_ROUND_E4M3, FD_SCALE_ROW},
    {FD_ROUND_E4M3, FD_SCALE_STEP},
    {FD_ROUND_E5M2, FD_SCALE_HEAD},
    {FD_ROUND_E5M2, FD_SCALE_ROW},
    {FD_ROUND_E5M2, FD_SCALE_STEP},
    {FD_ROUND_INT4, FD_SCALE_HEAD},
    {FD_ROUND_INT4, FD_SCALE_ROW},
    {FD_ROUND_UINT8, FD_SCALE_HEAD},
    {FD_ROUND_UINT8, FD_SCALE_ROW},
    /* of a cache that was recorded */
    {FD_ROUND_E4M3, FD_SCALE_FITTED},
    {FD_ROUND_E5M2, FD_SCALE_FITTED},
    {FD_ROUND_INT8, FD_SCALE_FITTED},
    {FD_ROUND_E4M3, FD_SCALE_HEAD_FITTED},
    {FD_ROUND_INT8, FD_SCALE_HEAD_FITTED},
    {FD_ROUND_INT8, FD_SCALE_ELEMENT_FITTED},
};

/* `recorded`: it is the node asked about. */
static int n_type(fd_op op, bool recorded) {
    int n = sizeof types / sizeof *types;
    while (!(recorded && op == FD_OP_KV_WRITE) && types[n - 1].scale >= FD_SCALE_FITTED) n--;
    return op == FD_OP_KV_WRITE || recorded ? n : 2;
}

fd_code fd_guess_rounding(fd_trial *t, const fd_node *node, fd_error *err) {
    const bool gated = (node->op == FD_OP_SILU_MUL || node->op == FD_OP_GELU_MUL) && node->input[1] >= 0;
    const bool factor = gated || (node->op == FD_OP_RMS_NORM && node->weight[0] >= 0);
    const int n = n_type(node->op, node->id == t->all.request->args.node->id);
    const int n_rule = gated ? FD_ROUNDED_TABLE + 1 : factor ? FD_ROUNDED_FACTOR + 1 : FD_ROUNDED_FACTOR;
    for (int which = 0; which < n_rule; which++)
        for (int i = 0; i < (which == FD_ROUNDED_RESULT ? n : 2) && !fd_trial_fits(t); i++) {
            fd_hypothesis h = {.guess = FD_GUESS_ROUNDED,
                               .node = node->id,
                               .which = which,
                               .other = types[i].type,
                               .n = types[i].scale};
            FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}

/* Every product leaves out the end of its sums, or every norm sums the first squares alone: one kernel computes them. */
static fd_code try_cut_everywhere(fd_trial *t, int32_t ops, fd_error *err) {
    const bool product = ops - 1 == FD_OP_MATMUL, norm = ops - 1 == FD_OP_RMS_NORM;
    const int32_t width = t->all.request->args.graph->hparams.n_embd;
    fd_hypothesis h = {.node = -1, .layer = FD_ANY_LAYER, .ops = ops};
    h.guess = product ? FD_GUESS_INPUT_TAIL : FD_GUESS_STATISTIC;
    for (int32_t n = 1; n <= width / 2 && (product || norm) && !fd_trial_fits(t); n *= 2) {
        h.n = product ? n : width - n;
        for (h.which = 0; h.which <= (norm ? FD_STATISTIC_FIRST : 0) && !fd_trial_fits(t); h.which++)
            FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* The same mistake at every node of an op, where the span has several: all norms, all additions to the stream. */
static fd_code try_everywhere(fd_trial *t, int32_t ops, fd_error *err) {
    static const double factors[] = {0, 2, 0.5, -1};
    fd_hypothesis h = {.guess = FD_GUESS_ROUNDED, .node = -1, .layer = FD_ANY_LAYER, .ops = ops};
    int n = n_type((fd_op)(ops - 1), false);
    for (int i = 0; i < n && !fd_trial_fits(t); i++) {
        h.other = types[i].type;
        h.n = types[i].scale;
        FD_TRY(fd_trial_try(t, &h, err));
    }
    h = (fd_hypothesis){.guess = FD_GUESS_INPUT_FACTOR, .node = -1, .layer = FD_ANY_LAYER, .ops = ops};
    for (h.which = 0; h.which < 2 && ops - 1 == FD_OP_ADD; h.which++) FD_TRY(fd_try_or_solve(t, h, factors, 4, err));
    return fd_trial_fits(t) ? FD_OK : try_cut_everywhere(t, ops, err);
}

fd_code fd_guess_everywhere(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t n_of[FD_OP_COUNT] = {0};
    for (int32_t i = 0; i < t->n_span; i++)
        if (++n_of[nodes[t->span[i]].op] == 2 && !fd_trial_fits(t))
            FD_TRY(try_everywhere(t, (int32_t)nodes[t->span[i]].op + 1, err));
    return FD_OK;
}
