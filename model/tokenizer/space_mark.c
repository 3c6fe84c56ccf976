/* Vocabularies as SentencePiece writes them: U+2581 for a space, <0x0A> for a byte that has no character. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */

/* "<0x0A>" to 10; -1 when the text has another form. */
static int parse_byte_token(fd_string text) {
    if (text.size != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text.data[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        value = 16 * value + digit;
    }
    return value;
}

fd_code fd_marked_token_text(fd_string text, int32_t token, uint8_t type, char *to, size_t *size, fd_error *err) {
    *size = 0;
    if (type == FD_TOKEN_BYTE) {
        int byte = parse_byte_token(text);
        if (byte < 0)
            return fd_fail(err, FD_ERR_INPUT, "tokenizer: byte token %d: found \"%.*s\", expected the form <0x0A>",
                           token, (int)(text.size < 64 ? text.size : 64), text.data);
        to[(*size)++] = (char)byte;
        return FD_OK;
    }
    bool as_it_is = type == FD_TOKEN_CONTROL || type == FD_TOKEN_UNKNOWN || type == FD_TOKEN_USER_DEFINED;
    for (size_t i = 0; i < text.size;) {
        bool mark = !as_it_is && text.size - i >= 3 && memcmp(text.data + i, SPACE_MARK, 3) == 0;
        to[(*size)++] = mark ? ' ' : text.data[i];
        i += mark ? 3 : 1;
    }
    return FD_OK;
}

void fd_list_byte_tokens(fd_tokenizer *tokenizer) {
    for (int byte = 0; byte < 256; byte++) {
        char name[8], raw = (char)byte;
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        int32_t piece = fd_piece_map_find(&tokenizer->pieces, name, 6);
        if (piece < 0) piece = fd_piece_map_find(&tokenizer->pieces, &raw, 1);
        tokenizer->token_of_byte[byte] = piece >= 0 ? tokenizer->token_of_piece[piece] : -1;
    }
}

fd_code fd_mark_spaces(const char *text, size_t size, bool space_prefix, char **marked, size_t *n, fd_error *err) {
    *marked = malloc(3 * (size + 1));
    if (!*marked) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %zu bytes of text", 3 * (size + 1));
    *n = 0;
    for (size_t i = 0; i < size + space_prefix; i++) {
        char c = i < space_prefix ? ' ' : text[i - space_prefix];
        if (c == ' ') {
            memcpy(*marked + *n, SPACE_MARK, 3);
            *n += 3;
        } else {
            (*marked)[(*n)++] = c;
        }
    }
    return FD_OK;
}
