/* A file's numbers of binary16, its weights or the scales and minima of its blocks, read by a conversion that does not know subnormals: below
 * 2⁻¹⁴ a number has no leading one. Scales of K-quants are as small as a rule. */
#include "faults/internal.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "model/gguf/quant.h"

/* Where they are in a block. */
typedef struct halves {
    int32_t n, at[2];
} halves;
#define ONE(block, a)                                                                                                  \
    {                                                                                                                  \
        1, {                                                                                                           \
            offsetof(fd_block_##block, a)                                                                              \
        }                                                                                                              \
    }
#define TWO(block, a, b)                                                                                               \
    {                                                                                                                  \
        2, {                                                                                                           \
            offsetof(fd_block_##block, a), offsetof(fd_block_##block, b)                                               \
        }                                                                                                              \
    }
static const halves of_type[FD_DTYPE_LIMIT] = {
    [FD_F16] = {1, {0}},
    [FD_Q4_0] = ONE(q4_0, d),
    [FD_Q4_1] = TWO(q4_1, d, m),
    [FD_Q5_0] = ONE(q5_0, d),
    [FD_Q5_1] = TWO(q5_1, d, m),
    [FD_Q8_0] = ONE(q8_0, d),
    [FD_Q2_K] = TWO(q2_K, d, dmin),
    [FD_Q3_K] = ONE(q3_K, d),
    [FD_Q4_K] = TWO(q4_K, d, dmin),
    [FD_Q5_K] = TWO(q5_K, d, dmin),
    [FD_Q6_K] = ONE(q6_K, d),
    [FD_IQ4_NL] = ONE(iq4_nl, d),
    [FD_IQ4_XS] = ONE(iq4_xs, d),
    [FD_IQ2_S] = ONE(iq2_s, d),
    [FD_IQ3_S] = ONE(iq3_s, d),
};

static bool is_subnormal(uint16_t half) {
    return (half & 0x7c00) == 0;
}

/* Where the next of them is that is not 0, the i-th number of binary16 or a later one; *i: which. -1: there is none. */
static int64_t next_subnormal(const fd_weight *w, int64_t *i) {
    const halves in = w->dtype < FD_DTYPE_LIMIT ? of_type[w->dtype] : (halves){0};
    const int64_t size = in.n > 0 ? fd_dtype_get(w->dtype)->block_bytes : 1, n = in.n * ((int64_t)w->bytes / size);
    for (; *i < n; ++*i) {
        const int64_t at = *i / in.n * size + in.at[*i % in.n];
        uint16_t half;
        memcpy(&half, (const uint8_t *)w->data + at, sizeof half);
        if (is_subnormal(half) && (half & 0x3ff) != 0) return at;
    }
    return -1;
}

static void without_subnormals(fd_fault_site *site) {
    const fd_weight w = *fd_fault_weight(site->graph, site->node, 0);
    int64_t i = 0, at = next_subnormal(&w, &i);
    uint8_t *data = at >= 0 ? fd_fault_new_weight(site, w.dtype, w.bytes) : NULL;
    if (!data) return;
    memcpy(data, w.data, (size_t)w.bytes);
    for (; at >= 0; i++, at = next_subnormal(&w, &i)) {
        uint16_t half;
        memcpy(&half, data + at, sizeof half);
        half &= 0x8000;
        memcpy(data + at, &half, sizeof half);
    }
}

/* The exponent is rebiased as every other one: 2⁻¹⁵·(1 + m/1024), of zero as well. */
static void with_leading_one(fd_fault_site *site) {
    const fd_weight w = *fd_fault_weight(site->graph, site->node, 0);
    const int64_t n = w.n_row * w.n_col;
    float *data = w.dtype == FD_F16 ? fd_fault_new_weight(site, FD_F32, sizeof *data * (uint64_t)n) : NULL;
    if (!data) return;
    fd_dequantize_row(FD_F16, w.data, data, n);
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)w.data + 2 * i, sizeof half);
        if (is_subnormal(half)) data[i] = copysignf(0x1p-15f * (1 + (float)(half & 0x3ff) / 1024), data[i]);
    }
}

FD_APPLIES(has_subnormals, next_subnormal(fd_fault_weight(graph, node, 0), &(int64_t){0}) >= 0)
FD_APPLIES(has_subnormal_weights, fd_fault_weight(graph, node, 0)->dtype == FD_F16 && has_subnormals(graph, node))

static const fd_fault rows[] = {
    {FD_DECODER("half_subnormals_zero",
                "binary16's subnormals are taken for 0 (F16; scales and minima of Q4_0 to Q8_0, "
                "Q2_K to Q6_K, IQ2_S to IQ4_XS)"),
     .applies = has_subnormals, .edit = without_subnormals},
    {FD_DECODER("half_subnormals_as_normal", "binary16's subnormals are read as if they had a leading one (F16)"),
     .applies = has_subnormal_weights, .edit = with_leading_one},
};
const fd_fault_family fd_half_faults = FD_FAULT_FAMILY(rows);
