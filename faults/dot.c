/* Dot products of faulty ops, whose matrices are as large as models': a lane of a vector for each partial sum. */
#include "faults/internal.h"

#include <math.h>

#include "base/clones.h"
#include "model/gguf/float16.h"
#include "numerics/contract.h"

/* Partial sums from this power of two on, n at least, are +0, and so is what the tree makes of them: it adds +0 to the
 * others' sum. Heads are short. */
static inline int partials_of(int64_t n) {
    int m = FD_PARTIALS;
    while (m > 1 && m / 2 >= n) m /= 2;
    return m;
}

FD_FOR_EACH_CPU
float fd_fault_dot(const float *w, const float *x, int64_t n) {
    float a[FD_PARTIALS] = {0};
    int64_t whole = n - n % FD_PARTIALS;
    for (int64_t k = 0; k < whole; k += FD_PARTIALS)
        for (int j = 0; j < FD_PARTIALS; j++) a[j] = fmaf(w[k + j], x[k + j], a[j]);
    for (int64_t k = whole; k < n; k++) a[k - whole] = fmaf(w[k], x[k], a[k - whole]);
    for (int m = partials_of(n); m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) a[i] = a[2 * i] + a[2 * i + 1];
    return a[0] + 0.0f;
}

FD_FOR_EACH_CPU
float fd_fault_dot_f16(const float *w, const float *x, int64_t n) {
    float a[FD_PARTIALS] = {0};
    int64_t whole = n - n % FD_PARTIALS;
    for (int64_t k = 0; k < whole; k += FD_PARTIALS)
        for (int j = 0; j < FD_PARTIALS; j++) a[j] = f32_through_f16(fmaf(w[k + j], x[k + j], a[j]));
    for (int64_t k = whole; k < n; k++) a[k - whole] = f32_through_f16(fmaf(w[k], x[k], a[k - whole]));
    for (int m = partials_of(n); m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) a[i] = f32_through_f16(a[2 * i] + a[2 * i + 1]);
    return a[0] + 0.0f;
}
