/* RWKV's World tokenizer: at every place the longest token that the text has there. The file writes tokens as Python
 * prints bytes, with \\n, \\r, \\t, \\xff and a backslash before quotes and itself. Source: RWKV-LM's
 * rwkv_vocab_v20230424 and its trie. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

static int digit_of(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* At most text.size bytes; false: an escape is not whole. */
static bool unescape(fd_string text, char *to, size_t *size) {
    static const char escapes[] = "t\tn\nr\r";
    *size = 0;
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        if (c == '\\') {
            if (++i == text.size) return false;
            c = text.data[i];
            const char *known = c ? strchr(escapes, c) : NULL;
            if (c == 'x') {
                int high = i + 2 < text.size ? digit_of(text.data[i + 1]) : -1;
                int low = high >= 0 ? digit_of(text.data[i + 2]) : -1;
                if (low < 0) return false;
                c = (char)(16 * high + low);
                i += 2;
            } else if (known && (known - escapes) % 2 == 0) {
                c = known[1];
            }
        }
        to[(*size)++] = c;
    }
    return true;
}

fd_code fd_rwkv_build(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err) {
    size_t at = 0;
    tokenizer->token_of_piece = malloc((size_t)vocab->n_token * sizeof *tokenizer->token_of_piece);
    if (!tokenizer->token_of_piece)
        return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %d tokens", vocab->n_token);
    for (int i = 0; i < 256; i++) tokenizer->token_of_byte[i] = -1;
    for (int32_t token = 0; token < vocab->n_token; token++) {
        fd_string text = vocab->tokens[token];
        char *bytes = tokenizer->bytes + at;
        size_t size;
        int32_t piece;
        if (!unescape(text, bytes, &size))
            return fd_fail(err, FD_ERR_INPUT, "tokenizer.ggml.tokens: token %d: found \"%.*s\", expected whole escapes",
                           token, (int)(text.size < 64 ? text.size : 64), text.data);
        tokenizer->starts[token] = at;
        at += size;
        if (size == 0) continue;
        FD_TRY(fd_piece_map_add(&tokenizer->pieces, bytes, size, &piece, err));
        tokenizer->token_of_piece[piece] = token; /* of equal texts the last counts */
        fd_note_longest(tokenizer, (fd_string){bytes, size});
        if (size == 1) tokenizer->token_of_byte[(unsigned char)bytes[0]] = token;
    }
    tokenizer->starts[vocab->n_token] = at;
    return FD_OK;
}

void fd_note_longest(fd_tokenizer *tokenizer, fd_string piece) {
    size_t *longest = &tokenizer->longest[(unsigned char)piece.data[0]];
    if (piece.size > *longest) *longest = piece.size;
}

int32_t fd_longest_piece(const fd_tokenizer *tokenizer, const char *text, size_t size, size_t *n) {
    *n = tokenizer->longest[(unsigned char)text[0]];
    if (*n > size) *n = size;
    for (; *n > 0; --*n) {
        int32_t piece = fd_piece_map_find(&tokenizer->pieces, text, *n);
        if (piece >= 0) return piece;
    }
    return -1;
}

fd_code fd_rwkv_encode(const fd_tokenizer *tokenizer, const char *text, size_t size, bool after_special,
                       fd_merge *merge, fd_ids *ids, fd_error *err) {
    (void)after_special, (void)merge;
    for (size_t at = 0, n; at < size; at += n) {
        int32_t piece = fd_longest_piece(tokenizer, text + at, size - at, &n);
        if (piece >= 0) {
            FD_TRY(fd_ids_push(ids, tokenizer->token_of_piece[piece], err));
        } else {
            n = 1;
            FD_TRY(fd_push_bytes(tokenizer, text + at, 1, ids, err));
        }
    }
    return FD_OK;
}
