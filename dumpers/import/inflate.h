/* What an archive does to its members' bytes. */
#ifndef FD_DUMPERS_IMPORT_INFLATE_H
#define FD_DUMPERS_IMPORT_INFLATE_H

#include <stdbool.h>
#include <stdint.h>

/* True when exactly `bytes` came out of exactly `packed`: to [bytes] is filled. */
bool fd_inflate(const uint8_t *from, uint64_t packed, uint8_t *to, uint64_t bytes);
uint32_t fd_crc(const uint8_t *data, uint64_t bytes); /* CRC-32, as ZIP has it */

#endif
