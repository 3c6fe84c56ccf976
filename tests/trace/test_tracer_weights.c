/* fd_tracer_put_weight: what it records are the hashes that firstdiff takes of the same weight. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "model/gguf/quant.h"
#include "tracer_rows.h"

static const int32_t tokens[] = {1, 2, 3};

Test(tracer_weights, of_every_type_and_layout_are_those_of_the_model) {
    enum { N_ROW = 24, N_COL = 64 };
    static const char *const types[] = {"F32", "f16", "BF16", "Q8_0", "Q4_0"};
    const char *path = fixture_path("weights.h5");
    float *rows = rows_of(0, N_ROW, N_COL), *turned = malloc(sizeof *turned * N_ROW * N_COL);
    char *held[5];
    memset(rows + (N_ROW - 2) * N_COL, 0, sizeof *rows * 2 * N_COL); /* half-loaded */
    memset(rows + 5 * N_COL, 0, sizeof *rows * N_COL);
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    for (int i = 0; i < 5; i++) {
        uint32_t dtype = (uint32_t)fd_dtype_parse(types[i]);
        size_t bytes = (size_t)fd_dtype_row_bytes(dtype, N_COL);
        held[i] = malloc(N_ROW * bytes);
        for (int r = 0; r < N_ROW; r++) fd_quantize_row(dtype, rows + r * N_COL, held[i] + (size_t)r * bytes, N_COL);
        fd_tracer_weight weight = {.name = types[i], .type = types[i], .data = held[i], .n_row = N_ROW, .n_col = N_COL};
        cr_assert_eq(fd_tracer_put_weight(tracer, &weight), 0, "%s", fd_tracer_error(tracer));
    }
    for (int r = 0; r < N_ROW; r++)
        for (int c = 0; c < N_COL; c++) turned[c * N_ROW + r] = rows[r * N_COL + c];
    fd_tracer_weight in_out = {
        .name = "in_out", .data = turned, .n_row = N_ROW, .n_col = N_COL, .row_stride = 1, .col_stride = N_ROW};
    fd_tracer_weight every_second = {.name = "every_second",
                                     .data = rows,
                                     .n_row = N_ROW / 2,
                                     .n_col = N_COL,
                                     .row_stride = 2 * N_COL,
                                     .col_stride = 1};
    cr_assert_eq(fd_tracer_put_weight(tracer, &in_out), 0, "%s", fd_tracer_error(tracer));
    cr_assert_eq(fd_tracer_put_weight(tracer, &every_second), 0, "%s", fd_tracer_error(tracer));
    cr_assert_eq(fd_tracer_put_weight_f32(tracer, "vector", rows, 1, N_COL), 0);
    fd_tracer_step(tracer, tokens, 1);
    close_well(tracer);
    for (int i = 0; i < 5; i++) {
        fixture_check_weight(path, types[i], (uint32_t)fd_dtype_parse(types[i]), held[i], N_ROW, N_COL);
        free(held[i]);
    }
    fixture_check_weight(path, "in_out", FD_F32, rows, N_ROW, N_COL);
    fixture_check_weight(path, "vector", FD_F32, rows, 1, N_COL);
    for (int r = 0; r < N_ROW / 2; r++) memcpy(turned + r * N_COL, rows + 2 * r * N_COL, sizeof *rows * N_COL);
    fixture_check_weight(path, "every_second", FD_F32, turned, N_ROW / 2, N_COL);
    free(rows);
    free(turned);
}

Test(tracer_weights, a_large_matrix_has_several_rows_in_a_hash) {
    const char *path = fixture_path("large.h5");
    float *rows = rows_of(0, 9001, 8);
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    fd_tracer_put_weight_f32(tracer, "token_embd.weight", rows, 9001, 8);
    fd_tracer_step(tracer, tokens, 1);
    close_well(tracer);
    fixture_check_weight(path, "token_embd.weight", FD_F32, rows, 9001, 8);
    free(rows);
}

/* Whenever they come; steps and rows stay, and what comes again stands for the last. */
Test(tracer_weights, may_come_before_between_and_after_steps) {
    const char *path = fixture_path("when.h5");
    for (int synchronous = 0; synchronous < 2; synchronous++) {
        fd_tracer_options options = {.synchronous = synchronous};
        fd_tracer *tracer = fd_tracer_open(path, &options);
        float *rows = rows_of(0, 3, 16), *other = rows_of(7, 3, 16);
        fd_tracer_put_weight_f32(tracer, "before", rows, 3, 16);
        fd_tracer_put_weight_f32(tracer, "again", rows, 3, 16);
        for (int step = 0; step < 3; step++) {
            fd_tracer_step(tracer, tokens, 1);
            fd_tracer_put_f32(tracer, "x", rows + step * 16, 1, 16);
            if (step == 1) fd_tracer_put_weight_f32(tracer, "inside", rows, 3, 16);
            if (step == 2 && synchronous) /* a step has ended since: in the file, though it goes on */
                fixture_check_weight(path, "inside", FD_F32, rows, 3, 16);
        }
        fd_tracer_put_weight_f32(tracer, "again", other, 3, 16);
        fd_tracer_put_weight_f32(tracer, "after", other, 3, 16);
        close_well(tracer);
        fixture_check_weight(path, "before", FD_F32, rows, 3, 16);
        fixture_check_weight(path, "inside", FD_F32, rows, 3, 16);
        fixture_check_weight(path, "again", FD_F32, other, 3, 16);
        fixture_check_weight(path, "after", FD_F32, other, 3, 16);
        fd_trace *trace = fixture_open(path);
        cr_assert_eq(fd_trace_n_pos(trace), 3);
        cr_expect(fd_trace_get_info(trace)->complete);
        for (int32_t pos = 0; pos < 3; pos++) check_row(trace, "x", pos, 16);
        fd_trace_close(trace);
        free(rows);
        free(other);
    }
}

