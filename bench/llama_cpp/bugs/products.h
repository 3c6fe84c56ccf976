/* Products done wrong, and weights of elsewhere. */
#ifndef FD_BENCH_LLAMA_CPP_PRODUCTS_H
#define FD_BENCH_LLAMA_CPP_PRODUCTS_H

#include "parts.h"

/* ---- weights of elsewhere ---- */

static void fd_with_weight(fd_params *p, fd_tensor *t, int at, fd_tensor *w) {
    if (w) t->src[at] = w;
    fd_sound(p, t);
}

static void fd_norm_of_ffn(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_with_weight(p, t, 1, fd_weight(fd_layer, "ffn_norm", "weight"));
}
static void fd_norm_of_next_layer(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_tensor *w = fd_weight(fd_layer + 1, "attn_norm", "weight");
    fd_with_weight(p, t, 1, w ? w : fd_weight(0, "attn_norm", "weight"));
}
static void fd_q_of_layer_3(fd_params *p, fd_tensor *t, double a) {
    fd_with_weight(p, t, 0, fd_weight((int)a, "attn_q", "weight"));
}
static void fd_down_of_layer_before(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_with_weight(p, t, 0, fd_weight(fd_layer > 0 ? fd_layer - 1 : 0, "ffn_down", "weight"));
}
static void fd_k_for_v(fd_params *p, fd_tensor *t, double a) {
    fd_with_weight(p, t, 0, fd_weight(fd_layer, a > 0 ? "attn_v" : "attn_k", "weight"));
}
static void fd_gate_for_up(fd_params *p, fd_tensor *t, double a) {
    fd_with_weight(p, t, 0, fd_weight(fd_layer, a > 0 ? "ffn_up" : "ffn_gate", "weight"));
}
static void fd_output_for_q(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_with_weight(p, t, 0, fd_weight(fd_layer, "attn_output", "weight"));
}
static void fd_bias_of_layer_before(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_with_weight(p, t, 1, fd_weight(fd_layer > 0 ? fd_layer - 1 : 0, "attn_k", "bias"));
}

/* ---- products ---- */

/* Only the first columns take part: the last -a, or the fraction a. */
static void fd_columns(fd_params *p, fd_tensor *t, double a) {
    fd_tensor w = *t->src[0], x = *t->src[1];
    int64_t n = a < 0 ? w.ne[0] + (int64_t)a : (int64_t)((double)w.ne[0] * a) / 32 * 32;
    w.ne[0] = x.ne[0] = n;
    t->src[0] = &w, t->src[1] = &x;
    fd_sound(p, t);
}

static void fd_last_outputs(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        memset(fd_row(t, i1, 0) + t->ne[0] - (int64_t)a, 0, (size_t)a * sizeof(float));
}

static void fd_outputs_shifted(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    int64_t n = t->ne[0], by = (int64_t)a;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
        float *y = fd_row(t, i1, 0);
        if (by > 0) memmove(y, y + by, (size_t)(n - by) * sizeof(float));
        if (by < 0) memmove(y - by, y, (size_t)(n + by) * sizeof(float));
    }
}

/* Activations as another engine's blocks of int8. */
static void fd_int8(const float *x, float *y, int64_t n, int kind) {
    float step = 0;
    for (int64_t b = 0; b < n; b += 32) {
        float most = 0;
        for (int64_t i = b; i < b + 32; i++) most = fmaxf(most, fabsf(x[i]));
        if (kind != 2 || b == 0) step = most / (kind == 1 ? 128.0f : 127.0f);
        for (int64_t i = b; i < b + 32; i++) {
            float q = step > 0 ? x[i] / step : 0;
            q = kind == 0 ? truncf(q) : fminf(fmaxf(rintf(q), kind == 2 ? -128 : -127), 127);
            y[i] = q * (kind == 3 ? fd_bf16(step) : fd_f16(step));
        }
    }
}

/* A plain product: factors as `a` says (0 to 3: fd_int8; 10: as the engine's, sums in f16; 11: factors in bf16; 12: W transposed; 13: sums from the
 * last column on, which is no bug). */
