/* libfirstdiff_trace as an engine uses it: what was put is what firstdiff's reader finds. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/firstdiff_trace.h"
#include "dumpers/trace.h"
#include "fixture.h"

static const int32_t tokens[] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22};

/* Element i of row `pos`: exact in every element type. */
static float value_of(int64_t pos, int64_t i) {
    return (float)((pos * 31 + i * 7) % 61) - 30;
}

static float *rows_of(int64_t first, int64_t n, int64_t width) {
    float *rows = malloc((size_t)(n * width) * sizeof *rows);
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < width; i++) rows[r * width + i] = value_of(first + r, i);
    return rows;
}

static void close_well(fd_tracer *tracer) {
    char message[1024];
    int failed = fd_tracer_close(tracer, message, sizeof message);
    cr_assert_eq(failed, 0, "%s", message);
    cr_assert_str_eq(message, "");
}

static fd_trace *read_back(const char *path) {
    fd_trace *trace;
    fd_error err = {0};
    cr_assert_eq(fd_trace_open(path, &trace, &err), FD_OK, "%s", err.message);
    return trace;
}

static void check_row(const fd_trace *trace, const char *name, int32_t pos, int64_t n) {
    fd_error err = {0};
    double *row = malloc((size_t)n * sizeof *row);
    int32_t node = fd_trace_find(trace, name);
    cr_assert_geq(node, 0, "no %s", name);
    cr_assert_eq(fd_trace_elements(fd_trace_node_at(trace, node), pos), n, "%s", name);
    cr_assert_eq(fd_trace_read(trace, node, pos, NULL, row, &err), FD_OK, "%s", err.message);
    for (int64_t i = 0; i < n; i++)
        cr_assert_eq(row[i], (double)value_of(pos, i), "%s[%d, %lld]: %g", name, pos, (long long)i, row[i]);
    free(row);
}

Test(tracer, steps_tokens_and_attributes_are_read_back) {
    const char *path = fixture_path("tracer.h5"), *model = fixture_path("tracer.model");
    FILE *file = fopen(model, "w");
    fputs("not much of a model", file);
    fclose(file);
    fd_tracer_options options = {.engine = "mine 0.3",
                                 .numerics = "f16",
                                 .kv_type = "f16",
                                 .device = "a card",
                                 .model_file = model,
                                 .prompt = "Grüße"};
    fd_tracer *tracer = fd_tracer_open(path, &options);
    int32_t fed = 0;
    for (int step = 0; step < 4; step++) {
        int32_t n = step == 0 ? 7 : step == 2 ? 3 : 1;
        float *x = rows_of(fed, n, 24);
        cr_assert_eq(fd_tracer_step(tracer, tokens + fed, n), 0);
        cr_assert_eq(fd_tracer_put_f32(tracer, "token_embd", x, n, 24), 0);
        memset(x, 0xff, (size_t)n * 24 * sizeof *x); /* the host reuses its buffer */
        free(x);
        fed += n;
    }
    close_well(tracer);
    fd_trace *trace = read_back(path);
    const fd_trace_info *info = fd_trace_get_info(trace);
    char hash[48];
    fd_model_hash("not much of a model", 19, hash);
    cr_expect_str_eq(info->producer, "mine 0.3");
    cr_expect_str_eq(info->numerics, "f16");
    cr_expect_str_eq(info->kv_type, "f16");
    cr_expect_str_eq(info->device, "a card");
    cr_expect_str_eq(info->model_hash, hash);
    cr_expect_str_eq(info->prompt, "Grüße");
    cr_expect(info->complete);
    cr_expect_neq(info->finished[0], '\0');
    cr_assert_eq(fd_trace_n_pos(trace), 12);
    cr_assert_eq(fd_trace_n_step(trace), 4);
    cr_expect_eq(fd_trace_steps(trace)[1].kind, FD_STEP_DECODE);
    cr_expect_eq(fd_trace_steps(trace)[2].kind, FD_STEP_PREFILL);
    for (int32_t pos = 0; pos < 12; pos++) {
        cr_expect_eq(fd_trace_tokens(trace)[pos], tokens[pos]);
        check_row(trace, "token_embd", pos, 24);
    }
    fd_trace_close(trace);
}

