#include "toy_vocab.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/common.h"

#define SPACE "\xE2\x96\x81"

void toy_add(toy *t, const char *text, int32_t type, float score) {
    int32_t n = t->vocab.n_token++;
    t->tokens[n] = (fd_string){text, strlen(text)};
    t->types[n] = type;
    t->scores[n] = score;
}

void toy_add_merge(toy *t, const char *line) {
    t->merges[t->vocab.n_merge++] = (fd_string){line, strlen(line)};
}

void toy_start(toy *t, const char *model) {
    *t = (toy){0};
    t->vocab = (fd_vocab){.model = model, .pre = "gpt-2", .bos = 1, .eos = 2, .unk = 0, .add_space_prefix = true};
    toy_add(t, "<unk>", FD_TOKEN_UNKNOWN, 0);
    toy_add(t, "<s>", FD_TOKEN_CONTROL, 0);
    toy_add(t, "</s>", FD_TOKEN_CONTROL, 0);
}

fd_tokenizer *toy_make(toy *t) {
    t->vocab.tokens = t->tokens;
    t->vocab.merges = t->merges;
    t->vocab.scores = t->scores;
    t->vocab.types = t->types;
    fd_tokenizer *tokenizer = NULL;
    fd_error err = {0};
    cr_assert(fd_tokenizer_from_vocab(&t->vocab, &tokenizer, &err) == FD_OK, "%s", err.message);
    return kept(tokenizer);
}

fd_tokenizer *toy_spm(toy *t) {
    toy_start(t, "llama");
    toy_add(t, SPACE, FD_TOKEN_NORMAL, -10);
    toy_add(t, "a", FD_TOKEN_NORMAL, -11);
    toy_add(t, "b", FD_TOKEN_NORMAL, -12);
    toy_add(t, "c", FD_TOKEN_NORMAL, -13);
    toy_add(t, "ab", FD_TOKEN_NORMAL, -2);
    toy_add(t, "bc", FD_TOKEN_NORMAL, -1);
    toy_add(t, "aa", FD_TOKEN_NORMAL, -3);
    toy_add(t, SPACE "ab", FD_TOKEN_NORMAL, -4);
    toy_add(t, "<0x0A>", FD_TOKEN_BYTE, 0);
    toy_add(t, "<|u|>", FD_TOKEN_USER_DEFINED, 0);
    toy_add(t, "<|user|>", FD_TOKEN_CONTROL, 0);
    return toy_make(t);
}

fd_tokenizer *toy_bpe(toy *t, const char *pre) {
    toy_start(t, "gpt2");
    t->vocab.pre = pre;
    toy_add(t, "a", FD_TOKEN_NORMAL, 0);
    toy_add(t, "b", FD_TOKEN_NORMAL, 0);
    toy_add(t, "c", FD_TOKEN_NORMAL, 0);
    toy_add(t, "ab", FD_TOKEN_NORMAL, 0);
    toy_add(t, "bc", FD_TOKEN_NORMAL, 0);
    toy_add(t, "abc", FD_TOKEN_NORMAL, 0);
    toy_add(t, "\xC4\xA0", FD_TOKEN_NORMAL, 0);
    toy_add(t,
            "\xC4\xA0"
            "a",
            FD_TOKEN_NORMAL, 0);
    toy_add(t, "<|u|>", FD_TOKEN_USER_DEFINED, 0);
    toy_add(t, "<|user|>", FD_TOKEN_CONTROL, 0);
    toy_add_merge(t, "b c");
    toy_add_merge(t, "\xC4\xA0 a");
    toy_add_merge(t, "a b");
    return toy_make(t);
}
