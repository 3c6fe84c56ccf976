/* The links of a group: a symbol table (the format that h5py writes unless told otherwise), link messages in the
 * group's header, or, of many links in the newer format, in a heap (heap.c). */
#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/header.h"
#include "dumpers/hdf5/heap.h"
#include "dumpers/hdf5/plain.h"

enum { MOST_NAMES = 256 << 20 }; /* bytes of a group's names; what is longer is left to the library */

typedef struct listing {
    const fd_h5_bytes *bytes;
    uint64_t tree, heap;   /* of a symbol table; FD_H5_NOWHERE: none */
    uint64_t links_in, by; /* the heap of link messages and the tree of their names; FD_H5_NOWHERE: none */
    fd_h5_window *window;
    char *names; /* [names_size] the local heap's data */
    uint64_t names_size;
    fd_h5_link *links; /* [n], names as offsets in `text` */
    char *text;
    size_t n, room, used, text_room, limit;
    int64_t budget; /* nodes that the tree may still have */
} listing;

static bool add(listing *l, const char *name, size_t bytes, uint64_t address) {
    if (l->n == l->limit || memchr(name, '\0', bytes) || bytes == 0) return false;
    /* a sound file has bytes of its own for each name; one name for all would be as much memory as it likes */
    if (bytes + 1 > l->bytes->size - l->used || bytes >= MOST_NAMES - l->used) return false;
    if (l->n == l->room) {
        fd_h5_link *grown = realloc(l->links, (l->room = 2 * l->room + 64) * sizeof *grown);
        if (!grown) return false;
        l->links = grown;
    }
    if (bytes + 1 > l->text_room - l->used) {
        char *grown = realloc(l->text, l->text_room = 2 * (l->text_room + bytes) + 1024);
        if (!grown) return false;
        l->text = grown;
    }
    memcpy(l->text + l->used, name, bytes);
    l->text[l->used + bytes] = '\0';
    l->links[l->n++] = (fd_h5_link){NULL, address};
    l->used += bytes + 1;
    return true;
}

/* ---- link messages (IV.A.2.g) ---- */

static bool take_link(fd_h5_cursor c, void *user) {
    listing *l = user;
    uint64_t version = fd_h5_take(&c, 1), flags = fd_h5_take(&c, 1);
    uint64_t type = flags & 8 ? fd_h5_take(&c, 1) : 0;
    if (flags & 4) fd_h5_skip(&c, 8);  /* order of creation */
    if (flags & 16) fd_h5_skip(&c, 1); /* character set */
    uint64_t n = fd_h5_take(&c, (size_t)1 << (flags & 3));
    if (c.bad || n > c.left) return false;
    const uint8_t *name = fd_h5_skip(&c, (size_t)n);
    uint64_t address = fd_h5_take(&c, 8);
    return version == 1 && type == 0 && !c.bad && add(l, (const char *)name, (size_t)n, address);
}

/* Where there are too many for messages (IV.A.2.c). */
static bool take_link_info(listing *l, fd_h5_cursor c) {
    uint64_t version = fd_h5_take(&c, 1), flags = fd_h5_take(&c, 1);
    if (flags & 1) fd_h5_skip(&c, 8);
    l->links_in = fd_h5_take(&c, 8);
    l->by = fd_h5_take(&c, 8);
    return version == 0 && !c.bad;
}

static bool take_message(const fd_h5_message *m, void *user) {
    listing *l = user;
    fd_h5_cursor c = m->body;
    switch (m->type) {
    case FD_H5_MSG_SYMBOL_TABLE:
        l->tree = fd_h5_take(&c, 8);
        l->heap = fd_h5_take(&c, 8);
        return !c.bad && !(m->flags & FD_H5_MSG_SHARED);
    case FD_H5_MSG_LINK_INFO: return take_link_info(l, c);
    case FD_H5_MSG_LINK: return !(m->flags & FD_H5_MSG_SHARED) && take_link(c, l);
    case FD_H5_MSG_DATASPACE:
    case FD_H5_MSG_LAYOUT: return false; /* a dataset */
    default: return true;
    }
}

/* ---- symbol tables (III.A.1, III.B, III.D) ---- */

static bool take_name(listing *l, uint64_t offset, uint64_t address) {
    if (offset >= l->names_size) return false;
    size_t most = (size_t)(l->names_size - offset), n = strnlen(l->names + offset, most);
    return n < most && add(l, l->names + offset, n, address);
}

