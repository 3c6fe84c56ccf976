#include "compare/measure/token_texts.h"

#include <stdio.h>
#include <stdlib.h>

/* Bytes of the UTF-8 character at s [n]; 0: it is none. */
static int32_t character_at(const unsigned char *s, int32_t n) {
    int32_t size = s[0] < 0x80                   ? 1
                   : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                   : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                   : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                 : 0;
    if (size > n) return 0;
    for (int32_t i = 1; i < size; i++)
        if (s[i] < 0x80 || s[i] >= 0xc0) return 0;
    bool surrogate = size == 3 && s[0] == 0xed && s[1] >= 0xa0, overlong = size == 3 && s[0] == 0xe0 && s[1] < 0xa0;
    bool beyond = size == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90));
    return surrogate || overlong || beyond ? 0 : size;
}

static void put_text(const fd_tokenizer *tokenizer, fd_token_text *to) {
    unsigned char bytes[sizeof to->text];
    int32_t n = fd_token_bytes(tokenizer, to->token, true, (char *)bytes, sizeof bytes);
    size_t at = 0;
    if (n > (int32_t)sizeof bytes) n = sizeof bytes;
    for (int32_t i = 0, size; i < n && at + 5 < sizeof to->text; i += size ? size : 1) {
        size = character_at(bytes + i, n - i);
        if (size == 1 && bytes[i] == '\n')
            at += (size_t)sprintf(to->text + at, "\\n");
        else if (size == 0 || bytes[i] < 0x20 || bytes[i] == 0x7f)
            at += (size_t)sprintf(to->text + at, "\\x%02x", bytes[i]);
        else
            at += (size_t)sprintf(to->text + at, "%.*s", size, (const char *)bytes + i);
    }
}

static int by_token(const void *a, const void *b) {
    const fd_token_text *x = a, *y = b;
    return (x->token > y->token) - (x->token < y->token);
}

fd_code fd_measures_name_tokens(const fd_tokenizer *tokenizer, fd_measures *m, fd_error *err) {
    size_t most = (size_t)m->n_pos * (1 + 2 * FD_MEASURE_TOP), n = 0, kept = 0;
    fd_token_text *texts = calloc(most + 1, sizeof *texts);
    if (!texts) return fd_fail(err, FD_ERR_MEMORY, "texts of %zu tokens: out of memory", most);
    for (int32_t p = 0; p < m->n_pos; p++) {
        if (m->tokens) texts[n++].token = m->tokens[p];
        for (int k = 0; k < 2 * FD_MEASURE_TOP && m->logits[p].known; k++) {
            int32_t token = m->logits[p].top[k / FD_MEASURE_TOP][k % FD_MEASURE_TOP].token;
            if (token >= 0) texts[n++].token = token;
        }
    }
    qsort(texts, n, sizeof *texts, by_token);
    for (size_t i = 0; i < n; i++)
        if (!kept || texts[kept - 1].token != texts[i].token) texts[kept++].token = texts[i].token;
    for (size_t i = 0; i < kept; i++) put_text(tokenizer, &texts[i]);
    m->texts = texts;
    m->n_text = (int32_t)kept;
    return FD_OK;
}
