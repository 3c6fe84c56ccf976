#include "dumpers/hdf5/filters.h"

#include <stdlib.h>
#include <string.h>

#include "base/fuzzed.h"
#include "dumpers/hdf5/inflate.h"

/* A filter's id and the first of its parameters. */
static bool take_filter(fd_h5_cursor *c, uint64_t version, uint64_t *id, uint32_t *parameter) {
    *id = fd_h5_take(c, 2);
    uint64_t name = version == 1 || *id >= 256 ? fd_h5_take(c, 2) : 0;
    fd_h5_skip(c, 2);
    uint64_t n = fd_h5_take(c, 2);
    fd_h5_skip(c, (size_t)(version == 1 ? (name + 7) / 8 * 8 : name));
    *parameter = n ? (uint32_t)fd_h5_take(c, 4) : 0;
    if (n > 1) fd_h5_skip(c, (size_t)(n - 1) * 4);
    if (version == 1 && n % 2) fd_h5_skip(c, 4);
    return !c->bad;
}

static bool has(const fd_h5_filters *filters, uint64_t id) {
    for (int i = 0; i < filters->n; i++)
        if (filters->id[i] == id) return true;
    return false;
}

static bool read_all(fd_h5_cursor c, fd_h5_filters *out) {
    uint64_t version = fd_h5_take(&c, 1), n = fd_h5_take(&c, 1);
    if ((version != 1 && version != 2) || n < 1 || n > sizeof out->id) return false;
    if (version == 1) fd_h5_skip(&c, 6);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t id;
        uint32_t parameter;
        if (!take_filter(&c, version, &id, &parameter) || id < FD_H5_DEFLATE || id > FD_H5_FLETCHER || has(out, id))
            return false;
        if (id == FD_H5_SHUFFLE && (out->shuffled = parameter) == 0) return false;
        out->id[out->n++] = (uint8_t)id;
    }
    return true;
}

void fd_h5_filters_read(fd_h5_cursor message, fd_h5_filters *out) {
    *out = (fd_h5_filters){.any = true};
    out->known = read_all(message, out);
}

static bool was_on(uint32_t mask, int i) {
    return !(mask >> i & 1);
}

bool fd_h5_filters_fit(const fd_h5_filters *filters, uint32_t mask, uint64_t packed, uint64_t bytes) {
    bool deflated = false;
    for (int i = 0; i < filters->n; i++)
        deflated = deflated || (filters->id[i] == FD_H5_DEFLATE && was_on(mask, i));
    /* deflate that is of no use adds five bytes to 16 KiB, and eleven */
    uint64_t most = bytes + bytes / 1024 + 64;
    return deflated ? bytes / FD_DEFLATE_LIMIT <= packed && packed <= most
                    : packed - bytes <= FD_H5_FILTER_ROOM && packed >= bytes;
}

/* ---- each ---- */

/* Words of two bytes, the first the higher; sums in ones' complement of 16 bits. */
static uint32_t fletcher(const uint8_t *data, size_t n) {
    enum { TOGETHER = 256 }; /* words before the second sum could overflow: 65535 · 256 · 257 / 2 < 2³² */
    uint32_t a = 0, b = 0;
    for (size_t at = 0; at < n;) {
        size_t end = n - at > 2 * TOGETHER ? at + 2 * TOGETHER : n;
        for (; at < end; at += 2) {
            a += (uint32_t)data[at] << 8 | (at + 1 < n ? data[at + 1] : 0);
            b += a;
        }
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
    }
    a = (a & 0xffff) + (a >> 16);
    b = (b & 0xffff) + (b >> 16);
    return b << 16 | a;
}

/* The checksum stands behind what it is of. */
static bool check(const uint8_t *data, size_t *n) {
    if (*n < 4) return false;
    *n -= 4;
    const uint8_t *sum = data + *n;
    return FD_FUZZED ||
           fletcher(data, *n) == (sum[0] | (uint32_t)sum[1] << 8 | (uint32_t)sum[2] << 16 | (uint32_t)sum[3] << 24);
}

/* The first bytes of all elements, then the second ones, … are elements again. Inline, for sizes that are known. */
static inline void unshuffle_of(const uint8_t *from, size_t n, size_t size, uint8_t *to) {
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < size; b++) to[i * size + b] = from[b * n + i];
}

static void unshuffle(const uint8_t *from, size_t bytes, size_t size, uint8_t *to) {
    size_t n = bytes / size;
    switch (size) {
    case 2: unshuffle_of(from, n, 2, to); break;
    case 4: unshuffle_of(from, n, 4, to); break;
    case 8: unshuffle_of(from, n, 8, to); break;
    default: unshuffle_of(from, n, size, to);
    }
    memcpy(to + n * size, from + n * size, bytes - n * size); /* what makes no element stays */
}

/* ---- all of them ---- */

/* What filter i was given: the chunk, with the checksum of an earlier one. */
static size_t given(const fd_h5_filters *filters, uint32_t mask, int i, size_t bytes) {
    for (int k = 0; k < i; k++)
        if (filters->id[k] == FD_H5_FLETCHER && was_on(mask, k)) bytes += FD_H5_FILTER_ROOM;
    return bytes;
}

bool fd_h5_filters_undo(const fd_h5_filters *filters, uint32_t mask, uint8_t *packed, size_t n, uint8_t *out,
                        size_t bytes) {
    uint8_t *at = packed, *scratch = NULL;
    size_t room = bytes + FD_H5_FILTER_ROOM;
    int n_copy = 0; /* filters that take what they make elsewhere: the last one to `out` */
    for (int i = 0; i < filters->n; i++) n_copy += filters->id[i] != FD_H5_FLETCHER && was_on(mask, i);
    bool ok = filters->known;
    for (int i = filters->n - 1; ok && i >= 0; i--) {
        if (!was_on(mask, i)) continue;
        if (filters->id[i] == FD_H5_FLETCHER) {
            ok = check(at, &n);
            continue;
        }
        size_t becomes = filters->id[i] == FD_H5_DEFLATE ? given(filters, mask, i, bytes) : n;
        uint8_t *to = n_copy-- > 1 ? scratch = malloc(room) : out;
        ok = to && becomes <= room;
        if (ok && filters->id[i] == FD_H5_DEFLATE) ok = fd_inflate(FD_DEFLATED_ZLIB, at, n, to, becomes);
        if (ok && filters->id[i] == FD_H5_SHUFFLE) unshuffle(at, n, filters->shuffled, to);
        at = to;
        n = becomes;
    }
    ok = ok && n == bytes;
    if (ok && at != out) memcpy(out, at, bytes);
    free(scratch);
    return ok;
}
