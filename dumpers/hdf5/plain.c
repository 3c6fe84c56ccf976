#include "dumpers/hdf5/plain.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "dumpers/hdf5/attribute.h"
#include "dumpers/hdf5/header.h"
#include "dumpers/hdf5/rows.h"

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
    *plain = (fd_h5_plain){.bytes = *bytes, .inflated = fd_h5_inflated_new(bytes)};
    uint64_t address;
    if (!fd_h5_superblock_read(bytes, &plain->root) || (group && find(plain, group, &address) != THERE))
        plain->bytes.size = 0;
    else if (group)
        plain->root = address;
}

void fd_h5_plain_close(fd_h5_plain *plain) {
    fd_h5_inflated_free(plain->inflated);
    for (size_t i = 0; i < sizeof plain->listed / sizeof *plain->listed; i++) free(plain->listed[i].links);
}

/* ---- what a header says ---- */

typedef struct seen {
    const fd_h5_plain *plain;
    fd_h5_window *strings;
    const char *name; /* of the attribute that is looked for; NULL none */
    bool text;
    fd_h5_value value;
    const fd_h5_type *wanted; /* of a dataset's elements; NULL any */
    bool space, type, layout;
    fd_h5_set set;
} seen;

/* A type or a layout that is not understood does not end the walk: attributes may be all that is asked for. */
static bool take_message(const fd_h5_message *m, void *user) {
    seen *s = user;
    bool shared = m->flags & FD_H5_MSG_SHARED;
    switch (m->type) {
    case FD_H5_MSG_DATASPACE:
        s->space = !shared && fd_h5_read_dataspace(m->body, &s->set.shape, s->set.layout.max);
        return true;
    case FD_H5_MSG_DATATYPE: s->type = !shared && fd_h5_type_read(m->body, s->wanted, &s->set.stored); return true;
    case FD_H5_MSG_LAYOUT: s->layout = !shared && fd_h5_read_layout(m->body, &s->set.layout); return true;
    case FD_H5_MSG_EXTERNAL: return false;
    case FD_H5_MSG_FILTERS:
        fd_h5_filters_read(m->body, &s->set.layout.filters);
        s->set.layout.filters.known = s->set.layout.filters.known && !shared;
        return true;
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

/* A dataset whose elements can be read here: those of others are the library's to describe, too. */
static bool look_at_set(fd_h5_plain *plain, uint64_t address, seen *s) {
    return look(plain, address, s) && s->space && s->type && s->layout &&
           fd_h5_layout_fits(&s->set.layout, &s->set.shape, s->set.stored.bytes) && s->set.layout.readable;
}

/* ---- questions ---- */

/* A list of integers, where it fits. */
static bool hashes(fd_h5_plain *plain, uint64_t address, size_t room, void *out, fd_h5_answer *answer) {
    seen s = {.set.layout.address = FD_H5_NOWHERE, .wanted = &fd_h5_u64};
    if (!look_at_set(plain, address, &s)) return false;
    fd_h5_block block = {.type = s.wanted, .shape = s.set.shape, .start.rank = 1, .count = s.set.shape};
    if (!out || s.set.shape.rank != 1 || s.set.shape.dim[0] > room / 8) return true; /* absent */
    if (!fd_h5_set_rows(&plain->bytes, plain->inflated, &s.set, &block, out)) return false;
    answer->value = (int64_t)s.set.shape.dim[0];
    answer->found = FD_H5_FOUND;
    return true;
}

bool fd_h5_plain_ask(fd_h5_plain *plain, const fd_h5_question *q, void *bytes, fd_h5_answer *out) {
    uint64_t address, stored;
    seen s = {.set.layout.address = FD_H5_NOWHERE};
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
        if (!look_at_set(plain, address, &s)) return false;
        out->found = FD_H5_FOUND;
        out->dataset = (fd_h5_dataset){.shape = s.set.shape,
                                       .simple = true,
                                       .class = s.set.stored.class,
                                       .element_bytes = s.set.stored.bytes,
                                       .element = s.set.stored.element,
                                       .has_names = s.set.stored.has_names,
                                       .filtered = s.set.layout.filters.any};
        return true;
    case FD_H5_STORED:
        if (!look_at_set(plain, address, &s) || !fd_h5_set_bytes(&plain->bytes, &s.set, &stored)) return false;
        out->value = (int64_t)stored;
        return out->value >= 0;
    case FD_H5_HASHES: return hashes(plain, address, q->room, bytes, out);
    }
    return false;
}

fd_h5_link *fd_h5_plain_links(fd_h5_plain *plain, const char *group, size_t limit, size_t *n) {
    uint64_t address;
    *n = 0;
    if (find(plain, group, &address) != THERE) return NULL;
    return fd_h5_group_links(&plain->bytes, &plain->nearby.headers, address, limit, n);
}

bool fd_h5_plain_rows(fd_h5_plain *plain, const fd_h5_block *block, void *out) {
    uint64_t address;
    seen s = {.set.layout.address = FD_H5_NOWHERE, .wanted = block->type};
    return find(plain, block->object, &address) == THERE && look_at_set(plain, address, &s) &&
           fd_h5_set_rows(&plain->bytes, plain->inflated, &s.set, block, out);
}
