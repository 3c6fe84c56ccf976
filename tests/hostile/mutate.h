/* Hostile files out of good ones: changes where the format has meaning, with checksums made right again. */
#ifndef FD_TESTS_HOSTILE_MUTATE_H
#define FD_TESTS_HOSTILE_MUTATE_H

#include <stddef.h>
#include <stdint.h>

typedef struct mutator mutator;

/* Looks for the blocks of metadata in a file (HDF5's, or those of no format: then any byte may change). `data` is
 * borrowed. */
mutator *mutator_new(const uint8_t *data, size_t size);
void mutator_free(mutator *m);
size_t mutator_blocks(const mutator *m); /* that have a checksum */

/* A mutant, [*size] to be freed; the same for the same seed. */
uint8_t *mutator_make(const mutator *m, uint64_t seed, size_t *size);

#endif
