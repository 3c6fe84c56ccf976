/* Vocabularies of a few tokens. Each begins with 0 <unk>, 1 <s>, 2 </s>. */
#ifndef FD_TESTS_TOKENIZER_TOY_VOCAB_H
#define FD_TESTS_TOKENIZER_TOY_VOCAB_H

#include "model/tokenizer/tokenizer.h"

enum { TOY_MAX_TOKEN = 48 };

typedef struct toy { /* what a toy vocabulary borrows: must outlive its tokenizer */
    fd_string tokens[TOY_MAX_TOKEN], merges[TOY_MAX_TOKEN];
    float scores[TOY_MAX_TOKEN];
    int32_t types[TOY_MAX_TOKEN];
    fd_vocab vocab;
} toy;

void toy_start(toy *t, const char *model); /* the three tokens alone */
void toy_add(toy *t, const char *text, int32_t type, float score);
void toy_add_merge(toy *t, const char *line);
fd_tokenizer *toy_make(toy *t); /* of the vocabulary as it stands; fails the test */

/* ids: 3 "_" 4 a 5 b 6 c 7 ab 8 bc 9 aa 10 _ab 11 <0x0A> 12 <|u|> (user-defined) 13 <|user|> (control) */
fd_tokenizer *toy_spm(toy *t);

/* ids: 3 a 4 b 5 c 6 ab 7 bc 8 abc 9 Ġ 10 Ġa 11 <|u|> (user-defined) 12 <|user|> (control) */
fd_tokenizer *toy_bpe(toy *t, const char *pre);

#endif
