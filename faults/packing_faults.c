/* Blocks of several planes put together wrongly: the quants' high bits or nibbles come from elsewhere, signs are lost. A block keeps its format: its bytes are exchanged so that the right decoder gives what the wrong one
 * would, in products of int8 rows too. model/gguf/decode_256.c and decode_32.c draw the layouts. */
#include "faults/internal.h"

#include <stddef.h>
#include <string.h>

#include "model/gguf/quant.h"

/* ---- planes: bytes of a block that hold one thing of all its elements ---- */

typedef void (*plane_fn)(uint8_t *bytes, int n);

static void cleared(uint8_t *bytes, int n) {
    memset(bytes, 0, (size_t)n);
}
static void inverted(uint8_t *bytes, int n) {
    for (int i = 0; i < n; i++) bytes[i] ^= 0xff;
}
/* Bit k of a byte is of group k: the next one's. */
static void of_next_group(uint8_t *bytes, int n) {
    for (int i = 0; i < n; i++) bytes[i] = (uint8_t)(bytes[i] >> 1 | bytes[i] << 7);
}
static void of_group_before(uint8_t *bytes, int n) {
    for (int i = 0; i < n; i++) bytes[i] = (uint8_t)(bytes[i] << 1 | bytes[i] >> 7);
}
static void other_way_round(uint8_t *bytes, int n) {
    for (int i = 0; i < n; i++)
        for (int k = 0, byte = bytes[i]; k < 8; k++)
            bytes[i] = (uint8_t)((bytes[i] & ~(128 >> k)) | (byte >> k & 1) << (7 - k));
}
static void highest_bit_lost(uint8_t *bytes, int n) {
    for (int i = 0; i < n; i++) bytes[i] &= 127;
}
static void second_half_is_first(uint8_t *bytes, int n) {
    memcpy(bytes + n / 2, bytes, (size_t)n / 2);
}
static void second_half_cleared(uint8_t *bytes, int n) {
    memset(bytes + n / 2, 0, (size_t)n / 2);
}
static void halves_exchanged(uint8_t *bytes, int n) {
    for (int i = 0; i < n / 2; i++) {
        const uint8_t first = bytes[i];
        bytes[i] = bytes[n / 2 + i];
        bytes[n / 2 + i] = first;
    }
}
static void nibbles_exchanged(uint8_t *bytes, int n) {
    for (int i = 0; i < n; i++) bytes[i] = (uint8_t)(bytes[i] << 4 | bytes[i] >> 4);
}
/* Elements 2i and 2i + 1 are byte i's, not i and n + i. */
static void interleaved(uint8_t *bytes, int n) {
    uint8_t flat[64];
    for (int e = 0; e < 2 * n; e++) flat[e] = e % 2 ? bytes[e / 2] >> 4 : bytes[e / 2] & 15;
    for (int i = 0; i < n; i++) bytes[i] = (uint8_t)(flat[i] | flat[n + i] << 4);
}

/* And the other way: the bytes hold elements i and n + i, of a file that has neighbours in them. */
static void taken_for_halves(uint8_t *bytes, int n) {
    uint8_t is[64];
    for (int i = 0; i < n; i++) is[i] = bytes[i] & 15, is[n + i] = bytes[i] >> 4;
    for (int i = 0; i < n; i++) bytes[i] = (uint8_t)(is[2 * i] | is[2 * i + 1] << 4);
}

