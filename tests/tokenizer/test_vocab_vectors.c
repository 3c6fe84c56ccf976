/* llama.cpp's own vectors for whole vocabularies, and round trips through them. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vocab_files.h"

enum { N_VECTOR = 46 };

/* The tokenizer under test; skips the test when the shared folder is not there. */
static fd_tokenizer *need(const char *name, const char *pre) {
    char file[256], path[PATH_SIZE], merges[PATH_SIZE];
    fd_tokenizer *tokenizer;
    if (strcmp(name, "llama-bpe") == 0) {
        if (!shared_path("vocab/llama3.encoder.json", path) || !shared_path("vocab/llama3.vocab.bpe", merges))
            SKIP_TEST("no vocab/llama3.* in the shared folder");
        tokenizer = load_json(path, merges, pre);
    } else {
        snprintf(file, sizeof file, "vocab/ggml-vocab-%s.gguf", name);
        if (!shared_path(file, path)) SKIP_TEST("no %s in the shared folder", file);
        tokenizer = load_gguf(path);
    }
    cr_assert(tokenizer != NULL, "%s does not load", name);
    return tokenizer;
}

static void expect_vectors(const char *name, const fd_tokenizer *tokenizer) {
    char file[128];
    snprintf(file, sizeof file, "ggml-vocab-%s.gguf", name);
    vectors all = read_vectors(file);
    cr_assert(all.n >= N_VECTOR, "%s: %d vectors, expected %d", name, all.n, N_VECTOR);
    int first, wrong = count_wrong(tokenizer, &all, &first);
    cr_assert(wrong == 0, "%s: %d of %d wrong, the first is number %d", name, wrong, all.n, first);
    free_vectors(&all);
}

#define VECTORS_HOLD(test, vocabulary, pre)                                                                            \
    Test(vectors, test) {                                                                                              \
        fd_tokenizer *tokenizer = need(vocabulary, pre);                                                               \
        expect_vectors(vocabulary, tokenizer);                                                                         \
        fd_tokenizer_free(tokenizer);                                                                                  \
    }

VECTORS_HOLD(llama_spm_equals_llama_cpp, "llama-spm", NULL)
VECTORS_HOLD(phi_3_equals_llama_cpp, "phi-3", NULL)
VECTORS_HOLD(gpt_2_equals_llama_cpp, "gpt-2", NULL)
VECTORS_HOLD(deepseek_coder_equals_llama_cpp, "deepseek-coder", NULL)
VECTORS_HOLD(llama_bpe_equals_llama_cpp, "llama-bpe", "llama-bpe")

/* The vocabulary is not part of the shared folder: resources/qwen.tiktoken of the Python package dashscope has it. */
Test(vectors, qwen2_equals_llama_cpp) {
    const char *path = getenv("FD_QWEN_TIKTOKEN");
    char inputs[PATH_SIZE];
    if (!path) SKIP_TEST("FD_QWEN_TIKTOKEN is not set");
    if (!shared_path("vocab/ggml-vocab-qwen2.gguf.inp", inputs)) SKIP_TEST("no qwen2 vectors");
    fd_tokenizer *tokenizer = load_tiktoken(path, "qwen2");
    cr_assert(tokenizer != NULL);
    expect_vectors("qwen2", tokenizer);
    fd_tokenizer_free(tokenizer);
}

/* Mutants: the comparison must see a changed id, and vectors must tell a wrong pre-tokeniser or vocabulary apart. */
Test(vectors, one_changed_id_is_noticed) {
    fd_tokenizer *tokenizer = need("gpt-2", NULL);
    vectors all = read_vectors("ggml-vocab-gpt-2.gguf");
    all.cases[all.n - 1].ids[3]++;
    int first;
    cr_expect(eq(int, count_wrong(tokenizer, &all, &first), 1));
    cr_expect(eq(int, first, all.n - 1));
    free_vectors(&all);
    fd_tokenizer_free(tokenizer);
}

