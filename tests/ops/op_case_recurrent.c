#include "tests/ops/op_case_parts.h"

#include <math.h>

/* ---- state-space layers ---- */

static void set_cache(op_case *c, int32_t width) {
    int64_t n = (int64_t)c->args.n_kv * width;
    case_set_input(c, 0, case_floats(c, n), n, 2, 1, width);
    c->nodes[0].op = FD_OP_KV_WRITE;
}

op_case *case_conv(int32_t pos0, int32_t n_pos) {
    op_case *c = case_new(FD_OP_CONV, pos0, n_pos);
    set_cache(c, 40);
    case_set_weight(c, 0, FD_F32, 40, 4);
    case_set_weight(c, 1, FD_F32, 1, 40);
    case_set_shape(c, 2, 1, 40);
    return c;
}

op_case *case_ssm_scan(bool each_state, int32_t pos0, int32_t n_pos) {
    enum { HEADS = 4, DIM = 6, GROUPS = 2, STATE = 8, WIDTH = HEADS + HEADS * DIM + GROUPS * STATE };
    op_case *c = case_new(FD_OP_SSM_SCAN, pos0, n_pos);
    set_cache(c, WIDTH);
    for (int64_t i = 0; i < c->n_in[0]; i++) /* dt is positive */
        if (i % WIDTH < HEADS) c->in[0][i] = fabsf(c->in[0][i]);
    case_set_heads(c, 1, GROUPS, STATE);
    case_set_weight(c, 0, FD_F32, HEADS, each_state ? STATE : 1);
    case_set_weight(c, 1, FD_F32, each_state ? 1 : HEADS, each_state ? HEADS : 1);
    float *a = (float *)c->weights[0].data; /* the case's own */
    for (int i = 0; i < HEADS * (each_state ? STATE : 1); i++) a[i] = -fabsf(a[i]) - 0.1f;
    case_set_shape(c, 2, HEADS, DIM);
    return c;
}

/* ---- linear attention ---- */

op_case *case_token_shift(int32_t pos0, int32_t n_pos) {
    op_case *c = case_new(FD_OP_TOKEN_SHIFT, pos0, n_pos);
    set_cache(c, 40);
    case_set_weight(c, 0, FD_F32, 1, 40);
    case_set_shape(c, 1, 40, 0);
    return c;
}

static void make_unit(float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) x[i] /= sqrtf(sum);
}

op_case *case_gated_delta(int32_t pos0, int32_t n_pos) {
    enum { KEYS = 2, EACH = 2, KEY = 8, DIM = 6, OF_KEY = 2 * EACH + KEY + EACH * DIM };
    op_case *c = case_new(FD_OP_GATED_DELTA, pos0, n_pos);
    set_cache(c, KEYS * OF_KEY);
    for (float *row = c->in[0]; row < c->in[0] + c->n_in[0]; row += OF_KEY) {
        for (int i = 0; i < EACH; i++) { /* it decays, and is corrected by a part */
            row[i] = -fabsf(row[i]);
            row[EACH + i] = fabsf(row[EACH + i]);
        }
        make_unit(row + 2 * EACH, KEY);
    }
    case_set_heads(c, 1, KEYS, KEY);
    case_set_shape(c, 2, KEYS * EACH, DIM);
    c->nodes[2].scale = 0.375f;
    return c;
}

op_case *case_wkv7(int32_t pos0, int32_t n_pos) {
    enum { HEADS = 3, DIM = 8 };
    op_case *c = case_new(FD_OP_WKV7, pos0, n_pos);
    set_cache(c, HEADS * 5 * DIM);
    for (float *w = c->in[0]; w < c->in[0] + c->n_in[0]; w += 5 * DIM) {
        float *a = w + 3 * DIM, *b = w + 4 * DIM;
        make_unit(a, DIM);
        for (int i = 0; i < DIM; i++) {
            w[i] = 0.55f + 0.45f * fabsf(w[i]);
            b[i] = -a[i] * fabsf(b[i]); /* what a reads is taken away, in part */
        }
    }
    case_set_heads(c, 1, HEADS, DIM);
    case_set_shape(c, 2, HEADS, DIM);
    return c;
}
