#include "cli/run/text.h"

#include <stdlib.h>

fd_cli_text fd_cli_text_begin(FILE *to, const fd_tokenizer *tokenizer, const char *prompt) {
    return (fd_cli_text){.stream = {.to = to}, .tokenizer = tokenizer, .keeps_space = !prompt || prompt[0] == ' '};
}

/* SentencePiece puts a space before the text; the first piece is printed without it when the prompt had none. */
static void put_piece(fd_cli_text *t, const char *piece, int32_t size) {
    int32_t skip = !t->begun && !t->keeps_space && size > 0 && piece[0] == ' ';
    if (size > skip) fd_cli_stream_put(&t->stream, piece + skip, (size_t)(size - skip));
    t->begun = t->begun || size > 0;
}

fd_code fd_cli_text_token(fd_cli_text *t, int32_t token, fd_error *err) {
    if (!t->tokenizer) {
        fprintf(t->stream.to, "%d ", token);
        fflush(t->stream.to);
        return FD_OK;
    }
    char few[256], *piece = few;
    int32_t size = fd_token_bytes(t->tokenizer, token, false, few, sizeof few);
    if (size > (int32_t)sizeof few) {
        piece = malloc((size_t)size);
        if (!piece) return fd_fail(err, FD_ERR_MEMORY, "token %d: out of memory for %d bytes", token, size);
        (void)fd_token_bytes(t->tokenizer, token, false, piece, size);
    }
    put_piece(t, piece, size);
    if (piece != few) free(piece);
    return FD_OK;
}

void fd_cli_text_end(fd_cli_text *t) {
    fd_cli_stream_end(&t->stream);
    putc('\n', t->stream.to);
    fflush(t->stream.to);
}
