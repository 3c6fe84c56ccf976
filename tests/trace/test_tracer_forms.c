/* Every element type and layout that an engine may have its tensors in, through libfirstdiff_trace. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "tracer_rows.h"

static const int32_t tokens[] = {11, 12, 13};

typedef struct form {
    const char *name;
    fd_tracer_dtype dtype;
    uint32_t stored;
    int64_t shape[4], stride[4]; /* after [3 positions]; the batch axis when `batch` */
    int n_dim;
    int64_t row_stride; /* 0: contiguous */
    bool batch;
    int64_t from; /* offset of element [0, …] in the buffer */
} form;

static const form forms[] = {
    {.name = "f32", .dtype = FD_TRACER_F32, .stored = FD_F32, .shape = {24}, .n_dim = 1},
    {.name = "f64", .dtype = FD_TRACER_F64, .stored = FD_F64, .shape = {24}, .n_dim = 1},
    {.name = "f16", .dtype = FD_TRACER_F16, .stored = FD_F16, .shape = {24}, .n_dim = 1},
    {.name = "bf16", .dtype = FD_TRACER_BF16, .stored = FD_BF16, .shape = {24}, .n_dim = 1},
    {.name = "int8", .dtype = FD_TRACER_I8, .stored = FD_F32, .shape = {24}, .n_dim = 1},
    {.name = "int32", .dtype = FD_TRACER_I32, .stored = FD_F64, .shape = {24}, .n_dim = 1},
    {.name = "heads", .dtype = FD_TRACER_F32, .stored = FD_F32, .shape = {4, 6}, .n_dim = 2},
    {.name = "four_axes", .dtype = FD_TRACER_F32, .stored = FD_F32, .shape = {2, 2, 2, 3}, .n_dim = 4},
    {.name = "batch_axis", .dtype = FD_TRACER_F16, .stored = FD_F16, .shape = {4, 6}, .n_dim = 2, .batch = true},
    {.name = "padded_rows",
     .dtype = FD_TRACER_F32,
     .stored = FD_F32,
     .shape = {4, 6},
     .stride = {6, 1},
     .n_dim = 2,
     .row_stride = 40,
     .from = 5},
    {.name = "heads_outside",
     .dtype = FD_TRACER_F32,
     .stored = FD_F32,
     .shape = {4, 6},
     .stride = {18, 1},
     .n_dim = 2,
     .row_stride = 6},
    {.name = "transposed",
     .dtype = FD_TRACER_F16,
     .stored = FD_F16,
     .shape = {4, 6},
     .stride = {18, 3},
     .n_dim = 2,
     .row_stride = 1},
    {.name = "every_other",
     .dtype = FD_TRACER_I8,
     .stored = FD_F32,
     .shape = {24},
     .stride = {2},
     .n_dim = 1,
     .row_stride = 48},
    {.name = "inner_gap",
     .dtype = FD_TRACER_F64,
     .stored = FD_F64,
     .shape = {2, 3, 4},
     .stride = {16, 5, 1},
     .n_dim = 3,
     .row_stride = 64},
};

static void store(fd_tracer_dtype dtype, void *buffer, int64_t at, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    /* whole numbers up to 30: the upper bits are all there is. IEEE 754: binary16 has exponents 112 lower */
    uint32_t rebased = ((bits & 0x7fffffffu) >> 13) - (112u << 10);
    switch (dtype) {
    case FD_TRACER_F32: ((float *)buffer)[at] = value; break;
    case FD_TRACER_F64: ((double *)buffer)[at] = (double)value; break;
    case FD_TRACER_F16: ((uint16_t *)buffer)[at] = value == 0 ? 0 : (uint16_t)(rebased | (bits >> 16 & 0x8000u)); break;
    case FD_TRACER_BF16: ((uint16_t *)buffer)[at] = (uint16_t)(bits >> 16); break;
    case FD_TRACER_I8: ((int8_t *)buffer)[at] = (int8_t)value; break;
    case FD_TRACER_I32: ((int32_t *)buffer)[at] = (int32_t)value; break;
    }
}