/* ---- forms of data ---- */

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

Test(tracer, every_type_and_layout_is_read_back_element_by_element) {
    const char *path = fixture_path("tracer_forms.h5");
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    enum { N = sizeof forms / sizeof *forms };
    for (int step = 0; step < 2; step++) {
        fd_tracer_step(tracer, tokens, 3);
        for (int i = 0; i < N; i++) put_form(tracer, &forms[step == 0 ? i : N - 1 - i], step * 3); /* any order */
    }
    close_well(tracer);
    fd_trace *trace = read_back(path);
    for (int i = 0; i < N; i++) {
        const fd_trace_node *node = fd_trace_node_at(trace, fd_trace_find(trace, forms[i].name));
        cr_expect_eq(node->dtype, forms[i].stored, "%s", forms[i].name);
        cr_expect_eq(node->n_dim, forms[i].n_dim, "%s", forms[i].name);
        for (int d = 0; d < forms[i].n_dim; d++) cr_expect_eq(node->shape[d], forms[i].shape[d], "%s", forms[i].name);
        for (int32_t pos = 0; pos < 6; pos++) check_row(trace, forms[i].name, pos, 24);
    }
    fd_trace_close(trace);
}

/* ---- parts ---- */

Test(tracer, parts_in_any_order_and_whole_caches_are_one_tensor) {
    const char *path = fixture_path("tracer_parts.h5");
    for (int way = 0; way < 4; way++) { /* every put is written at once, or held; by a thread, or by the calls */
        fd_tracer_options options = {.memory = way % 2, .synchronous = way / 2};
        fd_tracer *tracer = fd_tracer_open(path, &options);
        float *all = rows_of(0, 12, 16);
        fd_tracer_step(tracer, tokens, 6);
        static const int64_t parts[][2] = {{4, 2}, {0, 1}, {1, 3}};
        for (int i = 0; i < 3; i++) {
            fd_tracer_tensor part = {.name = "part",
                                     .dtype = FD_TRACER_F32,
                                     .data = all + parts[i][0] * 16,
                                     .n_dim = 2,
                                     .shape = {parts[i][1], 16},
                                     .first = parts[i][0],
                                     .count = parts[i][1]};
            cr_assert_eq(fd_tracer_put(tracer, &part), 0, "%s", fd_tracer_error(tracer));
        }
        fd_tracer_put_f32(tracer, "twice", all + 16, 6, 16); /* wrong rows, put right below */
        fd_tracer_put_f32(tracer, "twice", all, 6, 16);
        fd_tracer_put_f32(tracer, "cache", all, 6, 16);
        fd_tracer_step(tracer, tokens + 6, 6);
        fd_tracer_put_f32(tracer, "part", all + 6 * 16, 6, 16);
        fd_tracer_put_f32(tracer, "twice", all + 6 * 16, 6, 16);
        for (int i = 0; i < 6 * 16; i++) all[i] = NAN; /* rows of earlier steps are not looked at again */
        fd_tracer_tensor cache = {
            .name = "cache", .dtype = FD_TRACER_F32, .data = all, .n_dim = 3, .shape = {12, 2, 8}, .count = 12};
        cr_assert_eq(fd_tracer_put(tracer, &cache), 0, "%s", fd_tracer_error(tracer));
        free(all);
        close_well(tracer);
        fd_trace *trace = read_back(path);
        for (int32_t pos = 0; pos < 12; pos++) {
            check_row(trace, "part", pos, 16);
            check_row(trace, "twice", pos, 16);
            check_row(trace, "cache", pos, 16);
        }
        fd_trace_close(trace);
    }
}

