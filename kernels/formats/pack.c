#include "kernels/formats/pack.h"

#include <assert.h>
#include <string.h>

enum { GROUP = 64, LANES = 8 };

typedef struct layout {
    int32_t unit;        /* elements */
    int32_t unit_bytes;  /* without the plane of scales */
    int32_t scale_bytes; /* of the plane, a unit */
} layout;

static layout layout_of(uint32_t dtype) {
    switch (dtype) {
    case FD_F32: return (layout){64, 256, 0};
    case FD_F16:
    case FD_BF16: return (layout){64, 128, 0};
    case FD_Q8_0: return (layout){128, 128, 8};
    case FD_Q4_0: return (layout){128, 64, 8};
    case FD_Q5_0: return (layout){128, 80, 8};
    case FD_Q4_K: return (layout){256, 144, 0};
    case FD_Q6_K: return (layout){256, 208, 2};
    default: return (layout){0, 0, 0};
    }
}

bool fd_can_pack(uint32_t dtype) {
    return layout_of(dtype).unit != 0;
}
int32_t fd_pack_unit(uint32_t dtype) {
    return layout_of(dtype).unit;
}

static int64_t n_unit_of(uint32_t dtype, int64_t n_col) {
    int32_t unit = layout_of(dtype).unit;
    return (n_col + unit - 1) / unit;
}

int64_t fd_packed_row_bytes(uint32_t dtype, int64_t n_col) {
    layout l = layout_of(dtype);
    return (n_unit_of(dtype, n_col) * (l.unit_bytes + l.scale_bytes) + 15) / 16 * 16;
}

int64_t fd_packed_scale_offset(uint32_t dtype, int64_t n_col) {
    layout l = layout_of(dtype);
    return l.scale_bytes ? n_unit_of(dtype, n_col) * l.unit_bytes : 0;
}

