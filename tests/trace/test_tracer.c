/* libfirstdiff_trace as an engine uses it: what was put is what firstdiff's reader finds. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "tracer_rows.h"

static const int32_t tokens[] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22};

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
    fd_trace *trace = fixture_open(path);
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
        fd_trace *trace = fixture_open(path);
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
    fd_trace *trace = fixture_open(path);
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
    fd_trace *trace = fixture_open(path);
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
    fd_trace *trace = fixture_open(path);
    check_row(trace, "x", 0, 1);
    fd_trace_close(trace);
}