Test(tracer, attention_rows_are_as_long_as_their_position) {
    const char *path = fixture_path("tracer_attention.h5");
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    float scores[5 * 2 * 9];
    for (int step = 0; step < 2; step++) { /* 5 positions with room for 9 keys, then 1 with just its 6 */
        int n = step == 0 ? 5 : 1, keys = step == 0 ? 9 : 6, pos0 = step * 5;
        for (int i = 0; i < n * 2 * keys; i++) scores[i] = NAN;
        for (int r = 0; r < n; r++)
            for (int h = 0; h < 2; h++)
                for (int k = 0; k <= pos0 + r; k++)
                    scores[(r * 2 + h) * keys + k] = value_of(pos0 + r, h * (pos0 + r + 1) + k);
        fd_tracer_step(tracer, tokens, n);
        cr_assert_eq(fd_tracer_put_attention(tracer, "blk.0.attn_scores", scores, n, 2, keys), 0);
    }
    close_well(tracer);
    fd_trace *trace = read_back(path);
    const fd_trace_node *node = fd_trace_node_at(trace, 0);
    cr_expect(node->over_kv);
    cr_expect_eq(node->layer, 0);
    for (int32_t pos = 0; pos < 6; pos++) check_row(trace, "blk.0.attn_scores", pos, 2 * (pos + 1));
    fd_trace_close(trace);
}

Test(tracer, what_was_not_put_is_missing_and_late_names_join) {
    const char *path = fixture_path("tracer_holes.h5");
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    float *x = rows_of(0, 12, 8);
    fd_tracer_step(tracer, tokens, 4);
    fd_tracer_put_f32(tracer, "blk.0.l_out", x, 4, 8);
    fd_tracer_tensor last = {.name = "logits",
                             .dtype = FD_TRACER_F32,
                             .data = x + 3 * 8,
                             .n_dim = 2,
                             .shape = {1, 8},
                             .first = 3,
                             .count = 1};
    fd_tracer_put(tracer, &last);
    for (int pos = 4; pos < 8; pos++) {
        fd_tracer_step(tracer, tokens + pos, 1);
        fd_tracer_put_f32(tracer, "logits", x + pos * 8, 1, 8);
        if (pos > 4) fd_tracer_put_f32(tracer, pos > 6 ? "latest" : "late", x + pos * 8, 1, 8);
    }
    close_well(tracer);
    static const struct {
        const char *name;
        const char *held; /* a letter a position: x held */
    } expected[] = {{"blk.0.l_out", "xxxx...."}, {"logits", "...xxxxx"}, {"late", ".....xx."}, {"latest", ".......x"}};
    fd_trace *trace = read_back(path);
    cr_assert_eq(fd_trace_n_node(trace), 4);
    for (int i = 0; i < 4; i++)
        for (int32_t pos = 0; pos < 8; pos++) {
            float row[8];
            fd_error err = {0};
            int32_t node = fd_trace_find(trace, expected[i].name);
            fd_code code = fd_trace_read(trace, node, pos, row, NULL, &err);
            cr_assert_eq(code, expected[i].held[pos] == 'x' ? FD_OK : FD_ERR_INCOMPLETE, "%s[%d]: %d %s",
                         expected[i].name, pos, (int)code, err.message);
            if (code == FD_OK) check_row(trace, expected[i].name, pos, 8);
        }
    fd_trace_close(trace);
    free(x);
}

