/* kernels/sampling/sample.cu against exec/sampler.c: the same token for the same logits, options, draw and history. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sampling/sample.h"
#include "exec/sampler.h"
#include "tests/gpu/kernel_check.h"

enum { DRAWS = 6, HISTORY = 40 };

typedef enum pattern { SPREAD, TIES, HOLES, EQUAL, FAR, ZEROS, N_PATTERN } pattern;
static const char *const pattern_names[N_PATTERN] = {"spread", "ties", "holes", "equal", "far", "zeros"};

static void fill(gpu_test *test, pattern kind, float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        float sum = 0; /* about normal, deviation 2 */
        for (int k = 0; k < 4; k++) sum += (float)(gpu_random_bits(test) >> 8) * 0x1p-24f - 0.5f;
        x[i] = 3.5f * sum;
        if (kind == TIES) x[i] = rintf(x[i] * 2) / 2;
        if (kind == HOLES && i % 3 != 1) x[i] = -INFINITY;
        if (kind == EQUAL) x[i] = -1.25f;
        if (kind == FAR) x[i] = (float)((int)(gpu_random_bits(test) % 5) - 2) * 1e38f + x[i];
        if (kind == ZEROS) x[i] = gpu_random_bits(test) % 2 ? 0.0f : -0.0f;
    }
    if (kind == HOLES && n > 0) x[0] = 0.5f;
}

/* temperature, top_k, top_p, min_p, repeat_penalty, repeat_last */
#define OPTIONS(t, k, p, m, r, l)                                                                                      \
    { .temperature = t, .top_k = k, .top_p = p, .min_p = m, .repeat_penalty = r, .repeat_last = l }
static const fd_sampler_options cases[] = {
    OPTIONS(0, 0, 1, 0, 1, 64),          OPTIONS(0, 0, 1, 0, 1.3f, -1),      OPTIONS(1, 0, 1, 0, 1, 64),
    OPTIONS(0.7f, 40, 1, 0, 1, 64),      OPTIONS(1, 1, 1, 0, 1, 64),         OPTIONS(1, 0, 0.9f, 0, 1, 64),
    OPTIONS(2, 0, 0.999f, 0, 1, 64),     OPTIONS(1, 0, 1e-6f, 0, 1, 64),     OPTIONS(0.8f, 40, 0.95f, 0.05f, 1.1f, 64),
    OPTIONS(1.5f, 0, 1, 0.02f, 1, 64),   OPTIONS(5, 1000, 0.5f, 0, 1.2f, 5), OPTIONS(1e-40f, 0, 1, 0, 1, 64),
    OPTIONS(1, 2000000, 1, 0, 0.8f, -1), OPTIONS(1, 7, 0.99f, 1, 1, 0),
};

typedef struct host_and_device {
    fd_sampler *sampler;
    int32_t history[HISTORY + DRAWS], n_history;
    fd_sampling in;
} host_and_device;

static void open_case(gpu_test *test, const fd_sampler_options *o, const float *logits, int32_t n_vocab,
                      host_and_device *c) {
    fd_error err = {0};
    gpu_must(fd_sampler_new(o, n_vocab, &c->sampler, &err), &err);
    c->n_history = n_vocab > 100 ? HISTORY : 3;
    for (int32_t i = 0; i < c->n_history; i++) c->history[i] = (int32_t)(gpu_random_bits(test) % (uint32_t)n_vocab);
    c->history[1] = c->history[0]; /* twice, and penalised once */
    fd_sample_state state = {.temperature = o->temperature,
                             .top_p = o->top_p,
                             .min_p = o->min_p,
                             .repeat_penalty = o->repeat_penalty,
                             .top_k = o->top_k,
                             .repeat_last = o->repeat_last,
                             .seed = o->seed,
                             .n_draw = fd_sampler_draws(c->sampler),
                             .n_history = c->n_history};
    static fd_sample_result none[DRAWS];
    c->in = (fd_sampling){
        .n_seq = 1, .n_vocab = n_vocab, .history_stride = HISTORY + DRAWS, .n_result = DRAWS, .result_stride = 1};
    c->in.logits = gpu_upload(test, logits, sizeof *logits * (size_t)n_vocab);
    c->in.states = (fd_sample_state *)(void *)gpu_upload(test, &state, sizeof state);
    c->in.history = (int32_t *)(void *)gpu_upload(test, c->history, sizeof c->history);
    c->in.tokens = (int32_t *)(void *)gpu_upload(test, &none, sizeof(int32_t));
    c->in.positions[1] = (int32_t *)(void *)gpu_upload(test, &none, sizeof(int32_t));
    c->in.results = (fd_sample_result *)(void *)gpu_upload(test, none, sizeof none);
}

