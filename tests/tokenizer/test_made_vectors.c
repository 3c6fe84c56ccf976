/* Vocabularies made here, of kinds that the shared vectors do not have, against llama.cpp's ids (record_vectors.py). */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "vocab_files.h"

#define HERE FD_SOURCE_DIR "/tests/tokenizer/made/"

static const char *const names[] = {"rwkv", "bert", "qwen35", "exaone-moe", "jais-2", "gemma4", "afmoe", "mellum2"};
enum { N_NAME = sizeof names / sizeof *names, AT_LEAST = 30 };

static vectors vectors_of(const char *name) {
    char in[PATH_SIZE], out[PATH_SIZE];
    snprintf(in, sizeof in, HERE "%s.inp", name);
    snprintf(out, sizeof out, HERE "%s.out", name);
    return read_vectors_at(in, out);
}

static fd_tokenizer *tokenizer_of(const char *name) {
    char path[PATH_SIZE];
    snprintf(path, sizeof path, HERE "%s.gguf", name);
    fd_tokenizer *tokenizer = load_gguf(path);
    cr_assert(tokenizer != NULL, "%s", name);
    return tokenizer;
}

Test(made_vectors, ids_are_llama_cpps) {
    for (int i = 0; i < N_NAME; i++) {
        fd_tokenizer *tokenizer = tokenizer_of(names[i]);
        vectors all = vectors_of(names[i]);
        int first, wrong = count_wrong(tokenizer, &all, &first);
        cr_expect(all.n >= AT_LEAST, "%s: %d vectors", names[i], all.n);
        cr_expect(wrong == 0, "%s: %d of %d wrong, the first is \"%.*s\"", names[i], wrong, all.n,
                  first < 0 ? 0 : (int)all.cases[first].text.size, first < 0 ? "" : all.cases[first].text.data);
        all.cases[9].ids[0]++;
        cr_expect(count_wrong(tokenizer, &all, &first) == 1 && first == 9, "%s: a changed id is not noticed", names[i]);
        free_vectors(&all);
        fd_tokenizer_free(tokenizer);
    }
}

/* Every byte has a token there. */
Test(made_vectors, rwkvs_bytes_come_back) {
    fd_tokenizer *tokenizer = tokenizer_of("rwkv");
    uint64_t state = 1;
    for (int i = 0; i < 300; i++) {
        char text[400], back[400];
        int32_t *ids, n;
        fd_error err = {0};
        const size_t size = (size_t)i;
        for (size_t k = 0; k < size; k++) text[k] = (char)((state = state * 6364136223846793005u + 1) >> 56);
        cr_assert_eq(fd_tokenize(tokenizer, text, size, false, false, &ids, &n, &err), FD_OK, "%s", err.message);
        cr_assert_eq(decode_ids(tokenizer, ids, n, true, back, sizeof back), size);
        cr_assert(memcmp(text, back, size) == 0);
        free(ids);
    }
    fd_tokenizer_free(tokenizer);
}

Test(made_vectors, tokens_that_are_no_whole_escapes_are_refused) {
    static const char *const texts[] = {"\\", "\\x", "\\x4", "\\xg0", "a\\"};
    for (int i = 0; i < 5; i++) {
        const fd_string tokens[] = {{texts[i], strlen(texts[i])}};
        const fd_vocab vocab = {.model = "rwkv", .n_token = 1, .tokens = tokens, .bos = -1, .eos = -1, .unk = -1};
        fd_tokenizer *tokenizer;
        fd_error err = {0};
        cr_expect_eq(fd_tokenizer_from_vocab(&vocab, &tokenizer, &err), FD_ERR_INPUT, "%s", texts[i]);
        cr_expect(strstr(err.message, "token 0") != NULL, "%s", err.message);
    }
}

static void expect_ids(const char *model, bool add_special, const char *text, int n_expected, const int32_t *expected) {
    fd_tokenizer *tokenizer = tokenizer_of(model);
    int32_t *ids, n;
    fd_error err = {0};
    cr_assert_eq(fd_tokenize(tokenizer, text, strlen(text), add_special, true, &ids, &n, &err), FD_OK, "%s",
                 err.message);
    cr_expect_eq(n, n_expected, "%s: %d ids", text, n);
    cr_expect(n == n_expected && memcmp(ids, expected, sizeof *ids * (size_t)n) == 0, "%s", text);
    free(ids);
    fd_tokenizer_free(tokenizer);
}

/* [CLS] and [SEP] around the text; what is written as a special token is one where they are parsed; a word that has no
 * spelling is unknown as a whole; capitals, accents and marks are gone. */
Test(made_vectors, wordpiece_adds_its_marks_and_folds_letters) {
    const int32_t *const none = (const int32_t[]){0};
    fd_tokenizer *tokenizer = tokenizer_of("bert");
    int32_t *hello, n;
    fd_error err = {0};
    cr_assert_eq(fd_tokenize(tokenizer, "hello", 5, false, false, &hello, &n, &err), FD_OK);
    cr_assert_eq(n, 1);
    expect_ids("bert", true, "HELLO", 3, (const int32_t[]){101, hello[0], 102});
    expect_ids("bert", true, "", 2, (const int32_t[]){101, 102});
    expect_ids("bert", false, "[MASK] he\xCC\x81ll\xC3\xB6", 2, (const int32_t[]){103, hello[0]});
    expect_ids("bert", false, "hello qqq", 2, (const int32_t[]){hello[0], 100});
    expect_ids("bert", false, "\xFF\xC3", 0, none);
    char text[16];
    cr_expect_eq(fd_token_bytes(tokenizer, hello[0], false, text, sizeof text), 6);
    cr_expect(memcmp(text, " hello", 6) == 0);
    free(hello);
    fd_tokenizer_free(tokenizer);
}

/* The made file says add_bos_token = false, as Gemma 4's first files did. */
Test(made_vectors, gemma4_always_begins_with_bos) {
    expect_ids("gemma4", true, "", 1, (const int32_t[]){1});
    expect_ids("gemma4", true, "<|turn><turn|>", 3, (const int32_t[]){1, 3, 4});
    expect_ids("gemma4", false, "<|turn>", 1, (const int32_t[]){3});
}
