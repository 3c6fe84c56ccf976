#include "dumpers/hdf5/walk.h"

#include <stdlib.h>

bool fd_h5_walk_put_at(fd_h5_walk *w, uint64_t at, uint64_t address) {
    uint64_t size = w->blocks.bytes->size;
    if (address != FD_H5_NOWHERE && (address > size || w->chunk_bytes > size - address)) return false;
    w->out[at] = address;
    return true;
}

bool fd_h5_walk_put(fd_h5_walk *w, const uint64_t *scaled, uint64_t address) {
    uint64_t at = 0;
    for (int i = 0; i < w->rank; i++) {
        if (scaled[i] >= w->n[i]) return true;
        at = at * w->n[i] + scaled[i];
    }
    return fd_h5_walk_put_at(w, at, address);
}

uint8_t *fd_h5_block_read(fd_h5_blocks *blocks, uint64_t at, uint64_t n, const char *signature, fd_h5_cursor *c) {
    *c = (fd_h5_cursor){NULL, 0, true};
    if (blocks->budget-- <= 0 || n < 8 || n > FD_H5_WALK_MAX_BLOCK) return NULL;
    uint8_t *block = malloc((size_t)n);
    bool ok = block && fd_h5_bytes_read(blocks->bytes, at, (size_t)n, block) && fd_h5_block_is_whole(block, (size_t)n);
    *c = (fd_h5_cursor){block, (size_t)n - 4, false};
    if (ok && fd_h5_expect(c, signature)) return block;
    free(block);
    *c = (fd_h5_cursor){NULL, 0, true};
    return NULL;
}