static void close_case(gpu_test *test, host_and_device *c) {
    fd_sampler_free(c->sampler);
    gpu_release(test);
}

static void download(gpu_test *test, const void *device, void *host, size_t bytes) {
    gpu_download(test, device, host, bytes / sizeof(float));
}

static void compare(gpu_test *test, const char *name, const fd_sampler_options *o, const float *logits,
                    int32_t n_vocab) {
    fd_error err = {0};
    host_and_device c;
    fd_sample_result found[DRAWS];
    int32_t expected[DRAWS], next, pos;
    open_case(test, o, logits, n_vocab, &c);
    for (int i = 0; i < DRAWS; i++) gpu_must(fd_launch_sample(&test->queue, &c.in, &err), &err);
    download(test, c.in.results, found, sizeof found);
    download(test, c.in.tokens, &next, sizeof next);
    download(test, c.in.positions[1], &pos, sizeof pos);
    bool equal = true;
    for (int i = 0; i < DRAWS; i++) {
        gpu_must(fd_sample(c.sampler, logits, c.history, c.n_history, &expected[i], &err), &err);
        c.history[c.n_history++] = expected[i];
        if (equal && found[i].token != expected[i])
            printf("  %s: draw %d: token %d, expected %d\n", name, i, found[i].token, expected[i]);
        equal = equal && found[i].token == expected[i] && found[i].bad == FD_SAMPLE_GOOD;
    }
    gpu_expect(test, name, equal && next == expected[DRAWS - 1] && pos == c.n_history - 1);
    close_case(test, &c);
}

static void check_refused(gpu_test *test) {
    static const struct {
        const char *name;
        int32_t id;
        float logit, other, penalty;
    } bad[] = {
        {"sample_refuses_nan", 700, NAN, 0, 1},
        {"sample_refuses_the_first_nan", 3, -NAN, NAN, 1},
        {"sample_refuses_inf", 999, INFINITY, 0, 1},
        {"sample_refuses_inf_before_the_penalty", 0, INFINITY, 0, 2},
        {"sample_refuses_inf_after_the_penalty", 42, 3e38f, 0, 0.5f},
        {"sample_refuses_minus_inf_everywhere", -1, -INFINITY, -INFINITY, 1},
    };
    enum { N = 1000 };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int t = 0; t < 2; t++) {
            static float logits[N];
            fd_error err = {0}, said = {0}, expected = {0};
            fd_sampler_options o = OPTIONS((float)t, 0, 0.5f, 0, bad[i].penalty, -1);
            host_and_device c;
            fd_sample_result found;
            int32_t token;
            for (int32_t k = 0; k < N; k++) logits[k] = bad[i].id < 0 ? bad[i].other : 0.25f;
            if (bad[i].id >= 0) logits[bad[i].id] = bad[i].logit;
            if (isnan(bad[i].other)) logits[N - 1] = bad[i].other;
            open_case(test, &o, logits, N, &c);
            for (int32_t k = 0; k < c.n_history; k++) c.history[k] = bad[i].id < 0 ? 0 : bad[i].id;
            c.in.history = (int32_t *)(void *)gpu_upload(test, c.history, sizeof c.history);
            gpu_must(fd_launch_sample(&test->queue, &c.in, &err), &err);
            download(test, c.in.results, &found, sizeof found);
            fd_code code = fd_sample(c.sampler, logits, c.history, c.n_history, &token, &expected);
            (void)fd_sampler_refuse(c.sampler, (fd_bad_logit)found.bad, found.id, &said);
            bool same = code == FD_ERR_INPUT && found.token == -1 && strcmp(said.message, expected.message) == 0;
            if (!same) printf("  \"%s\", expected \"%s\"\n", said.message, expected.message);
            gpu_expect(test, bad[i].name, same);
            close_case(test, &c);
        }
}

void check_sample(gpu_test *test) {
    /* 81,700: a block's share of logits is below 40 KiB, with the kernel's own shared memory above 48. */
    static const int32_t sizes[] = {1, 7, 8, 500, 32000, 81700, 151936, 262144};
    static float logits[262144];
    if (!fd_sample_fits(&test->queue, 1)) {
        printf("sample: this device has no clusters of blocks; tokens are sampled on the host\n");
        return;
    }
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < N_PATTERN; kind++) {
            fill(test, (pattern)kind, logits, sizes[s]);
            for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                char name[96];
                fd_sampler_options o = cases[i];
                o.seed = gpu_random_bits(test);
                snprintf(name, sizeof name, "sample_case_%zu_of_%d_%s", i, sizes[s], pattern_names[kind]);
                compare(test, name, &o, logits, sizes[s]);
            }
        }
    check_refused(test);
}
