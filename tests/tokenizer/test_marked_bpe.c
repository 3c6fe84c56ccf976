/* BPE of characters with marked spaces (Gemma 4, Sarvam) on a vocabulary of a few tokens. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#include "toy_vocab.h"
#include "vocab_files.h"

#define SPACE "\xE2\x96\x81"

/* ids: 3 _ 4 a 5 b 6 ab 7 _ab 8 \n 9 \n\n\n, of which no merge is made 10 <0xC3> 11 <0xA9> 12 <|turn> (control)
 * 13 <u d> (user-defined) 14 b\n */
static fd_tokenizer *marked(toy *t, const char *model, const char *pre) {
    toy_start(t, model);
    t->vocab.pre = pre;
    static const char *const normal[] = {SPACE, "a", "b", "ab", SPACE "ab", "\n", "\n\n\n"};
    for (int i = 0; i < 7; i++) toy_add(t, normal[i], FD_TOKEN_NORMAL, 0);
    toy_add(t, "<0xC3>", FD_TOKEN_BYTE, 0);
    toy_add(t, "<0xA9>", FD_TOKEN_BYTE, 0);
    toy_add(t, "<|turn>", FD_TOKEN_CONTROL, 0);
    toy_add(t, "<u d>", FD_TOKEN_USER_DEFINED, 0);
    toy_add(t, "b\n", FD_TOKEN_NORMAL, 0);
    toy_add_merge(t, "b \n");
    toy_add_merge(t, "a b");
    toy_add_merge(t, SPACE " ab");
    return toy_make(t);
}

typedef struct marked_case {
    const char *text;
    int n;
    int32_t ids[6];
} marked_case;

static void expect(const fd_tokenizer *tokenizer, const marked_case *one) {
    int32_t *ids, n;
    fd_error err = {0};
    cr_assert(fd_tokenize(tokenizer, one->text, strlen(one->text), false, true, &ids, &n, &err) == FD_OK, "\"%s\": %s",
              one->text, err.message);
    cr_expect(n == one->n, "\"%s\": %d ids, expected %d", one->text, n, one->n);
    for (int k = 0; k < n && k < one->n; k++)
        cr_expect(ids[k] == one->ids[k], "\"%s\": id %d is %d, expected %d", one->text, k, ids[k], one->ids[k]);
    free(ids);
}

Test(marked_bpe, characters_join_and_spaces_are_marks) {
    static const marked_case cases[] = {
        {"", 0, {0}},
        {"ab ab", 2, {6, 7}},
        {" a", 2, {3, 4}},        /* the text's own space alone */
        {"a" SPACE, 2, {4, 3}},   /* a mark is the same as a space */
        {"ab\nab", 3, {6, 8, 6}}, /* no merge crosses a newline, though the list has one */
        {"\n\n\n", 1, {9}},       /* a run that is a token, whatever merges make */
        {"\n\n", 2, {8, 8}},
        {"a\xC3\xA9", 3, {4, 10, 11}},     /* a character without a token, byte by byte */
        {"a\xC3", 2, {4, 10}},             /* no UTF-8 */
        {"z\xFF", 2, {0, 0}},              /* bytes without a token are unknown */
        {"<0xC3>", 6, {0, 0, 0, 0, 0, 0}}, /* a byte token written out is text */
        {"<|turn>ab<u d>", 3, {12, 6, 13}},
    };
    toy t;
    const fd_tokenizer *tokenizer = marked(&t, "gemma4", "qwen2"); /* whose own pre-tokeniser counts */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) expect(tokenizer, &cases[i]);
    toy u;
    expect(marked(&u, "gpt2", "gemma4"), &(marked_case){"ab\n\n\n", 2, {6, 9}});
    toy v;
    expect(marked(&v, "gpt2", "sarvam-moe"), &(marked_case){" ab\n\n\n", 4, {7, 8, 8, 8}}); /* merges alone */
}

