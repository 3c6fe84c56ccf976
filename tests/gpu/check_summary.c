/* Fingerprints, statistics, entropy and best logits worked out on the device, beside scalar C's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/observe/summary.h"
#include "model/gguf/quant.h"
#include "tests/gpu/best_logits.h"
#include "tests/gpu/kernel_check.h"

/* One tensor of a table: rows of n elements, or of n_run runs along the positions, `spare` elements between runs. */
typedef struct tensor {
    int32_t n, n_run, spare;
    bool by_position, copied, halves;
} tensor;

enum { MOST_ROWS = 5, MOST_TENSORS = 24 };

/* As gpu_fill, with what rounding and order do not show: NaN of two kinds, infinities, zeros of both signs. */
static void fill(gpu_test *test, float *x, size_t n) {
    gpu_fill(test, x, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t at = gpu_random_bits(test) % 97;
        if (at == 0) x[i] = fd_from_bits32(0x7fc00000u | (gpu_random_bits(test) & 0xffff));
        if (at == 1) x[i] = fd_from_bits32(0xffc01234u);
        if (at == 2) x[i] = INFINITY;
        if (at == 3) x[i] = -INFINITY;
        if (at == 4) x[i] = -0.0f;
    }
}

static fd_stats stats_of(const float *x, int64_t n) {
    fd_tally tally = fd_tally_none();
    fd_sum64 sum = {0}, squares = {0};
    for (int64_t i = 0; i < n; i++) {
        double term = fd_tally_add(&tally, (double)x[i]);
        fd_sum64_add(&sum, term);
        fd_sum64_add(&squares, term * term);
    }
    return fd_tally_end(&tally, fd_sum64_end(&sum), fd_sum64_end(&squares));
}

static bool same_stats(const fd_stats *a, const fd_stats *b) {
    const double *x = &a->min, *y = &b->min;
    for (size_t i = 0; i < sizeof *a / sizeof(double); i++)
        if (fd_canonical64(x[i]) != fd_canonical64(y[i])) return false;
    return true;
}

static void *device_bytes(gpu_test *test, size_t bytes) {
    return gpu_poisoned(test, bytes / sizeof(float) + 2);
}

/* All of the tensors in one table, rows from position pos0 on. `spoil`: an element of the host's side is changed, and
 * everything must be found different. */
