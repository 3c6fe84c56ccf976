#include "dumpers/hdf5/walk.h"

#include <stdlib.h>

bool fd_h5_walk_put_at(fd_h5_walk *w, uint64_t at, fd_h5_chunk chunk) {
    uint64_t size = w->blocks.bytes->size, bytes = w->layout->filters.any ? chunk.bytes : w->chunk_bytes;
    if (chunk.address != FD_H5_NOWHERE && (chunk.address > size || bytes > size - chunk.address)) return false;
    w->out[at] = chunk;
    return true;
}

bool fd_h5_walk_put(fd_h5_walk *w, const uint64_t *scaled, fd_h5_chunk chunk) {
    uint64_t at = 0;
    for (int i = 0; i < w->rank; i++) {
        if (scaled[i] >= w->n[i]) return true;
        at = at * w->n[i] + scaled[i];
    }
    return fd_h5_walk_put_at(w, at, chunk);
}

bool fd_h5_walk_take(const fd_h5_walk *w, fd_h5_cursor *c, uint64_t entry, fd_h5_chunk *out) {
    enum { MASK = 4 };
    *out = (fd_h5_chunk){.address = fd_h5_take(c, 8)};
    if (!w->layout->filters.any) return entry == 8 && !c->bad;
    if (entry < 8 + 1 + MASK || entry > 8 + 8 + MASK) return false;
    uint64_t bytes = fd_h5_take(c, (size_t)entry - 8 - MASK);
    out->bytes = (uint32_t)bytes;
    out->mask = (uint32_t)fd_h5_take(c, MASK);
    return bytes <= UINT32_MAX && !c->bad;
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
