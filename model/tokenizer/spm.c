/* SentencePiece-style BPE as llama.cpp runs it: characters joined in the order of the scores of what they become, and
 * characters that no token covers given byte by byte. Spaces stand as U+2581 in the vocabulary. */
#include <math.h>
#include <stdlib.h>

#include "model/tokenizer/internal.h"

fd_code fd_spm_build(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err) {
    size_t n = (size_t)vocab->n_token;
    tokenizer->scores = malloc(n * sizeof *tokenizer->scores);
    tokenizer->token_of_piece = malloc(n * sizeof *tokenizer->token_of_piece);
    if (!tokenizer->scores || !tokenizer->token_of_piece)
        return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %d tokens", vocab->n_token);

    size_t at = 0;
    for (int32_t token = 0; token < vocab->n_token; token++) {
        fd_string text = vocab->tokens[token];
        size_t size;
        FD_TRY(fd_marked_token_text(text, token, tokenizer->types[token], tokenizer->bytes + at, &size, err));
        tokenizer->starts[token] = at;
        at += size;
        float score = vocab->scores ? vocab->scores[token] : 0.0f;
        if (isnan(score))
            return fd_fail(err, FD_ERR_INPUT, "tokenizer: score of token %d is NaN, expected a number", token);
        tokenizer->scores[token] = score;
        if (text.size == 0) continue;
        int32_t piece;
        FD_TRY(fd_piece_map_add(&tokenizer->pieces, text.data, text.size, &piece, err));
        tokenizer->token_of_piece[piece] = token; /* of equal texts the last counts */
    }
    tokenizer->starts[vocab->n_token] = at;

    fd_list_byte_tokens(tokenizer);
    return FD_OK;
}

typedef struct spm_text {
    const fd_tokenizer *tokenizer;
    const char *data;
} spm_text;

/* Two symbols may join when the two together are a token; the higher its score, the sooner. */
static bool spm_pair(const void *user, const fd_merge_symbol *left, const fd_merge_symbol *right, double *key,
                     int32_t *piece) {
    const spm_text *text = user;
    const fd_tokenizer *tokenizer = text->tokenizer;
    *piece = fd_piece_map_find(&tokenizer->pieces, text->data + left->start, left->size + right->size);
    if (*piece < 0) return false;
    *key = -(double)tokenizer->scores[tokenizer->token_of_piece[*piece]];
    return true;
}

static fd_code encode_marked(const fd_tokenizer *tokenizer, const char *text, size_t size, fd_merge *merge, fd_ids *ids,
                             fd_error *err) {
    fd_merge_clear(merge);
    for (size_t i = 0; i < size;) {
        size_t n = fd_utf8_length(text + i, size - i);
        if (n == 0) n = 1; /* a byte that is no UTF-8 goes alone and swallows nothing behind it */
        FD_TRY(fd_merge_push(merge, i, n, fd_piece_map_find(&tokenizer->pieces, text + i, n), err));
        i += n;
    }
    spm_text user = {tokenizer, text};
    FD_TRY(fd_merge_run(merge, spm_pair, &user, err));
    for (int32_t i = merge->n_symbol ? 0 : -1; i >= 0; i = merge->symbols[i].right) {
        const fd_merge_symbol *symbol = &merge->symbols[i];
        if (symbol->piece >= 0)
            FD_TRY(fd_ids_push(ids, tokenizer->token_of_piece[symbol->piece], err));
        else
            FD_TRY(fd_push_bytes(tokenizer, text + symbol->start, symbol->size, ids, err));
    }
    return FD_OK;
}

fd_code fd_spm_encode(const fd_tokenizer *tokenizer, const char *text, size_t size, bool after_special, fd_merge *merge,
                      fd_ids *ids, fd_error *err) {
    const bool space_prefix = tokenizer->add_space_prefix && after_special;
    char *marked;
    size_t n;
    FD_TRY(fd_mark_spaces(text, size, space_prefix, &marked, &n, err));
    fd_code code = encode_marked(tokenizer, marked, n, merge, ids, err);
    free(marked);
    return code;
}
