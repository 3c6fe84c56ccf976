#include "dumpers/hdf5/object.h"

#include <string.h>

#include "base/dtype.h"
#include "dumpers/hdf5/attribute.h"

enum {
    MSG_DATASPACE = 0x01,
    MSG_DATATYPE = 0x03,
    MSG_EXTERNAL = 0x07,
    MSG_LAYOUT = 0x08,
    MSG_FILTERS = 0x0b,
    MSG_ATTRIBUTE = 0x0c,
    MSG_CONTINUATION = 0x10,
    MSG_ATTRIBUTE_INFO = 0x15,
    MSG_SHARED = 2, /* flag: the body lies elsewhere */
};
enum { MAX_BLOCK = 65536, MAX_BLOCKS = 32 };

bool fd_h5_plain_file(const fd_h5_bytes *bytes) {
    static const uint8_t signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    uint8_t head[32];
    if (!fd_h5_bytes_read(bytes, 0, sizeof head, head) || memcmp(head, signature, 8) != 0) return false;
    int version = head[8];
    size_t offsets = version < 2 ? 13 : 9, base = version == 0 ? 24 : version == 1 ? 28 : 12;
    if (version > 3 || head[offsets] != 8 || head[offsets + 1] != 8) return false;
    uint8_t zero[8] = {0};
    uint8_t at[8];
    return fd_h5_bytes_read(bytes, base, 8, at) && memcmp(at, zero, 8) == 0;
}

static bool read_dataspace(fd_h5_cursor c, fd_h5_object *out) {
    uint64_t version = fd_h5_take(&c, 1), rank = fd_h5_take(&c, 1), flags = fd_h5_take(&c, 1);
    if (version == 1)
        fd_h5_skip(&c, 5);
    else if (version != 2 || fd_h5_take(&c, 1) != 1)
        return false;
    if (c.bad || rank < 1 || rank > FD_H5_MAX_RANK || flags > 1) return false;
    out->shape.rank = (int)rank;
    for (uint64_t i = 0; i < rank; i++) out->layout.max[i] = out->shape.dim[i] = fd_h5_take(&c, 8);
    for (uint64_t i = 0; flags && i < rank; i++) out->layout.max[i] = fd_h5_take(&c, 8);
    return !c.bad;
}

static bool read_element(fd_h5_cursor c, fd_h5_object *out) {
    static const struct {
        uint32_t dtype, bytes;
        uint8_t sign, properties[12]; /* bit offset, precision, exponent, mantissa, bias */
    } floats[] = {
        {FD_F32, 4, 31, {0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0}},
        {FD_F64, 8, 63, {0, 0, 64, 0, 52, 11, 0, 52, 0xff, 3, 0, 0}},
        {FD_F16, 2, 15, {0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0}},
        {FD_BF16, 2, 15, {0, 0, 16, 0, 7, 8, 0, 7, 127, 0, 0, 0}},
    };
    uint64_t class = fd_h5_take(&c, 1) & 15, order = fd_h5_take(&c, 1), sign = fd_h5_take(&c, 1);
    fd_h5_skip(&c, 1);
    uint64_t bytes = fd_h5_take(&c, 4);
    if (class == 0 && bytes == 2 && (order & 1) == 0 && fd_h5_take(&c, 4) == 16u << 16) {
        out->element = FD_H5_WORD16;
        return !c.bad;
    }
    const uint8_t *properties = class == 1 ? fd_h5_skip(&c, 12) : NULL;
    for (size_t i = 0; properties && i < sizeof floats / sizeof *floats; i++)
        if (bytes == floats[i].bytes && (order & 0x71) == 0x20 && sign == floats[i].sign &&
            memcmp(properties, floats[i].properties, 12) == 0) {
            out->element = floats[i].dtype;
            return true;
        }
    return false;
}

/* Chunk extents of `width` bytes; the last one is the element's size. */
static bool read_chunk(fd_h5_cursor *c, uint64_t n, uint64_t width, fd_h5_layout *out) {
    if (n < 2 || n > FD_H5_MAX_RANK + 1 || width < 1 || width > 8) return false;
    for (uint64_t i = 0; i + 1 < n; i++) out->chunk[i] = fd_h5_take(c, (size_t)width);
    out->element_bytes = (uint32_t)fd_h5_take(c, (size_t)width);
    return !c->bad;
}

