/* The objects of a heap lie in direct blocks. A doubling table says where these are: rows of `width` blocks, of which
 * those of the first two rows have the least size and those of each further row twice the size of the row before.
 * What grows beyond the largest direct block is in the rows of a further indirect block.
 *
 *   offset in the heap   0 ··· W·S    rows of S bytes a block
 *                        W·S ··· 2W·S               S
 *                        2W·S ··· 4W·S             2S
 *                        4W·S ··· 8W·S             4S          … */
#include "dumpers/hdf5/heap.h"

#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/walk.h"

typedef struct object { /* its place in the heap, not in the file */
    uint64_t offset, bytes;
} object;

typedef struct heap {
    fd_h5_blocks blocks;
    uint64_t address, offset_bytes, length_bytes; /* bytes of an offset and of a length in an object's ID */
    uint64_t width, least, most;                  /* blocks of a row; bytes of a direct block, powers of two */
    bool checked;                                 /* direct blocks have a checksum */
    uint64_t root, n_row;                         /* n_row 0: the root is a direct block */
    object *objects;                              /* [n] */
    size_t n, limit;
    uint8_t *block; /* the direct block that was read last */
    uint64_t block_offset, block_bytes;
} heap;

static uint64_t log2_of(uint64_t n) {
    return 63 - (uint64_t)__builtin_clzll(n);
}

static bool is_power(uint64_t n) {
    return n > 0 && (n & (n - 1)) == 0;
}

static bool read_header(heap *h) {
    enum { BYTES = 146, CHECKSUMS = 2 };
    fd_h5_cursor c;
    uint8_t *block = fd_h5_block_read(&h->blocks, h->address, BYTES, "FRHP", &c);
    if (!block) return false;
    bool plain = fd_h5_take(&c, 1) == 0;
    uint64_t id_bytes = fd_h5_take(&c, 2);
    plain = plain && fd_h5_take(&c, 2) == 0; /* filters */
    h->checked = fd_h5_take(&c, 1) & CHECKSUMS;
    uint64_t most_object = fd_h5_take(&c, 4);
    fd_h5_skip(&c, 12 * 8); /* objects outside the blocks, free space, counts */
    h->width = fd_h5_take(&c, 2);
    h->least = fd_h5_take(&c, 8);
    h->most = fd_h5_take(&c, 8);
    uint64_t bits = fd_h5_take(&c, 2);
    fd_h5_skip(&c, 2);
    h->root = fd_h5_take(&c, 8);
    h->n_row = fd_h5_take(&c, 2);
    free(block);
    if (!plain || c.bad || bits < 1 || bits > 64 || most_object == 0) return false;
    if (!is_power(h->width) || !is_power(h->least) || !is_power(h->most) || h->least > h->most ||
        h->most > FD_H5_WALK_MAX_BLOCK || h->n_row > 64)
        return false;
    uint64_t of_block = (log2_of(h->most) + 7) / 8, of_object = log2_of(most_object) / 8 + 1;
    h->offset_bytes = (bits + 7) / 8;
    h->length_bytes = of_block < of_object ? of_block : of_object;
    return id_bytes == 1 + h->offset_bytes + h->length_bytes;
}

/* ---- the names' tree: which objects there are ---- */

/* A record is the name's hash and the object's ID, whose first byte says its version and kind: 0 for one in a block. */
static bool take_record(fd_h5_cursor *c, void *user) {
    heap *h = user;
    fd_h5_skip(c, 4);
    uint64_t kind = fd_h5_take(c, 1);
    object o = {.offset = fd_h5_take(c, (size_t)h->offset_bytes)};
    o.bytes = fd_h5_take(c, (size_t)h->length_bytes);
    if (c->bad || kind != 0 || h->n == h->limit) return false;
    if ((h->n & (h->n - 1)) == 0) { /* no room: it is doubled */
        object *grown = realloc(h->objects, (h->n ? 2 * h->n : 1) * sizeof *grown);
        if (!grown) return false;
        h->objects = grown;
    }
    h->objects[h->n++] = o;
    return true;
}