Test(vectors, another_pretokeniser_is_noticed) {
    const char *const others[] = {"qwen2", "gpt-2", "deepseek-coder", "smollm"};
    vectors all = {0};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        fd_tokenizer *tokenizer = need("llama-bpe", others[i]);
        if (!all.n) all = read_vectors("ggml-vocab-llama-bpe.gguf");
        int first;
        cr_expect(count_wrong(tokenizer, &all, &first) > 0, "llama-bpe's vectors hold with %s", others[i]);
        fd_tokenizer_free(tokenizer);
    }
    free_vectors(&all);
}

Test(vectors, stories260K_prompt_equals_llama_cpp) {
    char model[PATH_SIZE], list[PATH_SIZE];
    if (!shared_path("models/stories260K.gguf", model) || !shared_path("models/stories260K.tokens.txt", list))
        SKIP_TEST("no models/stories260K.* in the shared folder");
    fd_tokenizer *tokenizer = load_gguf(model);
    cr_assert(tokenizer != NULL);
    static const char prompt[] = "Once upon a time, there was a little girl";
    int32_t *ids = NULL, n = 0, i = 0;
    fd_error err = {0};
    cr_assert(fd_tokenize(tokenizer, prompt, strlen(prompt), true, false, &ids, &n, &err) == FD_OK, "%s", err.message);
    size_t size;
    char *text = read_file(list, &size), *at = text, *rest;
    for (;; i++, at = rest) {
        at += strspn(at, " ,\n[]");
        long id = strtol(at, &rest, 10);
        if (rest == at) break;
        cr_assert(i < n && ids[i] == id, "token %d: found %d, expected %ld", i, i < n ? ids[i] : -1, id);
    }
    cr_expect(eq(int, i, n));
    cr_expect(i > 5);
    free(text);
    free(ids);
    fd_tokenizer_free(tokenizer);
}

/* ---- round trips ---- */

