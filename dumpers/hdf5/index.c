#include "dumpers/hdf5/index.h"

#include <stdlib.h>

#include "dumpers/hdf5/walk.h"

int64_t fd_h5_chunk_count(const fd_h5_shape *shape, const fd_h5_layout *layout, int64_t limit) {
    int64_t n = 1;
    for (int i = 0; i < shape->rank && layout->index != FD_H5_CONTIGUOUS; i++) {
        hsize_t along = shape->dim[i] / layout->chunk[i] + (shape->dim[i] % layout->chunk[i] != 0);
        if (along > (hsize_t)limit || (along > 0 && n > limit / (int64_t)along)) return -1;
        n *= (int64_t)along;
    }
    return n > limit ? -1 : n;
}

/* A chunk by its number within the shape's limits, of which only the first may be unlimited. */
static bool put_number(fd_h5_walk *w, uint64_t number, fd_h5_chunk chunk) {
    uint64_t scaled[FD_H5_MAX_RANK];
    for (int i = w->rank - 1; i > 0; i--) {
        scaled[i] = number % w->n_max[i];
        number /= w->n_max[i];
    }
    scaled[0] = number;
    return fd_h5_walk_put(w, scaled, chunk);
}

static bool take_chunks(fd_h5_walk *w, fd_h5_cursor *c, uint64_t first, uint64_t n) {
    fd_h5_chunk chunk;
    for (uint64_t i = 0; i < n; i++)
        if (!fd_h5_walk_take(w, c, w->entry, &chunk) || !put_number(w, first + i, chunk)) return false;
    return true;
}

/* What an array's header begins with: its version, what it is an index of, and the bytes of an element. */
static bool take_kind(fd_h5_walk *w, fd_h5_cursor *c) {
    enum { CHUNKS = 0, FILTERED = 1 };
    bool filtered = w->layout->filters.any;
    bool known = fd_h5_take(c, 1) == 0 && fd_h5_take(c, 1) == (filtered ? FILTERED : CHUNKS);
    w->entry = fd_h5_take(c, 1);
    return known && (filtered ? w->entry > 8 : w->entry == 8);
}

/* ---- extensible array: the index of datasets that grow along one dimension ---- */

typedef struct extensible {
    uint64_t address, page;                      /* elements of a page; a data block with more is paged */
    uint64_t n_direct, least, offset_bytes, end; /* end: one past the highest element that is set */
} extensible;

/* Bit i of a bitmap, from the highest bit of its first byte on. */
static bool bit(const uint8_t *set, uint64_t i) {
    return set[i / 8] & (0x80 >> i % 8);
}

/* n pages of an array's elements; bit set0 + i of `set` says whether page i was ever written. */
static bool pages(fd_h5_walk *w, uint64_t at, uint64_t first, uint64_t n, uint64_t page, const uint8_t *set,
                  uint64_t set0) {
    size_t bytes = (size_t)(page * w->entry);
    for (uint64_t i = 0; i < n; i++, at += bytes + 4) {
        if (!bit(set, set0 + i)) continue;
        if (bytes > FD_H5_WALK_MAX_BLOCK - 4 || w->blocks.budget-- <= 0) return false;
        uint8_t *block = malloc(bytes + 4);
        fd_h5_cursor c = {block, bytes, false};
        bool ok = block && fd_h5_bytes_read(w->blocks.bytes, at, bytes + 4, block) &&
                  fd_h5_block_is_whole(block, bytes + 4) && take_chunks(w, &c, first + i * page, page);
        free(block);
        if (!ok) return false;
    }
    return true;
}

static bool data_block(fd_h5_walk *w, const extensible *e, uint64_t at, uint64_t first, uint64_t n, const uint8_t *set,
                       uint64_t set0) {
    fd_h5_cursor c;
    if (at == FD_H5_NOWHERE || first >= e->end) return true;
    uint64_t head = 14 + e->offset_bytes;
    bool paged = n > e->page;
    uint8_t *block = fd_h5_block_read(&w->blocks, at, paged ? head + 4 : head + n * w->entry + 4, "EADB", &c);
    bool ok = block && fd_h5_skip(&c, (size_t)head - 4) && (paged || take_chunks(w, &c, first, n));
    free(block);
    return ok && (!paged || (set && pages(w, at + head + 4, first, n / e->page, e->page, set, set0)));
}

