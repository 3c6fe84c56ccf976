/* Several sequences in one executor, and generation: each gets what it gets alone. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "exec/generate.h"
#include "tests/ops/executor_run.h"
#include "tests/ops/random_model.h"

enum { VOCAB = RANDOM_VOCAB, N_CTX = 80, N_SEQ = 3 };

static fd_exec *make(const fd_graph *graph, int32_t n_seq) {
    return make_exec(graph, (fd_reference_options){.n_ctx = N_CTX, .n_seq = n_seq, .n_thread = 1});
}

static void prefill(fd_exec *exec, int32_t sequence, const int32_t *from, int32_t n, float *logits) {
    fd_error err = {0};
    fd_batch batch = {.tokens = from, .n_tok = n, .logits = logits};
    cr_assert_eq(fd_exec_select(exec, sequence, &err), FD_OK, "%s", err.message);
    batch.pos0 = exec->n_past;
    cr_assert_eq(fd_exec_forward(exec, &batch, &err), FD_OK, "%s", err.message);
}

/* Sequence i begins with tokens 2 i … and has 5 + 20 i of them before the steps begin. */
static int32_t begin_of(int32_t sequence) {
    return 2 * sequence;
}
static int32_t length_of(int32_t sequence) {
    return 5 + 20 * sequence;
}

Test(sequences, what_one_gets_does_not_depend_on_the_others, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_Q8_0);
    fd_exec *together = make(m.graph, N_SEQ);
    fd_error err = {0};
    static float found[N_SEQ][VOCAB], expected[VOCAB];
    for (int32_t i = 0; i < N_SEQ; i++) prefill(together, i, tokens + begin_of(i), length_of(i), found[i]);
    for (int32_t step = 0; step < 10; step++) {
        int32_t order[N_SEQ] = {2, 0, 1}, next[N_SEQ];
        for (int32_t k = 0; k < N_SEQ; k++) next[k] = tokens[begin_of(order[k]) + length_of(order[k]) + step];
        fd_decode decode = {.n = N_SEQ, .sequences = order, .tokens = next, .logits = found[0]};
        cr_assert_eq(fd_exec_decode(together, &decode, &err), FD_OK, "%s", err.message);
        for (int32_t k = 0; k < N_SEQ; k++) {
            fd_exec *alone = make(m.graph, 1);
            prefill(alone, 0, tokens + begin_of(order[k]), length_of(order[k]) + step + 1, expected);
            cr_expect(memcmp(expected, found[k], sizeof expected) == 0, "step %d, sequence %d", step, order[k]);
            cr_expect_eq(fd_exec_past(together, order[k]), alone->n_past);
            fd_exec_free(alone);
        }
        cr_expect(memcmp(found[0], found[1], sizeof found[0]) != 0,
                  "two sequences give the same: the case shows nothing");
    }
    cr_expect_eq(together->sequence, N_SEQ - 1, "the selected sequence stays");
    fd_exec_reset(together);
    for (int32_t i = 0; i < N_SEQ; i++) cr_expect_eq(fd_exec_past(together, i), 0);
    cr_expect_eq(together->sequence, 0);
    fd_exec_free(together);
}

Test(sequences, bad_steps_are_refused_by_name, .init = fill_tokens) {
    static const struct {
        int32_t n, sequences[2], tokens[2];
        const char *message;
    } cases[] = {
        {0, {0, 0}, {1, 1}, "0 sequences"},
        {1, {3, 0}, {1, 1}, "sequence 3: expected 0 to 2"},
        {1, {-1, 0}, {1, 1}, "sequence -1"},
        {2, {1, 1}, {1, 1}, "sequence 1: twice"},
        {2, {0, 1}, {1, VOCAB}, "token 101 of sequence 1: outside the vocabulary of 101"},
        {2, {0, 2}, {1, 1}, "sequence 2 has 80 positions and one more token, room for 80"},
    };
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make(m.graph, N_SEQ);
    prefill(exec, 2, tokens, N_CTX, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_error err = {0};
        fd_decode decode = {.n = cases[i].n, .sequences = cases[i].sequences, .tokens = cases[i].tokens};
        cr_expect_eq(fd_exec_decode(exec, &decode, &err), FD_ERR_INPUT, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].message) != NULL, "case %zu: %s", i, err.message);
        cr_expect_eq(fd_exec_past(exec, 0), 0, "case %zu moved a sequence", i);
    }
    fd_error err = {0};
    cr_expect_eq(fd_exec_select(exec, N_SEQ, &err), FD_ERR_INPUT);
    fd_exec_free(exec);
}

/* ---- generation ---- */

static const fd_sampler_options samplers[] = {
    {.top_p = 1, .repeat_penalty = 1},
    {.temperature = 1, .top_p = 0.9f, .repeat_penalty = 1.2f, .repeat_last = -1, .seed = 5},
    {.temperature = 0.7f, .top_k = 20, .top_p = 1, .min_p = 0.01f, .repeat_penalty = 1, .seed = 6},
};

static fd_sampler *sampler_of(int32_t i) {
    fd_error err = {0};
    fd_sampler *sampler = NULL;
    cr_assert_eq(fd_sampler_new(&samplers[i], VOCAB, &sampler, &err), FD_OK, "%s", err.message);
    return sampler;
}