#define PLANE(type, field, how)                                                                                        \
    static void type##_##field##_##how(uint8_t *block) {                                                               \
        how(block + offsetof(fd_block_##type, field), (int)sizeof((fd_block_##type *)NULL)->field);                    \
    }
PLANE(q5_0, qh, cleared)
PLANE(q5_1, qh, cleared)
PLANE(q5_K, qh, cleared)
PLANE(q6_K, qh, cleared)
PLANE(q3_K, hmask, cleared)
PLANE(iq3_s, qh, cleared)
PLANE(iq2_s, qh, cleared)
PLANE(q5_0, qh, inverted)
PLANE(q5_1, qh, inverted)
PLANE(q5_K, qh, inverted)
PLANE(q3_K, hmask, inverted)
PLANE(q5_K, qh, of_next_group)
PLANE(q3_K, hmask, of_next_group)
PLANE(q5_K, qh, of_group_before)
PLANE(q3_K, hmask, of_group_before)
PLANE(q6_K, qh, second_half_is_first)
PLANE(q5_0, qh, second_half_cleared)
PLANE(q5_1, qh, second_half_cleared)
PLANE(q5_0, qh, halves_exchanged)
PLANE(q5_1, qh, halves_exchanged)
PLANE(iq3_s, signs, cleared)
PLANE(iq2_s, signs, cleared)
PLANE(iq3_s, signs, other_way_round)
PLANE(iq2_s, signs, other_way_round)
PLANE(iq3_s, signs, highest_bit_lost)
PLANE(iq2_s, signs, highest_bit_lost)
PLANE(q4_0, qs, nibbles_exchanged)
PLANE(q4_K, qs, nibbles_exchanged)
PLANE(q4_1, qs, nibbles_exchanged)
PLANE(q5_0, qs, nibbles_exchanged)
PLANE(q5_1, qs, nibbles_exchanged)
PLANE(iq4_nl, qs, nibbles_exchanged)
PLANE(mxfp4, qs, nibbles_exchanged)
PLANE(iq4_xs, qs, nibbles_exchanged)
PLANE(q5_K, qs, nibbles_exchanged)
PLANE(q6_K, ql, nibbles_exchanged)
PLANE(iq3_s, scales, nibbles_exchanged)
PLANE(q4_0, qs, interleaved)
PLANE(q4_1, qs, interleaved)
PLANE(iq4_nl, qs, interleaved)
PLANE(mxfp4, qs, interleaved)
PLANE(q4_0, qs, taken_for_halves)
PLANE(iq4_nl, qs, taken_for_halves)
PLANE(mxfp4, qs, taken_for_halves)
PLANE(iq4_xs, scales_h, cleared)

static void q8_0_halves_exchanged(uint8_t *block) {
    halves_exchanged(block + offsetof(fd_block_q8_0, qs), 32);
}

static void q6_K_scales_second_half_is_first(uint8_t *block) {
    second_half_is_first(block + offsetof(fd_block_q6_K, scales), 16);
}
static void q3_K_scales_low_bits(uint8_t *block) {
    cleared(block + offsetof(fd_block_q3_K, scales) + 8, 4);
}
/* What follows the scale is taken for quants, as in a format that has no minimum. */
static void q4_1_quants_early(uint8_t *block) {
    memmove(block + offsetof(fd_block_q4_1, qs), block + offsetof(fd_block_q4_1, m), 16);
}
static void q5_1_quants_early(uint8_t *block) {
    memmove(block + offsetof(fd_block_q5_1, qh), block + offsetof(fd_block_q5_1, m), 4 + 16);
}
/* Two groups share 32 bytes. */
static void q4_K_interleaved(uint8_t *block) {
    for (int pair = 0; pair < 4; pair++) interleaved(block + offsetof(fd_block_q4_K, qs) + 32 * pair, 32);
}
static void iq4_xs_interleaved(uint8_t *block) {
    for (int group = 0; group < 8; group++) interleaved(block + offsetof(fd_block_iq4_xs, qs) + 16 * group, 16);
}
/* The four pairs of a byte are of the four quarters of a half: those of quarters 0 and 1, and 2 and 3, change places. */
static void q6_K_pairs_exchanged(uint8_t *block) {
    uint8_t *high = block + offsetof(fd_block_q6_K, qh);
    for (int i = 0; i < 64; i++) high[i] = (uint8_t)((high[i] & 0x33) << 2 | (high[i] & 0xcc) >> 2);
}

/* ---- rows ---- */

#define BY_BYTES(name, ...) FD_EDIT(name, fd_fault_repack(site, (const fd_fault_bytes[FD_DTYPE_LIMIT]){__VA_ARGS__}))
BY_BYTES(high_missing, [FD_Q5_0] = q5_0_qh_cleared, [FD_Q5_1] = q5_1_qh_cleared, [FD_Q5_K] = q5_K_qh_cleared,
         [FD_Q6_K] = q6_K_qh_cleared, [FD_Q3_K] = q3_K_hmask_cleared, [FD_IQ3_S] = iq3_s_qh_cleared,
         [FD_IQ2_S] = iq2_s_qh_cleared)
BY_BYTES(high_inverted, [FD_Q5_0] = q5_0_qh_inverted, [FD_Q5_1] = q5_1_qh_inverted, [FD_Q5_K] = q5_K_qh_inverted,
         [FD_Q3_K] = q3_K_hmask_inverted)
BY_BYTES(high_next, [FD_Q5_K] = q5_K_qh_of_next_group, [FD_Q3_K] = q3_K_hmask_of_next_group)
BY_BYTES(high_before, [FD_Q5_K] = q5_K_qh_of_group_before, [FD_Q3_K] = q3_K_hmask_of_group_before)
BY_BYTES(high_first_half, [FD_Q6_K] = q6_K_qh_second_half_is_first)
BY_BYTES(high_half_lost, [FD_Q5_0] = q5_0_qh_second_half_cleared, [FD_Q5_1] = q5_1_qh_second_half_cleared)
BY_BYTES(high_exchanged, [FD_Q5_0] = q5_0_qh_halves_exchanged, [FD_Q5_1] = q5_1_qh_halves_exchanged,
         [FD_Q6_K] = q6_K_pairs_exchanged)
BY_BYTES(signs_missing, [FD_IQ3_S] = iq3_s_signs_cleared, [FD_IQ2_S] = iq2_s_signs_cleared)
BY_BYTES(signs_reversed, [FD_IQ3_S] = iq3_s_signs_other_way_round, [FD_IQ2_S] = iq2_s_signs_other_way_round)
BY_BYTES(eighth_sign, [FD_IQ3_S] = iq3_s_signs_highest_bit_lost, [FD_IQ2_S] = iq2_s_signs_highest_bit_lost)
BY_BYTES(nibble_order, [FD_Q4_0] = q4_0_qs_nibbles_exchanged, [FD_Q4_K] = q4_K_qs_nibbles_exchanged,
         [FD_Q4_1] = q4_1_qs_nibbles_exchanged, [FD_Q5_0] = q5_0_qs_nibbles_exchanged,
         [FD_Q5_1] = q5_1_qs_nibbles_exchanged, [FD_IQ4_NL] = iq4_nl_qs_nibbles_exchanged,
         [FD_MXFP4] = mxfp4_qs_nibbles_exchanged, [FD_IQ4_XS] = iq4_xs_qs_nibbles_exchanged,
         [FD_Q5_K] = q5_K_qs_nibbles_exchanged, [FD_Q6_K] = q6_K_ql_nibbles_exchanged)
BY_BYTES(
    nibbles_interleaved, [FD_Q4_0] = q4_0_qs_interleaved, [FD_Q4_K] = q4_K_interleaved, [FD_Q4_1] = q4_1_qs_interleaved,
    [FD_IQ4_NL] = iq4_nl_qs_interleaved, [FD_MXFP4] = mxfp4_qs_interleaved, [FD_IQ4_XS] = iq4_xs_interleaved)
BY_BYTES(nibbles_as_halves, [FD_Q4_0] = q4_0_qs_taken_for_halves, [FD_IQ4_NL] = iq4_nl_qs_taken_for_halves,
         [FD_MXFP4] = mxfp4_qs_taken_for_halves)
BY_BYTES(quants_exchanged, [FD_Q8_0] = q8_0_halves_exchanged)
BY_BYTES(scale_nibbles, [FD_IQ3_S] = iq3_s_scales_nibbles_exchanged)
BY_BYTES(scales_first_half, [FD_Q6_K] = q6_K_scales_second_half_is_first)
BY_BYTES(scales_low_bits, [FD_Q3_K] = q3_K_scales_low_bits, [FD_IQ4_XS] = iq4_xs_scales_h_cleared)
BY_BYTES(quants_early, [FD_Q4_1] = q4_1_quants_early, [FD_Q5_1] = q5_1_quants_early)

static const fd_fault rows[] = {
    {FD_DECODER("halves_exchanged", "the two halves of a block's quants change places (Q8_0)"),
     .edit = quants_exchanged},
    {FD_DECODER("quants_2_bytes_early",
                "a block's quants are read from 2 bytes before them, its minimum first (Q4_1, Q5_1)"),
     .edit = quants_early},
    {FD_DECODER("scales_first_half", "the groups of a block's second half have the scales of the first half's (Q6_K)"),
     .edit = scales_first_half},
    {FD_DECODER("scales_low_bits", "the upper two bits of 6-bit scales are taken for 0 (Q3_K, IQ4_XS)"),
     .edit = scales_low_bits},
    {FD_DECODER("scale_nibbles", "the two 4-bit scales of a byte are exchanged (IQ3_S)"), .edit = scale_nibbles},
    {FD_DECODER("high_bits_missing",
                "the quants' high bits are taken for 0 (Q3_K, Q5_0, Q5_1, Q5_K, Q6_K, IQ2_S, IQ3_S)"),
     .edit = high_missing},
    {FD_DECODER("high_bits_inverted",
                "the quants' high bits are the other way round: 0 for 1 (Q3_K, Q5_0, Q5_1, Q5_K)"),
     .edit = high_inverted},
    {FD_DECODER("high_bits_next", "a group's quants have the next one's high bits (Q3_K, Q5_K)"), .edit = high_next},
    {FD_DECODER("high_bits_before", "a group's quants have the high bits of the group before (Q3_K, Q5_K)"),
     .edit = high_before},
    {FD_DECODER("high_bits_first_half",
                "the quants of a block's second half have the high bits of the first half's (Q6_K)"),
     .edit = high_first_half},
    {FD_DECODER("high_bits_half_lost", "the high bits of a block's upper 16 quants are taken for 0 (Q5_0, Q5_1)"),
     .edit = high_half_lost},
    {FD_DECODER(
         "high_bits_exchanged",
         "the high bits of a block's two halves change places (Q5_0, Q5_1), or of two neighbouring quarters (Q6_K)"),
     .edit = high_exchanged},
    {FD_DECODER("signs_missing", "signs are not applied (IQ2_S, IQ3_S)"), .edit = signs_missing},
    {FD_DECODER("signs_reversed", "the bits of a byte of signs are taken from the other end (IQ2_S, IQ3_S)"),
     .edit = signs_reversed},
    {FD_DECODER("eighth_sign_missing", "the sign of every eighth quant is not applied (IQ2_S, IQ3_S)"),
     .edit = eighth_sign},
    {FD_DECODER("nibble_order", "the high nibble is taken for the low one (all types of 4 to 6 bits)"),
     .edit = nibble_order},
    {FD_DECODER(
         "nibbles_interleaved",
         "a byte's nibbles are taken for neighbours, they are half a block or a group apart (all types of 4 bits)"),
     .edit = nibbles_interleaved},
    {FD_DECODER(
         "nibbles_as_halves",
         "a byte's nibbles are taken for elements half a block apart, they are neighbours (Q4_0, IQ4_NL, MXFP4)"),
     .edit = nibbles_as_halves},
};
const fd_fault_family fd_packing_faults = FD_FAULT_FAMILY(rows);