static void check_table(gpu_test *test, const tensor *tensors, int32_t n_tensor, int32_t pos0, int32_t n_row,
                        bool spoil) {
    fd_error err = {0};
    fd_row_view views[MOST_TENSORS] = {0};
    float *host[MOST_TENSORS], *copies[MOST_TENSORS] = {0};
    int64_t n_block = 0;
    for (int32_t i = 0; i < n_tensor; i++) {
        const tensor *t = &tensors[i];
        fd_row_view *v = &views[i];
        int32_t run = pos0 + n_row + t->spare, most = t->n_run > 0 ? t->n_run * (pos0 + n_row) : t->n;
        v->n = t->n, v->n_run = t->n_run, v->run_stride = t->n_run > 0 ? run : 0, v->by_position = t->by_position;
        v->row_stride = t->n_run > 0 ? (int64_t)t->n_run * run : t->n + t->spare;
        v->first = n_block;
        n_block += (most + FD_SUM_BLOCK - 1) / FD_SUM_BLOCK;
        size_t n = (size_t)v->row_stride * (size_t)(n_row + (t->by_position ? pos0 : 0));
        host[i] = gpu_host(test, sizeof(float) * (n + 1));
        fill(test, host[i], n);
        if (t->halves) fd_round_through(FD_F16, host[i], (int64_t)n + 1);
        v->data = gpu_upload_cache(test, host[i], n + 1, t->halves), v->halves = t->halves;
        if (t->copied) v->copy = copies[i] = gpu_poisoned(test, (size_t)t->n);
    }
    size_t n = (size_t)n_tensor * (size_t)n_row;
    fd_fingerprint *prints = gpu_host(test, n * sizeof *prints), print;
    fd_stats *stats = gpu_host(test, n * sizeof *stats), stat;
    float *row = gpu_floats(test, (1 << 21)), *found = gpu_floats(test, (1 << 21));
    const float *table = gpu_upload(test, views, sizeof *views * (size_t)n_tensor);
    fd_row_views all = {.table = (const fd_row_view *)(const void *)table,
                        .n = n_tensor,
                        .pos0 = pos0,
                        .n_row = n_row,
                        .n_block = n_block};
    if (n_tensor == 1) all.table = NULL, all.one = views[0];
    void *scratch = device_bytes(test, fd_summary_scratch(n_block, n_row)),
         *dprints = device_bytes(test, n * sizeof *prints);
    void *dstats = device_bytes(test, n * sizeof *stats);
    for (int with_stats = 1; with_stats >= 0; with_stats--) {
        gpu_must(fd_launch_summary(&test->queue, &all, true, scratch, dprints, with_stats ? dstats : NULL, &err), &err);
        gpu_download(test, dprints, (float *)(void *)prints, n * sizeof *prints / sizeof(float));
        if (with_stats) gpu_download(test, dstats, (float *)(void *)stats, n * sizeof *stats / sizeof(float));
        for (int32_t i = 0; i < n_tensor; i++)
            for (int32_t r = 0; r < n_row; r++) {
                const fd_row_view *v = &views[i];
                const float *from = host[i] + (v->by_position ? pos0 + r : r) * v->row_stride;
                int32_t run = v->n_run > 0 ? pos0 + r + 1 : v->n, n_run = v->n_run > 0 ? v->n_run : 1;
                for (int32_t k = 0; k < n_run; k++)
                    memcpy(row + k * run, from + k * v->run_stride, sizeof *row * (size_t)run);
                int64_t count = (int64_t)run * n_run, at = (int64_t)i * n_row + r;
                if (spoil && count > 0) row[count - 1] = row[count - 1] == 3.0f ? 4.0f : 3.0f;
                print = fd_fingerprint_f32(row, count);
                stat = stats_of(row, count);
                char name[120];
                snprintf(name, sizeof name, "summary_%s_of_%d_runs_of_%d_row_%d%s", with_stats ? "stats" : "prints",
                         n_run, run, r, spoil ? "_with_another_element_differs" : "");
                bool equal = print.lo == prints[at].lo && print.hi == prints[at].hi;
                gpu_expect(test, name, spoil && count > 0 ? !equal : equal);
                if (with_stats)
                    gpu_expect(test, name,
                               spoil && count > 0 ? !same_stats(&stat, &stats[at]) : same_stats(&stat, &stats[at]));
                if (!copies[i] || spoil) continue;
                gpu_download(test, copies[i], found, (size_t)count);
                gpu_expect_equal(test, "summary_copies_the_row", row, found, (size_t)count);
            }
    }
    gpu_release(test);
}

static void check_entropy(gpu_test *test, int32_t n_head, int32_t pos0, int32_t n_row, bool bad) {
    enum { N_TENSOR = 2 };
    fd_error err = {0};
    int32_t run = pos0 + n_row + 3;
    size_t n = (size_t)(N_TENSOR * n_row * n_head * run), n_out = (size_t)(N_TENSOR * n_row * n_head);
    float *p = gpu_floats(test, n), *out = gpu_host(test, 4 * n_out * sizeof *out);
    for (size_t i = 0; i < n; i++)
        p[i] = ldexpf((float)(gpu_random_bits(test) >> 8), -24 - (int)(gpu_random_bits(test) % 40));
    p[1] = 0.0f, p[2] = 1e-40f;
    if (bad) p[0] = -0.25f, p[run] = NAN, p[2 * run] = INFINITY;
    float *dp = gpu_upload(test, p, n * sizeof *p), *dentropy = gpu_poisoned(test, n_out),
          *dsink = gpu_poisoned(test, n_out);
    fd_row_view views[N_TENSOR] = {0};
    for (int i = 0; i < N_TENSOR; i++) {
        views[i].data = dp + (size_t)(i * n_row * n_head * run);
        views[i].n_run = n_head, views[i].run_stride = run, views[i].row_stride = (int64_t)n_head * run;
    }
    const float *table = gpu_upload(test, views, sizeof views);
    fd_row_views all = {.table = (const fd_row_view *)(const void *)table, .n = N_TENSOR, .pos0 = pos0, .n_row = n_row};
    gpu_must(fd_launch_entropy(&test->queue, &all, n_head, dentropy, dsink, &err), &err);
    gpu_download(test, dentropy, out, n_out);
    gpu_download(test, dsink, out + n_out, n_out);
    for (size_t i = 0; i < n_out; i++) {
        const float *from = p + i * (size_t)run;
        int32_t count = pos0 + (int32_t)(i / (size_t)n_head) % n_row + 1;
        fd_sum64 sum = {0};
        for (int32_t k = 0; k < count; k++) fd_sum64_add(&sum, fd_plogp((double)from[k]));
        out[2 * n_out + i] = (float)(0.0 - fd_sum64_end(&sum));
        out[3 * n_out + i] = from[0];
    }
    char name[100];
    snprintf(name, sizeof name, "entropy_of_%d_heads_%d_rows_from_%d%s", n_head, n_row, pos0,
             bad ? "_no_distribution" : "");
    gpu_expect_equal(test, name, out + 2 * n_out, out, n_out);
    gpu_expect_equal(test, "sink", out + 3 * n_out, out + n_out, n_out);
    if (bad) gpu_expect(test, "entropy_of_no_distribution_is_nan", isnan(out[0]) && isnan(out[1]));
    gpu_release(test);
}