static int n_copied;

static int copy(void *user, void *host, const void *device, size_t bytes, void *stream) {
    (void)stream;
    n_copied++;
    memcpy(host, (const char *)device - (ptrdiff_t)(intptr_t)user, bytes);
    return 0;
}

Test(tracer_weights, on_a_device_come_by_the_callers_copy) {
    const char *path = fixture_path("copied.h5");
    fd_tracer_options options = {.copy = copy, .copy_user = (void *)4096};
    float *rows = rows_of(0, 6, 32);
    const char *device = (const char *)rows + 4096;
    fd_tracer *tracer = fd_tracer_open(path, &options);
    fd_tracer_weight w = {.name = "w", .data = device, .n_row = 6, .n_col = 32, .on_device = 1};
    fd_tracer_weight in_out = {
        .name = "in_out", .data = device, .n_row = 32, .n_col = 6, .row_stride = 1, .col_stride = 32, .on_device = 1};
    cr_assert_eq(fd_tracer_put_weight(tracer, &w), 0, "%s", fd_tracer_error(tracer));
    cr_assert_eq(fd_tracer_put_weight(tracer, &in_out), 0, "%s", fd_tracer_error(tracer));
    cr_expect_eq(n_copied, 2);
    fd_tracer_step(tracer, tokens, 1);
    close_well(tracer);
    float turned[32 * 6];
    for (int r = 0; r < 32; r++)
        for (int c = 0; c < 6; c++) turned[r * 6 + c] = rows[c * 32 + r];
    fixture_check_weight(path, "w", FD_F32, rows, 6, 32);
    fixture_check_weight(path, "in_out", FD_F32, turned, 32, 6);
    free(rows);
}

Test(tracer_weights, that_make_no_sense_turn_the_trace_off) {
    static float data[64];
    static char long_name[193];
    memset(long_name, 'w', 192);
    static const struct {
        fd_tracer_weight weight;
        const char *says;
    } bad[] = {
        {{.data = data, .n_row = 2, .n_col = 8}, "weight without a name"},
        {{.name = "a/b", .data = data, .n_row = 2, .n_col = 8}, "weight name: byte 1 of it is '/'"},
        {{.name = long_name, .data = data, .n_row = 2, .n_col = 8}, "more than 191 bytes"},
        {{.name = "w", .n_row = 2, .n_col = 8}, "no data"},
        {{.name = "w", .data = data, .n_row = 0, .n_col = 8}, "0 rows of 8"},
        {{.name = "w", .data = data, .n_row = 2, .n_col = -8}, "2 rows of -8"},
        {{.name = "w", .data = data, .n_row = INT64_MAX, .n_col = 8}, "expected 1 to 2^31-1"},
        {{.name = "w", .type = "Q9_9", .data = data, .n_row = 2, .n_col = 8}, "type Q9_9, expected F32"},
        {{.name = "w", .type = "Q8_K", .data = data, .n_row = 2, .n_col = 8}, "type Q8_K, expected F32"},
        {{.name = "w", .type = "Q8_0", .data = data, .n_row = 1, .n_col = 48}, "whole blocks"},
        {{.name = "w", .type = "Q8_0", .data = data, .n_row = 1, .n_col = 32, .row_stride = 40, .col_stride = 1},
         "whole blocks"},
        {{.name = "w", .type = "Q8_0", .data = data, .n_row = 32, .n_col = 32, .row_stride = 1, .col_stride = 32},
         "whole blocks"},
        {{.name = "w", .data = data, .n_row = 4, .n_col = 8, .row_stride = 4, .col_stride = 1},
         "no two elements on one place"},
        {{.name = "w", .data = data, .n_row = 4, .n_col = 8, .row_stride = 8}, "no two elements on one place"},
        {{.name = "w", .data = data, .n_row = 4, .n_col = 8, .row_stride = -8, .col_stride = 1}, "strides -8 and 1"},
        {{.name = "w", .data = data, .n_row = 4, .n_col = 8, .row_stride = INT64_MAX / 2, .col_stride = 1}, "strides"},
    };
    const char *path = fixture_path("bad_weight.h5");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char message[1024];
        fd_tracer *tracer = fd_tracer_open(path, NULL);
        fd_tracer_step(tracer, tokens, 3);
        fd_tracer_step(tracer, tokens, 1);
        cr_expect_neq(fd_tracer_put_weight(tracer, &bad[i].weight), 0, "%s", bad[i].says);
        cr_expect(strstr(fd_tracer_error(tracer), bad[i].says), "%s: %s", bad[i].says, fd_tracer_error(tracer));
        cr_expect_neq(fd_tracer_put_weight_f32(tracer, "w", data, 2, 8), 0, "it is not off");
        cr_expect_neq(fd_tracer_close(tracer, message, sizeof message), 0);
        fd_trace *trace = fixture_open(path); /* the steps that had ended stay */
        cr_expect_eq(fd_trace_n_pos(trace), 3);
        fd_trace_close(trace);
    }
    cr_expect_neq(fd_tracer_put_weight(fd_tracer_open("/nonexistent/x.h5", NULL), &bad[0].weight), 0);
    cr_expect_eq(fd_tracer_put_weight(NULL, &bad[0].weight), 0);
}
