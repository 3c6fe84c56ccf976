#include "dumpers/hdf5/type.h"

#include <string.h>

#include "base/dtype.h"

/* ---- in memory ---- */

const fd_h5_type fd_h5_words = {FD_H5_WORDS, 2, NULL, 0}, fd_h5_i32 = {FD_H5_I32, 4, NULL, 0},
                 fd_h5_u64 = {FD_H5_U64, 8, NULL, 0}, fd_h5_f32 = {FD_H5_F32, 4, NULL, 0},
                 fd_h5_f64 = {FD_H5_F64, 8, NULL, 0};

/* Padded with NULs, so that NumPy strips them. */
static hid_t text_type(size_t bytes) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, bytes);
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    return type;
}

static hid_t table_type(const fd_h5_type *type) {
    hid_t table = H5Tcreate(H5T_COMPOUND, type->bytes);
    for (size_t i = 0; i < type->n_member; i++) {
        const fd_h5_member *m = &type->members[i];
        hid_t member = m->text ? text_type(m->text) : H5Tcopy(H5T_NATIVE_INT32);
        H5Tinsert(table, m->name, m->offset, member);
        H5Tclose(member);
    }
    return table;
}

hid_t fd_h5_type_make(const fd_h5_type *type) {
    switch (type->number) {
    case FD_H5_NO_NUMBER: break;
    case FD_H5_WORDS: return -1; /* whatever the dataset has */
    case FD_H5_I32: return H5Tcopy(H5T_NATIVE_INT32);
    case FD_H5_U64: return H5Tcopy(H5T_NATIVE_UINT64);
    case FD_H5_F32: return H5Tcopy(H5T_NATIVE_FLOAT);
    case FD_H5_F64: return H5Tcopy(H5T_NATIVE_DOUBLE);
    }
    return table_type(type);
}

/* ---- in a file ---- */

enum { FIXED = 0, FLOAT = 1, TEXT = 3, COMPOUND = 6 }; /* classes of datatypes */

typedef struct head { /* what every datatype begins with */
    uint64_t version, class, bits, bytes;
} head;

static head take_head(fd_h5_cursor *c) {
    head h = {.class = fd_h5_take(c, 1)};
    h.version = h.class >> 4;
    h.class &= 15;
    h.bits = fd_h5_take(c, 3);
    h.bytes = fd_h5_take(c, 4);
    return h;
}

/* Little-endian integers that fill their bytes. */
static bool take_integer(fd_h5_cursor *c, const head *h) {
    bool sized = h->bytes == 1 || h->bytes == 2 || h->bytes == 4 || h->bytes == 8;
    return fd_h5_take(c, 4) == h->bytes * 8 << 16 && sized && (h->bits & 1) == 0 && !c->bad;
}

static uint32_t take_float(fd_h5_cursor *c, const head *h) {
    static const struct {
        uint32_t dtype, bytes;
        uint8_t sign, properties[12]; /* bit offset, precision, exponent, mantissa, bias */
    } floats[] = {
        {FD_F32, 4, 31, {0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0}},
        {FD_F64, 8, 63, {0, 0, 64, 0, 52, 11, 0, 52, 0xff, 3, 0, 0}},
        {FD_F16, 2, 15, {0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0}},
        {FD_BF16, 2, 15, {0, 0, 16, 0, 7, 8, 0, 7, 127, 0, 0, 0}},
    };
    const uint8_t *properties = fd_h5_skip(c, 12);
    for (size_t i = 0; properties && i < sizeof floats / sizeof *floats; i++)
        if (h->bytes == floats[i].bytes && (h->bits & 0x71) == 0x20 && h->bits >> 8 == floats[i].sign &&
            memcmp(properties, floats[i].properties, 12) == 0)
            return floats[i].dtype;
    return FD_DTYPE_LIMIT;
}

/* True when the bytes of a number of this class are those that are wanted. */
static bool is_number(fd_h5_number wanted, const head *h, uint32_t element) {
    switch (wanted) {
    case FD_H5_NO_NUMBER: break;
    case FD_H5_WORDS: return element == FD_H5_WORD16 || element == FD_F16 || element == FD_BF16;
    case FD_H5_I32: return h->class == FIXED && h->bytes == 4 && (h->bits & 8);
    case FD_H5_U64: return h->class == FIXED && h->bytes == 8 && !(h->bits & 8);
    case FD_H5_F32: return element == FD_F32;
    case FD_H5_F64: return element == FD_F64;
    }
    return false;
}

