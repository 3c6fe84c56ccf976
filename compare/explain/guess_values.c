/* Values that attention mixes and that are others than were written: where what it makes of them is recorded, a run of rows from another
 * place has to add up to what departs. */
#include <math.h>
#include <stdlib.h>

#include "compare/explain/guesses.h"

/* Few equations say which runs are worth a trial: half of them where most departs, which a run that adds little does not explain, and
 * half spread over all elements, which one that adds too much spoils. */
enum { MOST_EQUATIONS = 32, MOST_DEPARTING = 16, MOST_KEYS = 512 };

/* Equation e is of element at[e]; sums[key · n_equation + e] is what the keys before `key` add. */
typedef struct value_sums {
    const fd_explain_request *r;
    const float *weights, *values;           /* values: the cache, from position 0 on; NULL: not known */
    int64_t n_head, dim, group, n_kv, width; /* width: of a row of the cache */
    double *missing;    /* [n_equation] the candidate less the op as it should be, and its bound; owned */
    double *tau, *sums; /* owned */
    int64_t at[MOST_EQUATIONS];
    int64_t n_equation;
} value_sums;

static double departs(const value_sums *v, const fd_variant *plain, int64_t at) {
    const double d = fabs((double)v->r->output[at] - (double)plain->rows[at]), tau = plain->tau ? plain->tau[at] : 0;
    return tau > 0 ? d / tau : d > 0 ? INFINITY : 0;
}

/* The elements that depart most, then as many again as there is room for. */
static void choose_equations(value_sums *v, const fd_variant *plain) {
    const int64_t first = v->r->n_unjudged * v->n_head * v->dim;
    const int64_t end = v->r->args.n_pos * v->n_head * v->dim, n = end - first;
    double most[MOST_DEPARTING];
    int64_t n_most = 0;
    for (int64_t at = first; at < end && n > MOST_EQUATIONS; at++) {
        const double by = departs(v, plain, at);
        if (n_most == MOST_DEPARTING && !(by > most[n_most - 1])) continue;
        int64_t k = n_most < MOST_DEPARTING ? n_most++ : n_most - 1;
        for (; k > 0 && by > most[k - 1]; k--) most[k] = most[k - 1], v->at[k] = v->at[k - 1];
        most[k] = by;
        v->at[k] = at;
    }
    v->n_equation = n < MOST_EQUATIONS ? n : MOST_EQUATIONS;
    const int64_t n_spread = v->n_equation - n_most;
    for (int64_t e = 0; e < n_spread; e++)
        v->at[n_most + e] = first + (int64_t)((double)n * (double)e / (double)n_spread);
}

static bool open_sums(const fd_trial *t, const float *weights, const float *values, value_sums *v) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = r->args.node, *cache = &r->args.graph->nodes[node->input[1]];
    const fd_variant *plain = &t->all.plain;
    *v = (value_sums){.r = r, .weights = weights, .values = values, .n_head = node->shape[0], .dim = node->shape[1]};
    v->n_kv = r->args.n_kv;
    v->width = fd_node_width(cache);
    v->group = v->n_head / cache->shape[0];
    choose_equations(v, plain);
    v->missing = malloc(2 * sizeof *v->missing * (size_t)v->n_equation);
    v->sums = malloc(sizeof *v->sums * (size_t)((v->n_kv + 1) * v->n_equation));
    if (!v->missing || !v->sums) return false;
    v->tau = v->missing + v->n_equation;
    for (int64_t e = 0; e < v->n_equation; e++) {
        const int64_t at = v->at[e];
        v->missing[e] = (double)r->output[at] - (double)plain->rows[at];
        v->tau[e] = plain->tau ? plain->tau[at] : 0;
    }
    return true;
}

static void close_sums(value_sums *v) {
    free(v->missing);
    free(v->sums);
}

