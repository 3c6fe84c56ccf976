#include "dumpers/hdf5/object.h"

#include <string.h>

#include "base/dtype.h"
#include "base/fuzzed.h"
#include "dumpers/hdf5/attribute.h"
#include "dumpers/hdf5/header.h"

bool fd_h5_superblock_read(const fd_h5_bytes *bytes, uint64_t *root) {
    static const uint8_t signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    uint8_t head[96];
    size_t n = bytes->size < sizeof head ? (size_t)bytes->size : sizeof head;
    if (n < 48 || !fd_h5_bytes_read(bytes, 0, n, head) || memcmp(head, signature, 8) != 0) return false;
    int version = head[8];
    /* after the base address: those of the free space, the end of the file and the driver's block, then the root's name
     * and header; or those of the extension and the end, then the root's header */
    size_t offsets = version < 2 ? 13 : 9, base = version == 0 ? 24 : version == 1 ? 28 : 12;
    if (version > 3 || head[offsets] != 8 || head[offsets + 1] != 8) return false;
    fd_h5_cursor c = {head + base, n - base, false};
    if (fd_h5_take(&c, 8) != 0) return false;
    fd_h5_skip(&c, 8);
    uint64_t end = fd_h5_take(&c, 8);
    if (version < 2) fd_h5_skip(&c, 16);
    *root = fd_h5_take(&c, 8);
    return !c.bad && (FD_FUZZED || end <= bytes->size) && (version < 2 || fd_h5_block_is_whole(head, 48));
}

bool fd_h5_plain_file(const fd_h5_bytes *bytes) {
    uint64_t root;
    return fd_h5_superblock_read(bytes, &root);
}

bool fd_h5_read_dataspace(fd_h5_cursor c, fd_h5_shape *shape, hsize_t *max) {
    uint64_t version = fd_h5_take(&c, 1), rank = fd_h5_take(&c, 1), flags = fd_h5_take(&c, 1);
    if (version == 1)
        fd_h5_skip(&c, 5);
    else if (version != 2 || fd_h5_take(&c, 1) != 1)
        return false;
    if (c.bad || rank < 1 || rank > FD_H5_MAX_RANK || flags > 1) return false;
    shape->rank = (int)rank;
    for (uint64_t i = 0; i < rank; i++) max[i] = shape->dim[i] = fd_h5_take(&c, 8);
    for (uint64_t i = 0; flags && i < rank; i++) max[i] = fd_h5_take(&c, 8);
    return !c.bad;
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
    if (!read_chunk(c, n, width, out)) return false;
    out->raw_edges = flags & 1;
    switch (fd_h5_take(c, 1)) {
    case 1: /* a filtered one: with its size and which filters were left out */
        out->index = FD_H5_SINGLE_CHUNK;
        out->bytes = flags & 2 ? fd_h5_take(c, 8) : 0;
        out->mask = flags & 2 ? (uint32_t)fd_h5_take(c, 4) : 0;
        break;
    case 2: out->index = FD_H5_IMPLICIT; break;
    case 3: out->index = FD_H5_FIXED_ARRAY, fd_h5_skip(c, 1); break;
    case 4: out->index = FD_H5_EXTENSIBLE_ARRAY, fd_h5_skip(c, 5); break;
    case 5: out->index = FD_H5_BTREE_2, fd_h5_skip(c, 6); break;
    default: return false;
    }
    out->address = fd_h5_take(c, 8);
    return !c->bad;
}

bool fd_h5_read_layout(fd_h5_cursor c, fd_h5_layout *out) {
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

bool fd_h5_layout_fits(fd_h5_layout *layout, const fd_h5_shape *shape, size_t element_bytes) {
    const fd_h5_filters *f = &layout->filters;
    layout->readable = !f->any || (f->known && layout->index != FD_H5_CONTIGUOUS && !layout->raw_edges &&
                                   (f->shuffled == 0 || f->shuffled == element_bytes));
    if (layout->index != FD_H5_CONTIGUOUS) {
        for (int i = 0; i < shape->rank; i++)
            if (layout->chunk[i] == 0 || layout->chunk[i] > UINT32_MAX) return false;
        return layout->element_bytes == element_bytes;
    }
    layout->element_bytes = (uint32_t)element_bytes;
    memcpy(layout->chunk, shape->dim, sizeof layout->chunk);
    return true;
}

bool fd_h5_attributes_are_inside(fd_h5_cursor body) {
    fd_h5_skip(&body, 1);
    uint64_t info = fd_h5_take(&body, 1);
    if (info & 1) fd_h5_skip(&body, 2);
    return fd_h5_take(&body, 8) == FD_H5_NOWHERE && !body.bad;
}

enum { HAS_SPACE = 1, HAS_TYPE = 2, HAS_LAYOUT = 4, HAS_ALL = 7 };

typedef struct reading {
    const fd_h5_bytes *bytes;
    fd_h5_window *strings;
    fd_h5_object *out;
    size_t element_bytes;
    int has;
} reading;

static bool take_element(reading *r, fd_h5_cursor body) {
    fd_h5_stored stored;
    r->has |= HAS_TYPE;
    if (!fd_h5_type_read(body, NULL, &stored)) return false;
    r->out->element = stored.element;
    r->element_bytes = stored.bytes;
    return stored.element != FD_DTYPE_LIMIT;
}

static bool take_message(const fd_h5_message *m, void *user) {
    reading *r = user;
    bool needed = m->type == FD_H5_MSG_DATASPACE || m->type == FD_H5_MSG_DATATYPE || m->type == FD_H5_MSG_LAYOUT ||
                  m->type == FD_H5_MSG_FILTERS || m->type == FD_H5_MSG_ATTRIBUTE;
    if (needed && (m->flags & FD_H5_MSG_SHARED)) return false;
    switch (m->type) {
    case FD_H5_MSG_DATASPACE:
        r->has |= HAS_SPACE;
        return fd_h5_read_dataspace(m->body, &r->out->shape, r->out->layout.max);
    case FD_H5_MSG_DATATYPE: return take_element(r, m->body);
    case FD_H5_MSG_LAYOUT: r->has |= HAS_LAYOUT; return fd_h5_read_layout(m->body, &r->out->layout);
    case FD_H5_MSG_ATTRIBUTE: return fd_h5_attribute_read(r->bytes, r->strings, m->body, r->out);
    case FD_H5_MSG_ATTRIBUTE_INFO: return fd_h5_attributes_are_inside(m->body);
    case FD_H5_MSG_EXTERNAL: return false;
    case FD_H5_MSG_FILTERS: fd_h5_filters_read(m->body, &r->out->layout.filters); return true;
    default: return true;
    }
}

bool fd_h5_object_read(const fd_h5_bytes *bytes, fd_h5_nearby *nearby, uint64_t address, fd_h5_object *out) {
    return fd_h5_object_describe(bytes, nearby, address, out) && out->layout.readable;
}

bool fd_h5_object_describe(const fd_h5_bytes *bytes, fd_h5_nearby *nearby, uint64_t address, fd_h5_object *out) {
    reading r = {bytes, &nearby->strings, out, 0, 0};
    memset(out, 0, sizeof *out);
    return fd_h5_header_walk(bytes, &nearby->headers, address, take_message, &r) && r.has == HAS_ALL &&
           fd_h5_layout_fits(&out->layout, &out->shape, r.element_bytes);
}