Test(marked_bpe, ids_go_back_to_bytes) {
    static const struct {
        int32_t token;
        bool special;
        const char *bytes;
    } cases[] = {{7, false, " ab"}, {9, false, "\n\n\n"},  {10, false, "\xC3"},
                 {12, false, ""},   {12, true, "<|turn>"}, {13, false, "<u d>"}};
    toy t;
    fd_tokenizer *tokenizer = marked(&t, "gemma4", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char to[16];
        int32_t size = fd_token_bytes(tokenizer, cases[i].token, cases[i].special, to, sizeof to);
        cr_expect(size == (int32_t)strlen(cases[i].bytes), "token %d: %d bytes", cases[i].token, size);
        if (size > 0) cr_expect(memcmp(to, cases[i].bytes, (size_t)size) == 0, "token %d", cases[i].token);
    }
    cr_expect(eq(str, (char *)fd_tokenizer_name(tokenizer), "gemma4 (BPE of characters)"));
}

/* 2 MB are one word; in the square of its length they would take hours. */
Test(marked_bpe, a_long_text_without_a_newline_is_joined_in_n_log_n) {
    enum { N = 2 << 20 };
    toy t;
    fd_tokenizer *tokenizer = marked(&t, "gemma4", NULL);
    char *text = malloc(N), *back = malloc(N);
    cr_assert(text && back);
    uint64_t state = 1;
    for (size_t i = 0; i < N; i++)
        text[i] = "ab a"[(state = state * 6364136223846793005u + 1442695040888963407u) >> 62];
    int32_t *ids, n;
    fd_error err = {0};
    cr_assert(fd_tokenize(tokenizer, text, N, false, false, &ids, &n, &err) == FD_OK, "%s", err.message);
    cr_expect(n < N, "%d ids", n);
    cr_expect(eq(sz, decode_ids(tokenizer, ids, n, false, back, N), N));
    cr_expect(memcmp(text, back, N) == 0);
    free(ids);
    free(text);
    free(back);
}

/* Gemma 4's turns end at <turn|>; its </s> is a mark of HTML. Elsewhere </s> ends a text. <|end|> ends a message, not a
 * turn, where turns have ends of their own. */
Test(ends, by_their_texts_and_what_stands_beside_them) {
    static const struct {
        const char *texts[4];
        bool is_end[4];
    } cases[] = {
        {{"<turn|>", "<|tool_response>", "<eos>", "<|turn>"}, {true, true, true, false}},
        {{"[EOT]", "[EOS]", "[e~[", "<|end|>"}, {true, true, true, true}},
        {{"<|end|>", "<|return|>", "<|call|>", "<|start|>"}, {false, true, true, false}},
        {{"<|end|>", "<|flush|>", "<|calls|>", "<|return|>"}, {false, true, true, true}},
        {{"<|end|>", "<|flush|>", "<|return|>", "x"}, {true, true, true, false}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        toy t;
        toy_start(&t, "llama");
        t.vocab.eos = -1;
        for (int k = 0; k < 4; k++) toy_add(&t, cases[i].texts[k], FD_TOKEN_USER_DEFINED, 0);
        fd_tokenizer *tokenizer = toy_make(&t);
        for (int k = 0; k < 4; k++)
            cr_expect(fd_tokenizer_is_end(tokenizer, 3 + k) == cases[i].is_end[k], "case %zu: %s", i,
                      cases[i].texts[k]);
        cr_expect(fd_tokenizer_is_end(tokenizer, 2) == (i > 0), "case %zu: </s>", i);
        int32_t *ids, n;
        fd_error err = {0};
        cr_assert(fd_tokenize(tokenizer, "</s>", 4, false, true, &ids, &n, &err) == FD_OK, "%s", err.message);
        cr_expect(i > 0 ? n == 1 : n > 1, "case %zu: </s> is %d tokens", i, n); /* text in Gemma 4 */
        free(ids);
    }
}
