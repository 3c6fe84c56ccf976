/* Tokenizers on vocabularies of a few tokens: merges, special tokens, fallbacks, what is refused. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "toy_vocab.h"
#include "vocab_files.h"

typedef struct encode_case {
    const char *text;
    bool add_special, parse_special;
    int n;
    int32_t ids[12];
} encode_case;

static void expect_ids(const fd_tokenizer *tokenizer, const encode_case *cases, size_t n_case) {
    for (size_t i = 0; i < n_case; i++) {
        const encode_case *one = &cases[i];
        int32_t *ids = NULL, n = 0;
        fd_error err = {0};
        fd_code code =
            fd_tokenize(tokenizer, one->text, strlen(one->text), one->add_special, one->parse_special, &ids, &n, &err);
        cr_assert(code == FD_OK, "\"%s\": %s", one->text, err.message);
        cr_assert(ids != NULL);
        cr_expect(n == one->n, "\"%s\": %d ids, expected %d", one->text, n, one->n);
        for (int k = 0; k < n && k < one->n; k++)
            cr_expect(ids[k] == one->ids[k], "\"%s\": id %d is %d, expected %d", one->text, k, ids[k], one->ids[k]);
        free(ids);
    }
}
#define EXPECT_IDS(tokenizer, cases) expect_ids(tokenizer, cases, sizeof(cases) / sizeof(cases)[0])

Test(spm, merges_by_score_then_leftmost) {
    /* clang-format off */
    static const encode_case cases[] = {
        {"", false, false, 0, {0}},
        {"abc", false, false, 3, {3, 4, 8}},       /* bc (-1) before ab (-2) */
        {"ab", false, false, 1, {10}},             /* ab, then _ab */
        {"aaa", false, false, 3, {3, 9, 4}},       /* equal scores: the left pair */
        {"aaaa", false, false, 3, {3, 9, 9}},
        {" ab", false, false, 2, {3, 10}},         /* the text's own space stays, after the prefix */
        {"a\n", false, false, 3, {3, 4, 11}},      /* byte token */
        {"a\xFFz", false, false, 4, {3, 4, 0, 0}}, /* no byte token: unknown */
    };
    /* clang-format on */
    toy t;
    fd_tokenizer *tokenizer = toy_spm(&t);
    EXPECT_IDS(tokenizer, cases);
    cr_expect(eq(str, (char *)fd_tokenizer_name(tokenizer), "llama (SentencePiece)"));
    /* mutant: with the scores of ab and bc swapped the result must change */
    toy swapped;
    toy_spm(&swapped);
    swapped.scores[7] = -1;
    swapped.scores[8] = -2;
    static const encode_case other[] = {{"abc", false, false, 2, {10, 6}}};
    tokenizer = toy_make(&swapped);
    EXPECT_IDS(tokenizer, other);
}

Test(spm, special_tokens_and_the_space_after_them) {
    /* clang-format off */
    static const encode_case cases[] = {
        {"<s>a", false, false, 8, {3, 0, 0, 0, 4}},        /* not parsed: < s > have no token here */
        {"<s>ab", false, true, 2, {1, 10}},                /* a space prefix after it */
        {"a<|u|>ab", false, false, 4, {3, 4, 12, 10}},     /* user-defined: always */
        {"<|user|>a", false, true, 3, {13, 3, 4}},         /* the longest wins */
        {"<|u|><|user|>", false, true, 2, {12, 13}},
        {"ab</s>", true, true, 3, {1, 10, 2}},
        {"", true, false, 1, {1}},
    };
    /* clang-format on */
    toy t;
    toy_spm(&t);
    t.vocab.add_bos = true;
    fd_tokenizer *tokenizer = toy_make(&t);
    expect_ids(tokenizer, cases + 1, sizeof cases / sizeof cases[0] - 1);
    t.vocab.add_space_prefix = false;
    t.vocab.add_eos = true;
    t.vocab.strip_after_special = true;
    /* clang-format off */
    static const encode_case plain[] = {
        {"ab", true, false, 3, {1, 7, 2}},
        {"<|user|> \n ab", false, true, 2, {13, 7}},      /* phi-3 drops white space here … */
        {"<s> ab", false, true, 2, {1, 10}},              /* … but not after <s> */
        {"<|user|>  ", false, true, 1, {13}},
    };
    /* clang-format on */
    tokenizer = toy_make(&t);
    EXPECT_IDS(tokenizer, plain);
}

