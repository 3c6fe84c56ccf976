/* The sampler's definition by a full sort, against what it does by heap and partial sums. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/sampler.h"
#include "numerics/sampling.h"

/* top_k, top_p, min_p, temperature; the rest off, seed 42 */
#define OPTIONS(k, p, m, t)                                                                                            \
    { .temperature = t, .top_k = k, .top_p = p, .min_p = m, .repeat_penalty = 1, .repeat_last = -1, .seed = 42 }

typedef struct ranked {
    float logit;
    int32_t id;
} ranked;

static int best_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static int32_t by_definition(const fd_sampler_options *o, const float *logits, int32_t n_vocab, uint64_t n_draw) {
    static ranked list[5000];
    static uint64_t weight[5000];
    int32_t n = 0, kept = 0;
    uint64_t sum = 0, reached = 0;
    for (int32_t id = 0; id < n_vocab; id++)
        if (logits[id] != -INFINITY) list[n++] = (ranked){logits[id], id};
    qsort(list, (size_t)n, sizeof *list, best_first);
    if (o->temperature == 0) return list[0].id;
    if (o->top_k > 0 && o->top_k < n) n = o->top_k;
    for (int32_t i = 0; i < n; i++) sum += fd_sampling_weight(list[i].logit - list[0].logit);
    double share = fd_sampling_share(o->top_p, sum);
    for (kept = 0; kept < n && (o->top_p == 1 || (double)reached < share); kept++)
        reached += fd_sampling_weight(list[kept].logit - list[0].logit);
    memset(weight, 0, sizeof weight);
    sum = reached = 0;
    for (int32_t i = 0; i < kept; i++) {
        float below = list[i].logit - list[0].logit;
        if (!(fd_exp32(below) >= o->min_p)) continue;
        weight[list[i].id] = fd_sampling_weight(below / o->temperature);
        sum += weight[list[i].id];
    }
    unsigned __int128 product = (unsigned __int128)fd_sampling_random(o->seed, n_draw) * sum;
    for (int32_t id = 0; id < n_vocab; id++)
        if ((reached += weight[id]) > (uint64_t)(product >> 64)) return id;
    return -1;
}

Test(sampler_definition, equals_its_definition_by_a_full_sort) {
    static const fd_sampler_options options[] = {
        OPTIONS(0, 1, 0, 0),    OPTIONS(0, 1, 0, 1),          OPTIONS(40, 1, 0, 0.8f), OPTIONS(0, 0.9f, 0, 1),
        OPTIONS(7, 0.5f, 0, 2), OPTIONS(40, 0.95f, 0.05f, 1), OPTIONS(0, 1, 0.02f, 5), OPTIONS(4999, 0.999f, 0, 1),
    };
    enum { VOCAB = 5000 };
    static float logits[VOCAB];
    uint64_t random = 1;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        fd_sampler *sampler;
        fd_error err = {0};
        cr_assert_eq(fd_sampler_new(&options[i], VOCAB, &sampler, &err), FD_OK, "%s", err.message);
        for (int32_t draw = 0; draw < 50; draw++) {
            for (int32_t id = 0; id < VOCAB; id++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                logits[id] = (float)(random >> 40) * 0x1p-20f - 8;
                if (draw % 2) logits[id] = rintf(logits[id]); /* ties */
                if (draw % 3 == 2 && id % 3 != 1) logits[id] = -INFINITY;
            }
            int32_t expected = by_definition(&options[i], logits, VOCAB, (uint64_t)draw);
            int32_t token = -1;
            cr_assert_eq(fd_sample(sampler, logits, NULL, 0, &token, &err), FD_OK, "%s", err.message);
            cr_assert_eq(token, expected, "options %zu, draw %d", i, draw);
        }
        cr_expect_eq(fd_sampler_draws(sampler), options[i].temperature > 0 ? 50u : 0u);
        fd_sampler_free(sampler);
    }
}
