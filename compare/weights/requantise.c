#include "compare/weights/requantise.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clones.h"
#include "base/dtype.h"
#include "model/gguf/float16.h"
#include "model/weight_rows.h"

/* What MLX takes for a scale of equal weights. */
#define LEAST_SCALE 1e-7f

static const int32_t all_bits[] = {4, 8, 6, 3, 2, 5}, all_groups[] = {32, 64, 128, 0};
enum { N_BITS = sizeof all_bits / sizeof *all_bits, N_GROUP = sizeof all_groups / sizeof *all_groups };

bool fd_requantisation_at(int32_t i, fd_requantisation *out) {
    if (i >= FD_REQUANTISE_RULES * N_BITS * N_GROUP) return false;
    *out = (fd_requantisation){.rule = (fd_requantise_rule)(i / N_BITS / N_GROUP),
                               .bits = all_bits[i / N_GROUP % N_BITS],
                               .group = all_groups[i % N_GROUP],
                               .dtype = FD_F32};
    return true;
}

void fd_requantisation_keep(fd_requantisation *q, int32_t way) {
    q->dtype = way == 0 ? FD_F32 : way % 2 ? FD_BF16 : FD_F16;
    q->narrow = way > 2;
}

bool fd_requantisation_fits(const fd_requantisation *q, int64_t n_col) {
    if (q->rule == FD_REQUANTISE_NF4 && q->bits != 4) return false;
    if (q->rule == FD_REQUANTISE_SIGNED && q->bits > 5) return false; /* no format has it */
    return n_col > 1 && (q->group == 0 || (n_col % q->group == 0 && n_col > q->group));
}

/* ---- a group ---- */

float fd_requantisation_kept(const fd_requantisation *q, float x) {
    return q->dtype == FD_F16    ? fd_f16_to_f32(fd_f32_to_f16(x))
           : q->dtype == FD_BF16 ? fd_bf16_to_f32(fd_f32_to_bf16(x))
                                 : x;
}

/* x is (integer · scale) + offset, the integer from `least` to `most`. */
typedef struct grid {
    float scale, offset; /* to quantise with, in binary32 */
    float least, most;
    bool up; /* halves go up: ggml adds a half and cuts */
} grid;

static grid whole_steps(float scale, float least, float most) {
    return (grid){.scale = scale, .least = least, .most = most};
}

static grid edge_grid(float low, float high, float steps) {
    const bool below = fabsf(low) > fabsf(high);
    const float edge = below ? low : high;
    float scale = fmaxf((high - low) / steps, LEAST_SCALE);
    if (!below) scale = -scale;
    const float n = rintf(edge / scale);
    return (grid){.scale = fabsf(n) > 0 ? edge / n : scale, .offset = fabsf(n) > 0 ? edge : 0, .most = steps};
}

static grid grid_of(const fd_requantisation *q, const float *x, int64_t n) {
    const float half = (float)(1 << (q->bits - 1)), steps = 2 * half - 1;
    float low = x[0], high = x[0];
    for (int64_t i = 1; i < n; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    const float largest = fmaxf(-low, high), with_sign = -low > high ? low : high;
    switch (q->rule) {
    case FD_REQUANTISE_LARGEST: return whole_steps(largest / (half - 1), -half, half - 1);
    case FD_REQUANTISE_LARGEST_WIDE: return whole_steps(largest / half, -half, half - 1);
    case FD_REQUANTISE_LARGEST_HALF: return whole_steps(2 * largest / steps, -half, half - 1);
    case FD_REQUANTISE_SIGNED: return (grid){.scale = with_sign / -half, .least = -half, .most = half - 1, .up = true};
    case FD_REQUANTISE_ZERO_POINT: {
        const float least = fminf(low, 0), scale = (fmaxf(high, 0) - least) / steps, zero = rintf(-least / scale);
        return whole_steps(scale, -zero, steps - zero);
    }
    case FD_REQUANTISE_MINIMUM: return (grid){.scale = (high - low) / steps, .offset = low, .most = steps};
    case FD_REQUANTISE_EDGE: return edge_grid(low, high, steps);
    case FD_REQUANTISE_NF4:
    case FD_REQUANTISE_RULES: break;
    }
    return whole_steps(largest, -1, 1);
}

/* QLoRA, appendix E; bitsandbytes' create_normal_map. */
static const float nf4[16] = {
    -1,          -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.09105004f, 0,
    0.07958030f, 0.16093020f,  0.24611230f,  0.33791524f,  0.44070983f,  0.56261700f,  0.72295684f,  1};

static float nearest_quantile(float x) {
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(nf4[i] - x) < fabsf(nf4[best] - x)) best = i;
    return nf4[best];
}

