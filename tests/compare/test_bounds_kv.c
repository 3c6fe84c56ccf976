/* The bound of a cache row that is kept in blocks: an engine whose K or V is off by as much as is known of it, and which
 * may so take the other of two neighbouring steps, is within; one step more or less anywhere else is not. */
#include <criterion/criterion.h>
#include <math.h>

#include "compare/bounds/bounds.h"
#include "model/gguf/quant.h"
#include "tests/ops/op_case.h"

enum { WIDTH = 64, ROWS = 500, N = WIDTH * ROWS };

static const uint32_t types[] = {FD_Q8_0, FD_Q4_0, FD_Q4_1, FD_Q5_0, FD_Q5_1, FD_IQ4_NL};

static void as_blocks(uint32_t type, const float *x, float *out) {
    char blocks[128];
    fd_quantize_row(type, x, blocks, WIDTH);
    fd_dequantize_row(type, blocks, out, WIDTH);
}

/* Q8_0 by an engine that divides by the scale as the block keeps it, in binary16. */
static void by_kept_scale(const float *x, float *out) {
    for (int at = 0; at < WIDTH; at += 32) {
        float most = 0;
        for (int i = at; i < at + 32; i++) most = fmaxf(most, fabsf(x[i]));
        float scale = fd_f16_to_f32(fd_f32_to_f16(most / 127));
        for (int i = at; i < at + 32; i++) out[i] = scale * fminf(127, fmaxf(-127, rintf(x[i] / scale)));
    }
}

Test(bounds_kv, integers_counted_by_the_scale_that_the_block_keeps_are_within) {
    static double x[N], y[N], tau[N];
    static const double none[N];
    op_case *c = case_kv_write(WIDTH, 0, ROWS, ROWS, 0);
    int n_differ = 0, n_beyond = 0, n_open = 0;
    for (int at = 0; at < N; at += WIDTH) {
        float blocks[WIDTH], own[WIDTH];
        as_blocks(FD_Q8_0, (const float *)c->in[0] + at, blocks);
        by_kept_scale((const float *)c->in[0] + at, own);
        for (int i = 0; i < WIDTH; i++) {
            x[at + i] = (double)((const float *)c->in[0])[at + i];
            tau[at + i] = 0;
            y[at + i] = (double)(own[i] - blocks[i]);
        }
    }
    fd_bound_kv_flips(x, none, N, FD_Q8_0, tau);
    for (int i = 0; i < N; i++) {
        n_differ += y[i] < 0 || y[i] > 0;
        n_beyond += !(fabs(y[i]) <= tau[i]);
        n_open += tau[i] > 4e-3;
    }
    cr_expect(n_differ > 0 && n_beyond == 0, "%d steps differ, %d beyond the bound", n_differ, n_beyond);
    cr_expect(n_open < N / 20, "%d of %d elements are open", n_open, N);
    case_free(c);
}

Test(bounds_kv, other_steps_are_within_where_rounding_may_take_them_and_beyond_elsewhere) {
    static double x[N], e[N], y[N], candidate[N], tau[N];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        op_case *c = case_kv_write(WIDTH, 0, ROWS, ROWS, 0);
        float known[WIDTH], own[WIDTH], blocks[WIDTH];
        int n_flipped = 0;
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < WIDTH; i++) {
                int at = r * WIDTH + i;
                known[i] = c->in[0][at];
                x[at] = (double)known[i];
                e[at] = 2e-5;
                own[i] = (float)(x[at] + e[at] * (i % 2 ? 1 : -1));
            }
            as_blocks(types[t], known, blocks);
            for (int i = 0; i < WIDTH; i++) y[r * WIDTH + i] = (double)blocks[i];
            as_blocks(types[t], own, blocks);
            for (int i = 0; i < WIDTH; i++) candidate[r * WIDTH + i] = (double)blocks[i];
        }
        fd_op_args op = c->args;
        op.in[0] = x;
        op.out = y;
        fd_bound_args args = {.op = &op,
                              .in_error[0] = e,
                              .candidate = candidate,
                              .stored = FD_F64,
                              .kv_type = types[t],
                              .numerics = fd_numerics_class_find("q8"),
                              .n_output = 1e6};
        fd_error err = {0};
        cr_assert_eq(fd_bound(&args, tau, &err), FD_OK, "%s", err.message);
        int n_beyond = 0, n_open = 0;
        for (int i = 0; i < N; i++) {
            n_flipped += candidate[i] != y[i];
            n_beyond += !(fd_bound_z(candidate[i], y[i], tau[i]) <= 1);
            n_open += tau[i] > 4e-3;
        }
        cr_expect(n_flipped > 0 && n_beyond == 0, "%s: %d steps differ, %d beyond the bound",
                  fd_dtype_get(types[t])->name, n_flipped, n_beyond);
        /* A step is 1/127 and more of nearly 1: beyond everywhere but where the bound is open for two. */
        cr_expect(n_open < N / 20, "%s: %d of %d elements are open", fd_dtype_get(types[t])->name, n_open, N);
        case_free(c);
    }
}
