/* fd_model_hash against xxHash's own sanity vectors (XSUM_XXH128_testdata, seed 0), on the buffer its tests use. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "dumpers/store/trace.h"

typedef struct vector {
    size_t size;
    const char *hash;
} vector;

static void fill(unsigned char *buffer, size_t size) {
    uint64_t generator = 2654435761u;
    for (size_t i = 0; i < size; i++) {
        buffer[i] = (unsigned char)(generator >> 56);
        generator *= 11400714785074694797u;
    }
}

Test(model_hash, is_xxh3_128_in_the_digits_of_xxh128sum) {
    const vector vectors[] = {
        {0, "xxh3-128:99aa06d3014798d86001c324468d497f"},    {1, "xxh3-128:a6cd5e9392000f6ac44bdff4074eecdb"},
        {6, "xxh3-128:082afe0b8162d12a3e7039bdda43cfc6"},    {12, "xxh3-128:6e3efd8fc7802b18061a192713f69ad9"},
        {24, "xxh3-128:0ce966e4678d37611e7044d28b1b901d"},   {48, "xxh3-128:a002ac4e5478227ef942219aed80f67b"},
        {81, "xxh3-128:4952f58181ab00425e8bafb9f95fb803"},   {222, "xxh3-128:337e09641b948717f1aebd597cec6b3a"},
        {403, "xxh3-128:1b6de21e332dd73dcdeb804d65c6dea4"},  {512, "xxh3-128:18d2d110dcc9bca1617e49599013cb6b"},
        {2048, "xxh3-128:f736557fd47073a5dd59e2c3a5f038e0"}, {2240, "xxh3-128:ccb134fbfa7ce49d6e73a90539cf2948"},
        {2367, "xxh3-128:e89c0f6ff369b427cb37aeb9e5d361ed"},
    };
    unsigned char buffer[2368];
    char hash[48];
    fill(buffer, sizeof buffer);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        fd_model_hash(buffer, vectors[i].size, hash);
        cr_expect_str_eq(hash, vectors[i].hash);
    }
}

Test(model_hash, changes_with_one_bit) {
    unsigned char buffer[2368];
    char before[48], after[48];
    fill(buffer, sizeof buffer);
    fd_model_hash(buffer, sizeof buffer, before);
    buffer[2000] ^= 1;
    fd_model_hash(buffer, sizeof buffer, after);
    cr_expect_str_neq(before, after);
}

/* Large files are hashed by several threads: with ends of every kind. */
Test(model_hash, of_large_files_is_the_same_value) {
    const size_t most = (40 << 20) + 3000, ends[] = {0, 1, 63, 64, 65, 1023, 1024, 1025, 2999};
    unsigned char *buffer = malloc(most);
    char hash[48], expected[48];
    fill(buffer, most);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        for (int large = 0; large < 2; large++) {
            size_t size = (large ? (size_t)40 << 20 : (size_t)16 << 20) + ends[i];
            XXH128_hash_t of_library = XXH3_128bits(buffer, size);
            snprintf(expected, sizeof expected, "xxh3-128:%016llx%016llx", (unsigned long long)of_library.high64,
                     (unsigned long long)of_library.low64);
            fd_model_hash(buffer, size, hash);
            cr_expect_str_eq(hash, expected, "%zu bytes: %s, expected %s", size, hash, expected);
            buffer[size / 2] ^= 1;
        }
    }
    free(buffer);
}
