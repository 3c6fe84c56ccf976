#include "kernels/formats/pack.h"

#include <assert.h>
#include <string.h>

enum { GROUP = 64, LANES = 8 };

typedef struct layout {
    uint32_t as;         /* fd_packed_type */
    int32_t unit;        /* elements */
    int32_t unit_bytes;  /* without the plane of scales */
    int32_t scale_bytes; /* of the plane, a unit */
} layout;

static const layout layouts[FD_DTYPE_LIMIT] = {
    [FD_F32] = {FD_F32, 64, 256, 0},
    [FD_F64] = {FD_F32, 64, 256, 0},
    [FD_I8] = {FD_F32, 64, 256, 0},
    [FD_I16] = {FD_F32, 64, 256, 0},
    [FD_I32] = {FD_F32, 64, 256, 0},
    [FD_I64] = {FD_F32, 64, 256, 0},
    [FD_F16] = {FD_F16, 64, 128, 0},
    [FD_BF16] = {FD_BF16, 64, 128, 0},
    [FD_Q8_0] = {FD_Q8_0, 128, 128, 8},
    [FD_Q4_0] = {FD_Q4_0, 128, 64, 8},
    [FD_Q4_1] = {FD_Q4_1, 128, 80, 0},
    [FD_Q5_0] = {FD_Q5_0, 128, 80, 8},
    [FD_Q5_1] = {FD_Q5_1, 128, 96, 0},
    [FD_Q2_K] = {FD_Q2_K, 256, 96, 0},
    [FD_Q3_K] = {FD_Q3_K, 256, 112, 2},
    [FD_Q4_K] = {FD_Q4_K, 256, 144, 0},
    [FD_Q5_K] = {FD_Q5_K, 256, 176, 0},
    [FD_Q6_K] = {FD_Q6_K, 256, 208, 2},
    [FD_IQ4_NL] = {FD_IQ4_NL, 128, 80, 0},
    [FD_IQ4_XS] = {FD_IQ4_NL, 128, 80, 0},
    [FD_MXFP4] = {FD_MXFP4, 128, 80, 0},
    [FD_NVFP4] = {FD_NVFP4, 128, 96, 0},
    [FD_IQ1_S] = {FD_PACKED_CODES, 128, 160, 0},
    [FD_IQ1_M] = {FD_PACKED_CODES, 128, 160, 0},
    [FD_IQ2_XXS] = {FD_PACKED_CODES, 128, 160, 0},
    [FD_IQ2_XS] = {FD_PACKED_CODES, 128, 160, 0},
    [FD_IQ2_S] = {FD_PACKED_CODES, 128, 160, 0},
    [FD_IQ3_XXS] = {FD_PACKED_CODES, 128, 160, 0},
    [FD_IQ3_S] = {FD_PACKED_CODES, 128, 160, 0},
    [FD_TQ1_0] = {FD_PACKED_CODES, 128, 160, 0},
    [FD_TQ2_0] = {FD_PACKED_CODES, 128, 160, 0},
};

static layout layout_of(uint32_t dtype) {
    return dtype < FD_DTYPE_LIMIT ? layouts[dtype] : (layout){0};
}

