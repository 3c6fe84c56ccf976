#include "mutate.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/bytes.h"
#include "mutate_archive.h"
#include "mutate_text.h"

enum { MAX_SUMMED = 8192, MAX_CHANGES = 6, UNSUMMED = 512 };

typedef struct block {
    size_t at, n; /* with its checksum */
    bool summed;
} block;

struct mutator {
    const uint8_t *data;
    size_t size;
    block *blocks; /* [n] */
    size_t n, n_summed, room;
    bool archive;
    size_t text_at, text_n;  /* n 0: not text */
    int length_at, n_length; /* bytes that say how long the text is */
};

/* ---- blocks of metadata (HDF5 File Format Specification 3.0) ---- */

static const char summed[][5] = {"OHDR", "OCHK", "BTHD", "BTIN", "BTLF", "FRHP", "FHDB", "FHIB", "EAHD",
                                 "EAIB", "EASB", "EADB", "FAHD", "FADB", "SMTB", "SMLI", "FSHD", "FSSE"};
static const char unsummed[][5] = {"GCOL", "HEAP", "SNOD", "TREE"};

static bool is_one_of(const uint8_t *at, const char (*names)[5], size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(at, names[i], 4) == 0) return true;
    return false;
}

static void add(mutator *m, size_t at, size_t n, bool sum) {
    if (m->n == m->room) m->blocks = realloc(m->blocks, (m->room = 2 * m->room + 64) * sizeof *m->blocks);
    m->blocks[m->n++] = (block){at, n, sum};
    m->n_summed += sum;
}