static bool take_symbols(listing *l, uint64_t at) {
    enum { ENTRY = 40, HEAD = 8 };
    if (l->budget-- <= 0) return false;
    const uint8_t *block = fd_h5_window_get(l->bytes, l->window, at, HEAD);
    fd_h5_cursor c = {block, block ? HEAD : 0, false};
    bool node = fd_h5_expect(&c, "SNOD") && fd_h5_take(&c, 1) == 1 && fd_h5_skip(&c, 1);
    size_t n = (size_t)fd_h5_take(&c, 2);
    block = node ? fd_h5_window_get(l->bytes, l->window, at, HEAD + n * ENTRY) : NULL;
    if (!block) return false;
    c = (fd_h5_cursor){block + HEAD, n * ENTRY, false};
    for (size_t i = 0; i < n; i++) {
        uint64_t name = fd_h5_take(&c, 8), address = fd_h5_take(&c, 8), cached = fd_h5_take(&c, 4);
        fd_h5_skip(&c, 20);
        if (cached > 1 || !take_name(l, name, address)) return false; /* 2: a soft link */
    }
    return !c.bad;
}

/* level -1: of the root, which may have any */
static bool take_tree(listing *l, uint64_t at, int level) {
    enum { MAX_CHILDREN = 4096 };
    uint8_t head[24];
    if (l->budget-- <= 0 || !fd_h5_bytes_read(l->bytes, at, sizeof head, head)) return false;
    fd_h5_cursor c = {head, sizeof head, false};
    bool node = fd_h5_expect(&c, "TREE") && fd_h5_take(&c, 1) == 0;
    int found = (int)fd_h5_take(&c, 1);
    uint64_t n = fd_h5_take(&c, 2);
    if (!node || (level >= 0 && found != level) || n > MAX_CHILDREN) return false;
    size_t size = (size_t)n * 16 + 8; /* a key, then a child and a key for each */
    uint8_t *block = malloc(size);
    bool ok = block && fd_h5_bytes_read(l->bytes, at + sizeof head, size, block);
    c = (fd_h5_cursor){block, size, false};
    for (uint64_t i = 0; ok && i < n; i++) {
        fd_h5_skip(&c, 8);
        uint64_t child = fd_h5_take(&c, 8);
        ok = found > 0 ? take_tree(l, child, found - 1) : take_symbols(l, child);
    }
    free(block);
    return ok;
}

static bool take_symbol_table(listing *l) {
    uint8_t head[32];
    if (!fd_h5_bytes_read(l->bytes, l->heap, sizeof head, head)) return false;
    fd_h5_cursor c = {head, sizeof head, false};
    bool heap = fd_h5_expect(&c, "HEAP") && fd_h5_take(&c, 1) == 0 && fd_h5_skip(&c, 3);
    l->names_size = fd_h5_take(&c, 8);
    fd_h5_skip(&c, 8);
    uint64_t at = fd_h5_take(&c, 8);
    l->budget = 64 + (int64_t)l->limit;
    if (!heap || l->names_size > l->bytes->size || l->names_size > MOST_NAMES) return false;
    l->names = malloc((size_t)l->names_size + 1);
    return l->names && fd_h5_bytes_read(l->bytes, at, (size_t)l->names_size, l->names) && take_tree(l, l->tree, -1);
}

/* ---- all of them ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const fd_h5_link *)a)->name, ((const fd_h5_link *)b)->name);
}

/* One allocation: the links, then their names. Two of one name are damage, for the library to tell. */
static fd_h5_link *pack(const listing *l) {
    fd_h5_link *out = malloc(l->n * sizeof *out + l->used + 1);
    if (!out) return NULL;
    bool sorted = true;
    char *name = (char *)(out + l->n);
    if (l->used) memcpy(name, l->text, l->used);
    for (size_t i = 0; i < l->n; i++, name += strlen(name) + 1) {
        out[i] = (fd_h5_link){name, l->links[i].address};
        sorted = sorted && (i == 0 || by_name(&out[i - 1], &out[i]) < 0);
    }
    if (sorted) return out;
    qsort(out, l->n, sizeof *out, by_name);
    for (size_t i = 1; i < l->n; i++)
        if (by_name(&out[i - 1], &out[i]) == 0) {
            free(out);
            return NULL;
        }
    return out;
}

fd_h5_link *fd_h5_group_links(const fd_h5_bytes *bytes, fd_h5_window *headers, uint64_t address, size_t limit,
                              size_t *n) {
    listing l = {.bytes = bytes, .window = headers, .tree = FD_H5_NOWHERE, .links_in = FD_H5_NOWHERE, .limit = limit};
    bool known = fd_h5_header_walk(bytes, headers, address, take_message, &l);
    if (known && l.tree != FD_H5_NOWHERE) known = l.n == 0 && take_symbol_table(&l);
    if (known && l.links_in != FD_H5_NOWHERE)
        known = l.n == 0 && fd_h5_heap_links(bytes, l.links_in, l.by, limit, take_link, &l);
    fd_h5_link *out = known ? pack(&l) : NULL;
    *n = out ? l.n : 0;
    free(l.names);
    free(l.links);
    free(l.text);
    return out;
}