static int by_offset(const void *a, const void *b) {
    const object *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* ---- blocks ---- */

/* The block begins with a signature, a version, the heap's address and its own offset in the heap. */
static bool is_of_heap(const heap *h, fd_h5_cursor *c, uint64_t offset) {
    return fd_h5_take(c, 1) == 0 && fd_h5_take(c, 8) == h->address &&
           fd_h5_take(c, (size_t)h->offset_bytes) == offset && !c->bad;
}

/* The checksum stands before the objects, and is made as if it were 0. */
static bool is_whole(const heap *h, uint8_t *block, uint64_t bytes) {
    size_t at = 13 + (size_t)h->offset_bytes;
    uint8_t sum[4];
    if (!h->checked) return true;
    memcpy(sum, block + at, 4);
    memset(block + at, 0, 4);
    return fd_h5_has_checksum(block, (size_t)bytes, sum);
}

static bool read_direct(heap *h, uint64_t at, uint64_t offset, uint64_t bytes) {
    fd_h5_cursor c = {h->block, (size_t)bytes, false};
    h->block_bytes = 0;
    if (h->blocks.budget-- <= 0 || bytes < 17 + h->offset_bytes ||
        !fd_h5_bytes_read(h->blocks.bytes, at, (size_t)bytes, h->block))
        return false;
    if (!fd_h5_expect(&c, "FHDB") || !is_of_heap(h, &c, offset) || !is_whole(h, h->block, bytes)) return false;
    h->block_offset = offset;
    h->block_bytes = bytes;
    return true;
}

/* Reads the direct block that holds byte `wanted` of the heap, from the rows of the indirect block at `at`, which begins
 * at `offset`. */
static bool read_below(heap *h, uint64_t at, uint64_t offset, uint64_t n_row, uint64_t wanted) {
    uint64_t rest = wanted - offset, first = h->width * h->least, n_direct = log2_of(h->most) - log2_of(h->least) + 2;
    uint64_t row = rest < first ? 0 : log2_of(rest) - log2_of(first) + 1;
    uint64_t bytes = row < 2 ? h->least : h->least << (row - 1), begin = row == 0 ? 0 : first << (row - 1);
    uint64_t column = (rest - begin) / bytes, head = 13 + h->offset_bytes;
    if (row >= n_row || n_row > 64) return false;
    fd_h5_cursor c;
    uint8_t *block = fd_h5_block_read(&h->blocks, at, head + n_row * h->width * 8 + 4, "FHIB", &c);
    bool ok = block && is_of_heap(h, &c, offset) && fd_h5_skip(&c, (size_t)(row * h->width + column) * 8);
    uint64_t child = fd_h5_take(&c, 8), child_offset = offset + begin + column * bytes;
    free(block);
    if (!ok || c.bad || child == FD_H5_NOWHERE) return false;
    if (row < n_direct) return read_direct(h, child, child_offset, bytes);
    if (bytes < first) return false;
    /* as many rows as make up its bytes: fewer than are here, so this ends */
    return read_below(h, child, child_offset, log2_of(bytes) - log2_of(first) + 1, wanted);
}

static bool read_block_of(heap *h, uint64_t wanted) {
    if (h->n_row == 0) return wanted < h->least && read_direct(h, h->root, 0, h->least);
    return read_below(h, h->root, 0, h->n_row, wanted);
}

/* ---- all of it ---- */

static bool take_objects(heap *h, bool (*take)(fd_h5_cursor link, void *user), void *user) {
    h->block = malloc((size_t)h->most);
    if (!h->block) return false;
    qsort(h->objects, h->n, sizeof *h->objects, by_offset); /* each block is read once */
    for (size_t i = 0; i < h->n; i++) {
        const object *o = &h->objects[i];
        bool there = h->block_bytes && o->offset - h->block_offset < h->block_bytes;
        if (!there && !read_block_of(h, o->offset)) return false;
        uint64_t inside = o->offset - h->block_offset;
        if (inside >= h->block_bytes || o->bytes > h->block_bytes - inside) return false;
        if (!take((fd_h5_cursor){h->block + inside, (size_t)o->bytes, false}, user)) return false;
    }
    return true;
}

bool fd_h5_heap_links(const fd_h5_bytes *bytes, uint64_t address, uint64_t names, size_t limit,
                      bool (*take)(fd_h5_cursor link, void *user), void *user) {
    enum { LINKS_BY_NAME = 5 };
    heap h = {.blocks = {bytes, 1024 + (int64_t)limit}, .address = address, .limit = limit};
    bool ok = read_header(&h);
    fd_h5_records records = {names, LINKS_BY_NAME, 5 + h.offset_bytes + h.length_bytes, take_record, &h};
    ok = ok && fd_h5_btree_2(&h.blocks, &records) && (h.n == 0 || take_objects(&h, take, user));
    free(h.objects);
    free(h.block);
    return ok;
}