static bool super_block(fd_h5_walk *w, const extensible *e, uint64_t at, uint64_t first, uint64_t n_block, uint64_t n) {
    fd_h5_cursor c;
    if (at == FD_H5_NOWHERE || first >= e->end) return true;
    uint64_t set_bytes = n > e->page ? (n / e->page + 7) / 8 : 0, head = 14 + e->offset_bytes;
    uint8_t *block = fd_h5_block_read(&w->blocks, at, head + n_block * (set_bytes + 8) + 4, "EASB", &c);
    const uint8_t *set =
        block && fd_h5_skip(&c, (size_t)head - 4) ? fd_h5_skip(&c, (size_t)(n_block * set_bytes)) : NULL;
    bool ok = set != NULL;
    for (uint64_t i = 0; ok && i < n_block; i++)
        ok = data_block(w, e, fd_h5_take(&c, 8), first + i * n, n, set, i * (n / e->page)) && !c.bad;
    free(block);
    return ok;
}

/* Super block s has 2^(s/2) data blocks of 2^((s+1)/2) times the least size. The index block holds the addresses of the
 * first data blocks itself, and those of the other super blocks. */
static bool index_block(fd_h5_walk *w, const extensible *e, uint64_t at, uint64_t bits, uint64_t least_pointers) {
    fd_h5_cursor c;
    int64_t least_bits = __builtin_ctzll(e->least), pointer_bits = __builtin_ctzll(least_pointers);
    int64_t n_super = 1 + (int64_t)bits - least_bits, n_inside = 2 * pointer_bits;
    if (n_super < n_inside || n_super > 128) return false;
    uint64_t n_pointer = 2 * (least_pointers - 1) + (uint64_t)(n_super - n_inside);
    uint8_t *block = fd_h5_block_read(&w->blocks, at, 14 + e->n_direct * w->entry + n_pointer * 8 + 4, "EAIB", &c);
    uint64_t first = e->n_direct;
    bool ok = block && fd_h5_skip(&c, 10) && take_chunks(w, &c, 0, e->n_direct);
    for (int64_t s = 0; ok && s < n_super && first < e->end; s++) {
        uint64_t n_block = (uint64_t)1 << (s / 2), n = e->least << ((s + 1) / 2);
        for (uint64_t i = 0; ok && s < n_inside && i < n_block; i++)
            ok = data_block(w, e, fd_h5_take(&c, 8), first + i * n, n, NULL, 0);
        if (s >= n_inside) ok = ok && super_block(w, e, fd_h5_take(&c, 8), first, n_block, n);
        first += n_block * n;
        ok = ok && !c.bad;
    }
    free(block);
    return ok;
}

static bool extensible_array(fd_h5_walk *w) {
    fd_h5_cursor c;
    extensible e = {.address = w->layout->address};
    for (int i = 0; i < w->rank; i++)
        if ((w->layout->max[i] == H5S_UNLIMITED) != (i == 0)) return false;
    uint8_t *block = fd_h5_block_read(&w->blocks, e.address, 72, "EAHD", &c);
    if (!block) return false;
    bool plain = take_kind(w, &c);
    uint64_t bits = fd_h5_take(&c, 1);
    e.n_direct = fd_h5_take(&c, 1);
    e.least = fd_h5_take(&c, 1);
    uint64_t least_pointers = fd_h5_take(&c, 1), page_bits = fd_h5_take(&c, 1);
    fd_h5_skip(&c, 32);
    e.end = fd_h5_take(&c, 8);
    fd_h5_skip(&c, 8);
    uint64_t at = fd_h5_take(&c, 8);
    bool ok = plain && !c.bad && bits >= 1 && bits <= 64 && page_bits < 17 && e.least && !(e.least & (e.least - 1)) &&
              least_pointers && !(least_pointers & (least_pointers - 1));
    free(block);
    if (!ok) return false;
    e.page = (uint64_t)1 << page_bits;
    e.offset_bytes = (bits + 7) / 8;
    return at == FD_H5_NOWHERE || index_block(w, &e, at, bits, least_pointers);
}

/* ---- fixed array ---- */

static bool limited(const fd_h5_walk *w) {
    for (int i = 0; i < w->rank; i++)
        if (w->n_max[i] == 0) return false;
    return true;
}

