/* A prompt in the form that the model was trained on. */
#ifndef FD_CLI_CHAT_H
#define FD_CLI_CHAT_H

#include "cli/cli.h"

/* Renders the file's tokenizer.chat_template with `system` (NULL: none) and the user's `text`, the assistant's turn
 * open: *out is malloc'ed. Jinja is Python's: $FD_PYTHON, else python3, with the firstdiff package and jinja2. *whole:
 * the text begins with the BOS token, so that tokenizing must add none. FD_ERR_INPUT without a template or when it
 * refuses, FD_ERR_UNSUPPORTED where Python or a package is missing. */
fd_code fd_cli_chat(const fd_cli_model *model, const char *system, const char *text, char **out, bool *whole,
                    fd_error *err);

/* The same with the messages in a file, as chat servers take them: [{"role": …, "content": …}, …], or an object with
 * that list as "messages". */
fd_code fd_cli_chat_file(const fd_cli_model *model, const char *path, char **out, bool *whole, fd_error *err);

#endif
