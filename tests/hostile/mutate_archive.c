#include "mutate_archive.h"

#include <stdbool.h>
#include <string.h>

enum { LOCAL = 30, CENTRAL = 46, END = 22, LOOKED_AT = 256 };

static uint64_t get(const uint8_t *at, int n) {
    uint64_t value = 0;
    for (int i = n; i-- > 0;) value = value << 8 | at[i];
    return value;
}

static uint32_t checksum(const uint8_t *data, size_t n) { /* CRC-32 of ISO 3309 */
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

typedef struct member {
    size_t central, local, data, n;
    bool stored;
} member;

/* The member whose entry of the directory stands at `at`; false when there is none (left). */
static bool member_at(const uint8_t *data, size_t size, size_t at, member *out) {
    if (at + CENTRAL > size || memcmp(data + at, "PK\1\2", 4) != 0) return false;
    size_t local = (size_t)get(data + at + 42, 4), n = (size_t)get(data + at + 20, 4);
    if (local + LOCAL > size || memcmp(data + local, "PK\3\4", 4) != 0) return false;
    size_t begin = local + LOCAL + (size_t)get(data + local + 26, 2) + (size_t)get(data + local + 28, 2);
    *out = (member){at, local, begin, n, get(data + at + 10, 2) == 0};
    return begin <= size && n <= size - begin;
}

static size_t after(const uint8_t *data, size_t at) {
    return at + CENTRAL + (size_t)get(data + at + 28, 2) + (size_t)get(data + at + 30, 2) +
           (size_t)get(data + at + 32, 2);
}

/* The directory; `size` when there is none. */
static size_t directory(const uint8_t *data, size_t size) {
    if (size < END || memcmp(data, "PK\3\4", 4) != 0 || memcmp(data + size - END, "PK\5\6", 4) != 0) return size;
    return (size_t)get(data + size - END + 16, 4);
}

size_t archive_find(const uint8_t *data, size_t size, archive_block *blocks) {
    size_t n = 0;
    member m;
    for (size_t at = directory(data, size); n + 4 < ARCHIVE_BLOCKS && member_at(data, size, at, &m);
         at = after(data, at)) {
        blocks[n++] = (archive_block){m.central, CENTRAL};
        blocks[n++] = (archive_block){m.local, LOCAL};
        if (m.stored && m.n > 0) blocks[n++] = (archive_block){m.data, m.n < LOOKED_AT ? m.n : LOOKED_AT};
    }
    if (n > 0) blocks[n++] = (archive_block){size - END, END};
    return n;
}

void archive_mend(const uint8_t *original, uint8_t *data, size_t size) {
    member m;
    for (size_t at = directory(original, size); member_at(original, size, at, &m); at = after(original, at)) {
        uint32_t sum = m.stored ? checksum(data + m.data, m.n) : 0;
        for (int i = 0; m.stored && i < 4; i++)
            data[m.local + 14 + (size_t)i] = data[m.central + 16 + (size_t)i] = (uint8_t)(sum >> (8 * i));
    }
}
