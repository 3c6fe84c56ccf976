/* What a terminal may take for a command: an implementation of its own, so that a test of base/text.h does not ask it. */
#ifndef FD_TESTS_HOSTILE_QUIET_H
#define FD_TESTS_HOSTILE_QUIET_H

#include <stddef.h>

/* The first place in text [size] with a control character (but line feed and tab), one that turns the order of a line,
 * or bytes that are no UTF-8; NULL: none. */
const char *first_obeyed(const char *text, size_t size);

#endif