Test(tracer, fingerprints_are_those_of_the_elements) {
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
    fd_trace *trace = read_back(path);
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

/* ---- threads ---- */

enum { N_THREAD = 4, N_EACH = 25 };
typedef struct worker {
    fd_tracer *tracer;
    int id;
    int32_t pos0, n;
} worker;

static void *put_many(void *user) {
    const worker *w = user;
    float *x = rows_of(w->pos0, w->n, 32);
    for (int i = 0; i < N_EACH; i++) {
        char name[64];
        snprintf(name, sizeof name, "t%d.%d", w->id, i);
        fd_tracer_put_f32(w->tracer, name, x, w->n, 32);
        /* and a row each of a common tensor */
        if (w->id < w->n) {
            fd_tracer_tensor part = {.name = "common",
                                     .dtype = FD_TRACER_F32,
                                     .data = x + w->id * 32,
                                     .n_dim = 2,
                                     .shape = {1, 32},
                                     .first = w->pos0 + w->id,
                                     .count = 1};
            fd_tracer_put(w->tracer, &part);
        }
    }
    free(x);
    return NULL;
}

Test(tracer, several_threads_put_at_once) {
    const char *path = fixture_path("tracer_threads.h5");
    fd_tracer_options options = {.memory = 20000}; /* some are written while others put */
    fd_tracer *tracer = fd_tracer_open(path, &options);
    for (int step = 0; step < 3; step++) {
        pthread_t threads[N_THREAD];
        worker workers[N_THREAD];
        fd_tracer_step(tracer, tokens, N_THREAD);
        for (int t = 0; t < N_THREAD; t++) {
            workers[t] = (worker){tracer, t, step * N_THREAD, N_THREAD};
            pthread_create(&threads[t], NULL, put_many, &workers[t]);
        }
        for (int t = 0; t < N_THREAD; t++) pthread_join(threads[t], NULL);
    }
    close_well(tracer);
    fd_trace *trace = read_back(path);
    cr_assert_eq(fd_trace_n_node(trace), N_THREAD * N_EACH + 1);
    for (int32_t pos = 0; pos < 3 * N_THREAD; pos++) {
        check_row(trace, "common", pos, 32);
        check_row(trace, "t3.24", pos, 32);
        check_row(trace, "t0.0", pos, 32);
    }
    fd_trace_close(trace);
}

Test(tracer, two_traces_in_two_threads_at_once) {
    fd_tracer *tracers[2];
    pthread_t threads[2];
    worker workers[2];
    char paths[2][256];
    for (int t = 0; t < 2; t++) {
        snprintf(paths[t], sizeof paths[t], "%s", fixture_path(t ? "tracer_two_b.h5" : "tracer_two_a.h5"));
        fd_tracer_options options = {.memory = 1};
        tracers[t] = fd_tracer_open(paths[t], &options);
        fd_tracer_step(tracers[t], tokens, 2);
        workers[t] = (worker){tracers[t], t, 0, 2};
        pthread_create(&threads[t], NULL, put_many, &workers[t]);
    }
    for (int t = 0; t < 2; t++) {
        pthread_join(threads[t], NULL);
        close_well(tracers[t]);
        fd_trace *trace = read_back(paths[t]);
        for (int32_t pos = 0; pos < 2; pos++) check_row(trace, t ? "t1.7" : "t0.7", pos, 32);
        fd_trace_close(trace);
    }
}

Test(tracer, without_the_environment_variable_nothing_happens) {
    unsetenv("FIRSTDIFF_TRACE");
    fd_tracer *tracer = fd_tracer_open(NULL, NULL);
    cr_assert_null(tracer);
    cr_expect_eq(fd_tracer_step(tracer, tokens, 1), 0);
    cr_expect_eq(fd_tracer_put_f32(tracer, "x", NULL, 1, 1), 0);
    cr_expect_null(fd_tracer_error(tracer));
    close_well(tracer);
    const char *path = fixture_path("tracer_env.h5");
    setenv("FIRSTDIFF_TRACE", path, 1);
    tracer = fd_tracer_open(NULL, NULL);
    cr_assert_not_null(tracer);
    float one = value_of(0, 0);
    fd_tracer_step(tracer, tokens, 1);
    fd_tracer_put_f32(tracer, "x", &one, 1, 1);
    close_well(tracer);
    fd_trace *trace = read_back(path);
    check_row(trace, "x", 0, 1);
    fd_trace_close(trace);
}
