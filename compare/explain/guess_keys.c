/* Keys that attention's mask hides where it should not: by a rule, or a set of them that scores or weights show. */
#include <math.h>

#include "compare/explain/guesses.h"

/* Where scores or weights are recorded the set can be read off: keys of weight zero, or score -Inf or h->value, that have none by
 * right, in every head of every row; h->n: their own rows may see them. */
static uint64_t keys_without_weight(const fd_trial *t, const fd_hypothesis *h) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = r->args.node;
    int64_t n_kv = r->args.n_kv, stride = fd_node_row_stride(node, r->args.n_kv);
    bool scores = node->op == FD_OP_ATTN_SCORES;
    uint64_t zero = (scores || node->op == FD_OP_ATTN_SOFTMAX) && n_kv <= 64 ? ~0ull : 0, any = 0;
    for (int64_t i = r->n_unjudged * stride; i < r->args.n_pos * stride && zero; i++) {
        int64_t key = i % n_kv;
        bool visible = scores ? isfinite(t->all.plain.rows[i]) : t->all.plain.rows[i] > 0;
        if (key > r->args.pos0 + i / stride - (h->n > 0) || !visible) continue;
        any |= 1ull << key;
        bool seen = scores ? isfinite(r->output[i]) : r->output[i] > 0 || r->output[i] < 0;
        if (h->first) seen = r->output[i] < (float)h->value || r->output[i] > (float)h->value;
        if (seen) zero &= ~(1ull << key);
    }
    return zero & any;
}

enum { MOST_TILE = 128, MOST_NEAR = 8, MOST_SINKS = 4 };

/* Through a span no weights show which keys are hidden: one, or a few in a row, as where a page is lost. */
static fd_code try_runs_of_keys(fd_trial *t, fd_hypothesis h, int32_t n_kv, fd_error *err) {
    static const int32_t lengths[] = {1, 2, 3, 4, 8, 16};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int32_t first = 0; first + lengths[i] <= n_kv; first++)
            for (h.n = 0; h.n < (i == 0 ? 2 : 1) && !fd_trial_fits(t); h.n++) {
                h.keys = ((UINT64_C(1) << lengths[i]) - 1) << first;
                FD_TRY(fd_trial_try(t, &h, err));
            }
    return FD_OK;
}

/* Fewer may be equal because K's rows are. */
enum { FEWEST_OF_ONE_NUMBER = 3 };

/* Scores that depart, all with one number: what a mask writes there that is not -Inf. */
static bool are_one_number(const fd_trial *t, double *number) {
    const fd_explain_request *r = t->all.request;
    const fd_variant *plain = &t->all.plain;
    const int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    int64_t n = 0;
    for (int64_t i = r->n_unjudged * stride; i < r->args.n_pos * stride; i++) {
        const double c = (double)r->output[i], y = (double)plain->rows[i];
        if (i % r->args.n_kv > r->args.pos0 + i / stride || fabs(c - y) <= (plain->tau ? plain->tau[i] : 0)) continue;
        if (!isfinite(c) || (n > 0 && (c < *number || c > *number))) return false;
        *number = c;
        n++;
    }
    return n >= FEWEST_OF_ONE_NUMBER;
}

fd_code fd_guess_keys_at(fd_trial *t, fd_hypothesis h, const fd_node *node, fd_error *err) {
    const fd_op_args *args = &t->all.request->args;
    int32_t n_kv = args->n_kv, step = args->pos0 - args->batch_offset;
    const int32_t most_tile = n_kv / 2 < MOST_TILE ? n_kv / 2 : MOST_TILE;
    const struct {
        fd_key_rule rule;
        int32_t low, high, other_low, other_high;
    } rules[] = {{FD_KEYS_LAST_N, 1, n_kv - 1, 0, 0},
                 {FD_KEYS_SINKS, 2, n_kv - 2 < MOST_TILE ? n_kv - 2 : MOST_TILE, 1, MOST_SINKS},
                 {FD_KEYS_NOT_FIRST_N, 1, n_kv - 1, 0, 0},
                 {FD_KEYS_NOT_OWN, 1, 1, 0, 0},
                 {FD_KEYS_NOT_LAST, 1, !args->row_by_row && n_kv == args->batch_end, 0, 0},
                 {FD_KEYS_FIRST_N, 1, n_kv - 1, 0, 0},
                 {FD_KEYS_TILE, 2, most_tile, 0, 0},
                 {FD_KEYS_FIRST_N, 1, n_kv - 1, 1, 1}, /* of few rows the same as a tile */
                 {FD_KEYS_OF_TILE, 2, args->row_by_row ? 0 : FD_MOST_ROWS_OF_TILE, 0, 0},
                 {FD_KEYS_FAR, 2, 3, 0, MOST_NEAR},
                 {FD_KEYS_CHUNK, step > 0 ? step : 1, step, 0, 0}};
    if (node->op != args->node->op && node->op == FD_OP_ATTN_SCORES) return FD_OK; /* softmax's, then */
    h.first = node->op == FD_OP_ATTN_SCORES && are_one_number(t, &h.value);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (int32_t n = rules[i].low; n <= rules[i].high && !fd_trial_fits(t); n++) {
            const bool odd_tile = rules[i].rule == FD_KEYS_TILE && (n & (n - 1)) != 0 && n % 8 != 0;
            if (odd_tile) continue; /* no kernel has it: some number of keys is another reason */
            h.which = (int32_t)rules[i].rule;
            h.n = n;
            h.end = rules[i].rule == FD_KEYS_OF_TILE ? step : 0;
            for (h.other = rules[i].other_low; h.other <= rules[i].other_high && !fd_trial_fits(t); h.other++)
                FD_TRY(fd_trial_try(t, &h, err));
        }
    h.other = h.end = 0;
    h.which = FD_KEYS_SET;
    for (h.n = 0; h.n < 2 && !fd_trial_fits(t); h.n++) {
        h.keys = keys_without_weight(t, &h);
        if (h.keys) FD_TRY(fd_trial_try(t, &h, err));
    }
    return node->op != args->node->op && n_kv <= 64 ? try_runs_of_keys(t, h, n_kv, err) : FD_OK;
}

/* How many positions a cache has that is made once: a few more than are fed, else a round number. */
enum { MOST_SPARE = 64, ROUND_TO = 64, MOST_ROUND = 1024, MOST_SLOTS = 8192 };

fd_code fd_guess_slots_at(fd_trial *t, fd_hypothesis h, const fd_node *node, fd_error *err) {
    const int32_t n_kv = t->all.request->args.n_kv;
    const bool hidden =
        t->span[0] < node->input[0] && !t->all.request->args.row_by_row; /* scores are recorded with their mask */
    for (h.which = 0; h.which <= hidden; h.which++) {
        if (h.which && h.node >= 0) h.layer = node->layer, h.node = -1; /* what reads the cache is concerned as well */
        for (h.n = n_kv + 1; h.n <= MOST_SLOTS && !fd_trial_fits(t);) {
            FD_TRY(fd_trial_try(t, &h, err));
            h.n = h.n < n_kv + MOST_SPARE ? h.n + 1 : h.n < MOST_ROUND ? h.n + ROUND_TO - h.n % ROUND_TO : 2 * h.n;
        }
    }
    return FD_OK;
}
