/* Products of ggml's CUDA kernels: those of int8 blocks against sums of integers that are read from the blocks here, and sums of binary16
 * by cases that can be added by hand. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "compare/replay/cuda_blocks.h"
#include "compare/replay/half_sums.h"
#include "model/gguf/quant.h"

static double half(double x) {
    return (double)fd_f16_to_f32(fd_f32_to_f16((float)x));
}

static double drawn(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / 0x1p23 - 1;
}

/* ---- int8 blocks ---- */

enum { N_COL = 512, N_POS = 3 };

/* A weight's scale, minimum and code at column i, from its row of blocks. */
typedef struct element {
    double scale, minimum;
    int code;
} element;

static int nibble(const uint8_t *qs, int i) {
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static int high_bit(const uint8_t *qh, int i) {
    return (qh[i / 8] >> (i % 8) & 1) << 4;
}

static element of_32(uint32_t dtype, const char *row, int column) {
    const int at = column / 32, i = column % 32;
    if (dtype == FD_Q4_0) {
        const fd_block_q4_0 *b = (const fd_block_q4_0 *)row + at;
        const double d = (double)fd_f16_to_f32(b->d);
        return (element){d, -8 * d, nibble(b->qs, i)};
    }
    if (dtype == FD_Q4_1) {
        const fd_block_q4_1 *b = (const fd_block_q4_1 *)row + at;
        return (element){(double)fd_f16_to_f32(b->d), (double)fd_f16_to_f32(b->m), nibble(b->qs, i)};
    }
    if (dtype == FD_Q5_0) {
        const fd_block_q5_0 *b = (const fd_block_q5_0 *)row + at;
        const double d = (double)fd_f16_to_f32(b->d);
        return (element){d, -16 * d, nibble(b->qs, i) | high_bit(b->qh, i)};
    }
    const fd_block_q5_1 *b = (const fd_block_q5_1 *)row + at;
    return (element){(double)fd_f16_to_f32(b->d), (double)fd_f16_to_f32(b->m), nibble(b->qs, i) | high_bit(b->qh, i)};
}

/* Scales and minima of 6 bits, packed in twelve bytes. */
static void six_bits(const uint8_t *packed, int j, int *scale, int *minimum) {
    *scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
    *minimum = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
}

static element of_256(uint32_t dtype, const char *row, int column) {
    const int at = column / 256, i = column % 256, group = i / 32;
    int scale, minimum;
    if (dtype == FD_Q2_K) {
        const fd_block_q2_K *b = (const fd_block_q2_K *)row + at;
        const double d = (double)fd_f16_to_f32(b->d), dmin = (double)fd_f16_to_f32(b->dmin);
        const uint8_t packed = b->scales[i / 16];
        return (element){d * (packed & 15), -dmin * (packed >> 4),
                         b->qs[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3};
    }
    const fd_block_q4_K *four = (const fd_block_q4_K *)row + at;
    const fd_block_q5_K *five = (const fd_block_q5_K *)row + at;
    const bool is_four = dtype == FD_Q4_K;
    const uint8_t *qs = is_four ? four->qs : five->qs;
    six_bits(is_four ? four->scales : five->scales, group, &scale, &minimum);
    const double d = (double)fd_f16_to_f32(is_four ? four->d : five->d);
    const double dmin = (double)fd_f16_to_f32(is_four ? four->dmin : five->dmin);
    int code = qs[group / 2 * 32 + i % 32] >> 4 * (group % 2) & 15;
    if (!is_four) code |= (five->qh[i % 32] >> group & 1) << 4;
    return (element){d * scale, -dmin * minimum, code};
}

static const struct {
    uint32_t dtype;
    bool many;
    int block, group;
    bool half_weights, half_products;
    int summed;
} forms[] = {
    {FD_Q4_0, false, 32, 32, false, false, 128}, {FD_Q5_0, false, 32, 32, false, false, 128},
    {FD_Q4_1, false, 32, 32, false, true, 128},  {FD_Q5_1, false, 32, 32, false, true, 128},
    {FD_Q4_1, true, 32, 32, false, false, 128},  {FD_Q5_1, true, 32, 32, false, false, 128},
    {FD_Q4_K, true, 32, 32, true, false, 128},   {FD_Q5_K, true, 32, 32, true, false, 128},
    {FD_Q2_K, true, 64, 16, true, false, 96},
};

/* Blocks of any bytes, but for scales that are numbers. */
static void draw_row(uint32_t dtype, uint32_t *seed, char *row) {
    const int64_t bytes = fd_dtype_row_bytes(dtype, N_COL),
                  block = fd_dtype_row_bytes(dtype, fd_dtype_get(dtype)->block_elements);
    for (int64_t i = 0; i < bytes; i++) row[i] = (char)(drawn(seed) * 127);
    for (int64_t at = 0; at < bytes; at += block) {
        uint16_t *scales = (uint16_t *)(void *)(row + at + (dtype == FD_Q2_K ? 80 : 0));
        const bool two = dtype != FD_Q4_0 && dtype != FD_Q5_0;
        for (int i = 0; i < 1 + two; i++) scales[i] = fd_f32_to_f16((float)(0.01 + 0.005 * drawn(seed)));
    }
}

static double expected(int form, const char *row, const float *x) {
    double y = 0;
    for (int first = 0; first < N_COL; first += forms[form].group) {
        const int begin = first / forms[form].block * forms[form].block;
        float most = 0, sum = 0;
        int dot = 0, codes = 0;
        element e = {0};
        for (int i = begin; i < begin + forms[form].block; i++) most = fmaxf(most, fabsf(x[i]));
        const double step = (double)most / 127;
        for (int i = first; i < first + forms[form].group; i++) {
            const int code = (int)round((double)x[i] / step);
            e = (forms[form].dtype < FD_Q2_K ? of_32 : of_256)(forms[form].dtype, row, i);
            dot += code * e.code;
            codes += code;
            sum += x[i];
        }
        const double scale = half(step);
        const double s = forms[form].half_weights ? half(e.scale) : e.scale;
        const double m = forms[form].half_weights ? half(e.minimum) : e.minimum;
        const double of_sum = first % 128 < forms[form].summed ? half((double)sum) : scale * codes;
        y += forms[form].half_products ? half(s * scale) * dot + half(m * of_sum) : s * scale * dot + m * of_sum;
    }
    return y;
}

Test(cuda_kernels, minima_meet_the_sums_of_what_was_not_rounded) {
    uint32_t seed = 5;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        enum { N_ROW = 4 };
        const int64_t bytes = fd_dtype_row_bytes(forms[f].dtype, N_COL);
        char *data = malloc((size_t)bytes * N_ROW);
        float x[N_POS][N_COL];
        double wide[N_POS][N_COL], y[N_POS][N_ROW];
        fd_error err;
        for (int r = 0; r < N_ROW; r++) draw_row(forms[f].dtype, &seed, data + r * bytes);
        for (int p = 0; p < N_POS; p++)
            for (int i = 0; i < N_COL; i++) wide[p][i] = (double)(x[p][i] = (float)drawn(&seed));
        const fd_weight weight = {.name = "w", .dtype = forms[f].dtype, .data = data, .n_row = N_ROW, .n_col = N_COL};
        cr_assert_eq(fd_cuda_blocks_of(forms[f].dtype, forms[f].many), forms[f].block, "%zu", f);
        cr_assert_eq(fd_cuda_blocks_multiply(&weight, forms[f].many, &wide[0][0], N_POS, &y[0][0], &err), FD_OK);
        for (int p = 0; p < N_POS; p++)
            for (int r = 0; r < N_ROW; r++) {
                const double right = expected((int)f, data + r * bytes, x[p]);
                cr_expect(fabs(y[p][r] - right) <= 1e-6 * fmax(1, fabs(right)), "%zu: row %d of %d: %g for %g", f, r, p,
                          y[p][r], right);
            }
        free(data);
    }
    cr_expect_eq(fd_cuda_blocks_of(FD_Q8_0, true), 0);
    cr_expect_eq(fd_cuda_blocks_of(FD_Q4_K, false), 0);
}

/* ---- sums of binary16 ---- */

enum { ROW = 5 }; /* of those that are summed at once; the others are 0 */

Test(cuda_kernels, tensor_cores_round_a_sum_once_in_sixteen_products) {
    static const struct {
        const char *what;
        int at[3]; /* columns of 2048, 1 and 1; the others are 0 */
        int64_t n, part;
        double sum, room; /* an ulp of each sum from the first that may go either way */
    } cases[] = {
        {"all in one tile", {0, 1, 2}, 48, 0, 2050, 0},
        {"each in its own", {0, 16, 32}, 48, 0, 2048, 4},
        {"the small ones together", {0, 16, 17}, 48, 0, 2050, 0},
        {"parts that are added", {0, 16, 17}, 32, 16, 2050, 0},
        {"a last tile that is not full", {0, 16, 17}, 18, 0, 2050, 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        float w[48 * FD_HALF_LANES] = {0}, x[48];
        double sum[FD_HALF_LANES], room[FD_HALF_LANES];
        for (int i = 0; i < 48; i++) x[i] = 1;
        for (int i = 0; i < 3; i++) w[cases[c].at[i] * FD_HALF_LANES + ROW] = i ? 1 : 2048;
        fd_half_tiles(w, x, cases[c].n, cases[c].part, sum, room);
        for (int r = 0; r < FD_HALF_LANES; r++) {
            cr_expect_eq(sum[r], r == ROW ? cases[c].sum : 0, "%s: row %d: %g", cases[c].what, r, sum[r]);
            cr_expect_eq(room[r], r == ROW ? cases[c].room : 0, "%s: row %d: %g", cases[c].what, r, room[r]);
        }
    }
}

Test(cuda_kernels, threads_sum_their_own_columns_in_binary16) {
    float w[1024 * FD_HALF_LANES] = {0}, x[1024], *row = w + ROW;
    double sum[FD_HALF_LANES];
    for (int i = 0; i < 1024; i++) x[i] = 1;
    row[0] = 2048, row[FD_HALF_LANES] = 1, row[2 * FD_HALF_LANES] = 1;
    fd_half_pairs(w, x, 256, 256, sum);
    cr_expect_eq(sum[ROW], 2050); /* a column each */
    row[512 * FD_HALF_LANES] = 1;
    fd_half_pairs(w, x, 1024, 1024, sum);
    cr_expect_eq(sum[ROW], 2050); /* the first thread's second turn is lost */
}
