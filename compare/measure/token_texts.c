#include "compare/measure/token_texts.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"

void fd_token_text_read(const fd_tokenizer *tokenizer, fd_token_text *to) {
    char bytes[sizeof to->text];
    int32_t n = fd_token_bytes(tokenizer, to->token, true, bytes, sizeof bytes);
    size_t left = n < 0 ? 0 : (size_t)n < sizeof bytes ? (size_t)n : sizeof bytes, at = 0;
    for (const char *text = bytes; left > 0 && at + 5 < sizeof to->text;) {
        fd_character c = fd_text_next(text, left);
        bool shown = c.shown && c.code >= 0x20;
        size_t n_byte = shown || c.code == '\n' ? c.n : 1;
        if (c.code == '\n')
            at += (size_t)sprintf(to->text + at, "\\n");
        else if (shown)
            at += (size_t)sprintf(to->text + at, "%.*s", (int)c.n, text);
        else
            at += (size_t)sprintf(to->text + at, "\\x%02x", (unsigned char)text[0]);
        text += n_byte;
        left -= n_byte;
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
    for (size_t i = 0; i < kept; i++) fd_token_text_read(tokenizer, &texts[i]);
    m->texts = texts;
    m->n_text = (int32_t)kept;
    return FD_OK;
}
