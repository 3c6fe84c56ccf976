/* The FFN and the residual stream done wrong. */
#ifndef FD_BENCH_LLAMA_CPP_FFN_H
#define FD_BENCH_LLAMA_CPP_FFN_H

#include "parts.h"

/* ---- FFN; op_params: 0 which activation, 1 gate and up exchanged ---- */

static void fd_glu(fd_params *p, fd_tensor *t, double a) {
    t->op_params[0] = (int32_t)a;
    fd_sound(p, t);
}

static void fd_glu_exchanged(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_tensor *gate = t->src[0];
    t->src[0] = t->src[1], t->src[1] = gate;
    fd_sound(p, t);
}

static float fd_silu(float x) {
    return x / (1 + expf(-x));
}
static float fd_sigmoid_only(float g, float u) {
    return u / (1 + expf(-g));
}
static float fd_up_missing(float g, float u) {
    return (void)u, fd_silu(g);
}
static float fd_gate_missing(float g, float u) {
    return (void)g, u;
}
static float fd_no_activation(float g, float u) {
    return g * u;
}
static float fd_up_plus_one(float g, float u) {
    return fd_silu(g) * (u + 1);
}
static float fd_silu_f16(float g, float u) {
    return fd_f16(fd_silu(fd_f16(g))) * u;
}
static float fd_silu_bf16(float g, float u) {
    return fd_bf16(fd_silu(g)) * u;
}
static float fd_silu_clamped(float g, float u) {
    return fd_silu(fminf(g, 1)) * fmaxf(fminf(u, 1), -1);
}
static float fd_silu_of_product(float g, float u) {
    return fd_silu(g * u);
}
static float fd_silu_sum(float g, float u) {
    return fd_silu(g) + u;
}
static float fd_relu_squared(float g, float u) {
    return g > 0 ? g * g * u : 0;
}
static float fd_hard_swish(float g, float u) {
    return g * fmaxf(fminf(g / 6 + 0.5f, 1), 0) * u;
}
static float fd_silu_of_negative(float g, float u) {
    return -fd_silu(-g) * u;
}
static float fd_silu_twice(float g, float u) {
    return fd_silu(fd_silu(g)) * u;
}
static float fd_tanh_gate(float g, float u) {
    return tanhf(g) * u;
}
static float fd_silu_both(float g, float u) {
    return fd_silu(g) * fd_silu(u);
}
static float fd_no_negative(float g, float u) {
    return fmaxf(fd_silu(g), -0.1f) * u;
}
static float (*const fd_activations[])(float, float) = {
    fd_sigmoid_only,     fd_up_missing,      fd_no_activation, fd_up_plus_one,  fd_silu_f16,     fd_silu_bf16,
    fd_silu_clamped,     fd_silu_of_product, fd_silu_sum,      fd_gate_missing, fd_relu_squared, fd_hard_swish,
    fd_silu_of_negative, fd_silu_twice,      fd_tanh_gate,     fd_silu_both,    fd_no_negative};

static void fd_activate(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++)
            fd_row(t, i1, 0)[i] = fd_activations[(int)a](fd_row(t->src[0], i1, 0)[i], fd_row(t->src[1], i1, 0)[i]);
}

/* Gate and up lie in turn, one of each, and are read as two halves; or the other way about (a > 0). */
static void fd_gate_up_in_turn(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    static float both[2 * FD_MAX_ROW];
    int64_t n = t->ne[0];
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
        const float *g = fd_row(t->src[0], i1, 0), *u = fd_row(t->src[1], i1, 0);
        for (int64_t i = 0; i < n; i++)
            if (a > 0)
                both[2 * i] = g[i], both[2 * i + 1] = u[i];
            else
                both[i] = g[i], both[n + i] = u[i];
        for (int64_t i = 0; i < n; i++)
            fd_row(t, i1, 0)[i] = a > 0 ? fd_silu(both[i]) * both[n + i] : fd_silu(both[2 * i]) * both[2 * i + 1];
    }
}

/* ---- residual stream; ffn_inp: branch + stream, l_out: branch + stream ---- */

static void fd_sum_of(fd_tensor *t, float a, float b) {
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++)
            fd_row(t, i1, 0)[i] = a * fd_row(t->src[0], i1, 0)[i] + b * fd_row(t->src[1], i1, 0)[i];
}
static void fd_branch_times(fd_params *p, fd_tensor *t, double a) {
    (void)p, fd_sum_of(t, (float)a, 1);
}
static void fd_stream_times(fd_params *p, fd_tensor *t, double a) {
    (void)p, fd_sum_of(t, 1, (float)a);
}

static float fd_kept_normed[FD_MAX_KEPT];

static void fd_keep_normed(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_sound(p, t);
    memcpy(fd_kept_normed, t->data, ggml_nbytes(t));
}

static void fd_stream_normed(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_tensor stream = *t->src[1];
    stream.data = fd_kept_normed, t->src[1] = &stream;
    fd_sound(p, t);
}

static float fd_kept_input[FD_MAX_KEPT];

static void fd_keep_input(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    memcpy(fd_kept_input, t->src[0]->data, ggml_nbytes(t));
    fd_sound(p, t);
}

/* The FFN is added to the layer's input. */
static void fd_stream_of_input(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_tensor stream = *t->src[1];
    stream.data = fd_kept_input, t->src[1] = &stream;
    fd_sound(p, t);
}

static void fd_sum_times(fd_params *p, fd_tensor *t, double a) {
    (void)p, fd_sum_of(t, (float)a, (float)a);
}

static void fd_sum_clamped(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++)
            fd_row(t, i1, 0)[i] = fmaxf(fminf(fd_row(t, i1, 0)[i], (float)a), -(float)a);
}

static void fd_softcapped(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++) fd_row(t, i1, 0)[i] = (float)a * tanhf(fd_row(t, i1, 0)[i] / (float)a);
}

#endif
