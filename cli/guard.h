/* Standard output and standard error, with everything that goes there looked at first: the one way out of names,
 * prompts, attributes and messages to a terminal. What base/text.h does not show comes out as '?'. */
#ifndef FD_CLI_GUARD_H
#define FD_CLI_GUARD_H

#include <stdbool.h>
#include <stdio.h>

/* Puts the guard in front of both; nothing was printed before. Without it (no memory) the program ends. */
void fd_cli_guard_streams(void);

/* Standard output for text that a model generated: looked at on a terminal, every byte of it into a file or a pipe. */
FILE *fd_cli_generated(void);

/* Writes out what is held; false when standard output did not take all that was written to it. */
bool fd_cli_finish_streams(void);

/* What we mean a terminal to obey, past the guard. */
void fd_cli_raw(FILE *stream, const char *bytes, size_t size);

/* To standard error at once, guarded; a signal's handler may call it. */
void fd_cli_say_at_once(const char *text);

/* Whether the stream, stdout or stderr, is a terminal: fileno knows nothing of a guarded one. */
bool fd_cli_is_terminal(FILE *stream);

#endif
