#include "dumpers/hdf5/rows.h"

#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/index.h"

enum { MOST_CHUNKS = 1 << 20 }; /* of a dataset that is read here */

/* Where its chunks lie, in row-major order; `only` when there is one, else to free. NULL: not known. */
static fd_h5_chunk *chunks_of(const fd_h5_bytes *bytes, const fd_h5_set *set, fd_h5_chunk *only, int64_t *n) {
    *n = fd_h5_chunk_count(&set->shape, &set->layout, MOST_CHUNKS);
    if (*n < 0) return NULL;
    fd_h5_chunk *chunks = *n == 1 ? only : malloc((size_t)*n * sizeof *chunks + 1);
    if (chunks && fd_h5_find_chunks(bytes, &set->shape, &set->layout, chunks)) return chunks;
    if (chunks != only) free(chunks);
    return NULL;
}

bool fd_h5_set_bytes(const fd_h5_bytes *bytes, const fd_h5_set *set, uint64_t *out) {
    const fd_h5_layout *layout = &set->layout;
    uint64_t each = layout->element_bytes;
    fd_h5_chunk only;
    int64_t n;
    *out = 0;
    if (layout->address == FD_H5_NOWHERE) return true;
    if (layout->index == FD_H5_CONTIGUOUS) {
        *out = layout->bytes;
        return true;
    }
    if (layout->index == FD_H5_IMPLICIT) return false; /* chunks beyond the shape are there, too */
    fd_h5_chunk *chunks = chunks_of(bytes, set, &only, &n);
    if (!chunks) return false;
    for (int i = 0; i < set->shape.rank; i++) each *= layout->chunk[i]; /* find_chunks: no overflow */
    for (int64_t i = 0; i < n; i++)
        *out += chunks[i].address == FD_H5_NOWHERE ? 0 : layout->filters.any ? chunks[i].bytes : each;
    if (chunks != &only) free(chunks);
    return true;
}

/* ---- rows ---- */

typedef struct reading {
    const fd_h5_bytes *bytes;
    fd_h5_inflated *inflated;
    fd_h5_window *window; /* small pieces are read through it */
    const fd_h5_set *set;
    const fd_h5_block *block;
    char *out;
} reading;

/* n elements, one after another in the file and in memory. */
static bool read_run(const reading *r, uint64_t at, uint64_t n, char *to) {
    const fd_h5_stored *s = &r->set->stored;
    const fd_h5_copy *copies = s->copies;
    size_t wanted = r->block->type->bytes;
    bool as_it_is =
        s->n_copy == 1 && copies->from == 0 && copies->to == 0 && copies->bytes == wanted && s->bytes == wanted;
    if (as_it_is && n > FD_H5_WINDOW / wanted) return fd_h5_bytes_read(r->bytes, at, (size_t)n * wanted, to);
    if (s->bytes > FD_H5_WINDOW) return false;
    for (uint64_t most = FD_H5_WINDOW / s->bytes, some; n > 0; n -= some, at += some * s->bytes) {
        some = n < most ? n : most;
        const uint8_t *from = fd_h5_window_get(r->bytes, r->window, at, (size_t)some * s->bytes);
        if (!from) return false;
        for (uint64_t i = 0; i < some; i++, from += s->bytes, to += wanted)
            for (size_t k = 0; k < s->n_copy; k++) memcpy(to + copies[k].to, from + copies[k].from, copies[k].bytes);
    }
    return true;
}

/* The next place in a grid of n, in row-major order; false after the last. */
static bool step(int rank, hsize_t *at, const hsize_t *n) {
    for (int i = rank - 1; i >= 0; i--) {
        if (++at[i] < n[i]) return true;
        at[i] = 0;
    }
    return false;
}

