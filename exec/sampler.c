#include "exec/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/sampling.h"

typedef struct candidate {
    float logit; /* after the penalty; finite */
    int32_t id;
} candidate;

struct fd_sampler {
    fd_sampler_options options;
    int32_t n_vocab;
    uint64_t n_draw;       /* so far */
    candidate *candidates; /* [n_vocab] scratch */
    candidate *best;       /* [n_vocab] scratch: candidates in falling order, as far as a cut needed them */
    uint64_t *weights;     /* [n_vocab] scratch */
    bool *is_repeated;     /* [n_vocab] all false between calls */
};

fd_sampler_options fd_sampler_defaults(void) {
    return (fd_sampler_options){
        .temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .repeat_last = 64, .seed = 0};
}

fd_code fd_sampler_check(const fd_sampler_options *o, fd_error *err) {
    if (!(o->temperature >= 0 && o->temperature < INFINITY))
        return fd_fail(err, FD_ERR_INPUT, "temperature: found %g, expected a number from 0", (double)o->temperature);
    if (o->top_k < 0) return fd_fail(err, FD_ERR_INPUT, "top-k: found %d, expected 0 (off) or more", o->top_k);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return fd_fail(err, FD_ERR_INPUT, "top-p: found %g, expected above 0, up to 1 (off)", (double)o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return fd_fail(err, FD_ERR_INPUT, "min-p: found %g, expected 0 (off) to 1", (double)o->min_p);
    if (!(o->repeat_penalty > 0 && o->repeat_penalty < INFINITY))
        return fd_fail(err, FD_ERR_INPUT, "repeat-penalty: found %g, expected above 0 (1: off)",
                       (double)o->repeat_penalty);
    if (o->repeat_last < -1)
        return fd_fail(err, FD_ERR_INPUT, "repeat-last: found %d, expected -1 (all) or more", o->repeat_last);
    return FD_OK;
}

fd_code fd_sampler_new(const fd_sampler_options *options, int32_t n_vocab, fd_sampler **out, fd_error *err) {
    *out = NULL;
    FD_TRY(fd_sampler_check(options, err));
    if (n_vocab <= 0)
        return fd_fail(err, FD_ERR_INPUT, "sampler: found a vocabulary of %d, expected at least 1", n_vocab);
    if (n_vocab > FD_SAMPLING_MAX_VOCAB)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "sampler: found a vocabulary of %d, expected at most %d", n_vocab,
                       FD_SAMPLING_MAX_VOCAB);
    size_t n = (size_t)n_vocab;
    fd_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler) return fd_fail(err, FD_ERR_MEMORY, "sampler: no memory");
    sampler->options = *options;
    sampler->n_vocab = n_vocab;
    sampler->candidates = malloc(n * sizeof *sampler->candidates);
    sampler->best = malloc(n * sizeof *sampler->best);
    sampler->weights = malloc(n * sizeof *sampler->weights);
    sampler->is_repeated = calloc(n, sizeof *sampler->is_repeated);
    if (!sampler->candidates || !sampler->best || !sampler->weights || !sampler->is_repeated) {
        fd_sampler_free(sampler);
        return fd_fail(err, FD_ERR_MEMORY, "sampler: no memory for %d candidates", n_vocab);
    }
    *out = sampler;
    return FD_OK;
}

void fd_sampler_free(fd_sampler *sampler) {
    if (!sampler) return;
    free(sampler->candidates);
    free(sampler->best);
    free(sampler->weights);
    free(sampler->is_repeated);
    free(sampler);
}

const fd_sampler_options *fd_sampler_options_of(const fd_sampler *sampler) {
    return &sampler->options;
}

uint64_t fd_sampler_draws(const fd_sampler *sampler) {
    return sampler->n_draw;
}

void fd_sampler_skip(fd_sampler *sampler, uint64_t n) {
    sampler->n_draw += n;
}