static inline void keep(const fd_requantisation *q, float *x, int64_t n) {
    for (int64_t i = 0; q->dtype == FD_F16 && i < n; i++) x[i] = f32_through_f16(x[i]);
    for (int64_t i = 0; q->dtype == FD_BF16 && i < n; i++) x[i] = fd_bf16_to_f32(fd_f32_to_bf16(x[i]));
}

/* Step by step, each a loop that becomes vectors. */
static inline void requantise_group(const fd_requantisation *q, float *x, int64_t n) {
    int32_t n_finite = 0;
    keep(q, x, n);
    for (int64_t i = 0; i < n; i++) n_finite += fabsf(x[i]) <= FLT_MAX;
    if (n_finite < n) return;
    const grid g = grid_of(q, x, n);
    const float scale = fd_requantisation_kept(q, g.scale), offset = fd_requantisation_kept(q, g.offset);
    if (!(fabsf(g.scale) > 0) || !isfinite(g.scale)) return;
    for (int64_t i = 0; i < n; i++) x[i] = (x[i] - g.offset) / g.scale;
    if (q->rule == FD_REQUANTISE_NF4)
        for (int64_t i = 0; i < n; i++) x[i] = nearest_quantile(x[i]);
    else if (g.up)
        for (int64_t i = 0; i < n; i++) x[i] = floorf(x[i] + 0.5f);
    else
        for (int64_t i = 0; i < n; i++) x[i] = rintf(x[i]);
    for (int64_t i = 0; i < n; i++) {
        const float k = x[i] > g.least ? x[i] : g.least; /* of NaN the least */
        x[i] = (k < g.most ? k : g.most) * scale;
    }
    if (q->narrow) keep(q, x, n);
    for (int64_t i = 0; i < n; i++) x[i] += offset;
    if (q->narrow) keep(q, x, n);
}

FD_FOR_EACH_CPU
void fd_requantise_row(const fd_requantisation *q, float *row, int64_t n_col) {
    const int64_t group = q->group ? q->group : n_col;
    for (int64_t at = 0; at + group <= n_col; at += group) requantise_group(q, row + at, group);
}

fd_code fd_requantise_weight(const fd_requantisation *q, const fd_weight *weight, fd_weight *out, fd_error *err) {
    const size_t n = (size_t)weight->n_row * (size_t)weight->n_col;
    float *rows = malloc(sizeof *rows * n);
    *out = *weight;
    if (!rows) return fd_fail(err, FD_ERR_MEMORY, "%s, quantised again: out of memory", weight->name);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < weight->n_row; r++) {
        fd_weight_row(weight, r, rows + r * weight->n_col);
        fd_requantise_row(q, rows + r * weight->n_col, weight->n_col);
    }
    out->dtype = FD_F32;
    out->data = rows;
    out->bytes = sizeof *rows * n;
    out->requantised = true;
    return FD_OK;
}

const char *fd_requantisation_text(const fd_requantisation *q, char to[FD_REQUANTISATION_SIZE]) {
    const bool offset = q->rule >= FD_REQUANTISE_ZERO_POINT && q->rule <= FD_REQUANTISE_EDGE;
    const char *with = q->rule == FD_REQUANTISE_NF4 ? "each with a scale (NF4)"
                       : offset                     ? "each with a scale and an offset (affine)"
                                                    : "each with a scale (symmetric)";
    if (q->group)
        snprintf(to, FD_REQUANTISATION_SIZE, "%d bits in groups of %d, %s", q->bits, q->group, with);
    else
        snprintf(to, FD_REQUANTISATION_SIZE, "%d bits in whole rows, %s", q->bits, with);
    return to;
}