/* What of the block lies in the chunk at `place` of the grid, whose elements begin at `address`. */
static bool read_elements(const reading *r, const hsize_t *place, uint64_t address) {
    const fd_h5_block *b = r->block;
    const hsize_t *chunk = r->set->layout.chunk;
    int rank = r->set->shape.rank;
    hsize_t inside[FD_H5_MAX_RANK], outside[FD_H5_MAX_RANK], n[FD_H5_MAX_RANK] = {0}, at[FD_H5_MAX_RANK] = {0};
    for (int i = 0; i < rank; i++) {
        hsize_t begin = place[i] * chunk[i], first = b->start.dim[i] > begin ? b->start.dim[i] : begin;
        hsize_t end = b->start.dim[i] + b->count.dim[i], left = chunk[i] - (first - begin);
        inside[i] = first - begin;
        outside[i] = first - b->start.dim[i];
        n[i] = end - first < left ? end - first : left;
    }
    int d = rank - 1; /* the dimension along which runs go; those after it are whole in the chunk and in the block */
    hsize_t run = n[d];
    while (d > 0 && n[d] == chunk[d] && n[d] == b->count.dim[d]) run *= n[--d];
    do {
        uint64_t from = 0, to = 0;
        for (int i = 0; i < rank; i++) {
            from = from * chunk[i] + inside[i] + (i < d ? at[i] : 0);
            to = to * b->count.dim[i] + outside[i] + (i < d ? at[i] : 0);
        }
        if (!read_run(r, address + from * r->set->stored.bytes, run, r->out + to * b->type->bytes)) return false;
    } while (step(d, at, n));
    return true;
}

static bool read_chunk(const reading *r, const hsize_t *place, fd_h5_chunk chunk) {
    const fd_h5_layout *layout = &r->set->layout;
    if (chunk.address == FD_H5_NOWHERE) return false;
    if (!layout->filters.any) return read_elements(r, place, chunk.address);
    fd_h5_bytes elements;
    fd_h5_piece *piece = fd_h5_inflated_begin(r->inflated, layout, r->set->shape.rank, chunk, &elements);
    if (!piece) return false;
    reading inside = *r;
    inside.bytes = &elements;
    r->window->n = 0;
    bool ok = read_elements(&inside, place, 0);
    fd_h5_inflated_end(r->inflated, piece);
    return ok;
}

/* The block is in the dataset and is of its shape. */
static bool is_inside(const fd_h5_set *set, const fd_h5_block *b) {
    if (set->shape.rank != b->shape.rank) return false;
    for (int i = 0; i < b->shape.rank; i++) {
        hsize_t dim = set->shape.dim[i];
        if (dim != b->shape.dim[i] || b->start.dim[i] > dim || b->count.dim[i] > dim - b->start.dim[i]) return false;
    }
    return true;
}

bool fd_h5_set_rows(const fd_h5_bytes *bytes, fd_h5_inflated *inflated, const fd_h5_set *set, const fd_h5_block *block,
                    void *out) {
    fd_h5_window window;
    reading r = {bytes, inflated, &window, set, block, out};
    const hsize_t *chunk = set->layout.chunk;
    hsize_t first[FD_H5_MAX_RANK], n[FD_H5_MAX_RANK], at[FD_H5_MAX_RANK] = {0};
    int rank = set->shape.rank;
    fd_h5_chunk only;
    int64_t n_chunk;
    window.n = 0;
    if (set->stored.n_copy == 0 || !is_inside(set, block)) return false;
    for (int i = 0; i < rank; i++) {
        if (block->count.dim[i] == 0) return true;
        first[i] = block->start.dim[i] / chunk[i];
        n[i] = (block->start.dim[i] + block->count.dim[i] - 1) / chunk[i] + 1 - first[i];
    }
    fd_h5_chunk *chunks = chunks_of(bytes, set, &only, &n_chunk);
    bool ok = chunks != NULL;
    while (ok) {
        hsize_t place[FD_H5_MAX_RANK], number = 0;
        for (int i = 0; i < rank; i++) {
            place[i] = first[i] + at[i];
            number = number * ((set->shape.dim[i] - 1) / chunk[i] + 1) + place[i];
        }
        ok = read_chunk(&r, place, chunks[number]);
        if (!step(rank, at, n)) break;
    }
    if (chunks != &only) free(chunks);
    return ok;
}
