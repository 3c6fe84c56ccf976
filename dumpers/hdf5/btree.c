#include <stdlib.h>

#include "dumpers/hdf5/walk.h"

/* level -1: of the root, which may have any */
static bool node_1(fd_h5_walk *w, uint64_t at, int level) {
    size_t key = 8 + 8 * ((size_t)w->rank + 1);
    uint8_t head[24];
    if (w->blocks.budget-- <= 0 || !fd_h5_bytes_read(w->blocks.bytes, at, sizeof head, head)) return false;
    fd_h5_cursor c = {head, sizeof head, false};
    bool node = fd_h5_expect(&c, "TREE") && fd_h5_take(&c, 1) == 1;
    int found = (int)fd_h5_take(&c, 1);
    uint64_t n = fd_h5_take(&c, 2), bytes = n * (key + 8);
    if (!node || (level >= 0 && found != level) || bytes > FD_H5_WALK_MAX_BLOCK) return false;
    uint8_t *block = malloc((size_t)bytes + 1);
    bool ok = block && fd_h5_bytes_read(w->blocks.bytes, at + 24, (size_t)bytes, block);
    c = (fd_h5_cursor){block, (size_t)bytes, false};
    for (uint64_t i = 0; ok && i < n; i++) {
        uint64_t scaled[FD_H5_MAX_RANK];
        fd_h5_chunk chunk = {.bytes = (uint32_t)fd_h5_take(&c, 4), .mask = (uint32_t)fd_h5_take(&c, 4)};
        for (int k = 0; ok && k < w->rank; k++) {
            uint64_t offset = fd_h5_take(&c, 8);
            ok = offset % w->layout->chunk[k] == 0;
            scaled[k] = offset / w->layout->chunk[k];
        }
        fd_h5_skip(&c, 8);
        chunk.address = fd_h5_take(&c, 8);
        if (ok && found > 0)
            ok = node_1(w, chunk.address, found - 1);
        else if (ok)
            ok = (w->layout->filters.any || chunk.bytes == w->chunk_bytes) && fd_h5_walk_put(w, scaled, chunk);
    }
    free(block);
    return ok;
}

bool fd_h5_walk_btree_1(fd_h5_walk *w) {
    return node_1(w, w->layout->address, -1);
}

/* ---- the newer kind (III.A.2) ---- */

/* Record counts take as many bytes as the largest count needs. */
static uint64_t bytes_for(uint64_t n) {
    uint64_t bytes = 1;
    while (n >>= 8) bytes++;
    return bytes;
}

typedef struct btree_2 {
    fd_h5_blocks *blocks;
    const fd_h5_records *records;
    uint64_t node_bytes;
    uint64_t count_bytes;     /* of the records in a node */
    uint64_t total_bytes[16]; /* of the records below a node, by its depth */
} btree_2;

static bool node_2(const btree_2 *t, uint64_t at, uint64_t n, uint64_t depth) {
    fd_h5_cursor c;
    const fd_h5_records *r = t->records;
    uint64_t pointer = depth ? 8 + t->count_bytes + (depth > 1 ? t->total_bytes[depth - 1] : 0) : 0;
    uint64_t bytes = 6 + n * r->bytes + (depth ? (n + 1) * pointer : 0) + 4;
    if (bytes > t->node_bytes) return false;
    uint8_t *block = fd_h5_block_read(t->blocks, at, bytes, depth ? "BTIN" : "BTLF", &c);
    bool ok = block && fd_h5_take(&c, 1) == 0 && fd_h5_take(&c, 1) == r->type;
    for (uint64_t i = 0; ok && i < n; i++) {
        fd_h5_cursor record = {fd_h5_skip(&c, (size_t)r->bytes), (size_t)r->bytes, false};
        ok = record.at && r->take(&record, r->user);
    }
    for (uint64_t i = 0; ok && depth && i <= n; i++) {
        uint64_t child = fd_h5_take(&c, 8), n_child = fd_h5_take(&c, (size_t)t->count_bytes);
        if (depth > 1) fd_h5_skip(&c, (size_t)t->total_bytes[depth - 1]);
        ok = !c.bad && node_2(t, child, n_child, depth - 1);
    }
    free(block);
    return ok;
}

bool fd_h5_btree_2(fd_h5_blocks *blocks, const fd_h5_records *records) {
    fd_h5_cursor c;
    btree_2 t = {.blocks = blocks, .records = records};
    uint8_t *block = fd_h5_block_read(blocks, records->address, 38, "BTHD", &c);
    if (!block) return false;
    bool plain = fd_h5_take(&c, 1) == 0 && fd_h5_take(&c, 1) == records->type;
    t.node_bytes = fd_h5_take(&c, 4);
    uint64_t record_bytes = fd_h5_take(&c, 2), depth = fd_h5_take(&c, 2);
    fd_h5_skip(&c, 2);
    uint64_t root = fd_h5_take(&c, 8), n = fd_h5_take(&c, 2), total = fd_h5_take(&c, 8);
    free(block);
    if (!plain || record_bytes != records->bytes || depth > 15 || t.node_bytes > FD_H5_WALK_MAX_BLOCK ||
        t.node_bytes < 10 + record_bytes)
        return false;
    if (total == 0 || root == FD_H5_NOWHERE) return true;
    uint64_t most = (t.node_bytes - 10) / record_bytes, below = most; /* in a node, in a tree of this depth */
    t.count_bytes = bytes_for(most);
    for (uint64_t u = 1; u <= depth; u++) {
        uint64_t pointer = 8 + t.count_bytes + (u > 1 ? t.total_bytes[u - 1] : 0);
        if (t.node_bytes < 10 + pointer || below > (uint64_t)1 << 48) return false;
        most = (t.node_bytes - 10 - pointer) / (record_bytes + pointer);
        below = (most + 1) * below + most;
        t.total_bytes[u] = bytes_for(below);
    }
    return node_2(&t, root, n, depth);
}

/* A chunk, and its place in the grid. */
static bool take_chunk(fd_h5_cursor *c, void *user) {
    fd_h5_walk *w = user;
    fd_h5_chunk chunk;
    uint64_t scaled[FD_H5_MAX_RANK];
    if (!fd_h5_walk_take(w, c, w->entry, &chunk)) return false;
    for (int k = 0; k < w->rank; k++) scaled[k] = fd_h5_take(c, 8);
    return !c->bad && fd_h5_walk_put(w, scaled, chunk);
}

/* A filtered chunk's size takes as many bytes as that of one without filters, and one more. */
bool fd_h5_walk_btree_2(fd_h5_walk *w) {
    enum { CHUNKS = 10, FILTERED = 11 };
    bool filtered = w->layout->filters.any;
    uint64_t size = bytes_for(w->chunk_bytes) + 1;
    w->entry = filtered ? 8 + (size < 8 ? size : 8) + 4 : 8;
    fd_h5_records records = {w->layout->address, filtered ? FILTERED : CHUNKS, w->entry + 8 * (uint64_t)w->rank,
                             take_chunk, w};
    return fd_h5_btree_2(&w->blocks, &records);
}
