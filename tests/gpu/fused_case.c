#include "tests/gpu/fused_case.h"

#include <math.h>
#include <stdio.h>

#include "base/dtype.h"
#include "numerics/contract.h"

void fused_name(char *to, size_t size, const char *prefix, uint32_t dtype, const fused_case *f, int p,
                const char *behind) {
    snprintf(to, size, "%s_%s_%lldx%lld_part_%d_of_%d%s%s%s%s", prefix, fd_dtype_get(dtype)->name,
             (long long)f->n_row[p], (long long)f->n_col, p, f->n_part, f->norm ? "_norm" : "", f->silu ? "_silu" : "",
             f->residual ? "_residual" : "", behind);
}

void *fused_part(gpu_test *test, uint32_t dtype, const fused_case *f, int p, const float *bias, const float *residual,
                 fd_matvec *in, float **dequantised) {
    void *file = gpu_random_weight(test, dtype, f->n_row[p], f->n_col, dequantised);
    in->part[p].weight = gpu_upload_weight(dtype, f->n_row[p], f->n_col, file);
    in->part[p].bias = p == 1 ? NULL : bias;
    in->part[p].residual = f->residual ? residual : NULL;
    in->part[p].out = gpu_poisoned((size_t)(in->n_tok * f->n_row[p]));
    return file;
}

void fused_free(const fd_matvec *in) {
    for (int p = 0; p < in->n_part; p++) gpu_free(in->part[p].weight.data), gpu_free(in->part[p].out);
}

void host_norm(const float *x, const float *weight, int64_t n, float eps, float *out) {
    float r = 1.0f / sqrtf(fd_dot(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) out[i] = (x[i] * r) * weight[i];
}
