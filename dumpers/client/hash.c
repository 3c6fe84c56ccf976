#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "dumpers/client/tracer.h"

fd_code fd_tracer_hash_file(const char *path, char out[48], fd_error *err) {
    enum { PIECE = 1 << 20 };
    int fd;
    uint64_t size;
    if (fd_file_open(path, "a model", &fd, &size, err) != FD_OK) return fd_error_prefix(err, "model file cannot be read");
    XXH3_state_t *state = XXH3_createState();
    char *piece = malloc(PIECE);
    ssize_t n = -1;
    if (state && piece && XXH3_128bits_reset(state) == XXH_OK) {
        while ((n = read(fd, piece, PIECE)) > 0 || (n < 0 && errno == EINTR))
            if (n > 0) XXH3_128bits_update(state, piece, (size_t)n);
    }
    int reason = errno;
    if (n == 0) {
        XXH128_hash_t hash = XXH3_128bits_digest(state);
        snprintf(out, 48, "xxh3-128:%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
    }
    free(piece);
    XXH3_freeState(state);
    close(fd);
    return n == 0 ? FD_OK : fd_fail(err, FD_ERR_INPUT, "model file %s: cannot be read: %s", path, strerror(reason));
}
