/* Verify: a clean file has no problem, and each kind of damage to the values is found where it is. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_bytes.h"
#include "model/gguf_writer/gguf_writer.h"
#include "model/gguf/quant.h"
#include "tests/common.h"
#include "tests/ops/shared_files.h"

static fd_error err;
#define MUST(call) cr_assert_eq(call, FD_OK, "%s", err.message)

typedef struct heard {
    char text[4096];
    size_t n;
} heard;

static void hear(void *user, const char *message) {
    heard *h = user;
    size_t at = strlen(h->text);
    snprintf(h->text + at, sizeof h->text - at, "%s\n", message);
    h->n++;
}

static size_t verify(const fd_gguf *gguf, heard *h, fd_code expected) {
    size_t n;
    *h = (heard){.n = 0};
    cr_expect_eq(fd_gguf_verify(gguf, hear, h, &n, &err), expected, "%s", err.message);
    cr_expect_eq(n, h->n);
    return n;
}

/* A file of one tensor. */
static fd_gguf *file_of(uint32_t dtype, int32_t n_dim, const int64_t *shape, const void *bytes) {
    fd_gguf_writer *writer;
    fd_gguf *gguf;
    MUST(fd_gguf_writer_new(&writer, &err));
    MUST(fd_gguf_put_tensor(writer, "t", dtype, n_dim, shape, bytes, NULL, NULL, &err));
    MUST(fd_gguf_write_and_open(writer, &gguf, &err));
    return kept(gguf);
}

enum { COLUMNS = 512, ROWS = 12 };

/* What to do to a [COLUMNS, ROWS] matrix of ones before it is encoded. */
static const struct wound {
    const char *name;
    int row0, row1, column0, column1; /* the part that becomes `value` */
    float value;
    const char *message; /* NULL: nothing to report */
} wounds[] = {
    {"clean", 0, 0, 0, 0, 0, NULL},
    {"one NaN", 7, 8, 100, 101, NAN, "1 NaN and 0 Inf among 6144 values, the first at row 7 column 100"},
    {"Inf in the last value", 11, 12, 511, 512, -INFINITY,
     "0 NaN and 1 Inf among 6144 values, the first at row 11 column 511"},
    {"NaN everywhere", 0, 12, 0, 512, NAN, "6144 NaN and 0 Inf among 6144 values, the first at row 0 column 0"},
    {"last row zero", 11, 12, 0, 512, 0, "the last 1 of its 12 rows are all zero"},
    {"half missing", 6, 12, 0, 512, 0, "the last 6 of its 12 rows are all zero"},
    {"zero", 0, 12, 0, 512, 0, "every value is zero"},
    {"minus zero", 0, 12, 0, 512, -0.0f, "every value is zero"},
    {"zero rows at the start only", 0, 6, 0, 512, 0, NULL},
    {"zero row inside only", 5, 6, 0, 512, 0, NULL},
    {"last row nearly zero", 11, 12, 1, 512, 0, NULL},
};

static void wound_and_verify(uint32_t dtype, size_t i) {
    static float values[ROWS][COLUMNS];
    static uint8_t bytes[ROWS * COLUMNS * 4];
    const struct wound *w = &wounds[i];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) values[r][c] = 1.0f;
    for (int r = w->row0; r < w->row1; r++)
        for (int c = w->column0; c < w->column1; c++) values[r][c] = w->value;
    fd_quantize_row(dtype, &values[0][0], bytes, ROWS * COLUMNS);
    fd_gguf *gguf = file_of(dtype, 2, (int64_t[]){COLUMNS, ROWS}, bytes);
    heard h;
    cr_expect_eq(verify(gguf, &h, FD_OK), w->message ? 1u : 0u, "%s in %s: %s", w->name, fd_dtype_get(dtype)->name,
                 h.text);
    if (w->message)
        cr_expect(strstr(h.text, w->message) && strstr(h.text, "tensor t:"), "%s: said \"%s\"", w->name, h.text);
}

Test(gguf_verify, damaged_values_are_found_where_they_are) {
    const uint32_t dtypes[] = {FD_F32, FD_F16, FD_BF16};
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof wounds / sizeof *wounds; i++) wound_and_verify(dtypes[d], i);
}

/* In a block format one bad value spoils its block: only the zero rows say the same as above. */
Test(gguf_verify, zero_rows_of_block_formats_are_found) {
    const uint32_t dtypes[] = {FD_Q8_0, FD_Q4_0};
    for (size_t d = 0; d < 2; d++)
        for (size_t i = 0; i < sizeof wounds / sizeof *wounds; i++)
            if (isfinite(wounds[i].value)) wound_and_verify(dtypes[d], i);
}

Test(gguf_verify, a_bad_scale_spoils_its_block) {
    struct {
        uint32_t dtype;
        size_t scale_at;
        int block;
    } cases[] = {
        {FD_Q8_0, offsetof(fd_block_q8_0, d), 32},     {FD_Q4_0, offsetof(fd_block_q4_0, d), 32},
        {FD_Q4_K, offsetof(fd_block_q4_K, d), 256},    {FD_Q4_K, offsetof(fd_block_q4_K, dmin), 256},
        {FD_Q6_K, offsetof(fd_block_q6_K, d), 256},    {FD_Q5_1, offsetof(fd_block_q5_1, m), 32},
        {FD_Q2_K, offsetof(fd_block_q2_K, dmin), 256}, {FD_IQ3_S, offsetof(fd_block_iq3_s, d), 256},
    };
    static uint8_t bytes[ROWS * COLUMNS * 4];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t row = fd_dtype_row_bytes(cases[i].dtype, COLUMNS);
        /* Any bytes will do whose scales, read as f16, are finite: no byte may be 0x7c or above. */
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)(1 + k * 37 % 59);
        const uint16_t nan = 0x7e01;
        memcpy(bytes + 3 * row + fd_dtype_get(cases[i].dtype)->block_bytes + (int64_t)cases[i].scale_at, &nan, 2);
        fd_gguf *gguf = file_of(cases[i].dtype, 2, (int64_t[]){COLUMNS, ROWS}, bytes);
        char expected[128];
        snprintf(expected, sizeof expected, "%d NaN and 0 Inf among 6144 values, the first at row 3 column %d",
                 cases[i].block, cases[i].block);
        heard h;
        cr_expect_eq(verify(gguf, &h, FD_OK), 1u, "%s", h.text);
        cr_expect(strstr(h.text, expected), "%s: said \"%s\"", fd_dtype_get(cases[i].dtype)->name, h.text);
    }
}

