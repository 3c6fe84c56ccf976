/* Dequantisation bugs: a block is decoded in another way than its format says. model/gguf/quant.c draws the layouts.
 * Written apart from it: each decoder below is the wrong one. */
#include "faults/internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

/* The block at `index` of the whole matrix to block_elements values. `data` [n_block] is the matrix. */
typedef void (*block_fn)(const uint8_t *data, int64_t index, float *to);

static float half_at(const uint8_t *from) {
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    return fd_f16_to_f32(bits);
}

static void redecode(fd_fault_site *site, block_fn decode) {
    fd_weight w = *fd_fault_weight(site->graph, site->node, 0);
    int64_t n = w.n_row * w.n_col, block = fd_dtype_get(w.dtype)->block_elements;
    float *values = fd_fault_new_weight(site, FD_F32, sizeof(float) * (uint64_t)n);
#pragma omp parallel for if (n > FD_FAULT_MANY)
    for (int64_t b = 0; b < n / block * (values != NULL); b++) decode(w.data, b, values + b * block);
}

/* ---- Q8_0 and Q4_0: 32 elements, scale first ---- */

enum { Q8_BYTES = 34, Q4_BYTES = 18 };

static void q8(const uint8_t *quants, float scale, float *to) {
    for (int i = 0; i < 32; i++) to[i] = scale * (float)(int8_t)quants[i];
}
static void q8_scale_late(const uint8_t *data, int64_t b, float *to) {
    q8(data + b * Q8_BYTES + 2, half_at(data + b * Q8_BYTES + 2), to);
}
static void q8_shared_scale(const uint8_t *data, int64_t b, float *to) {
    q8(data + b * Q8_BYTES + 2, half_at(data + b / 4 * 4 * Q8_BYTES), to);
}
static void q8_scale_for_two(const uint8_t *data, int64_t b, float *to) {
    q8(data + b * Q8_BYTES + 2, half_at(data + b / 2 * 2 * Q8_BYTES), to);
}
static void q8_stride_32(const uint8_t *data, int64_t b, float *to) {
    q8(data + b * 32 + 2, half_at(data + b * 32), to);
}
static void q8_unsigned(const uint8_t *data, int64_t b, float *to) {
    float scale = half_at(data + b * Q8_BYTES);
    for (int i = 0; i < 32; i++) to[i] = scale * (float)data[b * Q8_BYTES + 2 + i];
}

static void q8_zero_point(const uint8_t *data, int64_t b, int zero, float *to) {
    float scale = half_at(data + b * Q8_BYTES);
    for (int i = 0; i < 32; i++) to[i] = scale * (float)((int8_t)data[b * Q8_BYTES + 2 + i] - zero);
}
static void q8_zero_less(const uint8_t *data, int64_t b, float *to) {
    q8_zero_point(data, b, -1, to);
}
static void q8_zero_more(const uint8_t *data, int64_t b, float *to) {
    q8_zero_point(data, b, 1, to);
}

static void q4(const uint8_t *quants, float scale, float *to) {
    for (int i = 0; i < 16; i++) {
        to[i] = scale * (float)((quants[i] & 15) - 8);
        to[16 + i] = scale * (float)((quants[i] >> 4) - 8);
    }
}
static void q4_zero_point(const uint8_t *data, int64_t b, int zero, float *to) {
    float scale = half_at(data + b * Q4_BYTES);
    for (int i = 0; i < 16; i++) {
        to[i] = scale * (float)((data[b * Q4_BYTES + 2 + i] & 15) - zero);
        to[16 + i] = scale * (float)((data[b * Q4_BYTES + 2 + i] >> 4) - zero);
    }
}
static void q4_zero_less(const uint8_t *data, int64_t b, float *to) {
    q4_zero_point(data, b, 7, to);
}
static void q4_zero_more(const uint8_t *data, int64_t b, float *to) {
    q4_zero_point(data, b, 9, to);
}
static void q4_scale_late(const uint8_t *data, int64_t b, float *to) {
    q4(data + b * Q4_BYTES + 2, half_at(data + b * Q4_BYTES + 2), to);
}
static void q4_shared_scale(const uint8_t *data, int64_t b, float *to) {
    q4(data + b * Q4_BYTES + 2, half_at(data + b / 4 * 4 * Q4_BYTES), to);
}
static void q4_scale_for_two(const uint8_t *data, int64_t b, float *to) {
    q4(data + b * Q4_BYTES + 2, half_at(data + b / 2 * 2 * Q4_BYTES), to);
}
static void q4_stride_16(const uint8_t *data, int64_t b, float *to) {
    q4(data + b * 16 + 2, half_at(data + b * 16), to);
}

