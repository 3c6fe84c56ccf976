#include "quiet.h"

#include <stdint.h>
#include <string.h>

const char *first_obeyed(const char *text, size_t size) {
    const unsigned char *p = (const unsigned char *)text, *end = p + size;
    while (p < end) {
        const unsigned char *first = p;
        int more = *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : *p >= 0x80 ? 1 : 0;
        uint32_t c = more ? *p & (0x3fu >> more) : *p;
        if (more && (*p < 0xc2 || *p > 0xf4)) return (const char *)p;
        for (int i = 0; i < more; i++) {
            if (++p >= end || (*p & 0xc0) != 0x80) return (const char *)first;
            c = c << 6 | (*p & 0x3fu);
        }
        p++;
        if ((c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0) || (c >= 0x202a && c <= 0x202e) ||
            (c >= 0x2066 && c <= 0x2069) || c == 0x200e || c == 0x200f || c == 0x061c)
            return (const char *)first;
    }
    return NULL;
}