enum { TIES = 1, ONE_NAN = 2, INFINITE = 4, FAR = 8 };

static void check_top(gpu_test *test, int32_t n, int32_t n_row, unsigned kind) {
    fd_error err = {0};
    size_t count = (size_t)n * (size_t)n_row;
    float *x = gpu_floats(test, count);
    fd_top_logits expected, found[4];
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)((int32_t)gpu_random_bits(test) >> 8) * 1e-6f;
        if (kind & TIES) x[i] = (float)((int32_t)gpu_random_bits(test) % 4);
        if (kind & TIES && i % 3 == 0) x[i] = -0.0f;
        if (kind & FAR) x[i] *= 1e30f;
    }
    if (kind & INFINITE) x[n / 2] = INFINITY, x[0] = -INFINITY;
    if (kind & ONE_NAN) x[n - 1] = x[n / 3] = NAN;
    float *dx = gpu_upload(test, x, count * sizeof *x);
    void *scratch = device_bytes(test, fd_top_scratch(n, n_row)), *top = device_bytes(test, sizeof found);
    gpu_must(fd_launch_top_logits(&test->queue, dx, n, n_row, scratch, top, &err), &err);
    gpu_download(test, top, (float *)(void *)found, sizeof *found / sizeof(float) * (size_t)n_row);
    for (int32_t r = 0; r < n_row; r++) {
        char name[100];
        best_logits(x + (size_t)r * (size_t)n, n, &expected);
        snprintf(name, sizeof name, "top_of_%d_row_%d_kind_%u", n, r, kind);
        bool ids = memcmp(expected.id, found[r].id, sizeof expected.id) == 0;
        gpu_expect(test, name, ids);
        gpu_expect_equal(test, name, expected.logit, found[r].logit, FD_TOP_K);
        gpu_expect_equal(test, name, &expected.probability, &found[r].probability, 2);
    }
    gpu_release(test);
}

void check_summary(gpu_test *test) {
    static const tensor tensors[] = {
        {1, 0, 0, false, false},        {2, 0, 0, false, false},      {3, 0, 0, false, false},
        {63, 0, 1, false, false},       {64, 0, 0, false, false},     {1023, 0, 0, false, false},
        {1024, 0, 2, false, false},     {1025, 0, 0, false, false},   {2048, 0, 0, false, false},
        {32769, 0, 0, false, false},    {152000, 0, 0, false, false}, {0, 3, 0, false, false},
        {0, 8, 0, false, false},        {0, 5, 7, false, false},      {0, 32, 100, false, false},
        {256, 0, 0, true, false},       {255, 0, 0, true, false},     {256, 0, 0, true, false, true},
        {255, 0, 0, true, false, true},
    };
    static const tensor kept[] = {
        {257, 0, 0, true, true}, {1024, 0, 0, false, true}, {0, 14, 40, false, false}, {257, 0, 0, true, true, true}};
    enum { N = sizeof tensors / sizeof *tensors };
    check_table(test, tensors, N, 0, 1, false);
    check_table(test, tensors, N, 130, 1, false);
    check_table(test, tensors, N, 7, 5, false);
    check_table(test, tensors, N, 63, 2, true);
    check_table(test, tensors + 13, 1, 9, 4, false);
    check_table(test, kept, 4, 0, 1, false);
    check_table(test, kept, 4, 300, 1, false);
    static const int32_t positions[] = {0, 1, 63, 64, 1022, 1023, 1024, 2500};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        check_entropy(test, i % 2 ? 32 : 7, positions[i], 1, false);
        check_entropy(test, 5, positions[i], 3, i > 1);
    }
    static const int32_t vocabularies[] = {1, 3, 9, 10, 11, 260, 1023, 1024, 1025, 32000, 151936};
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++)
        for (unsigned kind = 0; kind < 9; kind += kind < 4 ? 1 : 4)
            check_top(test, vocabularies[i], 1 + (int32_t)(i % 3), kind);
}
