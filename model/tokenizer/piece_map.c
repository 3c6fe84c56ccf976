#include "model/tokenizer/piece_map.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a with 64 bits (Fowler, Noll, Vo). The high half, where every byte had its say, is folded into
 * the low bits, which choose the slot. */
static uint64_t hash_bytes(const char *data, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)data[i]) * 0x100000001b3u;
    return hash ^ (hash >> 32);
}

static size_t piece_size(const fd_piece_map *map, int32_t piece) {
    return map->starts[piece + 1] - map->starts[piece];
}

/* The slot that holds the string, or the empty one where it belongs. n_slot is at least twice n, so there is one. */
static size_t find_slot(const fd_piece_map *map, const char *data, size_t size) {
    size_t mask = map->n_slot - 1, slot = hash_bytes(data, size) & mask;
    for (;; slot = (slot + 1) & mask) {
        int32_t piece = map->slots[slot];
        if (piece < 0) return slot;
        if (piece_size(map, piece) == size && memcmp(map->pool + map->starts[piece], data, size) == 0) return slot;
    }
}

static fd_code rebuild_slots(fd_piece_map *map, size_t n_slot, fd_error *err) {
    int32_t *slots = malloc(n_slot * sizeof *slots);
    if (!slots) return fd_fail(err, FD_ERR_MEMORY, "vocabulary: no memory for %zu hash slots", n_slot);
    memset(slots, 0xff, n_slot * sizeof *slots);
    free(map->slots);
    map->slots = slots;
    map->n_slot = n_slot;
    for (int32_t piece = 0; piece < map->n; piece++)
        map->slots[find_slot(map, map->pool + map->starts[piece], piece_size(map, piece))] = piece;
    return FD_OK;
}

fd_code fd_piece_map_reserve(fd_piece_map *map, int32_t n, size_t n_byte, fd_error *err) {
    if (n > map->capacity || !map->starts) {
        size_t *starts = realloc(map->starts, ((size_t)n + 1) * sizeof *starts);
        if (!starts) return fd_fail(err, FD_ERR_MEMORY, "vocabulary: no memory for %d pieces", n);
        if (!map->starts) starts[0] = 0;
        map->starts = starts;
        map->capacity = n;
    }
    if (n_byte > map->pool_capacity) {
        char *pool = realloc(map->pool, n_byte);
        if (!pool) return fd_fail(err, FD_ERR_MEMORY, "vocabulary: no memory for %zu bytes of pieces", n_byte);
        map->pool = pool;
        map->pool_capacity = n_byte;
    }
    size_t n_slot = map->n_slot ? map->n_slot : 64;
    while (n_slot < 2 * (size_t)n) n_slot *= 2;
    return n_slot == map->n_slot ? FD_OK : rebuild_slots(map, n_slot, err);
}

void fd_piece_map_free(fd_piece_map *map) {
    free(map->pool);
    free(map->starts);
    free(map->slots);
    *map = (fd_piece_map){0};
}

int32_t fd_piece_map_find(const fd_piece_map *map, const char *data, size_t size) {
    if (map->n == 0 || size > map->max_size) return -1;
    return map->slots[find_slot(map, data, size)];
}

fd_code fd_piece_map_add(fd_piece_map *map, const char *data, size_t size, int32_t *piece, fd_error *err) {
    *piece = fd_piece_map_find(map, data, size);
    if (*piece >= 0) return FD_OK;
    if (map->n == INT32_MAX / 2) return fd_fail(err, FD_ERR_INPUT, "vocabulary: more than %d pieces", map->n);
    int32_t want = map->n < map->capacity ? map->capacity : 2 * map->n + 16;
    size_t bytes = map->pool_size + size <= map->pool_capacity ? map->pool_capacity : 2 * (map->pool_size + size);
    FD_TRY(fd_piece_map_reserve(map, want, bytes, err));
    if (size) memcpy(map->pool + map->pool_size, data, size);
    map->pool_size += size;
    *piece = map->n;
    map->slots[find_slot(map, data, size)] = *piece;
    map->starts[++map->n] = map->pool_size;
    if (size > map->max_size) map->max_size = size;
    return FD_OK;
}
