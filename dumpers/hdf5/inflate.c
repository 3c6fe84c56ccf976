/* zlib counts in 32 bits, so all that is long goes in pieces. */
#include "dumpers/hdf5/inflate.h"

#include <zlib.h>

#include "base/fuzzed.h"

bool fd_inflate(fd_deflated form, const uint8_t *from, uint64_t packed, uint8_t *to, uint64_t bytes) {
    const uint64_t piece = 1 << 30;
    uint64_t in = 0, out = 0;
    uint8_t spill;
    z_stream stream = {0};
    if (inflateInit2(&stream, form == FD_DEFLATED_BARE ? -MAX_WBITS : MAX_WBITS) != Z_OK) return false;
    if (FD_FUZZED) inflateValidate(&stream, 0); /* its checksum */
    int status = Z_OK;
    while (status == Z_OK) {
        uint64_t give = packed - in < piece ? packed - in : piece, room = bytes - out < piece ? bytes - out : piece;
        stream.next_in = (Bytef *)(uintptr_t)(from + in);
        stream.avail_in = (uInt)give;
        stream.next_out = room ? to + out : &spill; /* one byte more than promised is one too many */
        stream.avail_out = room ? (uInt)room : 1;
        /* told that this is all, zlib keeps no window of what it gave */
        bool all = give == packed - in && room == bytes - out && room > 0;
        status = inflate(&stream, all ? Z_FINISH : Z_NO_FLUSH);
        in += give - stream.avail_in;
        out += (room ? room : 1) - stream.avail_out;
        if (out > bytes || (status == Z_BUF_ERROR)) break;
    }
    inflateEnd(&stream);
    return status == Z_STREAM_END && out == bytes && in == packed;
}

uint32_t fd_crc(const uint8_t *data, uint64_t bytes) {
    uLong crc = crc32(0, Z_NULL, 0);
    for (uint64_t at = 0; at < bytes;) {
        uint64_t n = bytes - at < (1 << 30) ? bytes - at : 1 << 30;
        crc = crc32(crc, data + at, (uInt)n);
        at += n;
    }
    return (uint32_t)crc;
}
