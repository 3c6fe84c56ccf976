#include "tests/compare/plain_device.h"

#include <math.h>
#include <stdlib.h>

#include "model/gguf/quant.h"

static void decode(const fd_product *p, int64_t row, float *w) {
    int64_t bytes = fd_dtype_row_bytes(p->weight->dtype, p->weight->n_col);
    fd_dequantize_row(p->weight->dtype, (const char *)p->weight->data + (p->first_row + row) * bytes, w,
                      p->weight->n_col);
}

static bool takes(void *user, const fd_product *p) {
    const plain_device *plain = user;
    return p->n_row * p->n_pos >= plain->least;
}

static double dot_f64(const float *w, const double *x, int64_t n) {
    double sums[64] = {0};
    for (int64_t k = 0; k < n; k++) {
        double product = (double)w[k] * x[k];
        sums[k % 64] += product;
    }
    for (int m = 64; m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) sums[i] = sums[2 * i] + sums[2 * i + 1];
    return sums[0];
}

static float dot_exact(const float *w, const float *x, int64_t n) {
    float sums[64] = {0};
    for (int64_t k = 0; k < n; k++) sums[k % 64] = fmaf(w[k], x[k], sums[k % 64]);
    for (int m = 64; m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) sums[i] = sums[2 * i] + sums[2 * i + 1];
    return sums[0];
}

static fd_code multiply(void *user, fd_numerics numerics, const fd_product *p, const void *x, void *y, fd_error *err) {
    plain_device *plain = user;
    int64_t n = p->weight->n_col;
    float *w = malloc(sizeof *w * (size_t)n);
    if (!w) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    plain->n_taken++;
    for (int64_t row = 0; row < p->n_row; row++) {
        decode(p, row, w);
        for (int64_t pos = 0; pos < p->n_pos; pos++) {
            int64_t at = pos * p->n_row + row;
            if (numerics == FD_NUMERICS_F64)
                ((double *)y)[at] = dot_f64(w, (const double *)x + pos * n, n) + plain->off_y;
            else
                ((float *)y)[at] = dot_exact(w, (const float *)x + pos * n, n) + (float)plain->off_y;
        }
    }
    free(w);
    return FD_OK;
}

static double total(const double s[8]) {
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

static fd_code weigh(void *user, const fd_product *p, const double *x, const double *v, double *size, double *square,
                     fd_error *err) {
    plain_device *plain = user;
    int64_t n = p->weight->n_col, whole = n - n % 8;
    float *w = malloc(sizeof *w * (size_t)n);
    if (!w) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    plain->n_taken++;
    for (int64_t row = 0; row < p->n_row; row++) {
        decode(p, row, w);
        for (int64_t pos = 0; pos < p->n_pos; pos++) {
            double s[8] = {0}, q[8] = {0};
            for (int64_t k = 0; k < n; k++) {
                double a = fabs((double)w[k]), own = a * x[pos * n + k], of_square = a * a * v[pos * n + k];
                s[k < whole ? k % 8 : 0] += own;
                q[k < whole ? k % 8 : 0] += of_square;
            }
            size[pos * p->n_row + row] = total(s) + plain->off_size;
            square[pos * p->n_row + row] = total(q) + plain->off_square;
        }
    }
    free(w);
    return FD_OK;
}

void plain_device_open(plain_device *plain) {
    *plain = (plain_device){.products = {.takes = takes, .multiply = multiply, .weigh = weigh}};
    plain->products.user = plain;
}
