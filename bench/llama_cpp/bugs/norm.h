/* Embedding and norms done wrong. */
#ifndef FD_BENCH_LLAMA_CPP_NORM_H
#define FD_BENCH_LLAMA_CPP_NORM_H

#include "parts.h"

/* ---- embedding ---- */

static void fd_token_plus(fd_params *p, fd_tensor *t, double a) {
    fd_tensor ids = *t->src[1];
    int32_t other[4096];
    for (int64_t i = 0; i < ids.ne[0]; i++) other[i] = ((const int32_t *)ids.data)[i] + (int32_t)a;
    ids.data = other, t->src[1] = &ids;
    fd_sound(p, t);
}

static void fd_token_as_byte(fd_params *p, fd_tensor *t, double a) {
    fd_tensor ids = *t->src[1];
    int32_t other[4096];
    for (int64_t i = 0; i < ids.ne[0]; i++) other[i] = ((const int32_t *)ids.data)[i] % (int32_t)a;
    ids.data = other, t->src[1] = &ids;
    fd_sound(p, t);
}

static void fd_embedding_scaled(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_output_times(p, t, sqrt((double)t->ne[0]));
}

static void fd_bos_zero(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    for (int64_t i = 0; i < t->ne[1]; i++)
        if (((const int32_t *)t->src[1]->data)[i] == (int32_t)a)
            memset(fd_row(t, i, 0), 0, (size_t)t->ne[0] * sizeof(float));
}

static void fd_embedding_half(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_sound(p, t);
    for (int64_t i = 0; i < t->ne[1]; i++)
        memset(fd_row(t, i, 0) + t->ne[0] / 2, 0, (size_t)t->ne[0] / 2 * sizeof(float));
}

/* ---- norms ---- */

static void fd_eps(fd_params *p, fd_tensor *t, double a) {
    fd_set_param(t, 0, (float)a);
    fd_sound(p, t);
}

typedef struct {
    bool outside, less_one, centred, no_root, half, sum;
    int square; /* how squares and their sum are rounded */
    int result; /* how the result is */
} fd_norm_kind;
static const fd_norm_kind fd_norms[] = {
    {.outside = true}, {.less_one = true}, {.centred = true}, {.no_root = true}, {.half = true},
    {.square = 1},     {.result = 1},      {.result = 2},     {.sum = true},
};

static void fd_norm(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    fd_norm_kind k = fd_norms[(int)a];
    float eps = fd_param(t, 0);
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
        const float *x = fd_row(t->src[0], i1, 0);
        float *y = fd_row(t, i1, 0);
        int64_t n = t->ne[0], used = k.half ? n / 2 : n;
        float sum = 0, mean = 0;
        for (int64_t i = 0; k.centred && i < n; i++) mean += x[i] / (float)n;
        for (int64_t i = 0; i < used; i++) {
            float d = x[i] - mean;
            sum = fd_roundings[k.square](sum + fd_roundings[k.square](d * d));
        }
        float m = sum / (float)(k.sum ? 1 : k.less_one ? used - 1 : used);
        float scale = k.outside ? 1 / (sqrtf(m) + eps) : k.no_root ? 1 / (m + eps) : 1 / sqrtf(m + eps);
        for (int64_t i = 0; i < n; i++) y[i] = fd_roundings[k.result]((x[i] - mean) * scale);
    }
}

/* By which number a row is divided: 0: each half by its own root mean square; 1: the mean of |x|; 2: the largest |x|; 3: that of the call's first
 * row; 4: a rough reciprocal root, one Newton step from bits. */
static float fd_rough_rsqrt(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = 0x5f3759df - (bits >> 1);
    float y;
    memcpy(&y, &bits, sizeof y);
    return y * (1.5f - 0.5f * x * y * y);
}

static float fd_divisor(const float *x, int64_t n, int kind, float eps) {
    float sum = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += kind == 1 ? fabsf(x[i]) : x[i] * x[i];
        most = fmaxf(most, fabsf(x[i]));
    }
    float mean = sum / (float)n;
    return kind == 1   ? mean + eps
           : kind == 2 ? most + eps
           : kind == 4 ? 1 / fd_rough_rsqrt(mean + eps)
                       : sqrtf(mean + eps);
}

static void fd_norm_by(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    int kind = (int)a;
    float eps = fd_param(t, 0);
    int64_t n = t->ne[0], part = kind == 0 ? n / 2 : n;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t from = 0; from < n; from += part) {
            const float *x = fd_row(t->src[0], i1, 0) + from;
            float by = 1 / fd_divisor(kind == 3 ? fd_row(t->src[0], 0, 0) : x, part, kind, eps);
            for (int64_t i = 0; i < part; i++) fd_row(t, i1, 0)[from + i] = x[i] * by;
        }
}

static void fd_norm_weight_twice(fd_params *p, fd_tensor *t, double a) {
    (void)p, (void)a;
    const float *w = t->src[1]->data;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++) fd_row(t, i1, 0)[i] = fd_row(t->src[0], i1, 0)[i] * w[i] * w[i];
}

static void fd_norm_plus_one(fd_params *p, fd_tensor *t, double a) {
    (void)p, (void)a;
    const float *w = t->src[1]->data;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++) fd_row(t, i1, 0)[i] = fd_row(t->src[0], i1, 0)[i] * (1 + w[i]);
}

static void fd_norm_weight_rounded(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    const float *w = t->src[1]->data;
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++)
            fd_row(t, i1, 0)[i] = fd_row(t->src[0], i1, 0)[i] * fd_roundings[(int)a](w[i]);
}

static void fd_norm_weight_shifted(fd_params *p, fd_tensor *t, double a) {
    (void)p, (void)a;
    const float *w = t->src[1]->data;
    int64_t n = t->ne[0];
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < n; i++) fd_row(t, i1, 0)[i] = fd_row(t->src[0], i1, 0)[i] * w[(i + 1) % n];
}

#endif
