#include <stdio.h>
#include <xxhash.h>

#include "dumpers/store/trace.h"

void fd_model_hash(const void *data, size_t size, char out[48]) {
    XXH128_hash_t hash = XXH3_128bits(data, size);
    snprintf(out, 48, "xxh3-128:%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}