/* Of rows `away` further on; 0: zeros. */
static void add_up(const value_sums *v, int64_t away) {
    for (int64_t e = 0; e < v->n_equation; e++) {
        const int64_t at = v->at[e], row = at / (v->n_head * v->dim), head = at / v->dim % v->n_head;
        const float *weights = v->weights + (row * v->n_head + head) * v->n_kv;
        const float *column = v->values + head / v->group * v->dim + at % v->dim;
        double sum = 0;
        for (int64_t key = 0; key <= v->n_kv; key++) {
            v->sums[key * v->n_equation + e] = sum;
            if (key == v->n_kv || key > v->r->args.pos0 + row) continue;
            const int64_t of = key + away;
            const double other = away == 0 || of < 0 || of >= v->n_kv ? 0 : (double)column[of * v->width];
            sum += (double)weights[key] * (other - (double)column[key * v->width]);
        }
    }
}

/* Twice the bound: what other rows add has roundings of its own, and the trial looks closer. Where all that departs is not twice the
 * bound, any run that adds little does that: it has to take half of the squares away as well. */
static bool adds_up(const value_sums *v, int64_t first, int64_t end) {
    double before = 0, after = 0;
    for (int64_t e = 0; e < v->n_equation; e++) {
        const double more = v->sums[end * v->n_equation + e] - v->sums[first * v->n_equation + e];
        const double left = v->missing[e] - more;
        if (!(fabs(left) <= 2 * v->tau[e] + 0x1p-22 * fabs(more))) return false;
        before += v->missing[e] * v->missing[e];
        after += left * left;
    }
    return 2 * after <= before;
}

static fd_code try_runs(fd_trial *t, const value_sums *v, int64_t away, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = v->r->args.node->id};
    h.which = away ? FD_CACHE_MOVED : FD_CACHE_ZEROS;
    h.n = (int32_t)away;
    for (int64_t first = away < 0 ? -away : 0; first < v->n_kv; first++)
        for (int64_t end = away > 0 ? v->n_kv - away : v->n_kv; end > first && !fd_trial_fits(t); end--) {
            if (!adds_up(v, first, end)) continue;
            h.first = (int32_t)first;
            h.end = (int32_t)end;
            FD_TRY(fd_guess_cache_rows(t, h, err));
        }
    return FD_OK;
}

/* Weights and values as the op reads them; false: one of them is not known. */
static fd_code open_values(const fd_trial *t, fd_variant made[2], value_sums *v, bool *known, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = r->args.node, *cache = &r->args.graph->nodes[node->input[1]];
    const float *of[2];
    *known = false;
    *v = (value_sums){0};
    if (node->n_dim != 2 || cache->n_dim != 2 || cache->shape[1] != node->shape[1]) return FD_OK;
    if (r->args.n_kv > MOST_KEYS || node->shape[0] % cache->shape[0] != 0) return FD_OK;
    for (int k = 0; k < 2; k++) {
        of[k] = r->tensor ? r->tensor(r->user, node->input[k]) : NULL;
        if (!of[k]) FD_TRY(fd_evaluate(t->all.bench, &fd_no_hypothesis, node->input[k], false, &made[k], err));
        if (made[k].state == FD_VARIANT_COMPUTED) of[k] = made[k].memory;
        if (!of[k]) return FD_OK;
    }
    *known = open_sums(t, of[0], of[1], v);
    return *known ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", node->name);
}

fd_code fd_guess_values(fd_trial *t, fd_error *err) {
    fd_variant made[2] = {{0}, {0}};
    value_sums v;
    bool known;
    fd_code code = open_values(t, made, &v, &known, err);
    for (int64_t away = 0; away < v.n_kv && known && code == FD_OK && !fd_trial_fits(t); away++)
        for (int sign = -1; sign <= 1 && code == FD_OK; sign += 2) {
            if (away == 0 && sign > 0) continue;
            add_up(&v, sign * away);
            code = try_runs(t, &v, sign * away, err);
        }
    close_sums(&v);
    fd_variant_free(&made[0]);
    fd_variant_free(&made[1]);
    if (code != FD_OK || fd_trial_fits(t)) return code;
    const fd_hypothesis all = {
        .guess = FD_GUESS_CACHE, .node = t->all.request->args.node->id, .end = t->all.request->args.n_kv};
    return fd_guess_other_caches(t, all, err);
}
