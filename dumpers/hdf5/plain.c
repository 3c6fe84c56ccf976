#include "dumpers/hdf5/plain.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "dumpers/hdf5/attribute.h"
#include "dumpers/hdf5/header.h"

/* ---- paths ---- */

typedef enum where { NOT_KNOWN, NOT_THERE, THERE } where;

static const struct fd_h5_listed *list(fd_h5_plain *plain, uint64_t address) {
    enum { N = sizeof plain->listed / sizeof *plain->listed, MOST = 1 << 20 };
    for (int i = 0; i < N; i++)
        if (plain->listed[i].address == address) return &plain->listed[i];
    struct fd_h5_listed *to = &plain->listed[plain->next++ % N];
    free(to->links);
    to->address = address;
    to->links = fd_h5_group_links(&plain->bytes, &plain->nearby.headers, address, MOST, &to->n);
    return to;
}

/* The link `name` of the group whose header is at *address. */
static where step(fd_h5_plain *plain, uint64_t *address, const char *name, size_t n) {
    const struct fd_h5_listed *group = list(plain, *address);
    if (!group->links) return NOT_KNOWN;
    size_t low = 0, high = group->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const fd_h5_link *link = &group->links[middle];
        int order = strncmp(link->name, name, n);
        if (order == 0 && link->name[n] != '\0') order = 1;
        if (order == 0) {
            *address = link->address;
            return THERE;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NOT_THERE;
}

static where find(fd_h5_plain *plain, const char *path, uint64_t *address) {
    *address = plain->root;
    if (plain->bytes.size == 0) return NOT_KNOWN;
    while (*path) {
        size_t n = strcspn(path, "/");
        where found = n > 0 ? step(plain, address, path, n) : NOT_KNOWN;
        if (found != THERE) return found;
        path += n + (path[n] == '/');
    }
    return THERE;
}

void fd_h5_plain_open(fd_h5_plain *plain, const fd_h5_bytes *bytes, const char *group) {
    *plain = (fd_h5_plain){.bytes = *bytes};
    uint64_t address;
    if (!fd_h5_superblock_read(bytes, &plain->root) || (group && find(plain, group, &address) != THERE))
        plain->bytes.size = 0;
    else if (group)
        plain->root = address;
}

void fd_h5_plain_close(fd_h5_plain *plain) {
    for (size_t i = 0; i < sizeof plain->listed / sizeof *plain->listed; i++) free(plain->listed[i].links);
}

/* ---- what a header says ---- */

typedef struct seen {
    const fd_h5_plain *plain;
    fd_h5_window *strings;
    const char *name; /* of the attribute that is looked for; NULL none */
    bool text;
    fd_h5_value value;
    bool space, type, layout_known;
    fd_h5_shape shape;
    fd_h5_layout layout;
    uint64_t class, bits, element_bytes; /* of the datatype */
    uint32_t element;
} seen;

static bool take_type(seen *s, fd_h5_cursor c) {
    s->class = fd_h5_take(&c, 1) & 15;
    s->bits = fd_h5_take(&c, 3);
    s->element_bytes = fd_h5_take(&c, 4);
    /* integers that fill their bytes, little-endian (IV.A.2.d) */
    bool whole = s->class == 0 && (s->bits & 1) == 0 && fd_h5_take(&c, 4) == s->element_bytes * 8 << 16;
    bool sized = s->element_bytes == 1 || s->element_bytes == 2 || s->element_bytes == 4 || s->element_bytes == 8;
    s->type = whole && sized && !c.bad;
    return true;
}

static bool take_message(const fd_h5_message *m, void *user) {
    seen *s = user;
    bool shared = m->flags & FD_H5_MSG_SHARED;
    switch (m->type) {
    case FD_H5_MSG_DATASPACE:
        s->space = !shared && fd_h5_read_dataspace(m->body, &s->shape, s->layout.max);
        return true;
    case FD_H5_MSG_DATATYPE: return shared || take_type(s, m->body);
    case FD_H5_MSG_LAYOUT: s->layout_known = !shared && fd_h5_read_layout(m->body, &s->layout); return true;
    case FD_H5_MSG_EXTERNAL: return false;
    case FD_H5_MSG_FILTERS: s->layout.filtered = true; return true;
    case FD_H5_MSG_ATTRIBUTE_INFO: return !s->name || fd_h5_attributes_are_inside(m->body);
    case FD_H5_MSG_ATTRIBUTE:
        if (!s->name) return true;
        return !shared && fd_h5_attribute_find(&s->plain->bytes, s->strings, m->body, s->name, s->text, &s->value);
    default: return true;
    }
}

static bool look(fd_h5_plain *plain, uint64_t address, seen *s) {
    s->plain = plain;
    s->strings = &plain->nearby.strings;
    return fd_h5_header_walk(&plain->bytes, &plain->nearby.headers, address, take_message, s);
}

/* A dataset of whole integers in one block: what lists of tokens are. Tensors are looked at by fd_h5_object_read. */
static bool is_list(const seen *s) {
    return s->space && s->type && s->layout_known && s->layout.index == FD_H5_CONTIGUOUS && !s->layout.filtered;
}

static uint64_t bytes_of(const seen *s) {
    uint64_t n = s->element_bytes;
    for (int i = 0; i < s->shape.rank; i++) {
        if (s->shape.dim[i] && n > UINT64_MAX / s->shape.dim[i]) return UINT64_MAX;
        n *= s->shape.dim[i];
    }
    return n;
}

/* ---- questions ---- */

bool fd_h5_plain_ask(fd_h5_plain *plain, const fd_h5_question *q, void *bytes, fd_h5_answer *out) {
    uint64_t address;
    seen s = {.layout.address = FD_H5_NOWHERE};
    *out = (fd_h5_answer){.found = FD_H5_ABSENT, .dataset = {.shape.rank = -1, .element = FD_DTYPE_LIMIT}};
    where found = find(plain, q->object, &address);
    if (found != THERE) return found == NOT_THERE;
    switch (q->kind) {
    case FD_H5_HAS:
        out->found = address < plain->bytes.size ? FD_H5_FOUND : FD_H5_ABSENT;
        return address < plain->bytes.size;
    case FD_H5_INTEGER:
    case FD_H5_TEXT:
        s.name = q->name;
        s.text = q->kind == FD_H5_TEXT;
        s.value.text = bytes;
        s.value.room = bytes ? q->room : 0;
        if (!look(plain, address, &s)) return false;
        out->found = s.value.found;
        out->value = s.value.value;
        return true;
    case FD_H5_DATASET:
        if (!look(plain, address, &s) || !is_list(&s)) return false;
        out->found = FD_H5_FOUND;
        out->dataset = (fd_h5_dataset){.shape = s.shape,
                                       .simple = true,
                                       .class = FD_H5_IS_INTEGER,
                                       .element_bytes = s.element_bytes,
                                       .element = s.element_bytes == 2 ? FD_H5_WORD16 : FD_DTYPE_LIMIT};
        return true;
    case FD_H5_STORED:
        if (!look(plain, address, &s) || !is_list(&s)) return false;
        out->value = s.layout.address == FD_H5_NOWHERE ? 0 : (int64_t)s.layout.bytes;
        return out->value >= 0;
    case FD_H5_HASHES: return false;
    }
    return false;
}

fd_h5_link *fd_h5_plain_links(fd_h5_plain *plain, const char *group, size_t limit, size_t *n) {
    uint64_t address;
    *n = 0;
    if (find(plain, group, &address) != THERE) return NULL;
    return fd_h5_group_links(&plain->bytes, &plain->nearby.headers, address, limit, n);
}

/* ---- rows ---- */

/* Whole rows of integers that need no conversion. */
bool fd_h5_plain_rows(fd_h5_plain *plain, const fd_h5_block *block, void *out) {
    uint64_t address;
    seen s = {.layout.address = FD_H5_NOWHERE};
    if (block->type != fd_h5_type_i32 && block->type != fd_h5_type_u64) return false;
    if (find(plain, block->object, &address) != THERE || !look(plain, address, &s) || !is_list(&s)) return false;
    bool same = (block->type == fd_h5_type_i32 && s.element_bytes == 4 && (s.bits & 8)) ||
                (block->type == fd_h5_type_u64 && s.element_bytes == 8 && !(s.bits & 8));
    uint64_t bytes = bytes_of(&s), row = s.shape.dim[0] ? bytes / s.shape.dim[0] : 0;
    if (!same || bytes == UINT64_MAX || s.layout.bytes < bytes || s.shape.rank != block->shape.rank) return false;
    for (int i = 0; i < s.shape.rank; i++) {
        if (s.shape.dim[i] != block->shape.dim[i]) return false;
        if (i > 0 && (block->start.dim[i] != 0 || block->count.dim[i] != s.shape.dim[i])) return false;
    }
    hsize_t first = block->start.dim[0], n = block->count.dim[0];
    if (first > s.shape.dim[0] || n > s.shape.dim[0] - first || s.layout.address == FD_H5_NOWHERE) return false;
    return fd_h5_bytes_read(&plain->bytes, s.layout.address + first * row, (size_t)(n * row), out);
}