Test(gguf_verify, doubles_and_integers_are_judged) {
    double values[8] = {1, 2, 3, -INFINITY, 5, 6, 0, 0};
    fd_gguf *gguf = file_of(FD_F64, 2, (int64_t[]){2, 4}, values);
    heard h;
    cr_expect_eq(verify(gguf, &h, FD_OK), 2u);
    cr_expect(strstr(h.text, "1 Inf among 8 values, the first at row 1 column 1") &&
                  strstr(h.text, "the last 1 of its 4 rows"),
              "%s", h.text);
    int32_t integers[4] = {0x7f800000, -1, 0, 0}; /* an integer that would be Inf as a float */
    gguf = file_of(FD_I32, 2, (int64_t[]){2, 2}, integers);
    cr_expect_eq(verify(gguf, &h, FD_OK), 1u);
    cr_expect(strstr(h.text, "the last 1 of its 2 rows are all zero"), "%s", h.text);
}

/* A check that could not look never says that all is well. */
Test(gguf_verify, unreadable_types_are_incomplete) {
    uint8_t bytes[2 * 292];
    memset(bytes, 0x55, sizeof bytes);
    fd_gguf *gguf = file_of(FD_Q8_K, 2, (int64_t[]){256, 2}, bytes);
    heard h;
    cr_expect_eq(verify(gguf, &h, FD_ERR_INCOMPLETE), 0u);
    cr_expect(strstr(err.message, "1 tensors were not checked") && strstr(err.message, "Q8_K"), "%s", err.message);
    memset(bytes + 292, 0, 292);
    gguf = file_of(FD_Q8_K, 2, (int64_t[]){256, 2}, bytes);
    cr_expect_eq(verify(gguf, &h, FD_ERR_INCOMPLETE), 1u, "zero bytes are zero in every format");
}

Test(gguf_verify, rows_longer_than_a_piece_are_judged_whole) {
    const int64_t columns = 3 << 20;
    float *values = kept(calloc((size_t)columns * 2, sizeof *values));
    values[0] = 1;
    values[2 * columns - 1] = NAN;
    fd_gguf *gguf = file_of(FD_F32, 2, (int64_t[]){columns, 2}, values);
    heard h;
    cr_expect_eq(verify(gguf, &h, FD_OK), 1u);
    cr_expect(strstr(h.text, "the first at row 1 column 3145727"), "%s", h.text);
}

/* Zero rows that reach over several pieces of work are counted across them. */
Test(gguf_verify, zero_rows_are_counted_across_pieces) {
    const int64_t columns = 1 << 19, rows = 7;
    float *values = kept(calloc((size_t)(columns * rows), sizeof *values));
    values[columns + 5] = 1;
    fd_gguf *gguf = file_of(FD_F32, 2, (int64_t[]){columns, rows}, values);
    heard h;
    cr_expect_eq(verify(gguf, &h, FD_OK), 1u);
    cr_expect(strstr(h.text, "the last 5 of its 7 rows are all zero"), "%s", h.text);
}

static fd_gguf *parse_spec(const gguf_spec *spec) {
    gguf_bytes file = gguf_build(spec);
    fd_gguf *gguf;
    MUST(fd_gguf_parse(file.data, file.size, &gguf, &err));
    return kept(gguf);
}

Test(gguf_verify, unused_bytes_are_found) {
    heard h;
    gguf_spec spec = gguf_good();
    fd_gguf *gguf = parse_spec(&spec);
    cr_expect_eq(verify(gguf, &h, FD_OK), 0u, "%s", h.text);

    spec.tensor[0].offset = 32;
    spec.tensor[1].offset = 320;
    spec.data_bytes = 500;
    gguf = parse_spec(&spec);
    cr_expect_eq(verify(gguf, &h, FD_OK), 3u);
    cr_expect(strstr(h.text, "32 unused bytes before tensor a.weight") &&
                  strstr(h.text, "64 unused bytes before tensor b.bias") &&
                  strstr(h.text, "148 unused bytes after the last tensor"),
              "%s", h.text);
}

/* False alarms would make the check worthless. */
Test(gguf_verify, real_files_have_no_problem) {
    const char *folders[] = {"conformance", "models", "vocab"};
    size_t total = 0;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        size_t n;
        char **files = shared_files(folders[f], ".gguf", &n);
        total += n;
        for (size_t i = 0; i < n; i++) {
            fd_gguf *gguf;
            heard h;
            MUST(fd_gguf_open(files[i], &gguf, &err));
            cr_expect_eq(verify(gguf, &h, FD_OK), 0u, "%s: %s", files[i], h.text);
            fd_gguf_close(gguf);
        }
    }
    if (total == 0) cr_skip_test("no shared data: set FD_SHARED");
}
