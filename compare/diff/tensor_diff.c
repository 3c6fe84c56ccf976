#include "compare/diff/tensor_diff.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "numerics/contract.h"

/* Elements compared together while nothing differs: 16 KiB of binary32 a side, so that the slow loop over a block that
 * does differ finds it in the first-level cache. */
enum { BLOCK = 4096 };

uint32_t fd_coarser(uint32_t a, uint32_t b) {
    static const uint32_t order[] = {FD_BF16, FD_F16, FD_F32};
    for (int i = 0; i < 3; i++)
        if (a == order[i] || b == order[i]) return order[i];
    return FD_F64;
}

static double load(fd_tensor_view view, int64_t i) {
    switch (view.dtype) {
    case FD_F32: return (double)((const float *)view.data)[i];
    case FD_F64: return ((const double *)view.data)[i];
    case FD_F16: return (double)fd_f16_to_f32(((const uint16_t *)view.data)[i]);
    default: return (double)fd_bf16_to_f32(((const uint16_t *)view.data)[i]);
    }
}

/* binary64 to binary32 rounded to odd: rounding that to 16 bits gives the same as rounding the binary64 once, because
 * binary32 has more than two bits to spare (Boldo and Melquiond, 2008). */
static float round_to_odd(double x) {
    float nearest = (float)x;
    if ((double)nearest == x) return nearest;
    uint32_t bits = fd_bits32(nearest);
    if (fabs((double)nearest) > fabs(x)) bits--;
    return fd_from_bits32(bits | 1u);
}

/* A finite or infinite value as an integer that rises with it, one per step of the grid; NaN must not come here. */
static int64_t grid_rank(double x, uint32_t grid) {
    uint64_t bits, sign;
    switch (grid) {
    case FD_F64: bits = fd_bits64(x), sign = (uint64_t)1 << 63; break;
    case FD_F32: bits = fd_bits32((float)x), sign = (uint64_t)1 << 31; break;
    case FD_F16: bits = fd_f32_to_f16(round_to_odd(x)), sign = (uint64_t)1 << 15; break;
    default: bits = fd_f32_to_bf16(round_to_odd(x)), sign = (uint64_t)1 << 15; break;
    }
    return bits & sign ? -1 - (int64_t)(bits ^ sign) : (int64_t)bits;
}

static bool rank_is_infinite(int64_t rank, uint32_t grid) {
    static const int64_t f64 = 0x7ff0000000000000, f32 = 0x7f800000, f16 = 0x7c00, bf16 = 0x7f80;
    int64_t infinity = grid == FD_F64 ? f64 : grid == FD_F32 ? f32 : grid == FD_F16 ? f16 : bf16;
    return rank == infinity || rank == -1 - infinity;
}

static void compare_element(double r, double c, int64_t i, fd_tensor_diff *out) {
    bool ref_nan = r != r, cand_nan = c != c;
    if (ref_nan && cand_nan) {
        out->n_nan_same++;
        return;
    }
    fd_element_diff element = {i, r, c, FD_ULP_NONE};
    if (ref_nan || cand_nan) {
        if (cand_nan)
            out->n_nan_new++;
        else
            out->n_nan_lost++;
    } else {
        int64_t ref_rank = grid_rank(r, out->grid), cand_rank = grid_rank(c, out->grid);
        if (ref_rank == cand_rank) return;
        bool ref_inf = rank_is_infinite(ref_rank, out->grid), cand_inf = rank_is_infinite(cand_rank, out->grid);
        if (ref_inf && cand_inf) {
            out->n_inf_sign++;
        } else if (cand_inf) {
            out->n_inf_new++;
        } else if (ref_inf) {
            out->n_inf_lost++;
        } else {
            element.ulp = ref_rank < cand_rank ? (uint64_t)cand_rank - (uint64_t)ref_rank
                                               : (uint64_t)ref_rank - (uint64_t)cand_rank;
            double distance = fabs(c - r);
            if (out->largest.index < 0 || distance > out->largest_abs) {
                out->largest = element;
                out->largest_abs = distance;
            }
        }
    }
    if (out->n_differ++ == 0) out->first = element;
}

/* True when n binary32 pairs have the same bits; counts the NaNs among them. Plain loops that vectorise. */
static bool same_bits32(const float *a, const float *b, int64_t n, int64_t *n_nan) {
    uint32_t differ = 0, nan = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t x = fd_bits32(a[i]);
        differ |= x ^ fd_bits32(b[i]);
        nan += (x & 0x7fffffffu) > 0x7f800000u;
    }
    *n_nan = nan;
    return differ == 0;
}

static bool same_bits64(const double *a, const double *b, int64_t n, int64_t *n_nan) {
    uint64_t differ = 0, nan = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = fd_bits64(a[i]);
        differ |= x ^ fd_bits64(b[i]);
        nan += (x & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
    }
    *n_nan = (int64_t)nan;
    return differ == 0;
}

static bool same_bits16(const uint16_t *a, const uint16_t *b, int64_t n, uint16_t infinity, int64_t *n_nan) {
    uint16_t differ = 0, nan = 0; /* a block has fewer elements than a uint16_t counts */
    for (int64_t i = 0; i < n; i++) {
        differ = (uint16_t)(differ | (a[i] ^ b[i]));
        nan = (uint16_t)(nan + ((a[i] & 0x7fff) > infinity));
    }
    *n_nan = nan;
    return differ == 0;
}

static bool same_block(fd_tensor_view ref, fd_tensor_view cand, int64_t at, int64_t n, int64_t *n_nan) {
    if (ref.dtype != cand.dtype) return false;
    switch (ref.dtype) {
    case FD_F32: return same_bits32((const float *)ref.data + at, (const float *)cand.data + at, n, n_nan);
    case FD_F64: return same_bits64((const double *)ref.data + at, (const double *)cand.data + at, n, n_nan);
    default:
        return same_bits16((const uint16_t *)ref.data + at, (const uint16_t *)cand.data + at, n,
                           ref.dtype == FD_F16 ? 0x7c00 : 0x7f80, n_nan);
    }
}

void fd_diff_start(uint32_t grid, fd_tensor_diff *out) {
    memset(out, 0, sizeof *out);
    out->grid = grid;
    out->first = out->largest = (fd_element_diff){-1, 0, 0, 0};
}

void fd_diff_add(fd_tensor_view ref, fd_tensor_view cand, int64_t n, fd_tensor_diff *out) {
    assert(fd_coarser(out->grid, fd_coarser(ref.dtype, cand.dtype)) == out->grid);
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t m = n - at < BLOCK ? n - at : BLOCK, n_nan = 0;
        if (same_block(ref, cand, at, m, &n_nan)) {
            out->n_nan_same += n_nan;
            continue;
        }
        for (int64_t i = at; i < at + m; i++) compare_element(load(ref, i), load(cand, i), out->n + i, out);
    }
    out->n += n;
}

void fd_diff_tensors(fd_tensor_view ref, fd_tensor_view cand, int64_t n, uint32_t grid, fd_tensor_diff *out) {
    fd_diff_start(grid, out);
    fd_diff_add(ref, cand, n, out);
}
