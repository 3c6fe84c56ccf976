/* RoPE done wrong. */
#ifndef FD_BENCH_LLAMA_CPP_ROPE_H
#define FD_BENCH_LLAMA_CPP_ROPE_H

#include "parts.h"

/* ---- RoPE; op_params: 1 dims, 2 mode, 5 base, 6 frequency scale, 8 attention factor ---- */

static void fd_rope_base(fd_params *p, fd_tensor *t, double a) {
    fd_set_param(t, 5, a > 0 ? (float)a : fd_param(t, 5) == 10000 ? 1e6f : 10000);
    fd_sound(p, t);
}

static void fd_rope_dims(fd_params *p, fd_tensor *t, double a) {
    t->op_params[1] = (int32_t)(t->op_params[1] * a);
    fd_sound(p, t);
}

static void fd_rope_pairing(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    t->op_params[2] ^= GGML_ROPE_TYPE_NEOX;
    fd_sound(p, t);
}

static void fd_rope_frequency_scale(fd_params *p, fd_tensor *t, double a) {
    fd_set_param(t, 6, (float)a);
    fd_sound(p, t);
}

static void fd_rope_attention_factor(fd_params *p, fd_tensor *t, double a) {
    fd_set_param(t, 8, (float)a);
    fd_sound(p, t);
}

static int32_t fd_plus(int32_t pos, int32_t a) {
    return pos + a;
}
static int32_t fd_modulo(int32_t pos, int32_t a) {
    return pos % a;
}
static int32_t fd_reversed(int32_t pos, int32_t a) {
    return a - pos;
}
static int32_t fd_constant(int32_t pos, int32_t a) {
    return (void)pos, a;
}
static int32_t fd_from_zero(int32_t pos, int32_t a) {
    return (void)a, pos - (int32_t)fd_first_position;
}
static int32_t fd_batch_start(int32_t pos, int32_t a) {
    return (void)pos, (void)a, (int32_t)fd_first_position;
}
static int32_t fd_times(int32_t pos, int32_t a) {
    return pos * a;
}

static void fd_positions(fd_params *p, fd_tensor *t, int32_t (*of)(int32_t, int32_t), int32_t a) {
    fd_tensor pos = *t->src[1];
    int32_t other[4096];
    for (int64_t i = 0; i < pos.ne[0]; i++) other[i] = of(((const int32_t *)pos.data)[i], a);
    pos.data = other, t->src[1] = &pos;
    fd_sound(p, t);
}

static void fd_pos_plus(fd_params *p, fd_tensor *t, double a) {
    fd_positions(p, t, fd_plus, (int32_t)a);
}
static void fd_pos_modulo(fd_params *p, fd_tensor *t, double a) {
    fd_positions(p, t, fd_modulo, (int32_t)a);
}
static void fd_pos_reversed(fd_params *p, fd_tensor *t, double a) {
    fd_positions(p, t, fd_reversed, (int32_t)a);
}
static void fd_pos_constant(fd_params *p, fd_tensor *t, double a) {
    fd_positions(p, t, fd_constant, (int32_t)a);
}
static void fd_pos_from_zero(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_positions(p, t, fd_from_zero, 0);
}
static void fd_pos_batch_start(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_positions(p, t, fd_batch_start, 0);
}
static void fd_pos_times(fd_params *p, fd_tensor *t, double a) {
    fd_positions(p, t, fd_times, (int32_t)a);
}

static void fd_rope_twice(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_tensor again = *t;
    fd_sound(p, t);
    again.src[0] = t;
    fd_sound(p, &again);
}

/* Turns pair i of a head by the angle of c and s; negated: to x0 s - x1 c. */
static void fd_turn(fd_tensor *t, int64_t h, int64_t i2, int64_t i, float c, float s, bool negated) {
    bool halves = t->op_params[2] & GGML_ROPE_TYPE_NEOX;
    int64_t at = halves ? i : 2 * i, to = halves ? i + t->op_params[1] / 2 : 2 * i + 1;
    const float *x = fd_row(t->src[0], h, i2);
    float x0 = x[at], x1 = x[to];
    fd_row(t, h, i2)[at] = x0 * c - x1 * s;
    fd_row(t, h, i2)[to] = negated ? x0 * s - x1 * c : x0 * s + x1 * c;
}

/* 0: cos and sin rounded to f16; 1: to bf16; 2: the angle rounded to f16; 3: the exponent i/d for 2i/d; 4: half of a head's dims from its end. */
static void fd_rope(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    int kind = (int)a;
    const int32_t *pos = t->src[1]->data;
    int64_t d = t->op_params[1];
    float base = fd_param(t, 5);
    for (int64_t i2 = 0; i2 < t->ne[2]; i2++)
        for (int64_t h = 0; h < t->ne[1]; h++)
            for (int64_t i = 0; i < d / 2; i++) {
                float angle = (float)pos[i2] * powf(base, -(float)(kind == 3 ? 1 : 2) * (float)i / (float)d);
                if (kind == 2) angle = fd_f16(angle);
                float c = cosf(angle), s = sinf(angle);
                if (kind < 2) c = fd_roundings[kind + 1](c), s = fd_roundings[kind + 1](s);
                fd_turn(t, h, i2, i, c, s, false);
            }
}

/* Which pair turns by which angle: 0: cos and sin exchanged; 1: frequencies in reverse; 2: head 0 alone; 3: the first pair is left out; 4: heads of the
 * second half one position further; 5: Llama 3's long waves, an eighth of the frequency beyond 64 positions; 6: the second of a pair is negated
 * twice; 7: integer division, position / 2. */
static void fd_rope_as(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    int kind = (int)a;
    const int32_t *pos = t->src[1]->data;
    int64_t d = t->op_params[1];
    float base = fd_param(t, 5);
    for (int64_t i2 = 0; i2 < t->ne[2]; i2++)
        for (int64_t h = 0; h < t->ne[1]; h++)
            for (int64_t i = 0; i < d / 2; i++) {
                float frequency = powf(base, -2 * (float)(kind == 1 ? d / 2 - 1 - i : i) / (float)d);
                if (kind == 5 && 6.2831853f / frequency > 64) frequency /= 8;
                int32_t at_pos = kind == 4 && h >= t->ne[1] / 2 ? pos[i2] + 1 : kind == 7 ? pos[i2] / 2 : pos[i2];
                float angle = (float)at_pos * frequency;
                if ((kind == 2 && h > 0) || (kind == 3 && i == 0)) angle = 0;
                float c = cosf(angle), s = sinf(angle);
                if (kind == 0) c = sinf(angle), s = cosf(angle);
                fd_turn(t, h, i2, i, c, s, kind == 6);
            }
}

static void fd_keep_k(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    memcpy(fd_kept_k, t->src[0]->data, (size_t)ggml_nelements(t) * sizeof(float));
    fd_sound(p, t);
}

#endif