static bool read_layout_4(fd_h5_cursor *c, fd_h5_layout *out) {
    uint64_t flags = fd_h5_take(c, 1), n = fd_h5_take(c, 1), width = fd_h5_take(c, 1);
    if ((flags & 2) || !read_chunk(c, n, width, out)) return false;
    switch (fd_h5_take(c, 1)) {
    case 1: out->index = FD_H5_SINGLE_CHUNK; break;
    case 2: out->index = FD_H5_IMPLICIT; break;
    case 3: out->index = FD_H5_FIXED_ARRAY, fd_h5_skip(c, 1); break;
    case 4: out->index = FD_H5_EXTENSIBLE_ARRAY, fd_h5_skip(c, 5); break;
    case 5: out->index = FD_H5_BTREE_2, fd_h5_skip(c, 6); break;
    default: return false;
    }
    out->address = fd_h5_take(c, 8);
    return !c->bad;
}

static bool read_layout(fd_h5_cursor c, fd_h5_layout *out) {
    uint64_t version = fd_h5_take(&c, 1), class = fd_h5_take(&c, 1);
    if (version != 3 && version != 4) return false;
    if (class == 2 && version == 4) return read_layout_4(&c, out);
    if (class == 2) {
        uint64_t n = fd_h5_take(&c, 1);
        out->index = FD_H5_BTREE_1;
        out->address = fd_h5_take(&c, 8);
        return read_chunk(&c, n, 4, out);
    }
    out->index = FD_H5_CONTIGUOUS;
    out->address = fd_h5_take(&c, 8);
    out->bytes = fd_h5_take(&c, 8);
    return class == 1 && !c.bad;
}

/* ---- the header ---- */

typedef struct block_list {
    uint64_t at[MAX_BLOCKS], size[MAX_BLOCKS];
    int n;
} block_list;

enum { HAS_SPACE = 1, HAS_TYPE = 2, HAS_LAYOUT = 4, HAS_ALL = 7 };

static bool read_message(const fd_h5_bytes *bytes, fd_h5_window *strings, uint64_t type, uint64_t flags,
                         fd_h5_cursor body, block_list *blocks, fd_h5_object *out, int *has) {
    bool needed = type == MSG_DATASPACE || type == MSG_DATATYPE || type == MSG_LAYOUT || type == MSG_ATTRIBUTE;
    if (needed && (flags & MSG_SHARED)) return false;
    switch (type) {
    case MSG_DATASPACE: *has |= HAS_SPACE; return read_dataspace(body, out);
    case MSG_DATATYPE: *has |= HAS_TYPE; return read_element(body, out);
    case MSG_LAYOUT: *has |= HAS_LAYOUT; return read_layout(body, &out->layout);
    case MSG_ATTRIBUTE: return fd_h5_attribute_read(bytes, strings, body, out);
    case MSG_EXTERNAL:
    case MSG_FILTERS: return false;
    case MSG_ATTRIBUTE_INFO: { /* attributes outside the header */
        fd_h5_skip(&body, 1);
        uint64_t info = fd_h5_take(&body, 1);
        if (info & 1) fd_h5_skip(&body, 2);
        return fd_h5_take(&body, 8) == FD_H5_NOWHERE && !body.bad;
    }
    case MSG_CONTINUATION:
        if (blocks->n == MAX_BLOCKS) return false;
        blocks->at[blocks->n] = fd_h5_take(&body, 8);
        blocks->size[blocks->n++] = fd_h5_take(&body, 8);
        return !body.bad;
    default: return true;
    }
}

static bool read_messages(const fd_h5_bytes *bytes, fd_h5_window *strings, fd_h5_cursor c, int version, bool ordered,
                          block_list *blocks, fd_h5_object *out, int *has) {
    size_t head = version == 1 ? 8 : ordered ? 6 : 4;
    while (c.left >= head) { /* what is shorter is a gap */
        uint64_t type = fd_h5_take(&c, version == 1 ? 2 : 1), size = fd_h5_take(&c, 2), flags = fd_h5_take(&c, 1);
        fd_h5_skip(&c, head - (version == 1 ? 5 : 4));
        const uint8_t *at = fd_h5_skip(&c, (size_t)size);
        fd_h5_cursor body = {at, (size_t)size, false};
        if (!at || !read_message(bytes, strings, type, flags, body, blocks, out, has)) return false;
    }
    return true;
}

