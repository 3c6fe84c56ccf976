#include "compare/products/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

fd_code fd_check_sample_make(const fd_product *product, const void *x, fd_check_sample *out, fd_error *err) {
    const fd_weight *whole = product->weight;
    int64_t n = product->n_row < FD_CHECK_ROWS ? product->n_row : FD_CHECK_ROWS;
    size_t bytes = (size_t)fd_dtype_row_bytes(whole->dtype, whole->n_col);
    uint32_t random;
    char *rows = malloc((size_t)n * bytes);
    if (!rows) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", whole->name);
    *out = (fd_check_sample){.weight = *whole};
    memcpy(&random, x, sizeof random);
    for (int64_t i = 0; i < n; i++) {
        int64_t first = product->n_row * i / n, end = product->n_row * (i + 1) / n;
        random = random * 1664525u + 1013904223u; /* Numerical Recipes' generator, whose upper bits are good */
        out->row[i] = first + (random >> 8) % (end - first);
        memcpy(rows + (size_t)i * bytes, (const char *)whole->data + (size_t)(product->first_row + out->row[i]) * bytes,
               bytes);
    }
    out->weight.data = rows;
    out->weight.n_row = n;
    out->weight.bytes = (size_t)n * bytes;
    return FD_OK;
}

void fd_check_sample_free(fd_check_sample *sample) {
    free((void *)sample->weight.data);
}

static double element(const void *elements, size_t real, int64_t i) {
    return real == sizeof(float) ? (double)((const float *)elements)[i] : ((const double *)elements)[i];
}

bool fd_check_any_nan(const void *elements, int64_t n, size_t real) {
    for (int64_t i = 0; i < n; i++)
        if (isnan(element(elements, real, i))) return true;
    return false;
}

fd_code fd_check_rows(const fd_product *product, const fd_check_sample *sample, size_t real, const void *by_device,
                      const void *by_cpu, fd_error *err) {
    int64_t n = sample->weight.n_row;
    for (int64_t i = 0; i < product->n_pos * n; i++) {
        int64_t pos = i / n, row = sample->row[i % n], at = pos * product->n_row + row;
        if (memcmp((const char *)by_device + (size_t)at * real, (const char *)by_cpu + (size_t)i * real, real) == 0)
            continue;
        return fd_fail(err, FD_ERR_DEVICE,
                       "weight %s: row %lld times vector %lld is %.17g on the device, %.17g on the CPU: the device is "
                       "faulty, or a kernel of ours is",
                       product->weight->name, (long long)(product->first_row + row), (long long)pos,
                       element(by_device, real, at), element(by_cpu, real, i));
    }
    return FD_OK;
}
