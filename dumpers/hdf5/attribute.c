#include "dumpers/hdf5/attribute.h"

#include <string.h>

enum { MAX_HEAP = 65536 }; /* bytes of a collection of strings */

/* Where a text goes: as much as fits with its NUL; `length` without it. */
static bool put_text(const uint8_t *text, size_t n, fd_h5_value *out) {
    n = strnlen((const char *)text, n);
    out->found = FD_H5_FOUND;
    out->value = (int64_t)n;
    if (out->room == 0) return true;
    size_t most = n < out->room ? n : out->room - 1;
    memcpy(out->text, text, most);
    out->text[most] = '\0';
    return true;
}

/* Object `index` of the global heap collection at `address`, cut to the attribute's text. */
static bool read_heap_text(const fd_h5_bytes *bytes, fd_h5_window *strings, uint64_t address, uint64_t index,
                           uint64_t length, fd_h5_value *out) {
    uint8_t long_block[MAX_HEAP];
    const uint8_t *block = fd_h5_window_get(bytes, strings, address, 16);
    fd_h5_cursor c = {block, block ? 16 : 0, false};
    bool heap = fd_h5_expect(&c, "GCOL") && fd_h5_take(&c, 1) == 1 && fd_h5_skip(&c, 3);
    uint64_t size = fd_h5_take(&c, 8);
    if (!heap || size < 16 || size > sizeof long_block) return false;
    if (size <= FD_H5_WINDOW)
        block = fd_h5_window_get(bytes, strings, address, (size_t)size);
    else
        block = fd_h5_bytes_read(bytes, address, (size_t)size, long_block) ? long_block : NULL;
    if (!block) return false;
    c = (fd_h5_cursor){block + 16, (size_t)size - 16, false};
    while (!c.bad && c.left >= 16) {
        uint64_t at = fd_h5_take(&c, 2);
        fd_h5_skip(&c, 6);
        uint64_t n = fd_h5_take(&c, 8);
        if (at == 0 || n > c.left) return false;
        const uint8_t *text = fd_h5_skip(&c, (size_t)n);
        if (at == index && length <= n) return put_text(text, (size_t)length, out);
        fd_h5_skip(&c, (size_t)(-n & 7));
    }
    return false;
}

static bool read_value(const fd_h5_bytes *bytes, fd_h5_window *strings, fd_h5_cursor type, fd_h5_cursor data, bool text,
                       fd_h5_value *out) {
    uint64_t class = fd_h5_take(&type, 1) & 15, bits = fd_h5_take(&type, 3), n = fd_h5_take(&type, 4);
    if (type.bad) return false;
    if (text && class == 9 && (bits & 15) == 1 && n == 16) {
        uint64_t length = fd_h5_take(&data, 4), address = fd_h5_take(&data, 8), index = fd_h5_take(&data, 4);
        if (data.bad) return false;
        if (length == 0 && address == 0) return put_text((const uint8_t *)"", 0, out);
        return read_heap_text(bytes, strings, address, index, length, out);
    }
    if (text && class == 3 && (bits & 15) < 2 && n > 0 && n < 4096) {
        const uint8_t *at = fd_h5_skip(&data, (size_t)n);
        return at && put_text(at, (size_t)n, out);
    }
    bool sized = n == 1 || n == 2 || n == 4 || n == 8;
    if (text || class != 0 || (bits & 1) || !sized || fd_h5_take(&type, 4) != n * 8 << 16) return false;
    uint64_t value = fd_h5_take(&data, (size_t)n), top = (uint64_t)1 << (n * 8 - 1);
    if (n == 8 && !(bits & 8) && (value & top)) return false; /* beyond int64: the library clips it */
    out->value = (int64_t)((bits & 8) && (value & top) ? value | (0 - top) : value);
    out->found = FD_H5_FOUND;
    return !data.bad && !type.bad;
}

static bool is_one_element(fd_h5_cursor c) {
    uint64_t version = fd_h5_take(&c, 1), rank = fd_h5_take(&c, 1), flags = fd_h5_take(&c, 1);
    uint64_t kind = fd_h5_take(&c, 1);
    if (version == 2 ? kind > 1 : version != 1) return false;
    if (version == 1) fd_h5_skip(&c, 4);
    return flags < 2 && (rank == 0 || (rank == 1 && fd_h5_take(&c, 8) == 1)) && !c.bad;
}

/* The attribute's message: its name, which ends with a NUL, its type, its dataspace, and what is left is its data. */
static bool open_message(fd_h5_cursor *c, fd_h5_cursor parts[3], bool *plain) {
    uint64_t version = fd_h5_take(c, 1), flags = fd_h5_take(c, 1);
    uint64_t sizes[3];
    for (int i = 0; i < 3; i++) sizes[i] = fd_h5_take(c, 2);
    if (version == 3) fd_h5_skip(c, 1);
    if (version < 1 || version > 3) return false;
    for (int i = 0; i < 3; i++) {
        parts[i] = (fd_h5_cursor){fd_h5_skip(c, (size_t)sizes[i]), (size_t)sizes[i], false};
        if (version == 1) fd_h5_skip(c, (size_t)(-sizes[i] & 7));
    }
    *plain = version == 1 || flags == 0;
    return !c->bad && sizes[0] > 0 && parts[0].at[sizes[0] - 1] == '\0';
}

bool fd_h5_attribute_find(const fd_h5_bytes *bytes, fd_h5_window *strings, fd_h5_cursor c, const char *name, bool text,
                          fd_h5_value *out) {
    fd_h5_cursor parts[3];
    bool plain;
    if (!open_message(&c, parts, &plain)) return false;
    if (strcmp((const char *)parts[0].at, name) != 0) return true;
    return plain && is_one_element(parts[2]) && read_value(bytes, strings, parts[1], c, text, out);
}

bool fd_h5_attribute_read(const fd_h5_bytes *bytes, fd_h5_window *strings, fd_h5_cursor message, fd_h5_object *out) {
    const struct {
        const char *name;
        fd_h5_attribute *to;
        bool text;
    } wanted[] = {{"dtype", &out->dtype, true},
                  {"op", &out->op, true},
                  {"seq", &out->seq, false},
                  {"layer", &out->layer, false},
                  {"over_kv", &out->over_kv, false},
                  {"first_position", &out->first_position, false},
                  {"last_rows", &out->last_rows, false}};
    fd_h5_cursor c = message, parts[3];
    bool plain;
    if (!open_message(&c, parts, &plain)) return false;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (strcmp((const char *)parts[0].at, wanted[i].name) != 0) continue;
        fd_h5_attribute *to = wanted[i].to;
        fd_h5_value value = {.text = to->text, .room = wanted[i].text ? sizeof to->text : 0};
        if (!plain || !is_one_element(parts[2]) || !read_value(bytes, strings, parts[1], c, wanted[i].text, &value))
            return false;
        to->found = value.found;
        to->value = wanted[i].text ? 0 : value.value;
    }
    return true;
}