static uint32_t load_u32(const uint8_t *from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static void store_u32(uint8_t *to, uint32_t word) {
    memcpy(to, &word, sizeof word);
}

/* The word of eight elements whose nibbles are the low (high) ones of eight bytes in a row. */
static uint32_t nibble_word(const uint8_t *bytes, bool high) {
    uint32_t first = load_u32(bytes), second = load_u32(bytes + 4);
    return high ? (first >> 4 & 0x0f0f0f0fu) | (second & 0xf0f0f0f0u)
                : (first & 0x0f0f0f0fu) | (second & 0x0f0f0f0fu) << 4;
}

/* from: blocks of 32, {d, int8[32]}. A row's last unit may have fewer than four blocks. */
static void pack_q8_0(int64_t n_col, const uint8_t *from, uint8_t *to, uint8_t *scales) {
    for (int64_t k = 0; k < n_col; k += 8) {
        const uint8_t *block = from + k / 32 * 34;
        int64_t unit = k / 128, group = k / GROUP % 2, lane = k % GROUP / 8;
        memcpy(to + unit * 128 + lane * 16 + group * 8, block + 2 + k % 32, 8);
        if (k % 32 == 0) memcpy(scales + k / 32 * 2, block, 2);
    }
}

/* from: blocks of 32, {d, nibbles[16]}: byte i has element i low and i + 16 high. */
static void pack_q4_0(int64_t n_col, const uint8_t *from, uint8_t *to, uint8_t *scales) {
    for (int64_t k = 0; k < n_col; k += 8) {
        const uint8_t *block = from + k / 32 * 18;
        int64_t unit = k / 128, group = k / GROUP % 2, lane = k % GROUP / 8;
        store_u32(to + unit * 64 + lane * 8 + group * 4, nibble_word(block + 2 + k % 16, k % 32 >= 16));
        if (k % 32 == 0) memcpy(scales + k / 32 * 2, block, 2);
    }
}

/* from: blocks of 32, {d, fifth bits[4], nibbles[16]}: nibbles as in Q4_0, bit i of the 32 is element i's. */
static void pack_q5_0(int64_t n_col, const uint8_t *from, uint8_t *to, uint8_t *scales) {
    for (int64_t k = 0; k < n_col; k += 8) {
        const uint8_t *block = from + k / 32 * 22;
        int64_t unit = k / 128, group = k / GROUP % 2, lane = k % GROUP / 8;
        store_u32(to + unit * 80 + lane * 8 + group * 4, nibble_word(block + 6 + k % 16, k % 32 >= 16));
        to[unit * 80 + 64 + lane * 2 + group] = block[2 + k % 32 / 8];
        if (k % 32 == 0) memcpy(scales + k / 32 * 2, block, 2);
    }
}

/* from: blocks of 256, {d, dmin, scales[12], nibbles[128]}: of group g, bytes 32g…: elements 0…31 low, 32…63 high. */
static void pack_q4_k(int64_t n_col, const uint8_t *from, uint8_t *to) {
    for (int64_t block = 0; block < n_col / 256; block++, from += 144, to += 144) {
        memcpy(to, from, 16);
        for (int lane = 0; lane < LANES; lane++)
            for (int group = 0; group < 4; group++)
                store_u32(to + 16 + lane * 16 + group * 4,
                          nibble_word(from + 16 + 32 * group + lane % 4 * 8, lane >= 4));
    }
}

/* The two high bits of eight elements, element i at bits 0-1 and i + 4 at bits 2-3 of byte i. */
static uint32_t high_bits_word(const uint8_t *bytes, int shift) {
    uint32_t first = load_u32(bytes) >> shift, second = load_u32(bytes + 4) >> shift;
    return (first & 0x03030303u) | (second & 0x03030303u) << 2;
}

/* from: blocks of 256, {ql[128], qh[64], scales[16], d}: half n of 128 elements has bytes ql[64n…], qh[32n…]; element
 * 32 q + i of the half (q = 0…3): nibble of ql byte 32 (q mod 2) + i, low for q < 2, and bits 2q, 2q + 1 of qh byte i.
 */
static void pack_q6_k(int64_t n_col, const uint8_t *from, uint8_t *to, uint8_t *scales) {
    for (int64_t block = 0; block < n_col / 256; block++, from += 210, to += 208) {
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t high[4];
            for (int group = 0; group < 4; group++) {
                int half = group / 2, quarter = group % 2 * 2 + lane / 4, i = lane % 4 * 8;
                store_u32(to + lane * 16 + group * 4,
                          nibble_word(from + 64 * half + 32 * (quarter % 2) + i, quarter >= 2));
                high[group] = high_bits_word(from + 128 + 32 * half + i, 2 * quarter);
            }
            store_u32(to + 128 + lane * 8, high[0] | high[1] << 4);
            store_u32(to + 128 + lane * 8 + 4, high[2] | high[3] << 4);
        }
        for (int pair = 0; pair < 4; pair++)
            for (int group = 0; group < 4; group++) to[192 + pair * 4 + group] = from[192 + 4 * group + pair];
        memcpy(scales + block * 2, from + 208, 2);
    }
}

void fd_pack_row(uint32_t dtype, int64_t n_col, const void *from, void *to) {
    uint8_t *scales = (uint8_t *)to + fd_packed_scale_offset(dtype, n_col);
    int64_t size = fd_packed_row_bytes(dtype, n_col), file_size = fd_dtype_row_bytes(dtype, n_col);
    assert(file_size >= 0);
    memset(to, 0, (size_t)size);
    switch (dtype) {
    case FD_Q8_0: pack_q8_0(n_col, from, to, scales); break;
    case FD_Q4_0: pack_q4_0(n_col, from, to, scales); break;
    case FD_Q5_0: pack_q5_0(n_col, from, to, scales); break;
    case FD_Q4_K: pack_q4_k(n_col, from, to); break;
    case FD_Q6_K: pack_q6_k(n_col, from, to, scales); break;
    default: memcpy(to, from, (size_t)file_size);
    }
}
