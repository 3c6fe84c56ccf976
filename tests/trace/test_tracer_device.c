/* Data on a device: recorded as it was when the stream came to the put, however often the buffer is used afterwards. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/client/firstdiff_trace.h"
#include "dumpers/store/trace.h"
#include "fake_cuda_driver.h"
#include "fixture.h"

static const int32_t tokens[] = {1, 2, 3, 4};
static float buffer[4 * 4096];

static fd_tracer_tensor on_device(const char *name, int64_t rows, int64_t width) {
    return (fd_tracer_tensor){
        .name = name, .dtype = FD_TRACER_F32, .data = buffer, .n_dim = 2, .shape = {rows, width}, .on_device = 1};
}

static fd_trace *closed(fd_tracer *tracer, const char *path) {
    char message[1024];
    cr_assert_eq(fd_tracer_close(tracer, message, sizeof message), 0, "%s", message);
    return fixture_open(path);
}

static double value_at(const fd_trace *trace, const char *name, int32_t pos, int64_t element) {
    static double row[1 << 16];
    fd_error err = {0};
    cr_assert_eq(fd_trace_read(trace, fd_trace_find(trace, name), pos, NULL, row, &err), FD_OK, "%s", err.message);
    return row[element];
}

Test(tracer_device, ping_pong_buffers_are_recorded_in_stream_order) {
    const char *path = fixture_path("device.h5");
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    for (int step = 0; step < 3; step++) {
        fd_tracer_step(tracer, tokens, 2);
        for (int layer = 0; layer < 24; layer++) {
            char name[32];
            snprintf(name, sizeof name, "blk.%d.l_out", layer);
            fake_fill(buffer, 2 * 4096, (float)(100 * step + layer), NULL); /* a kernel, into the one buffer there is */
            fd_tracer_tensor tensor = on_device(name, 2, 4096);
            cr_assert_eq(fd_tracer_put(tracer, &tensor), 0, "%s", fd_tracer_error(tracer));
            fake_fill(buffer, 2 * 4096, -1, NULL); /* used again at once */
            /* whoever reads the buffer now sees the last layer of the step before */
            cr_assert_eq(buffer[0], step == 0 ? 0 : 100 * (step - 1) + 23);
        }
        cr_expect_eq(fake_copies, 24, "the puts waited for the device");
    }
    fd_trace *trace = closed(tracer, path);
    for (int32_t pos = 0; pos < 6; pos++)
        for (int layer = 0; layer < 24; layer++) {
            char name[32];
            snprintf(name, sizeof name, "blk.%d.l_out", layer);
            cr_assert_eq(value_at(trace, name, pos, 4095), 100 * (pos / 2) + layer, "%s[%d]", name, pos);
        }
    fd_trace_close(trace);
    cr_expect_eq(fake_pinned, 0, "pinned memory was not given back");
    cr_expect_eq(fake_pushed, 0);
    cr_expect_eq(fake_copies, 0);
}

Test(tracer_device, strided_tensors_and_the_order_with_host_puts) {
    const char *path = fixture_path("device_strides.h5");
    for (int i = 0; i < 4 * 4096; i++) buffer[i] = (float)i;
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    fd_tracer_step(tracer, tokens, 3);
    fd_tracer_tensor transposed = on_device("transposed", 3, 5), sparse = on_device("sparse", 3, 4);
    transposed.stride[0] = 1;
    transposed.stride[1] = 3;
    sparse.stride[0] = 5000; /* rows far apart: a copy each */
    sparse.stride[1] = 1;
    fd_tracer_tensor cache = {.name = "cache",
                              .dtype = FD_TRACER_F32,
                              .data = buffer,
                              .n_dim = 3,
                              .shape = {3, 2, 4},
                              .stride = {4, 8000, 1},
                              .on_device = 1}; /* [head, position, …], heads far apart */
    fd_tracer_tensor twice = on_device("twice", 3, 4);
    float last[12] = {0};
    fd_tracer_put(tracer, &transposed);
    fd_tracer_put(tracer, &sparse);
    fd_tracer_put(tracer, &cache);
    fd_tracer_put(tracer, &twice);
    fd_tracer_put_f32(tracer, "twice", last, 3, 4); /* the later one holds */
    fake_fill(buffer, 4 * 4096, -1, NULL);
    fd_trace *trace = closed(tracer, path);
    for (int32_t pos = 0; pos < 3; pos++) {
        for (int i = 0; i < 5; i++) cr_expect_eq(value_at(trace, "transposed", pos, i), pos + 3 * i);
        for (int i = 0; i < 4; i++) {
            cr_expect_eq(value_at(trace, "sparse", pos, i), 5000 * pos + i);
            cr_expect_eq(value_at(trace, "cache", pos, 4 + i), 8000 + 4 * pos + i);
            cr_expect_eq(value_at(trace, "twice", pos, i), 0);
        }
    }
    fd_trace_close(trace);
}