static uint64_t step(uint64_t *state) { /* an LCG of Knuth's (MMIX); the high half */
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static size_t random_utf8(uint64_t *state, char *to, size_t n_character) {
    static const unsigned limits[] = {0x80, 0x800, 0x3000, 0xD800, 0x1FFFF};
    size_t at = 0;
    for (size_t i = 0; i < n_character; i++) {
        unsigned c = (unsigned)(step(state) % limits[step(state) % 5]);
        if ((c >= 0xD800 && c < 0xE000) || c == 0x2581) c = ' '; /* surrogates; the space mark comes back as a space */
        if (c < 0x80) {
            to[at++] = (char)c;
        } else if (c < 0x800) {
            to[at++] = (char)(0xC0 | c >> 6);
            to[at++] = (char)(0x80 | (c & 0x3F));
        } else if (c < 0x10000) {
            to[at++] = (char)(0xE0 | c >> 12);
            to[at++] = (char)(0x80 | (c >> 6 & 0x3F));
            to[at++] = (char)(0x80 | (c & 0x3F));
        } else {
            to[at++] = (char)(0xF0 | c >> 18);
            to[at++] = (char)(0x80 | (c >> 12 & 0x3F));
            to[at++] = (char)(0x80 | (c >> 6 & 0x3F));
            to[at++] = (char)(0x80 | (c & 0x3F));
        }
    }
    return at;
}

static void expect_round_trip(const fd_tokenizer *tokenizer, const char *text, size_t size, size_t n_lead) {
    static char back[8192];
    int32_t *ids = NULL, n = 0;
    fd_error err = {0};
    cr_assert(fd_tokenize(tokenizer, text, size, false, false, &ids, &n, &err) == FD_OK, "%s", err.message);
    size_t n_back = decode_ids(tokenizer, ids, n, true, back, sizeof back);
    cr_assert(n_back == size + n_lead && memcmp(back + n_lead, text, size) == 0, "%zu bytes came back as %zu", size,
              n_back);
    free(ids);
}

static void round_trips(const char *name, const char *pre, bool any_bytes, size_t n_lead) {
    fd_tokenizer *tokenizer = need(name, pre);
    uint64_t state = 20240607;
    char text[2048];
    for (int i = 0; i < 300; i++) {
        expect_round_trip(tokenizer, text, random_utf8(&state, text, 1 + step(&state) % 300), n_lead);
        if (!any_bytes) continue;
        size_t n = 1 + step(&state) % 600;
        for (size_t k = 0; k < n; k++) text[k] = (char)step(&state);
        expect_round_trip(tokenizer, text, n, n_lead);
    }
    fd_tokenizer_free(tokenizer);
}

/* deepseek-coder names ten bytes that no UTF-8 holds (0xC0, 0xF5, …) by user-defined tokens whose text is a Latin
 * letter, so these bytes cannot come back from it: valid UTF-8 only. SentencePiece puts one space before the text. */
Test(round_trip, gpt_2_bytes_come_back) {
    round_trips("gpt-2", NULL, true, 0);
}
Test(round_trip, llama_bpe_bytes_come_back) {
    round_trips("llama-bpe", "llama-bpe", true, 0);
}
Test(round_trip, deepseek_coder_text_comes_back) {
    round_trips("deepseek-coder", NULL, false, 0);
}
Test(round_trip, llama_spm_bytes_come_back) {
    round_trips("llama-spm", NULL, true, 1);
}

/* ---- long texts: anything quadratic takes minutes here ---- */

static void expect_fast(const char *name, const char *pre, const char *unit) {
    fd_tokenizer *tokenizer = need(name, pre);
    size_t size = 1 << 20, n_unit = strlen(unit);
    char *text = malloc(size);
    for (size_t i = 0; i < size; i++) text[i] = unit[i % n_unit];
    int32_t *ids = NULL, n = 0;
    fd_error err = {0};
    clock_t start = clock();
    cr_assert(fd_tokenize(tokenizer, text, size, false, false, &ids, &n, &err) == FD_OK, "%s", err.message);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    cr_expect(seconds < 15, "%s: 1 MiB of \"%.12s…\" took %.1f s", name, unit, seconds); /* usual: below 1 s */
    if (getenv("FD_VERBOSE")) fprintf(stderr, "%-14s %-14.14s %7d tokens %6.3f s\n", name, unit, n, seconds);
    free(ids);
    free(text);
    fd_tokenizer_free(tokenizer);
}

#define PROSE                                                                                                          \
    "The quick brown fox, aged 1234, can't jump over the lazy dog's 56 puppies!\n\n  Never \xC3\xA9t\xC3\xA9. "
Test(long_text, prose_is_fast, .timeout = 110) {
    expect_fast("gpt-2", NULL, PROSE);
    expect_fast("llama-bpe", "llama-bpe", PROSE);
    expect_fast("deepseek-coder", NULL, PROSE);
    expect_fast("llama-spm", NULL, PROSE);
}
Test(long_text, one_long_word_is_fast, .timeout = 110) {
    expect_fast("gpt-2", NULL, "a");
    expect_fast("gpt-2", NULL, "thequickbrownfoxjumpsoverit");
    expect_fast("llama-spm", NULL, "thequickbrownfoxjumpsoverit");
}
Test(long_text, one_long_run_of_white_space_is_fast, .timeout = 110) {
    expect_fast("gpt-2", NULL, " ");
    expect_fast("llama-bpe", "llama-bpe", " ");
    expect_fast("deepseek-coder", NULL, " ");
    expect_fast("llama-bpe", "llama-bpe", "\n");
}
Test(long_text, broken_utf_8_is_fast, .timeout = 110) {
    expect_fast("gpt-2", NULL, "\xE9 a\xFF");
    expect_fast("llama-spm", NULL, "\xE9 a\xFF");
}