/* Finds the messages of the header's first block, which is read into `long_block` where the window is too short. */
static bool first_block(const fd_h5_bytes *bytes, fd_h5_window *headers, uint64_t address, uint8_t *long_block,
                        fd_h5_cursor *messages, int *version, bool *ordered) {
    enum { PROBE = 512 }; /* most headers are shorter */
    if (address >= bytes->size) return false;
    size_t got = bytes->size - address < PROBE ? (size_t)(bytes->size - address) : PROBE;
    const uint8_t *block = fd_h5_window_get(bytes, headers, address, got);
    if (!block) return false;
    fd_h5_cursor c = {block, got, false};
    uint64_t size;
    if (block[0] == 1) {
        fd_h5_skip(&c, 8);
        size = fd_h5_take(&c, 4);
        fd_h5_skip(&c, 4);
        *version = 1;
        *ordered = false;
    } else {
        if (!fd_h5_expect(&c, "OHDR") || fd_h5_take(&c, 1) != 2) return false;
        uint64_t flags = fd_h5_take(&c, 1);
        if (flags & 0x20) fd_h5_skip(&c, 16); /* times */
        if (flags & 0x10) fd_h5_skip(&c, 4);  /* limits of attribute storage */
        size = fd_h5_take(&c, (size_t)1 << (flags & 3));
        *version = 2;
        *ordered = flags & 4;
    }
    size_t start = got - c.left;
    if (c.bad || size > MAX_BLOCK - 64 - start) return false;
    size_t whole = start + (size_t)size + (*version == 2 ? 4 : 0);
    if (whole > got) {
        if (!fd_h5_bytes_read(bytes, address, whole, long_block)) return false;
        block = long_block;
    }
    if (*version == 2 && !fd_h5_block_is_whole(block, whole)) return false;
    *messages = (fd_h5_cursor){block + start, (size_t)size, false};
    return true;
}

static bool next_block(const fd_h5_bytes *bytes, uint64_t address, uint64_t size, int version, uint8_t *block,
                       fd_h5_cursor *messages) {
    if (size > MAX_BLOCK || (version == 2 && size < 8) || !fd_h5_bytes_read(bytes, address, (size_t)size, block))
        return false;
    *messages = (fd_h5_cursor){block, (size_t)size, false};
    if (version == 1) return true;
    if (!fd_h5_block_is_whole(block, (size_t)size) || !fd_h5_expect(messages, "OCHK")) return false;
    messages->left -= 4;
    return true;
}

static bool agrees(fd_h5_object *o, int has) {
    static const uint32_t widths[] = {[FD_F32] = 4, [FD_F16] = 2, [FD_F64] = 8, [FD_BF16] = 2};
    if (has != HAS_ALL) return false;
    fd_h5_layout *layout = &o->layout;
    uint32_t width = o->element == FD_H5_WORD16 ? 2 : widths[o->element];
    if (layout->index != FD_H5_CONTIGUOUS) {
        for (int i = 0; i < o->shape.rank; i++)
            if (layout->chunk[i] == 0 || layout->chunk[i] > UINT32_MAX) return false;
        return layout->element_bytes == width;
    }
    layout->element_bytes = width;
    memcpy(layout->chunk, o->shape.dim, sizeof layout->chunk);
    return true;
}

bool fd_h5_object_read(const fd_h5_bytes *bytes, fd_h5_nearby *nearby, uint64_t address, fd_h5_object *out) {
    uint8_t block[MAX_BLOCK];
    block_list blocks = {.n = 0};
    fd_h5_cursor messages;
    int version, has = 0;
    bool ordered;
    memset(out, 0, sizeof *out);
    fd_h5_window *strings = &nearby->strings;
    if (!first_block(bytes, &nearby->headers, address, block, &messages, &version, &ordered) ||
        !read_messages(bytes, strings, messages, version, ordered, &blocks, out, &has))
        return false;
    for (int i = 0; i < blocks.n; i++)
        if (!next_block(bytes, blocks.at[i], blocks.size[i], version, block, &messages) ||
            !read_messages(bytes, strings, messages, version, ordered, &blocks, out, &has))
            return false;
    return agrees(out, has);
}