Test(bpe, merges_by_rank_within_words) {
    /* clang-format off */
    static const encode_case cases[] = {
        {"abc", false, false, 2, {3, 7}},         /* b c is the best merge; "a bc" is none */
        {"ab", false, false, 1, {6}},
        {"abab", false, false, 2, {6, 6}},
        {" a", false, false, 1, {10}},
        {" ab", false, false, 2, {10, 4}},        /* Ġ a before a b */
        {"a\nb", false, false, 3, {3, 0, 4}},     /* no token for that byte: unknown */
        {"ab<|u|>ab", false, false, 3, {6, 11, 6}},
        {"<|user|>ab</s>", true, true, 3, {12, 6, 2}},
    };
    /* clang-format on */
    toy t;
    fd_tokenizer *tokenizer = toy_bpe(&t, "gpt-2");
    EXPECT_IDS(tokenizer, cases);
    cr_expect(eq(str, (char *)fd_tokenizer_name(tokenizer), "gpt2 / gpt-2"));
    /* llama-bpe takes a whole word from the vocabulary although no merge leads there */
    static const encode_case whole[] = {{"abc", false, false, 1, {8}}};
    tokenizer = toy_bpe(&t, "llama-bpe");
    EXPECT_IDS(tokenizer, whole);
}

Test(bpe, a_byte_without_any_token_is_an_error) {
    toy t;
    toy_bpe(&t, "gpt-2");
    t.vocab.unk = -1;
    fd_tokenizer *tokenizer = toy_make(&t);
    int32_t *ids = (int32_t *)1, n = 7;
    fd_error err = {0};
    cr_expect(fd_tokenize(tokenizer, "a\xE9", 2, false, false, &ids, &n, &err) == FD_ERR_INPUT);
    cr_expect(strstr(err.message, "0xE9") != NULL, "%s", err.message);
    cr_expect(ids == NULL && n == 0);
}

/* Every byte has one stand-in, and all come back: the table of 256 from both sides. */
Test(bpe, byte_table_is_one_to_one) {
    static char names[256][2];
    static fd_string tokens[256];
    for (int i = 0; i < 256; i++) {
        size_t n = byte_character((unsigned char)i, names[i]);
        tokens[i] = (fd_string){names[i], n};
    }
    fd_vocab vocab = {
        .model = "gpt2", .pre = "gpt-2", .n_token = 256, .tokens = tokens, .bos = -1, .eos = -1, .unk = -1};
    fd_tokenizer *tokenizer;
    fd_error err = {0};
    cr_assert(fd_tokenizer_from_vocab(&vocab, &tokenizer, &err) == FD_OK, "%s", err.message);
    for (int i = 0; i < 256; i++) {
        char byte = (char)i, back = 0;
        int32_t *ids, n;
        cr_assert(fd_tokenize(tokenizer, &byte, 1, false, false, &ids, &n, &err) == FD_OK, "%s", err.message);
        cr_expect(n == 1 && ids[0] == i, "byte %d", i);
        cr_expect(fd_token_bytes(tokenizer, i, false, &back, 1) == 1 && back == byte, "byte %d", i);
        free(ids);
    }
    fd_tokenizer_free(tokenizer);
}

Test(tokens, bytes_as_they_appear_in_text) {
    /* clang-format off */
    static const struct {
        int32_t token;
        bool special;
        int32_t size;
        const char *bytes;
    } cases[] = {
        {10, false, 3, " ab"}, {3, false, 1, " "}, {11, false, 1, "\n"}, {12, false, 5, "<|u|>"}, {1, false, 0, ""},
        {1, true, 3, "<s>"}, {0, false, 0, ""}, {0, true, 5, "<unk>"}, {14, true, -1, ""}, {-1, true, -1, ""},
    };
    /* clang-format on */
    toy t;
    fd_tokenizer *tokenizer = toy_spm(&t);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char to[16] = "";
        int32_t size = fd_token_bytes(tokenizer, cases[i].token, cases[i].special, to, sizeof to);
        cr_expect(size == cases[i].size, "case %zu: %d", i, size);
        if (size > 0) cr_expect(memcmp(to, cases[i].bytes, (size_t)size) == 0, "case %zu: %s", i, to);
    }
    char two[3] = "..";
    cr_expect(eq(i32, fd_token_bytes(tokenizer, 10, false, two, 1), 3)); /* the size, but only one byte written */
    cr_expect(eq(str, two, " ."));
}

