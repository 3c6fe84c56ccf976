/* What comes through the page in pieces: a group's links, a dataset's rows. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/reader_internal.h"

/* ---- links ---- */

typedef struct link_list {
    fd_h5_link *links; /* [n], names as offsets in `text` at first */
    char *text;
    size_t n, used, room;
} link_list;

/* Takes what the page holds of the list. */
static bool take_links(const fd_h5_exchange *x, link_list *list, size_t total) {
    uint64_t n = x->n;
    size_t at = 0;
    if (n == 0 || n > total - list->n) return false;
    for (uint64_t i = 0; i < n; i++) {
        if (FD_H5_DATA - at < sizeof(uint64_t) + 1) return false;
        size_t most = FD_H5_DATA - at - sizeof(uint64_t), bytes = strnlen(x->data + at + sizeof(uint64_t), most) + 1;
        if (bytes > most) return false;
        if (list->used + bytes > list->room) {
            char *grown = realloc(list->text, list->room = 2 * (list->used + bytes) + 4096);
            if (!grown) return false;
            list->text = grown;
        }
        fd_h5_link *link = &list->links[list->n++];
        memcpy(&link->address, x->data + at, sizeof link->address);
        memcpy(list->text + list->used, x->data + at + sizeof(uint64_t), bytes);
        list->text[list->used + bytes - 1] = '\0';
        list->used += bytes;
        at += sizeof(uint64_t) + bytes;
    }
    return true;
}

/* One allocation of the links and, behind them, their names. */
static fd_h5_link *pack(const link_list *list) {
    fd_h5_link *out = malloc(list->n * sizeof *out + list->used + 1);
    if (!out) return NULL;
    char *name = memcpy(out + list->n, list->text ? list->text : "", list->used);
    for (size_t i = 0; i < list->n; i++, name += strlen(name) + 1) out[i] = (fd_h5_link){name, list->links[i].address};
    return out;
}

fd_h5_link *fd_h5_reader_links(fd_h5_reader *reader, const char *group, size_t limit, size_t *n) {
    fd_h5_exchange *x;
    link_list list = {0};
    fd_h5_link *plain = fd_h5_plain_links(&reader->plain, group, limit, n);
    if (plain || !fd_h5_reader_library(reader)) return plain;
    x = reader->owner->x;
    x->first = 0;
    x->most = limit;
    if (!fd_h5_reader_call(reader, FD_H5_LIST, group) || !x->ok) return NULL;
    int64_t total = x->value;
    bool ok = total >= 0 && (uint64_t)total <= limit;
    list.links = ok ? malloc((size_t)total * sizeof *list.links + 1) : NULL;
    ok = list.links != NULL;
    while (ok && list.n < (size_t)total) {
        ok = take_links(x, &list, (size_t)total);
        x->first = list.n;
        if (ok && list.n < (size_t)total) ok = fd_h5_reader_call(reader, FD_H5_LIST, group) && x->ok;
    }
    fd_h5_link *out = ok ? pack(&list) : NULL;
    *n = out ? list.n : 0;
    free(list.links);
    free(list.text);
    return out;
}

/* ---- rows ---- */

/* In pieces that fit the page: runs along dimension `d`, the dimensions after it whole. */
bool fd_h5_reader_rows(fd_h5_reader *reader, const fd_h5_block *block, void *out) {
    const hsize_t *count = block->count.dim;
    size_t run = block->type->bytes;
    int rank = block->count.rank, d = rank;
    hsize_t at[FD_H5_MAX_RANK] = {0};
    for (int i = 0; i < rank; i++)
        if (count[i] == 0) return true;
    if (fd_h5_plain_rows(&reader->plain, block, out)) return true;
    if (!fd_h5_reader_library(reader)) return false;
    fd_h5_exchange *x = reader->owner->x;
    while (d > 1 && count[d - 1] <= FD_H5_DATA / run) run *= count[--d];
    d--; /* the dimension that is cut */
    hsize_t most = FD_H5_DATA / run;
    for (char *to = out;;) {
        hsize_t left = count[d] - at[d], n = left < most ? left : most;
        x->type = block->type;
        x->shape = block->shape;
        x->start.rank = x->count.rank = rank;
        for (int i = 0; i < rank; i++) {
            x->start.dim[i] = block->start.dim[i] + at[i];
            x->count.dim[i] = i < d ? 1 : i == d ? n : count[i];
        }
        if (block->type->n_member) memcpy(x->data, to, (size_t)n * run); /* the table may lack some */
        if (!fd_h5_reader_call(reader, FD_H5_ROWS, block->object) || !x->ok) return false;
        memcpy(to, x->data, (size_t)n * run);
        to += (size_t)n * run;
        at[d] += n;
        for (int k = d; at[k] == count[k]; at[k]++) {
            if (k == 0) return true;
            at[k--] = 0;
        }
    }
}
