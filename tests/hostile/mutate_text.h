/* Mutants of text: words and numbers where a parser expects others. */
#ifndef FD_TESTS_HOSTILE_MUTATE_TEXT_H
#define FD_TESTS_HOSTILE_MUTATE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* splitmix64: the next number of the sequence. */
uint64_t mutate_next(uint64_t *state);

/* A mutant of text [size], [*n] to be freed: words doubled, dropped, exchanged or repeated a thousand times, numbers that a
 * field should not have, brackets that do not close, bytes that are no UTF-8. At most 256 KiB. */
uint8_t *mutate_text(const uint8_t *text, size_t size, uint64_t *state, size_t *n);

#endif