/* ---- Q4_K: 256 elements, eight groups ---- */

typedef struct q4_k_bug {
    bool scale_late, plus_min, min_missing, low_bits_only, first_group;
    int other_group; /* 1: the next one's scale and minimum, -1: the one's before */
} q4_k_bug;

static int clamped(int group, int n_group) {
    return group < 0 ? 0 : group >= n_group ? n_group - 1 : group;
}

static void q4_k(const uint8_t *block, q4_k_bug bug, float *to) {
    const uint8_t *p = block + 4, *quants = block + 16;
    float d = half_at(block + (bug.scale_late ? 2 : 0)), dmin = half_at(block + 2);
    for (int group = 0; group < 8; group++) {
        int g = bug.first_group ? 0 : clamped(group + bug.other_group, 8), j = g % 4;
        int scale = g < 4 ? p[j] & 63 : (p[j + 8] & 15) | (bug.low_bits_only ? 0 : p[j] >> 6 << 4);
        int min = g < 4 ? p[j + 4] & 63 : p[j + 8] >> 4 | (bug.low_bits_only ? 0 : p[j + 4] >> 6 << 4);
        float s = d * (float)scale, m = bug.min_missing ? 0 : dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            uint8_t byte = quants[group / 2 * 32 + i];
            int q = group % 2 ? byte >> 4 : byte & 15;
            to[group * 32 + i] = bug.plus_min ? s * (float)q + m : s * (float)q - m;
        }
    }
}
#define Q4_K_DECODER(name, field)                                                                                      \
    static void q4_k_##name(const uint8_t *data, int64_t b, float *to) {                                               \
        q4_k(data + b * (int64_t)sizeof(fd_block_q4_K), (q4_k_bug){.field = true}, to);                                \
    }
Q4_K_DECODER(scale_late, scale_late)
Q4_K_DECODER(plus_min, plus_min)
Q4_K_DECODER(min_missing, min_missing)
Q4_K_DECODER(unpack, low_bits_only)
Q4_K_DECODER(first_group, first_group)
static void q4_k_next(const uint8_t *data, int64_t b, float *to) {
    q4_k(data + b * (int64_t)sizeof(fd_block_q4_K), (q4_k_bug){.other_group = 1}, to);
}
static void q4_k_before(const uint8_t *data, int64_t b, float *to) {
    q4_k(data + b * (int64_t)sizeof(fd_block_q4_K), (q4_k_bug){.other_group = -1}, to);
}

/* ---- Q6_K: 256 elements, sixteen groups ---- */

/* groups_a_scale: how many neighbouring groups of 16 wrongly share the first one's scale. quarters: how many of the four
 * of each half are written. other_group: as above. */
