#include "compare/replay/cuda_blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "model/gguf/float16.h"
#include "model/gguf/quant.h"

/* What the two kernels do beside a type. `block`: activations that share a scale, 0: the kernel has nothing of its own. `group`: weights
 * that share one, and activations that are summed. */
typedef struct kernel {
    int block, group;
    bool half_weights;  /* s and m are rounded to binary16, */
    bool half_products; /* or what s and m are multiplied with is */
    int summed;         /* in each 128 so many are summed as they are, the others once they are int8 */
} kernel;

static const struct {
    uint32_t dtype;
    kernel few, many;
} kernels[] = {
    {FD_Q4_0, {.block = 32, .group = 32, .summed = 128}, {0}},
    {FD_Q5_0, {.block = 32, .group = 32, .summed = 128}, {0}},
    {FD_Q4_1,
     {.block = 32, .group = 32, .half_products = true, .summed = 128},
     {.block = 32, .group = 32, .summed = 128}},
    {FD_Q5_1,
     {.block = 32, .group = 32, .half_products = true, .summed = 128},
     {.block = 32, .group = 32, .summed = 128}},
    {FD_Q2_K, {0}, {.block = 64, .group = 16, .half_weights = true, .summed = 96}},
    {FD_Q4_K, {0}, {.block = 32, .group = 32, .half_weights = true, .summed = 128}},
    {FD_Q5_K, {0}, {.block = 32, .group = 32, .half_weights = true, .summed = 128}},
};
enum {
    N_KERNEL = sizeof kernels / sizeof *kernels,
    LARGEST_BLOCK = sizeof(fd_block_q5_K),
    MOST_ELEMENTS = 256,
    WARP = 32
};

static const kernel *kernel_of(uint32_t dtype, bool many) {
    for (int i = 0; i < N_KERNEL; i++) {
        const kernel *own = many ? &kernels[i].many : &kernels[i].few;
        if (kernels[i].dtype == dtype && own->block) return own;
    }
    return NULL;
}

int fd_cuda_blocks_of(uint32_t dtype, bool many) {
    const kernel *k = kernel_of(dtype, many);
    return k ? k->block : 0;
}

/* ---- activations ---- */

/* Rows as the kernels quantise them: codes [n], a scale for each block, what the minima meet for each group. */
typedef struct activations {
    int16_t *codes;
    double *scale, *sum;
} activations;

static double to_half(double x) {
    return (double)f32_through_f16((float)x);
}

/* The kernel of few rows divides by the scale, that of many multiplies by its inverse. */
static float step_of(const float *x, int n, bool many, float *times) {
    float most = 0;
    for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    *times = 127.0f / most;
    return many ? 1.0f / *times : most / 127.0f;
}

/* Of n elements, in the order of the kernels' threads, for the sum is rounded to binary16 and may lie near the middle between two: each
 * has one, or four where rows are many, and adds what its neighbours have at half the distance each time. */
static float sum_of(const float *x, int n, bool many) {
    float of_threads[WARP];
    const int each = many ? 4 : 1;
    int n_thread = n / each;
    for (int t = 0; t < n_thread; t++) {
        of_threads[t] = x[t * each];
        for (int i = 1; i < each; i++) of_threads[t] += x[t * each + i];
    }
    for (n_thread /= 2; n_thread > 0; n_thread /= 2)
        for (int t = 0; t < n_thread; t++) of_threads[t] += of_threads[t + n_thread];
    return of_threads[0];
}

static void quantise(const kernel *k, bool many, const double *row, int64_t n, activations *to) {
    float x[MOST_ELEMENTS];
    for (int64_t at = 0; at < n; at += k->block) {
        for (int i = 0; i < k->block; i++) x[i] = (float)row[at + i];
        float times, step = step_of(x, k->block, many, &times);
        for (int i = 0; i < k->block; i++) {
            const float q = roundf(many ? x[i] * times : x[i] / step);
            to->codes[at + i] = (int16_t)(fabsf(q) <= 127 ? q : 0); /* a block of zeros */
        }
        const double scale = to->scale[at / k->block] = step > 0 && isfinite(step) ? to_half((double)step) : 0;
        for (int first = 0; first < k->block; first += k->group) {
            const float sum = sum_of(x + first, k->group, many);
            int codes = 0;
            for (int i = first; i < first + k->group; i++) codes += to->codes[at + i];
            const bool as_is = (at + first) % 128 < k->summed;
            to->sum[(at + first) / k->group] = as_is ? to_half((double)sum) : scale * codes;
        }
    }
}

/* ---- weights ---- */

