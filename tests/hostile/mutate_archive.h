/* Archives (zip) whose directory or members were changed, made to look whole again. */
#ifndef FD_TESTS_HOSTILE_MUTATE_ARCHIVE_H
#define FD_TESTS_HOSTILE_MUTATE_ARCHIVE_H

#include <stddef.h>
#include <stdint.h>

typedef struct archive_block {
    size_t at, n;
} archive_block;

enum { ARCHIVE_BLOCKS = 64 };

/* Where the headers stand (local ones, of the directory, of its end) and, of stored members, the first 256 bytes: blocks
 * [ARCHIVE_BLOCKS]. How many; 0 for what is no archive. */
size_t archive_find(const uint8_t *data, size_t size, archive_block *blocks);

/* Sets the checksums of stored members, where `original` has them, to those of what `data` holds now. */
void archive_mend(const uint8_t *original, uint8_t *data, size_t size);

#endif
