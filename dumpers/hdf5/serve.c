/* In the child: HDF5 is asked, and what it says is put into the page. */
#include "dumpers/hdf5/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "dumpers/hdf5/wall.h"

/* Datasets that were asked for stay open: opening one takes HDF5 as long as reading a row of it. */
enum { SLOTS = 4096, PROBES = 8 };
typedef struct open_dataset {
    char *path;
    hid_t id;
} open_dataset;

typedef struct server {
    hid_t file, root;
    char group[sizeof((fd_h5_exchange *)0)->group]; /* that root is */
    open_dataset sets[SLOTS];
    uint64_t n_asked;
    fd_h5_link *links; /* of the group that was listed last */
    size_t n_link;
    hid_t whole_rows; /* access properties of what is read in whole rows, each once */
} server;

/* ---- the file ---- */

/* Makes the group the root. What was open in another is closed: no two groups are read in turns. */
static void enter(const fd_h5_exchange *x, server *s) {
    if (s->file < 0 || (s->root >= 0 && strcmp(s->group, x->group) == 0)) return;
    for (int i = 0; i < SLOTS; i++)
        if (s->sets[i].path) {
            fd_h5_release(s->sets[i].id);
            free(s->sets[i].path);
            s->sets[i].path = NULL;
        }
    free(s->links);
    s->links = NULL;
    fd_h5_release(s->root);
    strcpy(s->group, x->group);
    s->root = H5Gopen2(s->file, s->group[0] ? s->group : "/", H5P_DEFAULT);
}

static void open_file(fd_h5_exchange *x, server *s) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, true, true);
    /* a block that a live writer is just writing is whole a moment later; HDF5's own 100 attempts take half a minute */
    if (x->live) H5Pset_metadata_read_attempts(access, 8);
    fd_wall_limit_memory(x->memory);
    s->file = H5Fopen(x->object, H5F_ACC_RDONLY | (x->live ? H5F_ACC_SWMR_READ : 0), access);
    fd_wall_confine();
    s->whole_rows = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(s->whole_rows, 1, 0, 1.0);
    s->root = -1;
    enter(x, s);
    int64_t complete;
    x->ok = s->root >= 0;
    x->value = s->file >= 0;
    x->n = s->file >= 0 && fd_h5_get_int(s->file, "complete", &complete) == FD_H5_FOUND && complete == 0;
}

/* ---- datasets ---- */

static uint64_t hash(const char *text) { /* FNV-1a */
    uint64_t h = 0xcbf29ce484222325;
    for (; *text; text++) h = (h ^ (uint8_t)*text) * 0x100000001b3;
    return h;
}

/* The dataset, opened or found; borrowed. Where no slot is free one of its neighbours gives way. */
static hid_t dataset(server *s, const char *path) {
    uint64_t at = hash(path);
    open_dataset *free_slot = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        open_dataset *slot = &s->sets[(at + i) % SLOTS];
        if (slot->path && strcmp(slot->path, path) == 0) return slot->id;
        if (!slot->path && !free_slot) free_slot = slot;
    }
    hid_t id = H5Dopen2(s->root, path, strncmp(path, "tensors/", 8) == 0 ? s->whole_rows : H5P_DEFAULT);
    if (id < 0) return id;
    if (!free_slot) {
        free_slot = &s->sets[(at + s->n_asked++ % PROBES) % SLOTS];
        fd_h5_release(free_slot->id);
        free(free_slot->path);
    }
    *free_slot = (open_dataset){strdup(path), id};
    return id;
}

/* A 2-byte float's format by the width of its exponent. */
static uint32_t half_of(hid_t type) {
    size_t sign, exponent, exponent_bits, mantissa, mantissa_bits;
    if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0) return FD_DTYPE_LIMIT;
    if (exponent_bits == 5 && mantissa_bits == 10) return FD_F16;
    return exponent_bits == 8 && mantissa_bits == 7 ? FD_BF16 : FD_DTYPE_LIMIT;
}

static uint32_t element_of(hid_t type, H5T_class_t class, size_t size) {
    if (class == H5T_FLOAT && size == 4) return FD_F32;
    if (class == H5T_FLOAT && size == 8) return FD_F64;
    if (class == H5T_FLOAT && size == 2) return half_of(type);
    return class == H5T_INTEGER && size == 2 ? FD_H5_WORD16 : FD_DTYPE_LIMIT;
}

static void describe(hid_t id, fd_h5_answer *out) {
    hid_t type = H5Dget_type(id);
    if (type < 0) return;
    H5T_class_t class = H5Tget_class(type);
    fd_h5_dataset *d = &out->dataset;
    d->element_bytes = H5Tget_size(type);
    d->class = class == H5T_FLOAT      ? FD_H5_IS_FLOAT
               : class == H5T_INTEGER  ? FD_H5_IS_INTEGER
               : class == H5T_COMPOUND ? FD_H5_IS_TABLE
                                       : FD_H5_OTHER;
    d->element = element_of(type, class, d->element_bytes);
    d->has_names = d->class == FD_H5_IS_TABLE && H5Tget_member_index(type, "name") >= 0;
    H5Eclear2(H5E_DEFAULT);
    d->simple = fd_h5_shape_of(id, &d->shape);
    fd_h5_release(type);
    hid_t create = H5Dget_create_plist(id);
    d->filtered = create >= 0 && H5Pget_nfilters(create) > 0;
    fd_h5_release(create);
    out->found = FD_H5_FOUND;
}