static void q6_k(const uint8_t *block, int groups_a_scale, int quarters, int other_group, float *to) {
    const int8_t *scales = (const int8_t *)block + offsetof(fd_block_q6_K, scales);
    float d = half_at(block + offsetof(fd_block_q6_K, d));
    for (int e = 0; e < 256; e++) {
        int half = e / 128, quarter = e % 128 / 32, i = e % 32, group = e / 16;
        uint8_t low = block[half * 64 + (quarter & 1) * 32 + i], high = block[128 + half * 32 + i];
        int q = ((quarter < 2 ? low & 15 : low >> 4) | (high >> 2 * quarter & 3) << 4) - 32;
        float value = d * (float)scales[clamped(group - group % groups_a_scale + other_group, 16)] * (float)q;
        to[e] = quarter < quarters ? value : 0.0f;
    }
}
static void q6_k_shared_scale(const uint8_t *data, int64_t b, float *to) {
    q6_k(data + b * (int64_t)sizeof(fd_block_q6_K), 4, 4, 0, to);
}
static void q6_k_scale_for_two(const uint8_t *data, int64_t b, float *to) {
    q6_k(data + b * (int64_t)sizeof(fd_block_q6_K), 2, 4, 0, to);
}
static void q6_k_first_group(const uint8_t *data, int64_t b, float *to) {
    q6_k(data + b * (int64_t)sizeof(fd_block_q6_K), 16, 4, 0, to);
}
static void q6_k_one_quarter(const uint8_t *data, int64_t b, float *to) {
    q6_k(data + b * (int64_t)sizeof(fd_block_q6_K), 1, 1, 0, to);
}
static void q6_k_next(const uint8_t *data, int64_t b, float *to) {
    q6_k(data + b * (int64_t)sizeof(fd_block_q6_K), 1, 4, 1, to);
}
static void q6_k_before(const uint8_t *data, int64_t b, float *to) {
    q6_k(data + b * (int64_t)sizeof(fd_block_q6_K), 1, 4, -1, to);
}

/* ---- F16 ---- */

static void f16_as_bf16(const uint8_t *data, int64_t b, float *to) {
    uint16_t bits;
    memcpy(&bits, data + 2 * b, sizeof bits);
    *to = fd_bf16_to_f32(bits);
}

/* ---- rows: which decoder a format has; NULL where the bug has no meaning ---- */

static void by_format(fd_fault_site *site, const block_fn decoders[FD_DTYPE_LIMIT]) {
    uint32_t dtype = fd_fault_weight(site->graph, site->node, 0)->dtype;
    if (dtype < FD_DTYPE_LIMIT && decoders[dtype]) redecode(site, decoders[dtype]);
}
#define BY_FORMAT(name, ...) FD_EDIT(name, by_format(site, (const block_fn[FD_DTYPE_LIMIT]){__VA_ARGS__}))
BY_FORMAT(min_missing, [FD_Q4_K] = q4_k_min_missing)
BY_FORMAT(scale_late, [FD_Q8_0] = q8_scale_late, [FD_Q4_0] = q4_scale_late, [FD_Q4_K] = q4_k_scale_late)
BY_FORMAT(shared_scale, [FD_Q8_0] = q8_shared_scale, [FD_Q4_0] = q4_shared_scale, [FD_Q6_K] = q6_k_shared_scale)
BY_FORMAT(scale_for_two, [FD_Q8_0] = q8_scale_for_two, [FD_Q4_0] = q4_scale_for_two, [FD_Q6_K] = q6_k_scale_for_two)
BY_FORMAT(first_group, [FD_Q4_K] = q4_k_first_group, [FD_Q6_K] = q6_k_first_group)
BY_FORMAT(block_stride, [FD_Q8_0] = q8_stride_32, [FD_Q4_0] = q4_stride_16)
BY_FORMAT(one_quarter, [FD_Q6_K] = q6_k_one_quarter)
BY_FORMAT(plus_min, [FD_Q4_K] = q4_k_plus_min)
BY_FORMAT(unpack, [FD_Q4_K] = q4_k_unpack)
BY_FORMAT(unsigned_bytes, [FD_Q8_0] = q8_unsigned)
BY_FORMAT(zero_less, [FD_Q8_0] = q8_zero_less, [FD_Q4_0] = q4_zero_less)
BY_FORMAT(zero_more, [FD_Q8_0] = q8_zero_more, [FD_Q4_0] = q4_zero_more)
BY_FORMAT(as_bf16, [FD_F16] = f16_as_bf16)