static void put(uint8_t *at, uint64_t value, size_t n) {
    for (size_t i = 0; i < n; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, size_t n) {
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* How long it is, is where its checksum is right. */
static size_t summed_length(const mutator *m, size_t at) {
    for (size_t n = 12; n <= MAX_SUMMED && at + n <= m->size; n++)
        if (fd_h5_block_is_whole(m->data + at, n)) return n;
    return 0;
}

static void find_hdf5(mutator *m) {
    const uint8_t *data = m->data;
    size_t size = m->size;
    bool sum = data[8] >= 2;
    add(m, 0, sum ? 48 : 96, sum);
    for (size_t at = 48; at + 16 < size; at++) {
        size_t n;
        if (is_one_of(data + at, unsummed, sizeof unsummed / 5)) {
            add(m, at, size - at < UNSUMMED ? size - at : UNSUMMED, false);
        } else if (is_one_of(data + at, summed, sizeof summed / 5) && (n = summed_length(m, at)) > 0) {
            add(m, at, n, true);
            at += n - 1;
        } else if (data[at] == 1 && data[at + 1] == 0 && at % 8 == 0 && data[at + 4] == 1 && data[at + 12] == 0 &&
                   data[at + 10] < 16) { /* it looks like an object header of version 1 */
            add(m, at, size - at < UNSUMMED ? size - at : UNSUMMED, false);
        }
    }
}

/* The text of a file, or of its header. */
static void find_text(mutator *m) {
    const uint8_t *data = m->data;
    size_t size = m->size;
    if (size > 10 && memcmp(data, "\x93NUMPY\1", 7) == 0 && get(data + 8, 2) <= size - 10) {
        m->text_at = 10, m->text_n = (size_t)get(data + 8, 2), m->length_at = 8, m->n_length = 2;
    } else if (size > 9 && data[8] == '{' && get(data, 8) <= size - 8) { /* safetensors */
        m->text_at = 8, m->text_n = (size_t)get(data, 8), m->n_length = 8;
    } else if (!memchr(data, 0, size)) {
        m->text_n = size;
    }
}

mutator *mutator_new(const uint8_t *data, size_t size) {
    mutator *m = calloc(1, sizeof *m);
    archive_block blocks[ARCHIVE_BLOCKS];
    *m = (mutator){.data = data, .size = size};
    if (size >= 96 && memcmp(data, "\x89HDF\r\n\x1a\n", 8) == 0) {
        find_hdf5(m);
        return m;
    }
    size_t n = archive_find(data, size, blocks);
    m->archive = n > 0;
    for (size_t i = 0; i < n; i++) add(m, blocks[i].at, blocks[i].n, false);
    if (n == 0) find_text(m);
    return m;
}

void mutator_free(mutator *m) {
    free(m->blocks);
    free(m);
}

size_t mutator_blocks(const mutator *m) {
    return m->n_summed;
}

/* ---- changes ---- */

/* A number that a field could have and should not: of another block, of the file's end, just beside, far too large. */
static uint64_t number(const mutator *m, uint64_t old, uint64_t *r) {
    static const uint64_t often[] = {0,
                                     1,
                                     2,
                                     7,
                                     8,
                                     0xff,
                                     0xffff,
                                     0x7fffffff,
                                     0xffffffff,
                                     UINT64_MAX,
                                     INT64_MAX,
                                     (uint64_t)1 << 32,
                                     (uint64_t)1 << 60,
                                     0x8000000000000000};
    switch (mutate_next(r) % 6) {
    case 0: return old + 1;
    case 1: return old - 1;
    case 2: return m->n > 0 ? m->blocks[mutate_next(r) % m->n].at : old ^ 1;
    case 3: return m->size - mutate_next(r) % 64;
    case 4: return old * 2;
    default: return often[mutate_next(r) % (sizeof often / sizeof *often)];
    }
}

static void change(const mutator *m, uint8_t *at, size_t n, uint64_t *r) {
    static const size_t widths[] = {1, 2, 4, 8};
    size_t width = widths[mutate_next(r) % 4];
    if (width > n) width = 1;
    size_t to = mutate_next(r) % (n - width + 1);
    switch (mutate_next(r) % 4) {
    case 0: at[to] ^= (uint8_t)(1 << mutate_next(r) % 8); break;
    case 1: at[to] = (uint8_t)mutate_next(r); break;
    default: put(at + to, number(m, get(at + to, width), r), width);
    }
}

/* The text changed, its length said as it is, except for some. */
static uint8_t *make_with_text(const mutator *m, uint64_t *r, size_t *size) {
    size_t n, tail = m->text_at + m->text_n;
    uint8_t *text = mutate_text(m->data + m->text_at, m->text_n, r, &n);
    uint8_t *out = malloc(m->size - m->text_n + n + 1);
    memcpy(out, m->data, m->text_at);
    memcpy(out + m->text_at, text, n);
    memcpy(out + m->text_at + n, m->data + tail, m->size - tail);
    if (mutate_next(r) % 16 != 0) put(out + m->length_at, n, (size_t)m->n_length);
    free(text);
    *size = m->size - m->text_n + n;
    return out;
}

uint8_t *mutator_make(const mutator *m, uint64_t seed, size_t *size) {
    uint64_t r = seed * 0x2545f4914f6cdd1d + 1;
    if (m->text_n > 0 && mutate_next(&r) % 8 != 0) return make_with_text(m, &r, size);
    uint8_t *out = malloc(m->size + 1);
    memcpy(out, m->data, m->size);
    *size = m->size;
    for (uint64_t k = mutate_next(&r) % MAX_CHANGES + 1; k > 0 && m->size > 0; k--) {
        const block *b = m->n > 0 && mutate_next(&r) % 16 != 0 ? &m->blocks[mutate_next(&r) % m->n] : NULL;
        if (b) {
            size_t kept = b->summed ? 4 : 0;
            change(m, out + b->at, b->n - kept, &r);
            if (b->summed) put(out + b->at + b->n - 4, fd_h5_checksum(out + b->at, b->n - 4), 4);
        } else {
            size_t n =
                m->size < 4096 || mutate_next(&r) % 2 ? m->size : 4096; /* what formats begin with, or anywhere */
            change(m, out, n, &r);
        }
    }
    if (m->archive && mutate_next(&r) % 8 != 0) archive_mend(m->data, out, m->size);
    if (mutate_next(&r) % 64 == 0) *size = mutate_next(&r) % (m->size + 1);
    return out;
}
