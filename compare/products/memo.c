#include "compare/products/memo.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct entry {
    uint64_t hash;
    fd_memo_key key;
    char *rows; /* the vector, then its results; NULL: free; owned */
} entry;

/* What has room of its own; sums of binary16 take theirs from that of the others. */
enum { OF_OTHERS, OF_EXACT, OF_HALVES, N_SHARE };

struct fd_product_memo {
    entry *entries; /* [size], found by open addressing; owned */
    size_t size, n; /* a power of two; of these, used: half at most */
    size_t bytes[N_SHARE], most;
};

enum { FIRST_SIZE = 1 << 10 };

fd_product_memo *fd_product_memo_new(size_t most) {
    fd_product_memo *memo = calloc(1, sizeof *memo);
    if (!memo) return NULL;
    *memo = (fd_product_memo){.entries = calloc(FIRST_SIZE, sizeof *memo->entries), .size = FIRST_SIZE, .most = most};
    if (memo->entries) return memo;
    free(memo);
    return NULL;
}

void fd_product_memo_free(fd_product_memo *memo) {
    if (!memo) return;
    for (size_t i = 0; i < memo->size; i++) free(memo->entries[i].rows);
    free(memo->entries);
    free(memo);
}

static size_t bytes_of(const fd_memo_key *key, int64_t n) {
    return (key->kind == FD_MEMO_EXACT ? sizeof(float) : sizeof(double)) * (size_t)n;
}

static size_t vector_bytes(const fd_memo_key *key) {
    return bytes_of(key, key->n);
}

static uint64_t hash_of(const fd_memo_key *key, const void *x) {
    uint64_t seed = (uint64_t)(uintptr_t)key->weight ^ (uint64_t)key->first_row << 20 ^ (uint64_t)key->kind << 60 ^
                    (uint64_t)key->rounding << 52;
    return XXH3_64bits_withSeed(x, vector_bytes(key), seed);
}

static bool same_key(const fd_memo_key *a, const fd_memo_key *b) {
    return a->kind == b->kind && a->weight == b->weight && a->bias == b->bias && a->rounding == b->rounding &&
           a->first_row == b->first_row && a->n_row == b->n_row && a->n == b->n;
}

/* The vector's place, or the free one where it would be. */
static entry *place_of(const fd_product_memo *memo, uint64_t hash, const fd_memo_key *key, const void *x) {
    size_t i = hash & (memo->size - 1);
    for (; memo->entries[i].rows; i = (i + 1) & (memo->size - 1)) {
        const entry *e = &memo->entries[i];
        if (e->hash == hash && same_key(&e->key, key) && memcmp(e->rows, x, vector_bytes(key)) == 0) break;
    }
    return &memo->entries[i];
}

const void *fd_product_memo_find(fd_product_memo *memo, const fd_memo_key *key, const void *x) {
    if (!memo) return NULL;
    uint64_t hash = hash_of(key, x);
    const char *rows;
#pragma omp critical(fd_product_memo)
    rows = place_of(memo, hash, key, x)->rows;
    return rows ? rows + vector_bytes(key) : NULL;
}

/* False: out of memory, and the table stays as it is. */
static bool grow(fd_product_memo *memo) {
    size_t size = 2 * memo->size;
    entry *entries = calloc(size, sizeof *entries);
    if (!entries) return false;
    for (size_t i = 0; i < memo->size; i++) {
        size_t to = memo->entries[i].hash & (size - 1);
        if (!memo->entries[i].rows) continue;
        while (entries[to].rows) to = (to + 1) & (size - 1);
        entries[to] = memo->entries[i];
    }
    free(memo->entries);
    memo->entries = entries;
    memo->size = size;
    return true;
}

/* Takes `rows`, unless it is known already or there is no room. */
static bool take(fd_product_memo *memo, uint64_t hash, const fd_memo_key *key, char *rows, size_t bytes) {
    const bool halves = key->kind == FD_MEMO_PAIRS || key->kind == FD_MEMO_TILES;
    const int share = halves ? OF_HALVES : key->kind == FD_MEMO_EXACT ? OF_EXACT : OF_OTHERS;
    const size_t most = halves ? memo->most / 2 : memo->most, theirs = memo->bytes[OF_OTHERS] + memo->bytes[OF_HALVES];
    if (memo->bytes[share] + bytes > most || (share != OF_EXACT && theirs + bytes > memo->most)) return false;
    if (2 * memo->n >= memo->size && !grow(memo)) return false;
    entry *to = place_of(memo, hash, key, rows);
    if (to->rows) return false;
    *to = (entry){hash, *key, rows};
    memo->n++;
    memo->bytes[share] += bytes;
    return true;
}

void fd_product_memo_keep(fd_product_memo *memo, const fd_memo_key *key, const void *x, const void *result) {
    if (!memo) return;
    const size_t n = vector_bytes(key), bytes = bytes_of(key, key->n + key->n_row);
    char *rows = malloc(bytes);
    if (!rows) return;
    memcpy(rows, x, n);
    memcpy(rows + n, result, bytes - n);
    bool taken;
#pragma omp critical(fd_product_memo)
    taken = take(memo, hash_of(key, x), key, rows, bytes);
    if (!taken) free(rows);
}