/* HDF5's own conversion of halves runs at 30 MiB/s: as they are, in this machine's byte order. */
static hid_t as_stored(hid_t set) {
    hid_t type = H5Dget_type(set), memory = type < 0 ? -1 : H5Tcopy(type);
    if (memory >= 0) H5Tset_order(memory, H5Tget_order(H5T_NATIVE_UINT16));
    fd_h5_release(type);
    return memory;
}

static void rows(fd_h5_exchange *x, server *s) {
    hid_t id = dataset(s, x->object);
    fd_h5_shape shape = {0};
    if (id < 0 || !fd_h5_shape_of(id, &shape) || shape.rank != x->shape.rank) return;
    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i] != x->shape.dim[i]) return;
    hid_t type = x->type->number == FD_H5_WORDS ? as_stored(id) : fd_h5_type_make(x->type);
    size_t bytes = type < 0 ? 0 : H5Tget_size(type);
    for (int i = 0; i < shape.rank; i++) bytes *= x->count.dim[i];
    x->ok = bytes <= sizeof x->data && fd_h5_read_block(id, type, shape.rank, x->start.dim, x->count.dim, x->data);
    fd_h5_release(type);
}

/* ---- questions and links ---- */

static void hashes(hid_t set, fd_h5_answer *out, char *bytes, size_t room) {
    fd_h5_shape shape, start = {0};
    if (set < 0 || !fd_h5_shape_of(set, &shape) || shape.rank != 1 || shape.dim[0] > room / 8) return;
    if (!fd_h5_read_block(set, H5T_NATIVE_UINT64, 1, start.dim, shape.dim, bytes)) return;
    out->value = (int64_t)shape.dim[0];
    out->found = FD_H5_FOUND;
}

static void answer(fd_h5_exchange *x, server *s, fd_h5_asked *q) {
    const char *path = x->data + q->object, *name = x->data + q->name;
    fd_h5_answer *out = &q->answer;
    *out = (fd_h5_answer){.found = FD_H5_ABSENT, .dataset = {.shape.rank = -1, .element = FD_DTYPE_LIMIT}};
    if (q->kind == FD_H5_HAS) {
        out->found = fd_h5_has(s->root, path) ? FD_H5_FOUND : FD_H5_ABSENT;
        return;
    }
    hid_t object = path[0] ? dataset(s, path) : s->root;
    size_t length = 0;
    if (object < 0) return;
    switch (q->kind) {
    case FD_H5_HAS: break;
    case FD_H5_DATASET: describe(object, out); break;
    case FD_H5_STORED: out->value = (int64_t)H5Dget_storage_size(object); break;
    case FD_H5_INTEGER: out->found = fd_h5_get_int(object, name, &out->value); break;
    case FD_H5_TEXT:
        out->found = fd_h5_get_string(object, name, q->room ? x->data + q->bytes : NULL, q->room, &length);
        out->value = (int64_t)length;
        break;
    case FD_H5_HASHES: hashes(object, out, x->data + q->bytes, q->room); break;
    }
}

static void answer_all(fd_h5_exchange *x, server *s) {
    for (uint32_t i = 0; i < x->n_question; i++) {
        x->at = i;
        H5Eclear2(H5E_DEFAULT);
        answer(x, s, &x->questions[i]);
    }
    x->ok = true;
}

static void list(fd_h5_exchange *x, server *s) {
    size_t used = 0;
    if (x->first == 0) {
        hid_t group = H5Gopen2(s->root, x->object[0] ? x->object : ".", H5P_DEFAULT);
        free(s->links);
        s->links = group < 0 ? NULL : fd_h5_links(group, x->most, &s->n_link);
        fd_h5_release(group);
    }
    x->ok = s->links != NULL;
    x->value = x->ok ? (int64_t)s->n_link : -1;
    for (x->n = 0; x->ok && x->first + x->n < s->n_link; x->n++) {
        const fd_h5_link *link = &s->links[x->first + x->n];
        size_t bytes = strlen(link->name) + 1;
        if (bytes + sizeof link->address > sizeof x->data - used) break;
        memcpy(x->data + used, &link->address, sizeof link->address);
        memcpy(x->data + used + sizeof link->address, link->name, bytes);
        used += sizeof link->address + bytes;
    }
}

void fd_h5_serve(void *page, void **state) {
    fd_h5_exchange *x = page;
    server *s = *state;
    x->ok = false;
    if (!s) {
        *state = s = calloc(1, sizeof *s);
        if (!s) return;
        H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    }
    H5Eclear2(H5E_DEFAULT);
    if (x->op != FD_H5_OPEN) enter(x, s);
    switch (x->op) {
    case FD_H5_OPEN: open_file(x, s); break;
    case FD_H5_ASK: answer_all(x, s); break;
    case FD_H5_LIST: list(x, s); break;
    case FD_H5_ROWS: rows(x, s); break;
    }
    fd_h5_reason(x->reason);
}
