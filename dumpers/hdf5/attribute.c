#include "dumpers/hdf5/attribute.h"

#include <stdio.h>
#include <string.h>

enum { MAX_HEAP = 65536 }; /* bytes of a collection of strings */

/* Object `index` of the global heap collection at `address`, cut to the attribute's text. */
static bool read_heap_text(const fd_h5_bytes *bytes, fd_h5_window *strings, uint64_t address, uint64_t index,
                           uint64_t length, fd_h5_attribute *out) {
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
        if (at == index && length <= n) {
            snprintf(out->text, sizeof out->text, "%.*s", (int)(length < 64 ? length : 64), (const char *)text);
            out->found = FD_H5_FOUND;
            return true;
        }
        fd_h5_skip(&c, (size_t)(-n & 7));
    }
    return false;
}

static bool read_value(const fd_h5_bytes *bytes, fd_h5_window *strings, fd_h5_cursor type, fd_h5_cursor data, bool text,
                       fd_h5_attribute *out) {
    uint64_t class = fd_h5_take(&type, 1) & 15, bits = fd_h5_take(&type, 3), n = fd_h5_take(&type, 4);
    if (type.bad) return false;
    if (text && class == 9 && (bits & 15) == 1 && n == 16) {
        uint64_t length = fd_h5_take(&data, 4), address = fd_h5_take(&data, 8), index = fd_h5_take(&data, 4);
        return !data.bad && length > 0 && read_heap_text(bytes, strings, address, index, length, out);
    }
    if (text && class == 3 && (bits & 15) < 2 && n > 0 && n < 4096) {
        const uint8_t *at = fd_h5_skip(&data, (size_t)n);
        if (at) snprintf(out->text, sizeof out->text, "%.*s", (int)n, (const char *)at);
        out->found = FD_H5_FOUND;
        return at != NULL;
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

bool fd_h5_attribute_read(const fd_h5_bytes *bytes, fd_h5_window *strings, fd_h5_cursor c, fd_h5_object *out) {
    const struct {
        const char *name;
        fd_h5_attribute *to;
        bool text;
    } wanted[] = {{"dtype", &out->dtype, true},      {"op", &out->op, true},
                  {"seq", &out->seq, false},         {"layer", &out->layer, false},
                  {"over_kv", &out->over_kv, false}, {"first_position", &out->first_position, false}};
    uint64_t version = fd_h5_take(&c, 1), flags = fd_h5_take(&c, 1);
    uint64_t sizes[3];
    for (int i = 0; i < 3; i++) sizes[i] = fd_h5_take(&c, 2); /* name, type, space */
    if (version == 3) fd_h5_skip(&c, 1);
    if (version < 1 || version > 3) return false;
    fd_h5_cursor parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = (fd_h5_cursor){fd_h5_skip(&c, (size_t)sizes[i]), (size_t)sizes[i], false};
        if (version == 1) fd_h5_skip(&c, (size_t)(-sizes[i] & 7));
    }
    if (c.bad || sizes[0] == 0 || parts[0].at[sizes[0] - 1] != '\0') return false;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (strcmp((const char *)parts[0].at, wanted[i].name) != 0) continue;
        bool plain = (version == 1 || flags == 0) && is_one_element(parts[2]);
        return plain && read_value(bytes, strings, parts[1], c, wanted[i].text, wanted[i].to);
    }
    return true;
}
