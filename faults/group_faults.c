/* Blocks of several groups of which one has another's scale or minimum, in types where both are packed. As in packing_faults.c, bytes
 * are exchanged so that the right decoder gives what the wrong one would. model/gguf/decode_256.c draws the layouts. */
#include "faults/internal.h"

#include <stddef.h>
#include <string.h>

#include "model/gguf/quant.h"

/* Scales and minima of six bits in the 12 bytes of Q4_K and Q5_K, of four in Q2_K. */

typedef struct groups {
    int n;
    uint8_t scale[16], min[16];
} groups;
typedef void (*groups_fn)(groups *to, const groups *of);

static void of_12_bytes(uint8_t *bytes, groups_fn change) {
    groups is = {.n = 8};
    for (int j = 0; j < 4; j++) {
        is.scale[j] = bytes[j] & 63, is.min[j] = bytes[j + 4] & 63;
        is.scale[j + 4] = (uint8_t)((bytes[j + 8] & 15) | bytes[j] >> 6 << 4);
        is.min[j + 4] = (uint8_t)(bytes[j + 8] >> 4 | bytes[j + 4] >> 6 << 4);
    }
    groups to = is;
    change(&to, &is);
    for (int j = 0; j < 4; j++) {
        bytes[j] = (uint8_t)(to.scale[j] | to.scale[j + 4] >> 4 << 6);
        bytes[j + 4] = (uint8_t)(to.min[j] | to.min[j + 4] >> 4 << 6);
        bytes[j + 8] = (uint8_t)((to.scale[j + 4] & 15) | (to.min[j + 4] & 15) << 4);
    }
}
static void of_16_bytes(uint8_t *bytes, groups_fn change) {
    groups is = {.n = 16};
    for (int j = 0; j < 16; j++) is.scale[j] = bytes[j] & 15, is.min[j] = bytes[j] >> 4;
    groups to = is;
    change(&to, &is);
    for (int j = 0; j < 16; j++) bytes[j] = (uint8_t)(to.scale[j] | to.min[j] << 4);
}

static void next_scales(groups *to, const groups *of) {
    for (int j = 0; j < of->n; j++) to->scale[j] = of->scale[(j + 1) % of->n];
}
static void next_mins(groups *to, const groups *of) {
    for (int j = 0; j < of->n; j++) to->min[j] = of->min[(j + 1) % of->n];
}
static void scale_for_two(groups *to, const groups *of) {
    for (int j = 0; j < of->n; j++) to->scale[j] = of->scale[j & ~1];
}
static void min_for_two(groups *to, const groups *of) {
    for (int j = 0; j < of->n; j++) to->min[j] = of->min[j & ~1];
}
static void both_for_two(groups *to, const groups *of) {
    scale_for_two(to, of);
    min_for_two(to, of);
}
static void exchanged(groups *to, const groups *of) {
    memcpy(to->scale, of->min, sizeof to->scale);
    memcpy(to->min, of->scale, sizeof to->min);
}
static void low_mins(groups *to, const groups *of) {
    for (int j = 4; j < of->n; j++) to->min[j] = of->min[j] & 15;
}
static void last_is_before(groups *to, const groups *of) {
    to->scale[of->n - 1] = of->scale[of->n - 2];
    to->min[of->n - 1] = of->min[of->n - 2];
}

#define GROUP(type, n_bytes, how)                                                                                      \
    static void type##_##how(uint8_t *block) {                                                                         \
        of_##n_bytes##_bytes(block + offsetof(fd_block_##type, scales), how);                                          \
    }
#define GROUPS(how)                                                                                                    \
    GROUP(q2_K, 16, how)                                                                                               \
    GROUP(q4_K, 12, how)                                                                                               \
    GROUP(q5_K, 12, how)                                                                                               \
    FD_EDIT(how##_edit,                                                                                                \
            fd_fault_repack(site, (const fd_fault_bytes[FD_DTYPE_LIMIT]){                                              \
                                      [FD_Q2_K] = q2_K_##how, [FD_Q4_K] = q4_K_##how, [FD_Q5_K] = q5_K_##how}))
GROUPS(next_scales)
GROUPS(next_mins)
GROUPS(scale_for_two)
GROUPS(min_for_two)
GROUPS(both_for_two)
GROUPS(exchanged)
GROUP(q4_K, 12, low_mins)
GROUP(q5_K, 12, low_mins)
FD_EDIT(low_mins_edit, fd_fault_repack(site, (const fd_fault_bytes[FD_DTYPE_LIMIT]){
                                                 [FD_Q4_K] = q4_K_low_mins, [FD_Q5_K] = q5_K_low_mins}))
GROUPS(last_is_before)

static const fd_fault rows[] = {
    {FD_DECODER("group_scale_next", "a group has the next one's scale and its own minimum (Q2_K, Q4_K, Q5_K)"),
     .edit = next_scales_edit},
    {FD_DECODER("group_min_next", "a group has the next one's minimum and its own scale (Q2_K, Q4_K, Q5_K)"),
     .edit = next_mins_edit},
    {FD_DECODER("group_scale_for_two", "two neighbouring groups have the first one's scale (Q2_K, Q4_K, Q5_K)"),
     .edit = scale_for_two_edit},
    {FD_DECODER("group_min_for_two", "two neighbouring groups have the first one's minimum (Q2_K, Q4_K, Q5_K)"),
     .edit = min_for_two_edit},
    {FD_DECODER("group_both_for_two",
                "two neighbouring groups have the first one's scale and minimum (Q2_K, Q4_K, Q5_K)"),
     .edit = both_for_two_edit},
    {FD_DECODER("group_scale_min_swapped", "scales and minima of groups are exchanged (Q2_K, Q4_K, Q5_K)"),
     .edit = exchanged_edit},
    {FD_DECODER("group_min_unpack", "the upper two bits of the 6-bit minima of groups 4 to 7 are lost (Q4_K, Q5_K)"),
     .edit = low_mins_edit},
    {FD_DECODER("group_last_is_before",
                "the last group of a block has the scale and minimum of the one before (Q2_K, Q4_K, Q5_K)"),
     .edit = last_is_before_edit},
};
const fd_fault_family fd_group_faults = FD_FAULT_FAMILY(rows);
