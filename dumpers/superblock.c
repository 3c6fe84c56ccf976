#include "dumpers/superblock.h"

#include <string.h>

/* HDF5 File Format Specification 3.0, II.A "Format Signature and Superblock", version 3, with 8-byte offsets:
 *
 *    0  signature 89 'H' 'D' 'F' 0d 0a 1a 0a
 *    8  version, 3
 *    9  size of offsets, 8
 *   10  size of lengths, 8
 *   11  file consistency flags: bit 0 open for writing, bit 2 by a SWMR writer
 *   12  base address, superblock extension address, end of file address, root group address (8 bytes each)
 *   44  checksum of bytes 0 … 43: Jenkins' lookup3 hashlittle, initial value 0
 */
enum { FLAGS_AT = 11, CHECKSUM_AT = 44 };

static uint32_t rotate(uint32_t x, int k) {
    return x << k | x >> (32 - k);
}

static uint32_t load32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* lookup3 (Bob Jenkins, public domain) for 44 bytes: three rounds of twelve, then the last eight. */
static uint32_t checksum(const uint8_t *p) {
    uint32_t a = 0xdeadbeefu + CHECKSUM_AT, b = a, c = a;
    for (int round = 0; round < 3; round++, p += 12) {
        a += load32(p);
        b += load32(p + 4);
        c += load32(p + 8);
        a -= c, a ^= rotate(c, 4), c += b;
        b -= a, b ^= rotate(a, 6), a += c;
        c -= b, c ^= rotate(b, 8), b += a;
        a -= c, a ^= rotate(c, 16), c += b;
        b -= a, b ^= rotate(a, 19), a += c;
        c -= b, c ^= rotate(b, 4), b += a;
    }
    a += load32(p);
    b += load32(p + 4);
    c ^= b, c -= rotate(b, 14);
    a ^= c, a -= rotate(c, 11);
    b ^= a, b -= rotate(a, 25);
    c ^= b, c -= rotate(b, 16);
    a ^= c, a -= rotate(c, 4);
    b ^= a, b -= rotate(a, 14);
    c ^= b, c -= rotate(b, 24);
    return c;
}

int fd_superblock_flags(const uint8_t block[FD_SUPERBLOCK_BYTES]) {
    static const uint8_t signature[] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n', 3, 8, 8};
    bool known = memcmp(block, signature, sizeof signature) == 0 && load32(block + CHECKSUM_AT) == checksum(block);
    return known ? block[FLAGS_AT] : -1;
}

bool fd_superblock_clear_flags(uint8_t block[FD_SUPERBLOCK_BYTES]) {
    if (fd_superblock_flags(block) < 0) return false;
    block[FLAGS_AT] = 0;
    uint32_t sum = checksum(block);
    for (int i = 0; i < 4; i++) block[CHECKSUM_AT + i] = (uint8_t)(sum >> (8 * i));
    return true;
}