bool fd_can_pack(uint32_t dtype) {
    return layout_of(dtype).unit != 0;
}
uint32_t fd_packed_type(uint32_t dtype) {
    return layout_of(dtype).as;
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

/* from: blocks of 32, {d, m, nibbles[16]}, and in Q5_1 fifth bits[4] before the nibbles. */
static void pack_q4_1(int64_t n_col, const uint8_t *from, uint8_t *to) {
    for (int64_t k = 0; k < n_col; k += 8) {
        const uint8_t *block = from + k / 32 * 20;
        uint8_t *unit = to + k / 128 * 80;
        int64_t group = k / GROUP % 2, lane = k % GROUP / 8;
        if (k % 32 == 0) memcpy(unit + k / 32 % 4 * 4, block, 4);
        store_u32(unit + 16 + lane * 8 + group * 4, nibble_word(block + 4 + k % 16, k % 32 >= 16));
    }
}
static void pack_q5_1(int64_t n_col, const uint8_t *from, uint8_t *to) {
    for (int64_t k = 0; k < n_col; k += 8) {
        const uint8_t *block = from + k / 32 * 24;
        uint8_t *unit = to + k / 128 * 96;
        int64_t group = k / GROUP % 2, lane = k % GROUP / 8;
        if (k % 32 == 0) memcpy(unit + k / 32 % 4 * 4, block, 4);
        store_u32(unit + 16 + lane * 8 + group * 4, nibble_word(block + 8 + k % 16, k % 32 >= 16));
        unit[80 + lane * 2 + group] = block[4 + k % 32 / 8];
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

/* Bit `bit` of eight bytes in a row. */
static uint8_t bits_of_bytes(const uint8_t *bytes, int bit) {
    int bits = 0;
    for (int i = 0; i < 8; i++) bits |= (bytes[i] >> bit & 1) << i;
    return (uint8_t)bits;
}

/* from: blocks of 256, {d, dmin, scales[12], fifth bits[32], nibbles[128]}: bit b of fifth byte i is that of element i of
 * the 32 with number b. */
static void pack_q5_k(int64_t n_col, const uint8_t *from, uint8_t *to) {
    for (int64_t block = 0; block < n_col / 256; block++, from += 176, to += 176) {
        memcpy(to, from, 16);
        for (int lane = 0; lane < LANES; lane++)
            for (int group = 0; group < 4; group++) {
                store_u32(to + 16 + lane * 16 + group * 4,
                          nibble_word(from + 48 + 32 * group + lane % 4 * 8, lane >= 4));
                to[144 + lane * 4 + group] = bits_of_bytes(from + 16 + lane % 4 * 8, 2 * group + lane / 4);
            }
    }
}

/* The bit pairs of eight elements, element i at bits 0-1 and i + 4 at bits 2-3 of byte i. */
static uint32_t pairs_word(const uint8_t *bytes, int shift) {
    uint32_t first = load_u32(bytes) >> shift, second = load_u32(bytes + 4) >> shift;
    return (first & 0x03030303u) | (second & 0x03030303u) << 2;
}

/* The words of bit pairs of all lanes: half n of 128 elements has bytes 32n…, element 32 q + i of it bits 2q, 2q + 1 of
 * byte i. */
static void pack_pairs(const uint8_t *from, uint8_t *to) {
    for (int lane = 0; lane < LANES; lane++)
        for (int half = 0; half < 2; half++) {
            const uint8_t *bytes = from + 32 * half + lane % 4 * 8;
            store_u32(to + lane * 8 + half * 4, pairs_word(bytes, lane / 4 * 2) | pairs_word(bytes, lane / 4 * 2 + 4)
                                                                                      << 4);
        }
}

/* from: blocks of 256, {scales[16], bit pairs[64], d, dmin}. */
static void pack_q2_k(int64_t n_col, const uint8_t *from, uint8_t *to) {
    for (int64_t block = 0; block < n_col / 256; block++, from += 84, to += 96) {
        pack_pairs(from + 16, to);
        for (int pair = 0; pair < 4; pair++)
            for (int group = 0; group < 4; group++) to[64 + pair * 4 + group] = from[4 * group + pair];
        memcpy(to + 80, from + 80, 4);
    }
}

/* from: blocks of 256, {third bits[32], bit pairs[64], scales[12], d}: bit b of third byte i is that of element 32 b + i;
 * scale j of 16 less 32: bits 3-0 in nibble j / 8 of byte j mod 8, bits 5-4 in pair j / 4 of byte 8 + j mod 4. */
static void pack_q3_k(int64_t n_col, const uint8_t *from, uint8_t *to, uint8_t *scales) {
    for (int64_t block = 0; block < n_col / 256; block++, from += 110, to += 112) {
        pack_pairs(from + 32, to);
        for (int lane = 0; lane < LANES; lane++)
            for (int group = 0; group < 4; group++)
                to[64 + lane * 4 + group] = bits_of_bytes(from + lane % 4 * 8, 2 * group + lane / 4);
        for (int j = 0; j < 16; j++) {
            const int low = from[96 + j % 8] >> j / 8 * 4 & 15, high = from[104 + j % 4] >> j / 4 * 2 & 3;
            to[96 + j % 4 * 4 + j / 4] = (uint8_t)((low | high << 4) - 32);
        }
        memcpy(scales + block * 2, from + 108, 2);
    }
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
                high[group] = pairs_word(from + 128 + 32 * half + i, 2 * quarter);
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
    assert(file_size >= 0 && fd_packed_type(dtype) == dtype);
    memset(to, 0, (size_t)size);
    switch (dtype) {
    case FD_Q8_0: pack_q8_0(n_col, from, to, scales); break;
    case FD_Q4_0: pack_q4_0(n_col, from, to, scales); break;
    case FD_Q4_1: pack_q4_1(n_col, from, to); break;
    case FD_Q5_0: pack_q5_0(n_col, from, to, scales); break;
    case FD_Q5_1: pack_q5_1(n_col, from, to); break;
    case FD_Q2_K: pack_q2_k(n_col, from, to); break;
    case FD_Q3_K: pack_q3_k(n_col, from, to, scales); break;
    case FD_Q4_K: pack_q4_k(n_col, from, to); break;
    case FD_Q5_K: pack_q5_k(n_col, from, to); break;
    case FD_Q6_K: pack_q6_k(n_col, from, to, scales); break;
    default: memcpy(to, from, (size_t)file_size);
    }
}