/* A block whose codes are all 0, or all 1 and its minimum 0: what is decoded of it are its minima, or its scales. */
static void set_codes(uint32_t dtype, char *block, bool ones) {
#define SET(type, low)                                                                                                 \
    { memset(((fd_block_##type *)block)->qs, ones ? (low) : 0, sizeof((fd_block_##type *)block)->qs); }                \
    break
#define NO_HIGH_BITS(type) memset(((fd_block_##type *)block)->qh, 0, sizeof((fd_block_##type *)block)->qh)
#define NO_MINIMUM(type, field)                                                                                        \
    if (ones) ((fd_block_##type *)block)->field = 0
    switch (dtype) {
    case FD_Q4_0: SET(q4_0, 0x11);
    case FD_Q4_1: NO_MINIMUM(q4_1, m); SET(q4_1, 0x11);
    case FD_Q5_0: NO_HIGH_BITS(q5_0); SET(q5_0, 0x11);
    case FD_Q5_1:
        NO_HIGH_BITS(q5_1);
        NO_MINIMUM(q5_1, m);
        SET(q5_1, 0x11);
    case FD_Q2_K: NO_MINIMUM(q2_K, dmin); SET(q2_K, 0x55);
    case FD_Q4_K: NO_MINIMUM(q4_K, dmin); SET(q4_K, 0x11);
    case FD_Q5_K:
        NO_HIGH_BITS(q5_K);
        NO_MINIMUM(q5_K, dmin);
        SET(q5_K, 0x11);
    default: break;
    }
#undef SET
#undef NO_HIGH_BITS
#undef NO_MINIMUM
}

/* A row taken apart: w = scale·code + minimum, with a scale and a minimum for each group. */
typedef struct parts {
    int16_t *codes;
    double *scale, *minimum;
} parts;

static void take_apart(const kernel *k, uint32_t dtype, const char *row, int64_t n, parts *to) {
    const fd_dtype_info *info = fd_dtype_get(dtype);
    const int64_t elements = info->block_elements, bytes = fd_dtype_row_bytes(dtype, elements);
    const bool centred = dtype == FD_Q4_0 || dtype == FD_Q5_0; /* the minimum is a multiple of the scale */
    float w[MOST_ELEMENTS], minima[MOST_ELEMENTS], ones[MOST_ELEMENTS];
    char block[LARGEST_BLOCK];
    for (int64_t at = 0; at < n; at += elements, row += bytes) {
        fd_dequantize_row(dtype, row, w, elements);
        memcpy(block, row, (size_t)bytes);
        set_codes(dtype, block, false);
        fd_dequantize_row(dtype, block, minima, elements);
        set_codes(dtype, block, true);
        fd_dequantize_row(dtype, block, ones, elements);
        for (int64_t i = 0; i < elements; i++) {
            const double scale = (double)ones[i] - (centred ? (double)minima[i] : 0);
            const double code = scale > 0 || scale < 0 ? rint(((double)w[i] - (double)minima[i]) / scale) : 0;
            to->codes[at + i] = (int16_t)(fabs(code) <= 31 ? code : 0);
            if ((at + i) % k->group) continue;
            to->scale[(at + i) / k->group] = k->half_weights ? to_half(scale) : scale;
            to->minimum[(at + i) / k->group] = k->half_weights ? to_half((double)minima[i]) : (double)minima[i];
        }
    }
}

/* ---- products ---- */

FD_FOR_EACH_CPU
static int32_t dot(const int16_t *a, const int16_t *b, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double multiply(const kernel *k, const parts *w, const activations *x, int64_t n) {
    double y = 0;
    for (int64_t at = 0; at < n; at += k->group) {
        const int64_t g = at / k->group;
        double scale = w->scale[g] * x->scale[at / k->block], shift = w->minimum[g] * x->sum[g];
        if (k->half_products) scale = to_half(scale), shift = to_half(shift);
        y += scale * dot(w->codes + at, x->codes + at, k->group) + shift;
    }
    return y;
}

static void multiply_row(const kernel *k, const fd_weight *weight, int64_t row, const activations *x, int64_t n_pos,
                         parts *w, double *y) {
    const int64_t n = weight->n_col;
    const char *data = (const char *)weight->data + row * fd_dtype_row_bytes(weight->dtype, n);
    take_apart(k, weight->dtype, data, n, w);
    for (int64_t p = 0; p < n_pos; p++) y[p * weight->n_row + row] = multiply(k, w, &x[p], n);
}

/* Room for a row of codes, of scales and of sums or minima, in one piece that `scale` owns. */
static bool open_row(int64_t n, int16_t **codes, double **scale, double **sum) {
    *scale = malloc((2 * sizeof **scale + sizeof **codes) * (size_t)n);
    if (!*scale) return false;
    *sum = *scale + n;
    *codes = (int16_t *)(*sum + n);
    return true;
}

fd_code fd_cuda_blocks_multiply(const fd_weight *weight, bool many, const double *x, int64_t n_pos, double *y,
                                fd_error *err) {
    const kernel *k = kernel_of(weight->dtype, many);
    const int64_t n = weight->n_col;
    activations *of = calloc((size_t)(n_pos > 0 ? n_pos : 1), sizeof *of);
    bool ran = of != NULL;
    for (int64_t p = 0; p < n_pos && ran; p++) {
        ran = open_row(n, &of[p].codes, &of[p].scale, &of[p].sum);
        if (ran) quantise(k, many, x + p * n, n, &of[p]);
    }
#pragma omp parallel if (ran && weight->n_row * n * n_pos > 1 << 18)
    {
        parts w;
        const bool has_room = ran && open_row(n, &w.codes, &w.scale, &w.minimum);
        if (!has_room) {
#pragma omp atomic write
            ran = false;
        }
#pragma omp for
        for (int64_t r = 0; r < weight->n_row; r++)
            if (has_room) multiply_row(k, weight, r, of, n_pos, &w, y);
        if (has_room) free(w.scale);
    }
    for (int64_t p = 0; of && p < n_pos; p++) free(of[p].scale);
    free(of);
    return ran ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", weight->name);
}
