/* Rows as the types of dot_inputs.h have them. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/clones.h"
#include "compare/bounds/dot_inputs.h"
#include "model/gguf/float16.h"
#include "model/gguf/quant.h"

/* ggml's block of 256: the element of the largest magnitude becomes -127, whatever its sign. */
static void round_q8_k(float *x, int64_t n) {
    for (int64_t at = 0; at < n; at += 256) {
        float largest = 0, most = 0;
        int64_t end = at + 256 < n ? at + 256 : n;
        for (int64_t i = at; i < end; i++)
            if (fabsf(x[i]) > most) most = fabsf(x[i]), largest = x[i];
        if (!(most > 0)) continue;
        float inverse = -127.0f / largest, step = 1 / inverse;
        for (int64_t i = at; i < end; i++) x[i] = step * fminf(127, rintf(inverse * x[i]));
    }
}

/* Blocks whose scale binary16 does not hold stay. */
static void round_q8_0(float *x, int64_t n) {
    char block[64];
    float rounded[32];
    for (int64_t at = 0; at + 32 <= n; at += 32) {
        bool finite = true;
        fd_quantize_row(FD_Q8_0, x + at, block, 32);
        fd_dequantize_row(FD_Q8_0, block, rounded, 32);
        for (int i = 0; i < 32; i++) finite &= isfinite(rounded[i]) != 0;
        if (finite) memcpy(x + at, rounded, sizeof rounded);
    }
}

/* roundf (of every binary32, NaN aside, bit for bit), without a call: ties go away from zero. */
static inline float round_away(float q) {
    float whole = truncf(q);
    return fabsf(q - whole) >= 0.5f ? whole + copysignf(1, q) : whole;
}

/* `n` elements with one scale. Scales of FD_DOT_Q8_0 are binary16. Choices instead of fminf and fmaxf, which are calls: a NaN
 * (0 times infinity, where a scale is too small) is 127 by both. */
FD_FOR_EACH_CPU
static void round_block(fd_block_rule rule, bool f16_scale, float *x, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    bool by_128 = rule == FD_BLOCKS_BY_128 || rule == FD_BLOCKS_BY_128_CLAMPED;
    float step = most / (by_128 ? 128.0f : 127.0f), inverse = step > 0 ? 1 / step : 0;
    float least = rule == FD_BLOCKS_BY_128 ? -128 : -127;
    float scale = f16_scale ? fd_dot_round_f16(step) : step;
    for (int64_t i = 0; i < n; i++) {
        float q = inverse * x[i];
        q = rule == FD_BLOCKS_CUT ? truncf(q) : rule == FD_BLOCKS_DOWN ? floorf(q) : round_away(q);
        q = q < 127 ? q : 127;
        x[i] = scale * (q > least ? q : least);
    }
}

/* As Python's engines do it: divided, ties to even. */
static void round_int8_row(float *x, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    const float step = most / 127.0f;
    for (int64_t i = 0; i < n && step > 0; i++) x[i] = step * rintf(x[i] / step);
}

void fd_dot_round_by(fd_block_rule rule, fd_dot_type type, float *rows, int64_t n_row, int64_t width) {
    int64_t block = rule == FD_BLOCKS_ROW ? width : fd_dot_block(type, width);
    for (int64_t r = 0; r < n_row; r++) {
        float *x = rows + r * width;
        bool finite = true;
        for (int64_t i = 0; i < width; i++) finite &= isfinite(x[i]) != 0;
        for (int64_t at = 0; finite && at < width; at += block)
            round_block(rule, type == FD_DOT_Q8_0, x + at, at + block < width ? block : width - at);
    }
}

float fd_dot_round_f16(float x) {
    float rounded = fd_f16_to_f32(fd_f32_to_f16(x));
    return isfinite(rounded) ? rounded : x;
}

/* Of finite numbers the same as fd_dot_round_f16, without a branch. */
FD_FOR_EACH_CPU
static void round_f16(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float rounded = f32_through_f16(x[i]);
        x[i] = fabsf(rounded) <= FLT_MAX ? rounded : x[i];
    }
}

FD_FOR_EACH_CPU
static void round_bf16(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = bf16_to_f32(f32_to_bf16(x[i]));
}

/* To nearest even of 10 bits; beyond the largest it stays. */
FD_FOR_EACH_CPU
static void round_tf32(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        float rounded;
        memcpy(&bits, &x[i], sizeof bits);
        bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
        memcpy(&rounded, &bits, sizeof rounded);
        x[i] = fabsf(rounded) <= FLT_MAX ? rounded : x[i];
    }
}

/* As tensor cores read binary32: 10 bits, and nothing of the others. */
FD_FOR_EACH_CPU
static void cut_tf32(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= ~0x1fffu;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static void round_bf16_blocks(float *x, int64_t n) {
    const int64_t block = fd_dot_block(FD_DOT_INT8_OF_BF16, n);
    round_bf16(x, n);
    for (int64_t at = 0; at < n; at += block) round_int8_row(x + at, at + block < n ? block : n - at);
}

void fd_dot_round(fd_dot_type type, float *rows, int64_t n_row, int64_t width) {
    if (type == FD_DOT_INT8 || type == FD_DOT_INT8_64 ||
        type == FD_DOT_INT8_128) { /* ties go away from zero, as ggml's do */
        fd_dot_round_by(FD_BLOCKS_NEAREST, type, rows, n_row, width);
        return;
    }
    for (int64_t r = 0; r < n_row; r++) {
        float *x = rows + r * width;
        bool finite = true;
        for (int64_t i = 0; i < width; i++) finite &= isfinite(x[i]) != 0;
        if (!finite && fd_dot_is_blocks(type)) continue;
        if (type == FD_DOT_F16) round_f16(x, width);
        if (type == FD_DOT_BF16) round_bf16(x, width);
        if (type == FD_DOT_TF32) round_tf32(x, width);
        if (type == FD_DOT_TF32_CUT) cut_tf32(x, width);
        if (type == FD_DOT_INT8_ROW) round_int8_row(x, width);
        if (type == FD_DOT_INT8_OF_BF16) round_bf16_blocks(x, width);
        if (type == FD_DOT_Q8_0) round_q8_0(x, width);
        if (type == FD_DOT_Q8_K) round_q8_k(x, width);
    }
}

void fd_dot_round_input(fd_dot_type type, const fd_graph *graph, const fd_node *reader, float *rows, int64_t n_row,
                        int64_t width) {
    bool scaled = reader->op == FD_OP_ATTN_SCORES && fd_graph_scales_query(graph);
    float scale = scaled && reader->scale > 0 ? reader->scale : 1;
    for (int64_t i = 0; i < n_row * width; i++) rows[i] *= scale;
    /* an expert's row is one of several */
    int64_t own = type == FD_DOT_INT8_ROW ? graph->weights[reader->weight[0]].n_col : width;
    fd_dot_round(type, rows, n_row * width / own, own);
    for (int64_t i = 0; i < n_row * width; i++) rows[i] /= scale;
}