static bool fixed_array(fd_h5_walk *w) {
    fd_h5_cursor c;
    if (!limited(w)) return false;
    uint8_t *block = fd_h5_block_read(&w->blocks, w->layout->address, 28, "FAHD", &c);
    if (!block) return false;
    bool plain = take_kind(w, &c);
    uint64_t page_bits = fd_h5_take(&c, 1), n = fd_h5_take(&c, 8), at = fd_h5_take(&c, 8);
    free(block);
    if (!plain || page_bits > 16 || n < 1 || n > (uint64_t)1 << 40) return false;
    if (at == FD_H5_NOWHERE) return true;
    uint64_t page = (uint64_t)1 << page_bits, n_page = (n + page - 1) / page, head = 14;
    if (n <= page) {
        block = fd_h5_block_read(&w->blocks, at, head + n * w->entry + 4, "FADB", &c);
        bool ok = block && fd_h5_skip(&c, 10) && take_chunks(w, &c, 0, n);
        free(block);
        return ok;
    }
    uint64_t set_bytes = (n_page + 7) / 8, last = n - (n_page - 1) * page;
    block = fd_h5_block_read(&w->blocks, at, head + set_bytes + 4, "FADB", &c);
    const uint8_t *set = block && fd_h5_skip(&c, 10) ? fd_h5_skip(&c, (size_t)set_bytes) : NULL;
    uint64_t first_page = at + head + set_bytes + 4;
    uint64_t end = n_page - 1; /* the last page is short */
    bool ok = set && pages(w, first_page, 0, end, page, set, 0) &&
              pages(w, first_page + end * (page * w->entry + 4), end * page, 1, last, set, end);
    free(block);
    return ok;
}

/* ---- all of them ---- */

/* The chunks of the shape's limits lie one after another. Only those of the shape are looked at: its limits may be
 * anything. */
static bool implicit(fd_h5_walk *w) {
    uint64_t n_max = 1;
    if (!limited(w)) return false;
    for (int i = 0; i < w->rank; i++) {
        if (w->n_max[i] > ((uint64_t)1 << 40) / n_max) return false;
        n_max *= w->n_max[i];
    }
    for (int64_t at = 0; at < w->n_chunk; at++) {
        uint64_t number = 0, stride = 1, rest = (uint64_t)at;
        fd_h5_chunk chunk = {0};
        for (int i = w->rank - 1; i >= 0; i--) {
            number += rest % w->n[i] * stride;
            stride *= w->n_max[i];
            rest /= w->n[i];
        }
        if (__builtin_mul_overflow(number, w->chunk_bytes, &chunk.address) ||
            __builtin_add_overflow(chunk.address, w->layout->address, &chunk.address) ||
            !fd_h5_walk_put_at(w, (uint64_t)at, chunk))
            return false;
    }
    return true;
}

static bool single_chunk(fd_h5_walk *w) {
    const fd_h5_layout *layout = w->layout;
    bool filtered = layout->filters.any;
    if (w->n_chunk != 1 || (filtered && (layout->bytes == 0 || layout->bytes > UINT32_MAX))) return false;
    return fd_h5_walk_put_at(
        w, 0, (fd_h5_chunk){layout->address, filtered ? (uint32_t)layout->bytes : 0, filtered ? layout->mask : 0});
}

bool fd_h5_find_chunks(const fd_h5_bytes *bytes, const fd_h5_shape *shape, const fd_h5_layout *layout,
                       fd_h5_chunk *chunks) {
    fd_h5_walk w = {.blocks.bytes = bytes,
                    .layout = layout,
                    .rank = shape->rank,
                    .chunk_bytes = layout->element_bytes,
                    .n_chunk = 1,
                    .out = chunks};
    for (int i = 0; i < w.rank; i++) {
        hsize_t chunk = layout->chunk[i], max = layout->max[i];
        if (chunk && w.chunk_bytes > (uint64_t)INT64_MAX / chunk) return false;
        w.chunk_bytes *= chunk;
        if (layout->index == FD_H5_CONTIGUOUS) continue;
        if (shape->dim[i] > max) return false; /* then every limit below is at least one chunk */
        w.n[i] = (shape->dim[i] + chunk - 1) / chunk;
        w.n_max[i] = max == H5S_UNLIMITED ? 0 : max / chunk + (max % chunk != 0);
        w.n_chunk *= (int64_t)w.n[i];
    }
    for (int64_t i = 0; i < w.n_chunk; i++) chunks[i] = (fd_h5_chunk){.address = FD_H5_NOWHERE};
    w.blocks.budget = w.n_chunk * 2 + 1024;
    if (layout->address == FD_H5_NOWHERE || w.n_chunk == 0) return true;
    if (!layout->readable) return false;
    switch (layout->index) {
    case FD_H5_CONTIGUOUS:
        return layout->bytes >= w.chunk_bytes && fd_h5_walk_put_at(&w, 0, (fd_h5_chunk){.address = layout->address});
    case FD_H5_SINGLE_CHUNK: return single_chunk(&w);
    case FD_H5_IMPLICIT: return !layout->filters.any && implicit(&w);
    case FD_H5_FIXED_ARRAY: return fixed_array(&w);
    case FD_H5_EXTENSIBLE_ARRAY: return extensible_array(&w);
    case FD_H5_BTREE_1: return fd_h5_walk_btree_1(&w);
    case FD_H5_BTREE_2: return fd_h5_walk_btree_2(&w);
    }
    return false;
}
