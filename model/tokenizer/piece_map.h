/* Byte strings numbered 0, 1, 2, … in the order they were added, found again by a hash. One pool holds all bytes.
 * Read-only use from several threads is safe. */
#ifndef FD_MODEL_TOKENIZER_PIECE_MAP_H
#define FD_MODEL_TOKENIZER_PIECE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct fd_piece_map { /* all zero: empty */
    char *pool;               /* the pieces' bytes, end to end                       */
    size_t pool_size, pool_capacity;
    size_t *starts; /* [n + 1] into pool                                   */
    int32_t n, capacity;
    int32_t *slots; /* [n_slot] piece, or -1; n_slot is a power of two     */
    size_t n_slot;
    size_t max_size; /* of the longest piece: longer strings need no search */
} fd_piece_map;

/* Room for n pieces of n_byte bytes in all, so that adding them moves nothing. */
fd_code fd_piece_map_reserve(fd_piece_map *map, int32_t n, size_t n_byte, fd_error *err);
void fd_piece_map_free(fd_piece_map *map);

/* The number of the piece [size] at `data`; -1 when it was never added. */
int32_t fd_piece_map_find(const fd_piece_map *map, const char *data, size_t size);

/* The number of the piece, adding it when it is new. `data` must not point into the map's own pool. */
fd_code fd_piece_map_add(fd_piece_map *map, const char *data, size_t size, int32_t *piece, fd_error *err);

#endif