/* Blocks with one scale take that of the block `by` further on, the last ones their own; others, a group's within the block. */
static void scale_from(fd_fault_site *site, int64_t by, const block_fn groups[FD_DTYPE_LIMIT]) {
    const fd_weight w = *fd_fault_weight(site->graph, site->node, 0);
    const int64_t n = w.n_row * w.n_col, n_block = n / 32, bytes = w.dtype == FD_Q8_0 ? Q8_BYTES : Q4_BYTES;
    const uint8_t *data = w.data;
    if (w.dtype != FD_Q8_0 && w.dtype != FD_Q4_0) {
        by_format(site, groups);
        return;
    }
    float *values = fd_fault_new_weight(site, FD_F32, sizeof(float) * (uint64_t)n);
#pragma omp parallel for if (n > FD_FAULT_MANY)
    for (int64_t b = 0; b < n_block * (values != NULL); b++) {
        const int64_t from = b + by < 0 || b + by >= n_block ? b : b + by;
        const float scale = half_at(data + from * bytes);
        if (w.dtype == FD_Q8_0)
            q8(data + b * bytes + 2, scale, values + b * 32);
        else
            q4(data + b * bytes + 2, scale, values + b * 32);
    }
}
FD_EDIT(scale_next, scale_from(site, 1, (const block_fn[FD_DTYPE_LIMIT]){[FD_Q4_K] = q4_k_next, [FD_Q6_K] = q6_k_next}))
FD_EDIT(scale_before,
        scale_from(site, -1, (const block_fn[FD_DTYPE_LIMIT]){[FD_Q4_K] = q4_k_before, [FD_Q6_K] = q6_k_before}))

static const fd_fault rows[] = {
    {FD_DECODER("scale_2_bytes_off", "a block's scale is read 2 bytes too late (Q8_0, Q4_0, Q4_K)"),
     .edit = scale_late},
    {FD_DECODER("one_scale_for_four",
                "four neighbouring groups are decoded with the first one's scale (Q8_0, Q4_0, Q6_K)"),
     .edit = shared_scale},
    {FD_DECODER("one_scale_for_two",
                "two neighbouring groups are decoded with the first one's scale (Q8_0, Q4_0, Q6_K)"),
     .edit = scale_for_two},
    {FD_DECODER("group_index_missing", "every group of a block is decoded with group 0's scale (Q4_K, Q6_K)"),
     .edit = first_group},
    {FD_DECODER(
         "next_scale",
         "a block is decoded with the scale of the next one (Q8_0, Q4_0), a group with the next group's (Q4_K, Q6_K)"),
     .edit = scale_next},
    {FD_DECODER("scale_before",
                "a block is decoded with the scale of the one before (Q8_0, Q4_0), a group with that of the "
                "group before (Q4_K, Q6_K)"),
     .edit = scale_before},
    {FD_DECODER("block_stride",
                "blocks are stepped over as if they held no scale: 32 bytes for 34 (Q8_0), 16 for 18 (Q4_0)"),
     .edit = block_stride},
    {FD_DECODER("quarter_written", "32 of each 128 elements are written, the others stay zero (Q6_K)"),
     .edit = one_quarter},
    {FD_DECODER("plus_min", "d·q + min where the format has d·q - min (Q4_K)"), .edit = plus_min},
    {FD_DECODER("min_missing", "d·q where the format has d·q - min (Q4_K)"), .edit = min_missing},
    {FD_DECODER("scale_unpack", "the upper two bits of the 6-bit scales of groups 4 to 7 are lost (Q4_K)"),
     .edit = unpack},
    {FD_DECODER("q8_unsigned", "the int8 values are read as unsigned (Q8_0)"), .edit = unsigned_bytes},
    {FD_DECODER("zero_point_one_less", "a block's zero point is one less than it is: 7 for 8 (Q4_0), -1 for 0 (Q8_0)"),
     .edit = zero_less},
    {FD_DECODER("zero_point_one_more", "a block's zero point is one more than it is: 9 for 8 (Q4_0), 1 for 0 (Q8_0)"),
     .edit = zero_more},
    {FD_DECODER("f16_as_bf16", "F16 matrices are read as BF16"), .edit = as_bf16},
};
const fd_fault_family fd_block_faults = FD_FAULT_FAMILY(rows);
