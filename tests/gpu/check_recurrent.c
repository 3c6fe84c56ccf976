/* SSM_SCAN, GATED_DELTA, WKV7, CONV, TOKEN_SHIFT against scalar C: from position 0 on, from a kept state on, and with a
 * wrong one, which must show. */
#include <stdio.h>

#include "kernels/recurrent/recurrent.h"
#include "tests/gpu/kernel_check.h"
#include "tests/gpu/op_of_two.h"

enum { POS0 = 37, N_ROW = POS0 + 2 * OP_ROWS };

/* ---- a state over a op_first ---- */

/* Launches the op's kernel with these rows and this kept state. */
typedef void (*launch_fn)(gpu_test *test, const op_of_two *o, const fd_recurrent_rows *rows, const float *read,
                          fd_kept_state kept, const float *const *weights);

static void check_state(gpu_test *test, op_of_two *o, const char *name, launch_fn launch, const float *const *weights) {
    const size_t width = (size_t)fd_node_width(&o->nodes[0]), n_read = (size_t)fd_node_width(&o->nodes[1]);
    const size_t n_item = (size_t)fd_node_width(&o->nodes[2]), n_state = n_item * (size_t)o->nodes[1].shape[1];
    op_fill(test, op_first, width * N_ROW);
    op_fill(test, op_second, n_read * OP_ROWS);
    fd_recurrent_rows rows = {.cache = gpu_upload(test, op_first, sizeof *op_first * width * N_ROW), .n_tok = OP_ROWS};
    const float *read = gpu_upload(test, op_second, sizeof *op_second * n_read * OP_ROWS);
    int32_t positions[] = {0, POS0, POS0 + OP_ROWS};
    const int32_t *at = (const int32_t *)(const void *)gpu_upload(test, positions, sizeof positions);
    void *zeros = gpu_host(test, sizeof(float) * n_state);
    fd_kept_state kept = {.state = gpu_upload(test, zeros, sizeof(float) * n_state),
                          .position = (int32_t *)(void *)gpu_upload(test, zeros, sizeof(int32_t) * n_item)};
    static const struct {
        int position; /* of positions */
        bool keeps;
        const char *how;
    } steps[] = {{0, false, "from position 0, nothing kept"},
                 {1, false, "from position 37, nothing kept"},
                 {1, true, "from position 37, a state of another position"},
                 {2, true, "from the kept state"},
                 {1, true, "back at position 37"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        rows.pos0 = at + steps[i].position;
        rows.out = gpu_poisoned(test, OP_ROWS * n_item);
        launch(test, o, &rows, read, steps[i].keeps ? kept : (fd_kept_state){0}, weights);
        op_compare(test, name, steps[i].how, rows.out, op_reference(o, positions[steps[i].position]), true);
    }
    /* Of the right position, and zero: the gate above can fail. */
    int32_t *taken = gpu_host(test, sizeof *taken * n_item);
    for (size_t i = 0; i < n_item; i++) taken[i] = POS0;
    kept = (fd_kept_state){.state = gpu_upload(test, zeros, sizeof(float) * n_state),
                           .position = (int32_t *)(void *)gpu_upload(test, taken, sizeof *taken * n_item)};
    rows.pos0 = at + 1;
    launch(test, o, &rows, read, kept, weights);
    op_compare(test, name, "a lost state shows", rows.out, op_reference(o, POS0), false);
    gpu_release(test);
}

static void launch_ssm(gpu_test *test, const op_of_two *o, const fd_recurrent_rows *rows, const float *read,
                       fd_kept_state kept, const float *const *weights) {
    fd_error err = {0};
    fd_ssm_scan in = {.rows = *rows,
                      .c = read,
                      .a = weights[0],
                      .d = weights[1],
                      .a_each = o->weights[0].n_col > 1,
                      .n_head = o->nodes[2].shape[0],
                      .n_dim = o->nodes[2].shape[1],
                      .n_group = o->nodes[1].shape[0],
                      .n_state = o->nodes[1].shape[1],
                      .kept = kept};
    gpu_must(fd_launch_ssm_scan(&test->queue, &in, &err), &err);
}

static void check_ssm(gpu_test *test, int32_t n_head, int32_t n_dim, int32_t n_group, int32_t n_state, bool a_each) {
    op_of_two o;
    char name[96];
    op_begin(&o, FD_OP_SSM_SCAN);
    op_shape(&o, 0, n_head + n_head * n_dim + n_group * n_state, 0);
    op_shape(&o, 1, n_group, n_state);
    op_shape(&o, 2, n_head, n_dim);
    const float *weights[2] = {op_weight(test, &o, 0, n_head, a_each ? n_state : 1), op_weight(test, &o, 1, 1, n_head)};
    snprintf(name, sizeof name, "ssm_scan %d x %d, %d groups, state %d%s", n_head, n_dim, n_group, n_state,
             a_each ? ", A of each" : "");
    check_state(test, &o, name, launch_ssm, weights);
}

static void launch_delta(gpu_test *test, const op_of_two *o, const fd_recurrent_rows *rows, const float *read,
                         fd_kept_state kept, const float *const *weights) {
    (void)weights;
    fd_error err = {0};
    fd_gated_delta in = {.rows = *rows,
                         .q = read,
                         .n_key = o->nodes[1].shape[0],
                         .each = o->nodes[2].shape[0] / o->nodes[1].shape[0],
                         .n_dim = o->nodes[2].shape[1],
                         .n_state = o->nodes[1].shape[1],
                         .scale = o->nodes[2].scale,
                         .kept = kept};
    gpu_must(fd_launch_gated_delta(&test->queue, &in, &err), &err);
}

static void check_delta(gpu_test *test, int32_t n_key, int32_t each, int32_t n_dim, int32_t n_state) {
    op_of_two o;
    char name[96];
    op_begin(&o, FD_OP_GATED_DELTA);
    op_shape(&o, 0, n_key * (2 * each + n_state + each * n_dim), 0);
    op_shape(&o, 1, n_key, n_state);
    op_shape(&o, 2, n_key * each, n_dim);
    o.nodes[2].scale = 0.125f;
    snprintf(name, sizeof name, "gated_delta %d x %d heads of %d, state %d", n_key, each, n_dim, n_state);
    check_state(test, &o, name, launch_delta, NULL);
}

static void launch_wkv7(gpu_test *test, const op_of_two *o, const fd_recurrent_rows *rows, const float *read,
                        fd_kept_state kept, const float *const *weights) {
    (void)weights;
    fd_error err = {0};
    fd_wkv7 in = {
        .rows = *rows, .r = read, .n_head = o->nodes[2].shape[0], .n_state = o->nodes[2].shape[1], .kept = kept};
    gpu_must(fd_launch_wkv7(&test->queue, &in, &err), &err);
}

static void check_wkv7(gpu_test *test, int32_t n_head, int32_t n) {
    op_of_two o;
    char name[96];
    op_begin(&o, FD_OP_WKV7);
    op_shape(&o, 0, n_head, 5 * n);
    op_shape(&o, 1, n_head, n);
    op_shape(&o, 2, n_head, n);
    snprintf(name, sizeof name, "wkv7 %d heads of %d", n_head, n);
    check_state(test, &o, name, launch_wkv7, NULL);
}

/* ---- a row and those before it ---- */

static void check_rows_before(gpu_test *test, int32_t n, int32_t n_tap, bool bias, int32_t pos0) {
    op_of_two o;
    char name[96];
    fd_error err = {0};
    op_fill(test, op_first, (size_t)n * N_ROW);
    fd_recurrent_rows rows = {
        .cache = gpu_upload(test, op_first, sizeof *op_first * (size_t)n * N_ROW),
        .pos0 = (const int32_t *)(const void *)gpu_upload(test, &pos0, sizeof pos0),
        .n_tok = OP_ROWS,
        .out = gpu_poisoned(test, (size_t)(OP_ROWS * n)),
    };
    op_begin(&o, n_tap ? FD_OP_CONV : FD_OP_TOKEN_SHIFT);
    op_shape(&o, 0, n, 0);
    op_shape(&o, 2, n, 0);
    const float *w = n_tap ? op_weight(test, &o, 0, n, n_tap) : op_weight(test, &o, 0, 1, n);
    fd_conv conv = {.rows = rows, .weight = w, .n = n, .n_tap = n_tap};
    if (bias) conv.bias = op_weight(test, &o, 1, 1, n);
    gpu_must(n_tap ? fd_launch_conv(&test->queue, &conv, &err) : fd_launch_token_shift(&test->queue, &rows, w, n, &err),
             &err);
    snprintf(name, sizeof name, "%s of %d, %d taps%s, from %d", n_tap ? "conv" : "token_shift", n, n_tap,
             bias ? ", bias" : "", pos0);
    op_compare(test, name, "every bit", rows.out, op_reference(&o, pos0), true);
    gpu_release(test);
}

void check_recurrent(gpu_test *test) {
    check_ssm(test, 48, 1, 1, 16, true); /* mamba */
    check_ssm(test, 6, 8, 2, 40, false); /* mamba2 */
    check_ssm(test, 3, 33, 1, 256, true);
    static const int32_t states[] = {16, 63, 64, 65, 128, 256};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        check_delta(test, 2, 1 + (int32_t)i % 3, 10, states[i]);
        check_wkv7(test, 3, states[i]);
    }
    static const int32_t widths[] = {1, 33, 300};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int from = 0; from < 2; from++) {
            check_rows_before(test, widths[i], 4, from, from * POS0);
            check_rows_before(test, widths[i], 0, false, from * POS0);
        }
}
