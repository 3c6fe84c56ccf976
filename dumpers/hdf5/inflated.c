/* A table of pieces by the chunk's address, one a slot. A piece that is made, read by a thread or in the way of another
 * is waited for, so that all of them together stay within the limit, however many threads there are. */
#include "dumpers/hdf5/inflated.h"

#include <pthread.h>
#include <stdlib.h>

enum { SLOTS = 1024 };

struct fd_h5_piece {
    fd_h5_chunk chunk;
    fd_h5_filters filters; /* two datasets of a damaged file may say they have the chunk */
    size_t bytes;
    int n_user; /* threads that read it; 0: it may go */
    bool made;
    uint8_t data[];
};

struct fd_h5_inflated {
    fd_h5_bytes file;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    fd_h5_piece *slots[SLOTS];
    size_t held, most; /* bytes of the pieces, and how many they may have */
    size_t hand;       /* the slot that is looked at next for a piece that may go */
};

fd_h5_inflated *fd_h5_inflated_new(const fd_h5_bytes *file) {
    fd_h5_inflated *inflated = calloc(1, sizeof *inflated);
    if (!inflated) return NULL;
    inflated->file = *file;
    inflated->most = FD_H5_INFLATED_MOST;
    pthread_mutex_init(&inflated->lock, NULL);
    pthread_cond_init(&inflated->changed, NULL);
    return inflated;
}

void fd_h5_inflated_free(fd_h5_inflated *inflated) {
    if (!inflated) return;
    for (int i = 0; i < SLOTS; i++) free(inflated->slots[i]);
    pthread_cond_destroy(&inflated->changed);
    pthread_mutex_destroy(&inflated->lock);
    free(inflated);
}

void fd_h5_inflated_limit(fd_h5_inflated *inflated, size_t bytes) {
    if (inflated) inflated->most = bytes < FD_H5_INFLATED_MOST ? bytes : FD_H5_INFLATED_MOST;
}

static bool is_of(const fd_h5_piece *piece, const fd_h5_piece *wanted) {
    const fd_h5_filters *a = &piece->filters, *b = &wanted->filters;
    bool same = piece->chunk.address == wanted->chunk.address && piece->chunk.bytes == wanted->chunk.bytes &&
                piece->chunk.mask == wanted->chunk.mask && piece->bytes == wanted->bytes && a->n == b->n &&
                a->shuffled == b->shuffled;
    for (int i = 0; same && i < a->n; i++) same = a->id[i] == b->id[i];
    return same;
}

static void drop(fd_h5_inflated *inflated, fd_h5_piece **slot) {
    inflated->held -= (*slot)->bytes;
    free(*slot);
    *slot = NULL;
}

static bool has_room(const fd_h5_inflated *inflated, size_t bytes) {
    return inflated->held == 0 || inflated->held + bytes <= inflated->most;
}

/* Drops pieces that nobody reads until there is room for as many bytes; false when those that are read leave none. */
static bool make_room(fd_h5_inflated *inflated, size_t bytes) {
    for (int i = 0; i < SLOTS && !has_room(inflated, bytes); i++) {
        fd_h5_piece **slot = &inflated->slots[inflated->hand++ % SLOTS];
        if (*slot && (*slot)->n_user == 0) drop(inflated, slot);
    }
    return has_room(inflated, bytes);
}

static bool make(const fd_h5_bytes *file, fd_h5_piece *piece) {
    uint8_t *packed = malloc((size_t)piece->chunk.bytes + 1);
    bool ok =
        packed && fd_h5_bytes_read(file, piece->chunk.address, piece->chunk.bytes, packed) &&
        fd_h5_filters_undo(&piece->filters, piece->chunk.mask, packed, piece->chunk.bytes, piece->data, piece->bytes);
    free(packed);
    return ok;
}

/* With the lock: the piece, which this thread now reads; NULL, and *slot free: it is to be made. */
static fd_h5_piece *find(fd_h5_inflated *inflated, const fd_h5_piece *wanted, fd_h5_piece ***slot) {
    uint64_t at = wanted->chunk.address * 0x9e3779b97f4a7c15u >> 54; /* Fibonacci hashing to SLOTS */
    *slot = &inflated->slots[at];
    for (;;) {
        fd_h5_piece *piece = **slot;
        if (piece && piece->made && is_of(piece, wanted)) {
            piece->n_user++;
            return piece;
        }
        if (piece && piece->n_user == 0) drop(inflated, *slot);
        if (!**slot && make_room(inflated, wanted->bytes)) return NULL;
        pthread_cond_wait(&inflated->changed, &inflated->lock);
    }
}

/* With the lock, which is let go while it is made. */
static fd_h5_piece *begin(fd_h5_inflated *inflated, const fd_h5_piece *wanted) {
    fd_h5_piece **slot, *piece = find(inflated, wanted, &slot);
    if (piece) return piece;
    piece = malloc(sizeof *piece + wanted->bytes + FD_H5_FILTER_ROOM);
    if (!piece) return NULL;
    *piece = *wanted;
    piece->n_user = 1;
    inflated->held += piece->bytes;
    *slot = piece;
    pthread_mutex_unlock(&inflated->lock);
    bool made = make(&inflated->file, piece);
    pthread_mutex_lock(&inflated->lock);
    piece->made = made;
    if (!made) drop(inflated, slot);
    pthread_cond_broadcast(&inflated->changed);
    return made ? piece : NULL;
}

fd_h5_piece *fd_h5_inflated_begin(fd_h5_inflated *inflated, const fd_h5_layout *layout, int rank, fd_h5_chunk chunk,
                                  fd_h5_bytes *out) {
    fd_h5_piece wanted = {.chunk = chunk, .filters = layout->filters, .bytes = layout->element_bytes};
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(wanted.bytes, layout->chunk[i], &wanted.bytes)) return NULL;
    if (!inflated || wanted.bytes == 0 || wanted.bytes > FD_H5_INFLATED_MOST ||
        !fd_h5_filters_fit(&wanted.filters, chunk.mask, chunk.bytes, wanted.bytes))
        return NULL;
    pthread_mutex_lock(&inflated->lock);
    fd_h5_piece *piece = begin(inflated, &wanted);
    pthread_mutex_unlock(&inflated->lock);
    if (piece) *out = (fd_h5_bytes){-1, piece->data, piece->bytes};
    return piece;
}

void fd_h5_inflated_end(fd_h5_inflated *inflated, fd_h5_piece *piece) {
    pthread_mutex_lock(&inflated->lock);
    if (--piece->n_user == 0) pthread_cond_broadcast(&inflated->changed);
    pthread_mutex_unlock(&inflated->lock);
}