/* The definition: forward, sample, and so on. */
static void by_hand(const fd_graph *graph, int32_t i, int32_t n_new, int32_t *text) {
    fd_error err = {0};
    float logits[VOCAB];
    fd_exec *exec = make(graph, 1);
    fd_sampler *sampler = sampler_of(i);
    int32_t n = length_of(i);
    memcpy(text, tokens + begin_of(i), sizeof *text * (size_t)n);
    prefill(exec, 0, text, n, logits);
    for (int32_t k = 0; k < n_new; k++, n++) {
        if (k > 0) prefill(exec, 0, text + n - 1, 1, logits);
        cr_assert_eq(fd_sample(sampler, logits, text, n, &text[n], &err), FD_OK, "%s", err.message);
    }
    fd_sampler_free(sampler);
    fd_exec_free(exec);
}

static int32_t new_of(int32_t i) {
    return 9 + 4 * i;
}

typedef struct listener {
    const int32_t *expected; /* next token */
    int32_t n, stop;
} listener;

static fd_code hear(void *user, int32_t token, fd_error *err) {
    listener *l = user;
    if (token != l->expected[l->n]) return fd_fail(err, FD_ERR_INPUT, "token %d is %d", l->n, token);
    return ++l->n == l->stop ? FD_STOP : FD_OK;
}

Test(sequences, generation_is_forward_and_sample_in_turn, .init = fill_tokens) {
    random_model m = random_model_make("qwen2", FD_F16);
    static int32_t expected[N_SEQ][N_CTX + 1], found[N_SEQ][N_CTX + 1];
    fd_generation runs[N_SEQ];
    listener ears[N_SEQ];
    int32_t n_done[N_SEQ];
    fd_error err = {0};
    fd_exec *exec = make(m.graph, N_SEQ);
    for (int32_t i = 0; i < N_SEQ; i++) {
        by_hand(m.graph, i, new_of(i), expected[i]);
        memcpy(found[i], tokens + begin_of(i), sizeof(int32_t) * (size_t)length_of(i));
        ears[i] = (listener){.expected = expected[i] + length_of(i), .stop = i == 1 ? 4 : -1};
        runs[i] = (fd_generation){.tokens = found[i],
                                  .n_token = length_of(i),
                                  .n_new = new_of(i),
                                  .sampler = sampler_of(i),
                                  .on_token = hear,
                                  .user = &ears[i]};
    }
    cr_assert_eq(fd_exec_generate_many(exec, runs, N_SEQ, n_done, &err), FD_OK, "%s", err.message);
    for (int32_t i = 0; i < N_SEQ; i++) {
        int32_t n = i == 1 ? 4 : new_of(i);
        cr_expect_eq(n_done[i], n, "sequence %d", i);
        cr_expect_eq(ears[i].n, n, "sequence %d: each token is heard once", i);
        cr_expect(memcmp(found[i], expected[i], sizeof(int32_t) * (size_t)(length_of(i) + n)) == 0, "sequence %d", i);
        cr_expect_eq(fd_exec_past(exec, i), length_of(i) + n - 1, "the last token is not fed");
    }
    /* Sequence 1 goes on where it stopped, alone. */
    ears[1].stop = -1;
    fd_generation rest = runs[1];
    rest.n_token += 4;
    rest.n_new -= 4;
    cr_assert_eq(fd_exec_select(exec, 1, &err), FD_OK);
    cr_assert_eq(fd_exec_generate(exec, &rest, &n_done[1], &err), FD_OK, "%s", err.message);
    cr_expect(memcmp(found[1], expected[1], sizeof(int32_t) * (size_t)(length_of(1) + new_of(1))) == 0);
    for (int32_t i = 0; i < N_SEQ; i++) fd_sampler_free(runs[i].sampler);
    fd_exec_free(exec);
}

Test(sequences, generation_refuses_what_does_not_fit, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make(m.graph, 1);
    fd_sampler *sampler = sampler_of(0);
    int32_t n_done, text[N_CTX + 2] = {0};
    static const struct {
        int32_t n_token, n_new;
        const char *message; /* NULL: fits */
    } cases[] = {
        {N_CTX - 1, 3, "79 tokens and 3 more to generate, room for 80"},
        {5, 0, "0 tokens"},
        {0, 5, "0 tokens known, the cache holds 0"},
        {N_CTX - 1, 2, NULL}, /* the last token is not fed */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_error err = {0};
        fd_generation run = {.tokens = text, .n_token = cases[i].n_token, .n_new = cases[i].n_new, .sampler = sampler};
        fd_code code = fd_exec_generate(exec, &run, &n_done, &err);
        cr_expect_eq(code, cases[i].message ? FD_ERR_INPUT : FD_OK, "case %zu: %s", i, err.message);
        if (cases[i].message) cr_expect(strstr(err.message, cases[i].message) != NULL, "case %zu: %s", i, err.message);
        cr_expect_eq(n_done, cases[i].message ? 0 : cases[i].n_new, "case %zu", i);
    }
    fd_sampler_free(sampler);
    fd_exec_free(exec);
}
