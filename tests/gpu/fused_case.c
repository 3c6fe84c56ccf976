#include "tests/gpu/fused_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "numerics/contract.h"

const fused_case fused_cases[N_FUSED_CASE] = {
    {3, {96, 33, 7}, 256, true, false, false}, {2, {70, 5}, 768, false, false, false},
    {2, {77, 77}, 512, true, true, false},     {2, {130, 130}, 256, false, true, false},
    {1, {64}, 1024, false, false, true},       {1, {301}, 256, true, false, true},
    {2, {2500, 2500}, 256, true, true, false}, {2, {50, 50}, 1024, true, true, false},
};

void fused_open(gpu_test *test, const fused_case *f, fused_inputs *inputs, fd_matvec *in) {
    static float x[FUSED_MOST], norm_weight[FUSED_MOST];
    const float eps = 1e-5f;
    size_t n_col = (size_t)f->n_col;
    gpu_fill(test, x, n_col);
    gpu_fill(test, norm_weight, n_col);
    gpu_fill(test, inputs->bias, FUSED_MOST);
    gpu_fill(test, inputs->residual, FUSED_MOST);
    memcpy(inputs->x, x, sizeof x);
    if (f->norm) host_norm(x, norm_weight, f->n_col, eps, inputs->x);
    inputs->device_x = gpu_upload(test, x, sizeof *x * n_col);
    inputs->device_norm = gpu_upload(test, norm_weight, sizeof *norm_weight * n_col);
    inputs->device_bias = gpu_upload(test, inputs->bias, sizeof inputs->bias);
    inputs->device_residual = gpu_upload(test, inputs->residual, sizeof inputs->residual);
    *in = (fd_matvec){.x = inputs->device_x, .n_tok = 1, .n_part = f->n_part, .silu_pair = f->silu, .norm_eps = eps};
    in->norm_weight = f->norm ? inputs->device_norm : NULL;
}

void fused_name(char *to, size_t size, const char *prefix, uint32_t dtype, const fused_case *f, int p,
                const char *behind) {
    snprintf(to, size, "%s_%s_%lldx%lld_part_%d_of_%d%s%s%s%s", prefix, fd_dtype_get(dtype)->name,
             (long long)f->n_row[p], (long long)f->n_col, p, f->n_part, f->norm ? "_norm" : "", f->silu ? "_silu" : "",
             f->residual ? "_residual" : "", behind);
}

void *fused_part(gpu_test *test, uint32_t dtype, const fused_case *f, int p, const float *bias, const float *residual,
                 fd_matvec *in, float **dequantised) {
    void *file = gpu_random_weight(test, dtype, f->n_row[p], f->n_col, dequantised);
    in->part[p].weight = gpu_upload_weight(test, dtype, f->n_row[p], f->n_col, file);
    in->part[p].bias = p == 1 ? NULL : bias;
    in->part[p].residual = f->residual ? residual : NULL;
    in->part[p].out = gpu_poisoned(test, (size_t)(in->n_tok * f->n_row[p]));
    return file;
}

void host_norm(const float *x, const float *weight, int64_t n, float eps, float *out) {
    float r = 1.0f / sqrtf(fd_dot(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) out[i] = (x[i] * r) * weight[i];
}