static void fd_product(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    static float x[FD_MAX_ROW];
    const fd_tensor *w = t->src[0];
    int kind = (int)a;
    int64_t n = w->ne[0], rows = w->ne[1];
    bool blocks = w->type == GGML_TYPE_Q8_0;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
        const float *from = fd_row(t->src[1], i1, 0);
        float *y = fd_row(t, i1, 0);
        if (kind < 10)
            fd_int8(from, x, n, kind);
        else if (blocks)
            fd_int8(from, x, n, 4);
        else
            for (int64_t i = 0; i < n; i++) x[i] = kind == 11 ? fd_bf16(from[i]) : fd_f16(from[i]);
        if (kind == 12) {
            memset(y, 0, (size_t)rows * sizeof(float));
            for (int64_t r = 0; r < n; r++) {
                const float *row = fd_weight_row(w, r);
                for (int64_t j = 0; j < rows; j++) y[j] += row[j] * x[r];
            }
            continue;
        }
        for (int64_t r = 0; r < rows; r++) {
            const float *row = fd_weight_row(w, r);
            float sum = 0;
            int64_t each = kind == 10 && !blocks ? 1 : 32;
            for (int64_t at = 0; at < n; at += each) {
                int64_t b = kind == 13 ? n - each - at : at;
                float part = 0;
                for (int64_t i = b; i < b + each; i++) part += row[i] * x[i];
                sum = kind == 10 ? fd_f16(sum + part) : sum + part;
            }
            y[r] = sum;
        }
    }
}

/* Some elements of one row of the matrix are others. */
static void fd_damaged(fd_params *p, fd_tensor *t, double a) {
    int kind = (int)a;
    const fd_tensor *w = t->src[0], *x = t->src[1];
    fd_sound(p, t);
    int64_t n = w->ne[0], r = 17;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
        const float *row = fd_weight_row(w, kind == 1 ? r + 1 : r), *from = fd_row(x, i1, 0);
        float *y = fd_row(t, i1, 0);
        if (kind == 0) y[r] = 0;
        for (int64_t i = 0; kind == 0 && i < n; i++) y[r] += 0.7f * row[n - 1 - i] * from[i]; /* reversed and smaller */
        for (int64_t i = 0; kind == 2 && i < 32; i++) y[r] += 0.5f * row[i] * from[i];        /* a block's scale */
        if (kind == 1) y[r] = y[r + 1];                                                       /* the next row */
        if (kind == 3) y[r] = 0;
    }
}

/* Rows of a batch are read at half their distance. */
static void fd_stride_halved(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_tensor x = *t->src[1];
    x.nb[1] /= 2;
    t->src[1] = &x;
    fd_sound(p, t);
}

/* The outputs: 0: tiles of 32 exchanged in pairs; 1: the second tile of 32 is the first; 2: clamped to -1 … 1; 3: the odd ones negated. */
static void fd_outputs_as(fd_params *p, fd_tensor *t, double a) {
    static float kept[FD_MAX_ROW];
    fd_sound(p, t);
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
        float *y = fd_row(t, i1, 0);
        memcpy(kept, y, (size_t)t->ne[0] * sizeof(float));
        for (int64_t i = 0; i < t->ne[0]; i++) {
            if (a == 0) y[i] = kept[(i ^ 32) < t->ne[0] ? i ^ 32 : i];
            if (a == 1 && i >= 32 && i < 64) y[i] = kept[i - 32];
            if (a == 2) y[i] = fmaxf(fminf(y[i], 1), -1);
            if (a == 3 && i % 2) y[i] = -y[i];
        }
    }
}

/* The activations: 0: columns of a block of 32 as nibbles lie, 0, 16, 1, 17, …; 1: the call's first row for all; 2: the last 32 columns count twice;
 * 3: halves exchanged; 4: clamped to -1 … 1; 5: those of the row before. */
static void fd_inputs_as(fd_params *p, fd_tensor *t, double a) {
    static float other[FD_MAX_KEPT];
    int kind = (int)a;
    fd_tensor x = *t->src[1];
    int64_t n = x.ne[0];
    for (int64_t i1 = 0; i1 < x.ne[1]; i1++) {
        const float *from = fd_row(t->src[1], kind == 1 ? 0 : kind == 5 && i1 > 0 ? i1 - 1 : i1, 0);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = kind == 0 ? i / 32 * 32 + i % 2 * 16 + i % 32 / 2 : kind == 3 ? (i + n / 2) % n : i;
            float v = from[at] * (kind == 2 && i >= n - 32 ? 2 : 1);
            other[i1 * n + i] = kind == 4 ? fmaxf(fminf(v, 1), -1) : v;
        }
    }
    x.data = other, x.nb[1] = (size_t)n * sizeof(float), t->src[1] = &x;
    fd_sound(p, t);
}

static void fd_added_twice(fd_params *p, fd_tensor *t, double a) {
    (void)p, (void)a;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
        const float *b = fd_row(t->src[1], t->src[1]->ne[1] == 1 ? 0 : i1, 0);
        for (int64_t i = 0; i < t->ne[0]; i++) fd_row(t, i1, 0)[i] = fd_row(t->src[0], i1, 0)[i] + b[i] + b[i];
    }
}

static void fd_half_bias(fd_params *p, fd_tensor *t, double a) {
    (void)p, (void)a;
    const float *b = t->src[1]->data;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++)
            fd_row(t, i1, 0)[i] = fd_row(t->src[0], i1, 0)[i] + (i < t->ne[0] / 2 ? b[i] : 0);
}

#endif
