/* Deflate, in the two forms that files have it in: archives bare, HDF5 with zlib's head and checksum. */
#ifndef FD_DUMPERS_HDF5_INFLATE_H
#define FD_DUMPERS_HDF5_INFLATE_H

#include <stdbool.h>
#include <stdint.h>

enum { FD_DEFLATE_LIMIT = 1032 }; /* deflate's largest factor: 258 bytes for 2 bits */

typedef enum fd_deflated { FD_DEFLATED_BARE, FD_DEFLATED_ZLIB } fd_deflated;

/* True when exactly `bytes` came out of exactly `packed`: to [bytes] is filled. */
bool fd_inflate(fd_deflated form, const uint8_t *from, uint64_t packed, uint8_t *to, uint64_t bytes);
uint32_t fd_crc(const uint8_t *data, uint64_t bytes); /* CRC-32, as ZIP has it */

#endif