/* Three positions of the form, laid out by its strides in a buffer of NaN-like garbage. */
static void put_form(fd_tracer *tracer, const form *f, int64_t first) {
    char *buffer = malloc(8 * 512);
    memset(buffer, 0x7b, 8 * 512);
    fd_tracer_tensor tensor = {.name = f->name, .dtype = f->dtype, .n_dim = f->n_dim + 1 + f->batch};
    int64_t next = 1, stride[5];
    for (int d = f->n_dim - 1; d >= 0; d--) {
        stride[1 + d] = f->row_stride ? f->stride[d] : next;
        next *= f->shape[d];
    }
    stride[0] = f->row_stride ? f->row_stride : next;
    tensor.shape[0] = 1;
    tensor.shape[f->batch] = 3;
    if (f->row_stride) tensor.stride[0] = stride[0];
    for (int d = 0; d < f->n_dim; d++) {
        tensor.shape[1 + f->batch + d] = f->shape[d];
        if (f->row_stride) tensor.stride[1 + d] = stride[1 + d];
    }
    for (int64_t r = 0; r < 3; r++)
        for (int64_t i = 0; i < 24; i++) {
            int64_t at = f->from + r * stride[0], rest = i;
            for (int d = f->n_dim - 1; d >= 0; d--) {
                at += rest % f->shape[d] * stride[1 + d];
                rest /= f->shape[d];
            }
            store(f->dtype, buffer, at, value_of(first + r, i));
        }
    size_t size = f->dtype == FD_TRACER_F64                     ? 8
                  : f->dtype == FD_TRACER_I8                    ? 1
                  : f->stored == FD_F16 || f->stored == FD_BF16 ? 2
                                                                : 4;
    tensor.data = buffer + (size_t)f->from * size;
    cr_assert_eq(fd_tracer_put(tracer, &tensor), 0, "%s: %s", f->name, fd_tracer_error(tracer));
    free(buffer);
}

Test(tracer_forms, every_type_and_layout_is_read_back_element_by_element) {
    const char *path = fixture_path("tracer_forms.h5");
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    enum { N = sizeof forms / sizeof *forms };
    for (int step = 0; step < 2; step++) {
        fd_tracer_step(tracer, tokens, 3);
        for (int i = 0; i < N; i++) put_form(tracer, &forms[step == 0 ? i : N - 1 - i], step * 3); /* any order */
    }
    close_well(tracer);
    fd_trace *trace = fixture_open(path);
    for (int i = 0; i < N; i++) {
        const fd_trace_node *node = fd_trace_node_at(trace, fd_trace_find(trace, forms[i].name));
        cr_expect_eq(node->dtype, forms[i].stored, "%s", forms[i].name);
        cr_expect_eq(node->n_dim, forms[i].n_dim, "%s", forms[i].name);
        for (int d = 0; d < forms[i].n_dim; d++) cr_expect_eq(node->shape[d], forms[i].shape[d], "%s", forms[i].name);
        for (int32_t pos = 0; pos < 6; pos++) check_row(trace, forms[i].name, pos, 24);
    }
    fd_trace_close(trace);
}

Test(tracer_forms, fingerprints_are_those_of_the_elements) {
    const char *path = fixture_path("tracer_prints.h5");
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    float *x = rows_of(0, 3, 25);
    x[30] = -NAN;
    x[31] = -0.0f;
    fd_tracer_step(tracer, tokens, 3);
    fd_tracer_put_f32(tracer, "odd", x, 3, 25);
    put_form(tracer, &forms[2], 0);
    put_form(tracer, &forms[1], 0);
    close_well(tracer);
    fd_trace *trace = fixture_open(path);
    for (int32_t pos = 0; pos < 3; pos++) {
        double wide[24];
        float narrow[24];
        for (int i = 0; i < 24; i++) wide[i] = (double)(narrow[i] = value_of(pos, i));
        fd_fingerprint odd = fd_fingerprint_f32(x + pos * 25, 25), f16 = fd_fingerprint_f32(narrow, 24);
        fd_fingerprint f64 = fd_fingerprint_f64(wide, 24);
        cr_expect_arr_eq(fd_trace_fingerprint(trace, fd_trace_find(trace, "odd"), pos), &odd, sizeof odd);
        cr_expect_arr_eq(fd_trace_fingerprint(trace, fd_trace_find(trace, "f16"), pos), &f16, sizeof f16);
        cr_expect_arr_eq(fd_trace_fingerprint(trace, fd_trace_find(trace, "f64"), pos), &f64, sizeof f64);
    }
    fd_trace_close(trace);
    free(x);
}
