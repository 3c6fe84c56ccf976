/* Generated tokens as text on a stream, each as soon as it is known. */
#ifndef FD_CLI_RUN_TEXT_H
#define FD_CLI_RUN_TEXT_H

#include "cli/run/stream.h"
#include "model/tokenizer/tokenizer.h"

typedef struct fd_cli_text {
    fd_cli_stream stream;
    const fd_tokenizer *tokenizer; /* NULL: ids are printed */
    bool keeps_space;              /* the prompt begins with a space, or is not known */
    bool begun;                    /* something is out */
} fd_cli_text;

/* `prompt`: its text, NULL when it was given as ids. */
fd_cli_text fd_cli_text_begin(FILE *to, const fd_tokenizer *tokenizer, const char *prompt);
fd_code fd_cli_text_token(fd_cli_text *text, int32_t token, fd_error *err);
/* What is held back, and the end of the line. */
void fd_cli_text_end(fd_cli_text *text);

#endif
