/* Text that may come from a file, before anybody looks at it: what a terminal would obey, what turns the order of a line
 * around, and what is no UTF-8, is not shown. Everything that shows text asks here. */
#ifndef FD_BASE_TEXT_H
#define FD_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fd_character {
    size_t n;      /* bytes, at least 1 */
    bool shown;    /* as it is; false: something stands in its place */
    bool cut;      /* the text ends inside what may be a character */
    uint32_t code; /* U+FFFD for what is no UTF-8 */
} fd_character;

/* The character at the beginning of text [size], size > 0. Not shown: control characters other than line feed and tab (C0, DEL, C1),
 * directional marks, embeddings, overrides and isolates, line and paragraph separators, noncharacters, and bytes that
 * are no UTF-8. */
fd_character fd_text_next(const char *text, size_t size);

/* Copies text with '?' for every character that is not shown, and for line feeds and tabs; cut at a character's end. */
void fd_text_one_line(const char *text, char *out, size_t size);

bool fd_ends_with(const char *text, const char *ending);

#endif
