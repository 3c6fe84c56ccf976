/* What two prompts of one text tell about special tokens. */
#include <criterion/criterion.h>
#include <string.h>

#include "compare/diff/prompt_tokens.h"
#include "tests/compare/said.h"

enum { BOS = 1, CHAT = 3, N_TOKEN = 9 };

/* 0 <unk> 1 <s> 2 </s> 3 <|a|> (control) 4 "<|" 5 "a" 6 "|>" 7 "|>b" 8 "b" */
static fd_tokenizer *make(int32_t bos) {
    static const char *const text[N_TOKEN] = {"<unk>", "<s>", "</s>", "<|a|>", "<|", "a", "|>", "|>b", "b"};
    static const int32_t types[N_TOKEN] = {FD_TOKEN_UNKNOWN, FD_TOKEN_CONTROL, FD_TOKEN_CONTROL,
                                           FD_TOKEN_CONTROL, FD_TOKEN_NORMAL,  FD_TOKEN_NORMAL,
                                           FD_TOKEN_NORMAL,  FD_TOKEN_NORMAL,  FD_TOKEN_NORMAL};
    static const float scores[N_TOKEN] = {0};
    fd_string tokens[N_TOKEN];
    for (int i = 0; i < N_TOKEN; i++) tokens[i] = (fd_string){text[i], strlen(text[i])};
    fd_vocab vocab = {.model = "llama",
                      .n_token = N_TOKEN,
                      .tokens = tokens,
                      .scores = scores,
                      .types = types,
                      .bos = bos,
                      .eos = 2,
                      .unk = 0};
    fd_tokenizer *tokenizer = NULL;
    fd_error err = {0};
    cr_assert(fd_tokenizer_from_vocab(&vocab, &tokenizer, &err) == FD_OK, "%s", err.message);
    return tokenizer;
}

typedef struct prompt_case {
    int32_t bos;
    fd_prompt_ids sides[2];
    const char *said; /* NULL: nothing */
} prompt_case;

#define IDS(...)                                                                                                       \
    { (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t) }

Test(prompt_tokens, what_became_of_special_tokens_is_named_and_nothing_else) {
    const prompt_case cases[] = {
        {BOS, {IDS(1, 5, 8), IDS(5, 8)}, "the candidate lacks the BOS, token 1"},
        {BOS, {IDS(5, 8), IDS(1, 5, 8)}, "the reference lacks the BOS, token 1"},
        {BOS, {IDS(1, 5, 8), IDS(1, 1, 5, 8)}, "the candidate has the BOS, token 1, twice"},
        {BOS, {IDS(1, 1, 5, 8), IDS(1, 5, 8)}, "the reference has the BOS, token 1, twice"},
        {BOS,
         {IDS(1, 3, 8), IDS(1, 4, 5, 6, 8)},
         "candidate has the special token 3 (<|a|>) of position 1 split into 3"},
        {BOS, {IDS(1, 3, 8), IDS(1, 4, 5, 7)}, "candidate has the special token 3 (<|a|>) of position 1 split into 3"},
        {BOS,
         {IDS(1, 4, 5, 6, 8), IDS(1, 3, 8)},
         "reference has the special token 3 (<|a|>) of position 1 split into 3"},
        {-1, {IDS(3, 8), IDS(4, 5, 6, 8)}, "of position 0 split into 3"},
        {BOS, {IDS(1, 1, 5), IDS(1, 1, 5)}, "both prompts begin with the BOS, token 1, twice"},
        {BOS, {IDS(1, 5, 1), IDS(1, 5, 1)}, NULL},
        {BOS, {IDS(1, 1, 1), IDS(1, 1, 1)}, NULL},
        {-1, {IDS(1, 1, 5), IDS(1, 1, 5)}, NULL},
        {BOS, {IDS(1, 5, 8), IDS(5, 5)}, NULL}, /* something else differs as well */
        {BOS, {IDS(1, 5, 8), IDS(1, 1, 8, 8)}, NULL},
        {BOS, {IDS(1, 5, 8), IDS(1, 5)}, NULL},       /* one is the other's beginning */
        {BOS, {IDS(3, 5, 8), IDS(5, 8)}, NULL},       /* lacks a token that is no BOS */
        {-1, {IDS(1, 5, 8), IDS(5, 8)}, NULL},        /* the vocabulary has no BOS */
        {BOS, {IDS(1, 3, 8), IDS(1, 4, 5, 8)}, NULL}, /* "<|ab" */
        {BOS, {IDS(1, 3, 8), IDS(1, 4, 5)}, NULL},    /* spelt in part */
        {BOS, {IDS(1, 5, 8), IDS(1, 8, 8)}, NULL},
        {BOS, {IDS(1, 5, 8), IDS(1, 99, -1)}, NULL}, /* ids that the vocabulary has not */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_verdict v = {0};
        fd_remark found;
        fd_tokenizer *tokenizer = make(cases[i].bos);
        bool named = fd_prompt_tokens_find(tokenizer, cases[i].sides, &found);
        if (named) fd_verdict_note(&v, found);
        const char *said = note_of(&v, 0);
        cr_expect_eq(named, cases[i].said != NULL, "case %zu: \"%s\"", i, said);
        cr_expect(strstr(said, cases[i].said ? cases[i].said : "") != NULL, "case %zu: \"%s\"", i, said);
        cr_expect(named || said[0] == '\0', "case %zu", i);
        fd_tokenizer_free(tokenizer);
    }
}