Test(tracer_device, more_than_the_pinned_limit_in_one_step) {
    const char *path = fixture_path("device_much.h5");
    enum { WIDE = 1 << 21, N = 40 }; /* 40 × 8 MiB */
    float *big = malloc(WIDE * sizeof *big);
    fd_tracer_options options = {.memory = 32 << 20};
    fd_tracer *tracer = fd_tracer_open(path, &options);
    fd_tracer_step(tracer, tokens, 1);
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", i);
        fake_fill(big, WIDE, (float)i, NULL);
        fd_tracer_tensor tensor = {.name = name,
                                   .dtype = FD_TRACER_F32,
                                   .data = big,
                                   .n_dim = 2,
                                   .shape = {1, WIDE / 64},
                                   .stride = {WIDE, 64},
                                   .on_device = 1}; /* the whole row is copied: 64 in one is wanted */
        cr_assert_eq(fd_tracer_put(tracer, &tensor), 0, "%s", fd_tracer_error(tracer));
    }
    cr_expect_lt(fake_copies, N, "nothing was waited for");
    fd_trace *trace = closed(tracer, path);
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", i);
        cr_assert_eq(value_at(trace, name, 0, WIDE / 64 - 1), i, "%s", name);
    }
    fd_trace_close(trace);
    cr_expect_eq(fake_pinned, 0);
    free(big);
}

/* After what the stream computes before it, in pieces of pinned memory, next to a copy that is under way. */
Test(tracer_device, a_weight_is_what_the_stream_has_left) {
    enum { N_ROW = 5000, N_COL = 1024 }; /* 19.5 MiB */
    const char *path = fixture_path("device_weight.h5");
    float *w = malloc(sizeof *w * N_ROW * N_COL);
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    fd_tracer_step(tracer, tokens, 1);
    fake_fill(buffer, 16, 7, NULL);
    fd_tracer_tensor tensor = on_device("x", 1, 16);
    fd_tracer_put(tracer, &tensor);
    fake_fill(w, (size_t)N_ROW * N_COL, 3, NULL);
    fd_tracer_weight weight = {.name = "w", .data = w, .n_row = N_ROW, .n_col = N_COL, .on_device = 1};
    cr_assert_eq(fd_tracer_put_weight(tracer, &weight), 0, "%s", fd_tracer_error(tracer));
    fake_fill(w, (size_t)N_ROW * N_COL, -1, NULL);
    fd_trace *trace = closed(tracer, path);
    cr_expect_eq(value_at(trace, "x", 0, 15), 7);
    fd_trace_close(trace);
    for (int i = 0; i < N_ROW * N_COL; i++) w[i] = 3;
    fixture_check_weight(path, "w", FD_F32, w, N_ROW, N_COL);
    free(w);
    cr_expect_eq(fake_pinned, 0, "pinned memory was not given back");
    cr_expect_eq(fake_pushed, 0);
}

Test(tracer_device, failures_of_the_device_turn_the_trace_off) {
    static const struct {
        int failure;
        const char *says;
    } cases[] = {{1, "CUDA_ERROR_INVALID_VALUE"},
                 {2, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {3, "no pinned memory"},
                 {-1, "no CUDA context"},
                 {-2, "captured into a graph"}};
    for (size_t k = 0; k < 2 * (sizeof cases / sizeof *cases); k++) { /* a tensor, then a weight */
        size_t i = k / 2;
        char message[1024];
        fd_tracer *tracer = fd_tracer_open(fixture_path("device_bad.h5"), NULL);
        fd_tracer_tensor tensor = on_device("x", 1, 16);
        fd_tracer_weight weight = {.name = "x", .data = buffer, .n_row = 1, .n_col = 16, .on_device = 1};
        fd_tracer_step(tracer, tokens, 1);
        fake_failure = cases[i].failure;
        k % 2 ? fd_tracer_put_weight(tracer, &weight) : fd_tracer_put(tracer, &tensor);
        cr_expect_neq(fd_tracer_close(tracer, message, sizeof message), 0, "%zu", i);
        cr_expect(strstr(message, cases[i].says), "%zu: %s", i, message);
        cr_expect_eq(fake_pinned, 0, "%zu", i);
        fake_failure = 0;
    }
}

static int copy_back(void *user, void *host, const void *device, size_t bytes, void *stream) {
    int *calls = user;
    (*calls)++;
    if (stream != (void *)calls) return 5;
    memcpy(host, device, bytes);
    return 0;
}

Test(tracer_device, a_copy_function_of_the_caller) {
    const char *path = fixture_path("device_own.h5");
    int calls = 0;
    fd_tracer_options options = {.copy = copy_back, .copy_user = &calls};
    for (int i = 0; i < 64; i++) buffer[i] = (float)i;
    for (int wrong = 0; wrong < 2; wrong++) {
        fd_tracer *tracer = fd_tracer_open(path, &options);
        fd_tracer_tensor tensor = on_device("x", 4, 16);
        tensor.stream = wrong ? NULL : &calls;
        fd_tracer_step(tracer, tokens, 4);
        int failed = fd_tracer_put(tracer, &tensor);
        buffer[63] = -1;
        cr_expect_eq(failed != 0, wrong);
        if (wrong) {
            cr_expect(strstr(fd_tracer_error(tracer), "copy function returned 5"), "%s", fd_tracer_error(tracer));
            fd_tracer_close(tracer, NULL, 0);
            continue;
        }
        fd_trace *trace = closed(tracer, path);
        cr_expect_eq(value_at(trace, "x", 3, 15), 63);
        fd_trace_close(trace);
    }
    cr_expect_eq(calls, 2);
    cr_expect_eq(fake_copies, 0, "CUDA was used");
}