Test(tokens, ends_of_a_turn) {
    toy t;
    toy_start(&t, "llama");
    toy_add(&t, "<|eot_id|>", FD_TOKEN_NORMAL, 0); /* 3: by its text, whatever its type */
    toy_add(&t, "<|im_end|>", FD_TOKEN_CONTROL, 0);
    toy_add(&t, "<|im_start|>", FD_TOKEN_CONTROL, 0);
    fd_tokenizer *tokenizer = toy_make(&t);
    static const bool is_end[] = {false, false, true, true, true, false};
    for (int32_t i = 0; i < 6; i++) cr_expect(fd_tokenizer_is_end(tokenizer, i) == is_end[i], "token %d", i);
    cr_expect(eq(int, fd_tokenizer_is_end(tokenizer, -1) || fd_tokenizer_is_end(tokenizer, 6), 0));
    cr_expect(eq(i32, fd_token_bytes(tokenizer, 3, false, NULL, 0), 0)); /* has become a control token */
}

Test(refused, vocabularies_that_cannot_work) {
    /* clang-format off */
    static const struct {
        const char *what, *message;
        fd_code code;
    } cases[] = {
        {"model", "expected llama, gpt2", FD_ERR_UNSUPPORTED}, {"pre", "\"qwen9\"", FD_ERR_UNSUPPORTED},
        {"empty", "found 0 items", FD_ERR_INPUT},                {"bos", "found id 99", FD_ERR_INPUT},
        {"eos", "eos token", FD_ERR_INPUT},                      {"type", "found 7", FD_ERR_INPUT},
        {"score", "NaN", FD_ERR_INPUT},                          {"merge", "\"ab\"", FD_ERR_INPUT},
        {"byte", "<0xZZ>", FD_ERR_INPUT},                        {"no bos", "add_bos_token", FD_ERR_INPUT},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *what = cases[i].what;
        toy t;
        bool bpe = !strcmp(what, "pre") || !strcmp(what, "merge");
        (void)(bpe ? toy_bpe(&t, "gpt-2") : toy_spm(&t));
        if (!strcmp(what, "model")) t.vocab.model = "t5";
        if (!strcmp(what, "pre")) t.vocab.pre = "qwen9";
        if (!strcmp(what, "empty")) t.vocab.n_token = 0;
        if (!strcmp(what, "bos")) t.vocab.bos = 99;
        if (!strcmp(what, "eos")) t.vocab.eos = -2;
        if (!strcmp(what, "type")) t.types[4] = 7;
        if (!strcmp(what, "score")) t.scores[4] = NAN;
        if (!strcmp(what, "merge")) toy_add_merge(&t, "ab");
        if (!strcmp(what, "byte")) toy_add(&t, "<0xZZ>", FD_TOKEN_BYTE, 0);
        if (!strcmp(what, "no bos")) t.vocab.bos = -1, t.vocab.add_bos = true;
        fd_tokenizer *tokenizer = (fd_tokenizer *)1;
        fd_error err = {0};
        cr_expect(fd_tokenizer_from_vocab(&t.vocab, &tokenizer, &err) == cases[i].code, "%s: %s", what, err.message);
        cr_expect(tokenizer == NULL, "%s", what);
        cr_expect(strstr(err.message, cases[i].message) != NULL, "%s: %s", what, err.message);
    }
}

Test(refused, a_file_without_a_tokenizer_says_use_tokens) {
    char path[PATH_SIZE];
    if (!shared_path("conformance/llama-dense.gguf", path))
        SKIP_TEST("no conformance/llama-dense.gguf in the shared folder");
    fd_gguf *gguf;
    fd_tokenizer *tokenizer;
    fd_error err = {0};
    cr_assert(fd_gguf_open(path, &gguf, &err) == FD_OK, "%s", err.message);
    cr_expect(fd_tokenizer_from_gguf(gguf, &tokenizer, &err) == FD_ERR_INPUT);
    cr_expect(strstr(err.message, "--tokens") != NULL, "%s", err.message);
    fd_gguf_close(gguf);
}

/* One tokenizer, four threads: the same ids from each. */
static void *tokenize_often(void *user) {
    static const char text[] = " ab abc\xFF a1 <|u|> abcabc";
    uint64_t sum = 0;
    for (int i = 0; i < 200; i++) {
        int32_t *ids, n;
        fd_error err = {0};
        if (fd_tokenize(user, text, sizeof text - 1, false, true, &ids, &n, &err) != FD_OK) return NULL;
        for (int32_t k = 0; k < n; k++) sum = sum * 31 + (uint64_t)ids[k];
        free(ids);
    }
    return (void *)(uintptr_t)(sum | 1); /* never NULL */
}

Test(tokenizer, threads_share_one) {
    toy t;
    fd_tokenizer *tokenizer = toy_bpe(&t, "qwen2");
    pthread_t threads[4];
    void *results[4], *alone = tokenize_often(tokenizer);
    cr_assert(alone != NULL);
    for (int i = 0; i < 4; i++) cr_assert(pthread_create(&threads[i], NULL, tokenize_often, tokenizer) == 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &results[i]);
        cr_expect(results[i] == alone);
    }
}
