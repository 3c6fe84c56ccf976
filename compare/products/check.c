#include "compare/products/check.h"

#include <math.h>
#include <string.h>

fd_product fd_check_sample(const fd_product *product, const void *x, int group) {
    fd_product sample = *product;
    uint32_t seed;
    int64_t first = product->n_row * group / FD_CHECK_GROUPS, end = product->n_row * (group + 1) / FD_CHECK_GROUPS;
    memcpy(&seed, x, sizeof seed);
    seed = seed * 2654435761u >> 8; /* Knuth's multiplicative hash */
    sample.n_row = end - first < FD_CHECK_ROWS ? end - first : FD_CHECK_ROWS;
    sample.first_row = product->first_row + first + seed % (end - first - sample.n_row + 1);
    return sample;
}

static double element(const void *elements, size_t real, int64_t i) {
    return real == sizeof(float) ? (double)((const float *)elements)[i] : ((const double *)elements)[i];
}

bool fd_check_any_nan(const void *elements, int64_t n, size_t real) {
    for (int64_t i = 0; i < n; i++)
        if (isnan(element(elements, real, i))) return true;
    return false;
}

fd_code fd_check_rows(const fd_product *product, const fd_product *sample, size_t real, const void *by_device,
                      const void *by_cpu, fd_error *err) {
    for (int64_t pos = 0; pos < product->n_pos; pos++)
        for (int64_t r = 0; r < sample->n_row; r++) {
            int64_t of_device = pos * product->n_row + sample->first_row - product->first_row + r,
                    of_cpu = pos * sample->n_row + r;
            const char *found = (const char *)by_device + (size_t)of_device * real,
                       *expected = (const char *)by_cpu + (size_t)of_cpu * real;
            if (memcmp(found, expected, real) == 0) continue;
            return fd_fail(err, FD_ERR_DEVICE,
                           "weight %s: row %lld times vector %lld is %.17g on the device, %.17g on the CPU: the device "
                           "is faulty, or a kernel of ours is",
                           product->weight->name, (long long)(sample->first_row + r), (long long)pos,
                           element(by_device, real, of_device), element(by_cpu, real, of_cpu));
        }
    return FD_OK;
}