static bool is_better(candidate a, candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static int by_id(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

fd_code fd_sampler_refuse(const fd_sampler *sampler, fd_bad_logit bad, int32_t id, fd_error *err) {
    const char *found = bad == FD_LOGIT_NAN || bad == FD_LOGIT_NAN_PENALISED ? "NaN" : "+inf";
    if (bad == FD_LOGITS_ALL_MINUS_INF)
        return fd_fail(err, FD_ERR_INPUT, "logits: found -inf for all %d ids, expected a number", sampler->n_vocab);
    if (bad == FD_LOGIT_NAN || bad == FD_LOGIT_INF)
        return fd_fail(err, FD_ERR_INPUT, "logit of id %d: found %s, expected a number or -inf", id, found);
    return fd_fail(err, FD_ERR_INPUT, "logit of id %d: found %s after repeat-penalty %g, expected a number or -inf", id,
                   found, (double)sampler->options.repeat_penalty);
}

static fd_code mark_repeated(fd_sampler *sampler, const int32_t *history, int32_t n_history, fd_error *err) {
    for (int32_t i = 0; i < n_history; i++)
        if (history[i] < 0 || history[i] >= sampler->n_vocab)
            return fd_fail(err, FD_ERR_INPUT, "sampler: history token %d: found id %d, expected one below %d", i,
                           history[i], sampler->n_vocab);
    for (int32_t i = 0; i < n_history; i++) sampler->is_repeated[history[i]] = true;
    return FD_OK;
}

/* The finite logits, penalised, in rising id. *top is the best of them. */
static fd_code collect(const fd_sampler *sampler, const float *logits, int32_t *n, candidate *top, fd_error *err) {
    *n = 0;
    *top = (candidate){-INFINITY, INT32_MAX};
    for (int32_t id = 0; id < sampler->n_vocab; id++) {
        float logit = logits[id];
        if (!(logit < INFINITY))
            return fd_sampler_refuse(sampler, logit != logit ? FD_LOGIT_NAN : FD_LOGIT_INF, id, err);
        if (sampler->is_repeated[id]) logit = fd_sampling_penalise(logit, sampler->options.repeat_penalty);
        if (!(logit < INFINITY))
            return fd_sampler_refuse(sampler, logit != logit ? FD_LOGIT_NAN_PENALISED : FD_LOGIT_INF_PENALISED, id,
                                     err);
        if (logit == -INFINITY) continue;
        candidate one = {logit, id};
        if (is_better(one, *top)) *top = one;
        sampler->candidates[(*n)++] = one;
    }
    return *n > 0 ? FD_OK : fd_sampler_refuse(sampler, FD_LOGITS_ALL_MINUS_INF, -1, err);
}

static void sift_down(candidate *heap, int32_t n, int32_t at) {
    candidate moving = heap[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_better(heap[child + 1], heap[child])) child++;
        if (!is_better(heap[child], moving)) break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

static candidate pop_best(candidate *heap, int32_t *n) {
    candidate first = heap[0];
    heap[0] = heap[--*n];
    if (*n > 1) sift_down(heap, *n, 0);
    return first;
}

static uint64_t sum_weights(const candidate *list, int32_t n, float top) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i++) sum += fd_sampling_weight(list[i].logit - top);
    return sum;
}

/* Steps 2 and 3. A heap gives the candidates best first, so only those that are kept need be put in order: a nucleus of
 * a hundred out of 150,000 costs no sort of all. Returns the list that holds what is left, *n of them in rising id. */
static candidate *cut_top(fd_sampler *sampler, int32_t *n, float top) {
    int32_t k = sampler->options.top_k, n_heap = *n, n_best = 0;
    float top_p = sampler->options.top_p;
    bool cut_k = k > 0 && k < *n;
    if (!cut_k && !(top_p < 1)) return sampler->candidates;
    uint64_t sum = cut_k ? 0 : sum_weights(sampler->candidates, *n, top);
    for (int32_t at = *n / 2; at-- > 0;) sift_down(sampler->candidates, *n, at);
    if (cut_k) {
        while (n_best < k) sampler->best[n_best++] = pop_best(sampler->candidates, &n_heap);
        sum = sum_weights(sampler->best, n_best, top);
    }
    if (top_p < 1) {
        int32_t n_left = cut_k ? n_best : *n;
        uint64_t reached = 0;
        double share = fd_sampling_share(top_p, sum);
        for (n_best = 0; n_best < n_left && (double)reached < share; n_best++) {
            if (!cut_k) sampler->best[n_best] = pop_best(sampler->candidates, &n_heap);
            reached += fd_sampling_weight(sampler->best[n_best].logit - top);
        }
    }
    *n = n_best;
    qsort(sampler->best, (size_t)n_best, sizeof *sampler->best, by_id);
    return sampler->best;
}

static int32_t draw(fd_sampler *sampler, const candidate *list, int32_t n, float top) {
    const fd_sampler_options *o = &sampler->options;
    uint64_t sum = 0, reached = 0;
    for (int32_t i = 0; i < n; i++) {
        float below = list[i].logit - top;
        sampler->weights[i] = fd_exp32(below) >= o->min_p ? fd_sampling_weight(below / o->temperature) : 0;
        sum += sampler->weights[i];
    }
    uint64_t target = fd_sampling_below(fd_sampling_random(o->seed, sampler->n_draw++), sum);
    int32_t at = -1;
    while (reached <= target) reached += sampler->weights[++at]; /* ends: target is below the sum of all */
    return list[at].id;
}

fd_code fd_sample(fd_sampler *sampler, const float *logits, const int32_t *history, int32_t n_history, int32_t *token,
                  fd_error *err) {
    *token = -1;
    int32_t window = sampler->options.repeat_last;
    if (sampler->options.repeat_penalty == 1.0f) window = 0;
    int32_t n_seen = window < 0 || window > n_history ? n_history : window;
    const int32_t *seen = n_seen > 0 ? history + (n_history - n_seen) : history;
    FD_TRY(mark_repeated(sampler, seen, n_seen, err));
    int32_t n;
    candidate top;
    fd_code code = collect(sampler, logits, &n, &top, err);
    for (int32_t i = 0; i < n_seen; i++) sampler->is_repeated[seen[i]] = false;
    if (code != FD_OK) return code;
    if (sampler->options.temperature == 0.0f) {
        *token = top.id;
        return FD_OK;
    }
    const candidate *list = cut_top(sampler, &n, top.logit);
    *token = draw(sampler, list, n, top.logit);
    return FD_OK;
}
