/* XXH3-128 of a large file on all cores, with the value that XXH3_128bits has. The algorithm (xxHash's
 * doc/xxhash_spec.md): 1 KiB adds up to eight sums whatever was before it, which is most of the work and needs no
 * order; then the sums are scrambled, which does. So threads add up kibibytes, and one goes through the sums. */
#define XXH_INLINE_ALL
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "dumpers/store/trace.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as they lie in memory");

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u

enum {
    LANES = 8,
    STRIPE = 8 * LANES,
    STRIPES = 16,
    BLOCK = STRIPE * STRIPES,
    SECRET = 192,
    WINDOW = 1 << 19,          /* blocks: 512 MiB, whose sums take 32 MiB */
    PARALLEL_BYTES = 16 << 20, /* of less a thread alone has the hash before others are awake */
};

typedef struct secret {
    unsigned char bytes[SECRET]; /* the default one, of seed 0 */
} secret;

static uint64_t word(const unsigned char *from) {
    uint64_t w;
    memcpy(&w, from, sizeof w);
    return w;
}

/* sums += what n stripes add */
FD_FOR_EACH_CPU static void add_stripes(const unsigned char *data, int n, const unsigned char *key, uint64_t *sums) {
    uint64_t words[LANES] = {0}, products[LANES] = {0};
    for (int s = 0; s < n; s++) {
        uint64_t w[LANES], k[LANES];
        memcpy(w, data + s * STRIPE, sizeof w);
        memcpy(k, key + 8 * s, sizeof k);
        for (int i = 0; i < LANES; i++) {
            uint64_t mixed = w[i] ^ k[i];
            words[i] += w[i];
            products[i] += (mixed & UINT32_MAX) * (mixed >> 32);
        }
    }
    for (int i = 0; i < LANES; i++) sums[i] += products[i] + words[i ^ 1];
}

static void scramble(const secret *key, uint64_t *sums) {
    for (int i = 0; i < LANES; i++)
        sums[i] = (sums[i] ^ sums[i] >> 47 ^ word(key->bytes + SECRET - STRIPE + 8 * i)) * PRIME32_1;
}

/* n whole blocks from `data` on; own [n, at most WINDOW] is scratch. Threads meet once a window: on a machine that has
 * other work, a meeting costs milliseconds. */
static void add_blocks(const unsigned char *data, size_t n, const secret *key, uint64_t (*own)[LANES], uint64_t *sums) {
    for (size_t first = 0; first < n; first += WINDOW) {
        const size_t here = n - first < WINDOW ? n - first : WINDOW;
#pragma omp parallel for schedule(dynamic, 4096) default(none) firstprivate(data, first, here, key, own)
        for (size_t b = 0; b < here; b++) {
            memset(own[b], 0, sizeof own[b]);
            add_stripes(data + (first + b) * BLOCK, STRIPES, key->bytes, own[b]);
        }
        for (size_t b = 0; b < here; b++) {
            for (int i = 0; i < LANES; i++) sums[i] += own[b][i];
            scramble(key, sums);
        }
    }
}

static uint64_t merge(const uint64_t *sums, const unsigned char *key, uint64_t start) {
    uint64_t h = start;
    for (int i = 0; i < LANES; i += 2) {
        unsigned __int128 product =
            (unsigned __int128)(sums[i] ^ word(key + 8 * i)) * (sums[i + 1] ^ word(key + 8 * i + 8));
        h += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    h = (h ^ h >> 37) * 0x165667919E3779F9u;
    return h ^ h >> 32;
}

/* size > BLOCK */
static XXH128_hash_t hash_large(const unsigned char *data, size_t size, uint64_t (*own)[LANES]) {
    uint64_t sums[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    secret key;
    XXH3_generateSecret_fromSeed(key.bytes, 0);
    const size_t n = (size - 1) / BLOCK, left = size - 1 - n * BLOCK;
    add_blocks(data, n, &key, own, sums);
    add_stripes(data + n * BLOCK, (int)(left / STRIPE), key.bytes, sums);
    add_stripes(data + size - STRIPE, 1, key.bytes + SECRET - STRIPE - 7, sums);
    return (XXH128_hash_t){.low64 = merge(sums, key.bytes + 11, size * PRIME64_1),
                           .high64 = merge(sums, key.bytes + SECRET - STRIPE - 11, ~(size * PRIME64_2))};
}

void fd_model_hash(const void *data, size_t size, char out[48]) {
    const size_t n = size / BLOCK < WINDOW ? size / BLOCK : WINDOW;
    uint64_t(*own)[LANES] = size < PARALLEL_BYTES ? NULL : malloc(sizeof *own * n);
    XXH128_hash_t hash = own ? hash_large(data, size, own) : XXH3_128bits(data, size);
    free(own);
    snprintf(out, 48, "xxh3-128:%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}
