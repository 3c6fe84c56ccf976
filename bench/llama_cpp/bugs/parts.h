/* What the bugs are made of: the node as ggml computes it, rows, rounding, weights by name. */
#ifndef FD_BENCH_LLAMA_CPP_PARTS_H
#define FD_BENCH_LLAMA_CPP_PARTS_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ggml_tensor fd_tensor;
typedef struct ggml_compute_params fd_params;

static void ggml_compute_forward(struct ggml_compute_params *params, struct ggml_tensor *tensor);

enum { FD_MAX_ROW = 1 << 16, FD_MAX_KEPT = 1 << 20 };

static int64_t fd_n_token, fd_first_position; /* of the forward call that runs */
static int fd_layer;                          /* of the node that runs, or -1 */

static float fd_kept_k[FD_MAX_KEPT]; /* K before RoPE, where a bug keeps it */

/* ---- parts ---- */

/* The node as ggml computes it. `t` is a copy; without a name it is not looked up again. */
static void fd_sound(fd_params *p, fd_tensor *t) {
    t->name[0] = 0;
    ggml_compute_forward(p, t);
    ggml_barrier(p->threadpool);
}

static float *fd_row(const fd_tensor *t, int64_t i1, int64_t i2) {
    return (float *)((char *)t->data + i1 * (int64_t)t->nb[1] + i2 * (int64_t)t->nb[2]);
}

static float fd_f16(float x) {
    return ggml_fp16_to_fp32(ggml_fp32_to_fp16(x));
}

static float fd_bf16(float x) {
    return ggml_bf16_to_fp32(ggml_fp32_to_bf16(x));
}

static float fd_as_is(float x) {
    return x;
}

typedef float (*fd_rounding)(float);
static const fd_rounding fd_roundings[] = {fd_as_is, fd_f16, fd_bf16};

static float fd_param(const fd_tensor *t, int i) {
    float x;
    memcpy(&x, t->op_params + i, sizeof x);
    return x;
}

static void fd_set_param(fd_tensor *t, int i, float x) {
    memcpy(t->op_params + i, &x, sizeof x);
}

/* A weight of the loaded model by its name; NULL: there is none. */
static fd_tensor *fd_weight(int layer, const char *part, const char *kind) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.%s", layer, part, kind);
    return ggml_fd_weight(name, NULL);
}

/* Row r of a matrix of any type, as float. */
static const float *fd_weight_row(const fd_tensor *w, int64_t r) {
    static float row[FD_MAX_ROW];
    const char *data = (const char *)w->data + r * (int64_t)w->nb[1];
    if (w->type == GGML_TYPE_F32)
        memcpy(row, data, (size_t)w->ne[0] * sizeof(float));
    else
        ggml_get_type_traits(w->type)->to_float(data, row, w->ne[0]);
    return row;
}

static void fd_copy_rows(fd_tensor *to, const fd_tensor *from) {
    for (int64_t i2 = 0; i2 < to->ne[2]; i2++)
        for (int64_t i1 = 0; i1 < to->ne[1]; i1++)
            memmove(fd_row(to, i1, i2), fd_row(from, i1, i2), (size_t)to->ne[0] * sizeof(float));
}

static void fd_each(fd_tensor *t, fd_rounding rounded, float factor) {
    for (int64_t i2 = 0; i2 < t->ne[2]; i2++)
        for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
            for (int64_t i = 0; i < t->ne[0]; i++) fd_row(t, i1, i2)[i] = rounded(fd_row(t, i1, i2)[i] * factor);
}

/* ---- anywhere ---- */

static void fd_output_times(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    fd_each(t, fd_as_is, (float)a);
}

static void fd_output_rounded(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    fd_each(t, fd_roundings[(int)a], 1);
}

static void fd_first_input(fd_params *p, fd_tensor *t, double a) {
    (void)p, (void)a;
    fd_copy_rows(t, t->src[0]);
}

static void fd_second_input(fd_params *p, fd_tensor *t, double a) {
    (void)p, (void)a;
    fd_copy_rows(t, t->src[1]);
}

static void fd_nothing(fd_params *p, fd_tensor *t, double a) {
    (void)p, (void)t, (void)a;
}

static void fd_last_rows_zero(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    for (int64_t i1 = t->ne[1] - (int64_t)a < 0 ? 0 : t->ne[1] - (int64_t)a; i1 < t->ne[1]; i1++)
        memset(fd_row(t, i1, 0), 0, (size_t)t->ne[0] * sizeof(float));
}

/* A tile of `a` tokens is computed for all. */
static void fd_rows_modulo(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    for (int64_t i1 = (int64_t)a; i1 < t->ne[1]; i1++)
        memcpy(fd_row(t, i1, 0), fd_row(t, i1 % (int64_t)a, 0), (size_t)t->ne[0] * sizeof(float));
}

static void fd_rows_one_late(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_sound(p, t);
    for (int64_t i1 = t->ne[1] - 1; i1 > 0; i1--)
        memcpy(fd_row(t, i1, 0), fd_row(t, i1 - 1, 0), (size_t)t->ne[0] * sizeof(float));
}

#endif
