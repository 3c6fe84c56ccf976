#include "dumpers/hdf5/bytes.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/fuzzed.h"

bool fd_h5_bytes_read(const fd_h5_bytes *bytes, uint64_t at, size_t n, void *out) {
    if (at > bytes->size || n > bytes->size - at) return false;
    if (bytes->fd < 0) {
        if (n) memcpy(out, bytes->data + at, n);
        return true;
    }
    for (char *to = out; n > 0;) {
        ssize_t got = pread(bytes->fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return true;
}

/* HDF5 File Format Specification, II.A: a superblock begins with the signature, at 0, 512, 1024, 2048, …; in version 3
 * byte 11 has flags of how the file is open. */
fd_code fd_h5_open_file(const char *path, const char *expected, fd_h5_bytes *out, bool *marked, fd_error *err) {
    static const uint8_t signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    uint8_t head[12] = {0};
    uint64_t at = 0;
    *out = (fd_h5_bytes){.fd = -1};
    FD_TRY(fd_file_open(path, expected, &out->fd, &out->size, err));
    *marked = fd_h5_bytes_read(out, 0, sizeof head, head) && head[8] == 3 && head[11] != 0;
    while (at < out->size && (!fd_h5_bytes_read(out, at, 8, head) || memcmp(head, signature, 8) != 0))
        at = at ? 2 * at : 512;
    if (at < out->size) return FD_OK;
    close(out->fd);
    out->fd = -1;
    if (out->size == 0) return fd_fail(err, FD_ERR_INPUT, "%s: the file is empty, expected %s", path, expected);
    return fd_fail(err, FD_ERR_INPUT, "%s: not an HDF5 file, expected %s", path, expected);
}

const uint8_t *fd_h5_window_get(const fd_h5_bytes *bytes, fd_h5_window *window, uint64_t at, size_t n) {
    if (at > bytes->size || n > bytes->size - at || n > FD_H5_WINDOW) return NULL;
    if (at >= window->at && at - window->at < window->n && n <= window->n - (at - window->at))
        return window->data + (at - window->at);
    uint64_t page = at - at % FD_H5_WINDOW;
    uint64_t first = at + n - page <= FD_H5_WINDOW ? page : at; /* from `at` on when it reaches into the next page */
    size_t most = bytes->size - first < FD_H5_WINDOW ? (size_t)(bytes->size - first) : FD_H5_WINDOW;
    window->at = first;
    window->n = fd_h5_bytes_read(bytes, first, most, window->data) ? most : 0;
    return window->n ? window->data + (at - first) : NULL;
}

static uint32_t rotate(uint32_t x, int k) {
    return x << k | x >> (32 - k);
}

static uint32_t word(const uint8_t *p, size_t n) { /* little-endian, of up to 4 bytes */
    uint32_t w = 0;
    for (size_t i = 0; i < n && i < 4; i++) w |= (uint32_t)p[i] << (8 * i);
    return w;
}

uint32_t fd_h5_checksum(const uint8_t *data, size_t n) {
    static const int mix[6] = {4, 6, 8, 16, 19, 4}, last[7] = {14, 11, 25, 16, 4, 14, 24};
    uint32_t s[3]; /* a, b, c of the published description; the rounds rotate their roles */
    s[0] = s[1] = s[2] = 0xdeadbeefu + (uint32_t)n;
    for (; n > 12; n -= 12, data += 12) {
        for (size_t k = 0; k < 3; k++) s[k] += word(data + 4 * k, 4);
        for (size_t r = 0; r < 6; r++) {
            uint32_t *a = &s[r % 3], *b = &s[(r + 1) % 3], *c = &s[(r + 2) % 3];
            *a = (*a - *c) ^ rotate(*c, mix[r]);
            *c += *b;
        }
    }
    if (n == 0) return s[2];
    for (size_t k = 0; k < 3; k++)
        if (n > 4 * k) s[k] += word(data + 4 * k, n - 4 * k);
    for (size_t r = 0; r < 7; r++) {
        uint32_t *to = &s[(r + 2) % 3], *from = &s[(r + 1) % 3];
        *to = (*to ^ *from) - rotate(*from, last[r]);
    }
    return s[2];
}

bool fd_h5_has_checksum(const uint8_t *data, size_t n, const uint8_t *sum) {
    return FD_FUZZED || fd_h5_checksum(data, n) == word(sum, 4);
}

bool fd_h5_block_is_whole(const uint8_t *block, size_t n) {
    return n >= 4 && fd_h5_has_checksum(block, n - 4, block + n - 4);
}

bool fd_h5_expect(fd_h5_cursor *cursor, const char *signature) {
    const uint8_t *p = fd_h5_skip(cursor, 4);
    return p && memcmp(p, signature, 4) == 0;
}