/* ---- tables ---- */

/* A member's name; before version 3 it takes a multiple of eight bytes. */
static const char *take_name(fd_h5_cursor *c, uint64_t version) {
    const uint8_t *name = c->at, *end = c->left ? memchr(name, '\0', c->left) : NULL;
    size_t n = end ? (size_t)(end - name) + 1 : c->left + 1;
    return fd_h5_skip(c, version < 3 ? (n + 7) / 8 * 8 : n) ? (const char *)name : NULL;
}

/* Where the member stands in a row; false for an array of them. */
static bool take_offset(fd_h5_cursor *c, const head *table, uint64_t *offset) {
    size_t bytes = 1;
    while (table->version >= 3 && bytes < 4 && table->bytes >> (8 * bytes)) bytes++;
    *offset = fd_h5_take(c, table->version >= 3 ? bytes : 4);
    uint64_t n_dimension = table->version == 1 ? fd_h5_take(c, 1) : 0;
    if (table->version == 1) fd_h5_skip(c, 27);
    return n_dimension == 0 && !c->bad;
}

/* Neighbours that stay neighbours are one copy. */
static bool add_copy(fd_h5_stored *out, fd_h5_copy copy) {
    fd_h5_copy *last = out->n_copy ? &out->copies[out->n_copy - 1] : NULL;
    if (last && last->from + last->bytes == copy.from && last->to + last->bytes == copy.to) {
        last->bytes += copy.bytes;
        return true;
    }
    if (out->n_copy == sizeof out->copies / sizeof *out->copies) return false;
    out->copies[out->n_copy++] = copy;
    return true;
}

/* False for a wanted column that HDF5 would convert, or refuse to: another integer, padding or character set. */
static bool take_wanted(const fd_h5_type *wanted, const char *name, const head *h, uint64_t offset, fd_h5_stored *out) {
    for (size_t i = 0; wanted && i < wanted->n_member; i++) {
        const fd_h5_member *m = &wanted->members[i];
        if (strcmp(m->name, name) != 0) continue;
        bool same = m->text ? h->class == TEXT && h->bytes == m->text && (h->bits & 0xff) == 1
                            : is_number(FD_H5_I32, h, FD_DTYPE_LIMIT);
        return same && add_copy(out, (fd_h5_copy){(size_t)offset, m->offset, (size_t)h->bytes});
    }
    return true;
}

/* False where a member is not understood: its length is not known then. */
static bool take_members(fd_h5_cursor *c, const head *table, const fd_h5_type *wanted, fd_h5_stored *out) {
    bool copied = wanted && wanted->number == FD_H5_NO_NUMBER;
    if (table->version < 1 || table->version > 3) return false;
    for (uint64_t i = 0; i < (table->bits & 0xffff); i++) {
        uint64_t offset;
        const char *name = take_name(c, table->version);
        if (!name || !take_offset(c, table, &offset)) return false;
        head h = take_head(c);
        bool known = h.class == TEXT || (h.class == FIXED && take_integer(c, &h)) ||
                     (h.class == FLOAT && take_float(c, &h) != FD_DTYPE_LIMIT);
        if (!known || c->bad || h.bytes > table->bytes || offset > table->bytes - h.bytes) return false;
        out->has_names = out->has_names || strcmp(name, "name") == 0;
        copied = copied && take_wanted(wanted, name, &h, offset, out);
    }
    if (!copied) out->n_copy = 0;
    return true;
}

bool fd_h5_type_read(fd_h5_cursor c, const fd_h5_type *wanted, fd_h5_stored *out) {
    head h = take_head(&c);
    *out = (fd_h5_stored){.bytes = (size_t)h.bytes, .element = FD_DTYPE_LIMIT};
    if (c.bad || h.bytes == 0) return false;
    switch (h.class) {
    case FIXED:
        out->class = FD_H5_IS_INTEGER;
        if (!take_integer(&c, &h)) return false;
        if (h.bytes == 2) out->element = FD_H5_WORD16;
        break;
    case FLOAT:
        out->class = FD_H5_IS_FLOAT;
        out->element = take_float(&c, &h);
        if (out->element == FD_DTYPE_LIMIT) return false;
        break;
    case COMPOUND: out->class = FD_H5_IS_TABLE; return take_members(&c, &h, wanted, out);
    default: return false;
    }
    if (wanted && is_number(wanted->number, &h, out->element)) add_copy(out, (fd_h5_copy){0, 0, out->bytes});
    return true;
}
